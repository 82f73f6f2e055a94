/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * spawn MODE: make processes and say what each cost.
 *
 * The first three modes are lmbench's process latencies: one child at a time,
 * waited for, the mean over N on CLOCK_MONOTONIC. "browser" is the workload of
 * the PiBooster paper (section 5.1): tabs are opened one by one, each a process
 * that touches memory of its own, all live together, then all are closed.
 *
 * Output is machine-readable, one record a line, printed only after the
 * measurement so that the console's cost stays out of it:
 *
 *   fork_exit ns=NANOSECONDS n=PROCESSES    mean of one process
 *   tick ns=NANOSECONDS                     since the start, one a tick
 */
#include <err.h>
#include <errno.h>
#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <time.h>

#include "marker.h"

#define PAGE 4096UL

static const char usage_text[] =
	"usage: spawn MODE [options]\n"
	"\n"
	"modes:\n"
	"  fork-exit   fork, child exits\n"
	"  fork-exec   fork, child runs /bin/true\n"
	"  fork-sh     fork, child runs /bin/sh -c /bin/true\n"
	"  browser     open tabs one by one, then close them all\n"
	"\n"
	"options:\n"
	"  -n, --count N        processes to make (browser: rounds of all tabs)\n"
	"  -k, --tick K         write a tick into QEMU's trace every K processes\n"
	"  -t, --tabs N         browser: tabs open at once (default 8)\n"
	"  -m, --mib N          browser: MiB each tab touches (default 4)\n";

enum mode { FORK_EXIT, FORK_EXEC, FORK_SH, BROWSER, MODES };

static const struct {
	const char *argument;
	const char *record;
} modes[MODES] = {
	[FORK_EXIT] = { "fork-exit", "fork_exit" },
	[FORK_EXEC] = { "fork-exec", "fork_exec" },
	[FORK_SH] = { "fork-sh", "fork_sh" },
	[BROWSER] = { "browser", "browser" },
};

struct options {
	enum mode mode;
	unsigned long count;
	unsigned long tick;
	unsigned long tabs;
	unsigned long mib;
};

/* Counts finished processes; holds the time of each tick until it is printed. */
struct ticker {
	int fd;
	unsigned long every;
	unsigned long done;
	unsigned long ticks;
	uint64_t start;
	uint64_t *times;
};

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void ticker_init(struct ticker *t, unsigned long every, unsigned long total)
{
	memset(t, 0, sizeof(*t));
	t->fd = -1;
	t->every = every;
	if (every) {
		t->fd = marker_open();
		if (t->fd < 0)
			err(1, "/dev/port");
		t->times = calloc(total / every + 1, sizeof(*t->times));
		if (!t->times)
			err(1, "tick times");
	}
	t->start = now_ns();
}

static void ticker_count(struct ticker *t)
{
	t->done++;
	if (!t->every || t->done % t->every)
		return;
	t->times[t->ticks++] = now_ns() - t->start;
	if (marker_byte(t->fd, MARKER_TICK))
		err(1, "/dev/port");
}

static void ticker_print(const struct ticker *t, const char *record)
{
	uint64_t spent = now_ns() - t->start;

	printf("%s ns=%llu n=%lu\n", record, (unsigned long long)(spent / t->done), t->done);
	for (unsigned long i = 0; i < t->ticks; i++)
		printf("tick ns=%llu\n", (unsigned long long)t->times[i]);
}

static pid_t start_child(void)
{
	pid_t pid = fork();

	if (pid < 0)
		err(1, "fork");
	return pid;
}

static void wait_child(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			err(1, "waitpid");
	if (status)
		errx(1, "a child failed, wait status %#x", (unsigned int)status);
}

static void run_latency(const struct options *o, struct ticker *t)
{
	for (unsigned long i = 0; i < o->count; i++) {
		pid_t pid = start_child();

		if (!pid) {
			if (o->mode == FORK_EXEC)
				execl("/bin/true", "true", NULL);
			else if (o->mode == FORK_SH)
				execl("/bin/sh", "sh", "-c", "/bin/true", NULL);
			_exit(o->mode != FORK_EXIT);
		}
		wait_child(pid);
		ticker_count(t);
	}
}

/* A tab touches its memory, says so, and stays until its parent closes the door. */
static void tab(unsigned long mib, int ready, int door)
{
	size_t size = mib << 20;
	char byte = 0;
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		_exit(1);
	for (size_t at = 0; at < size; at += PAGE)
		memory[at] = 1;
	if (write(ready, &byte, 1) != 1)
		_exit(1);
	_exit(read(door, &byte, 1) != 0);
}

static void run_browser(const struct options *o, struct ticker *t)
{
	pid_t *pids = calloc(o->tabs, sizeof(*pids));

	if (!pids)
		err(1, "tabs");
	for (unsigned long round = 0; round < o->count; round++) {
		int door[2];

		if (pipe(door))
			err(1, "pipe");
		for (unsigned long i = 0; i < o->tabs; i++) {
			int ready[2];
			char byte;

			if (pipe(ready))
				err(1, "pipe");
			pids[i] = start_child();
			if (!pids[i]) {
				/* Or no tab would ever see the door close. */
				close(door[1]);
				tab(o->mib, ready[1], door[0]);
			}
			close(ready[1]);
			if (read(ready[0], &byte, 1) != 1)
				errx(1, "tab %lu of round %lu did not open", i, round);
			close(ready[0]);
		}
		close(door[1]);
		for (unsigned long i = 0; i < o->tabs; i++) {
			wait_child(pids[i]);
			ticker_count(t);
		}
		close(door[0]);
	}
	free(pids);
}

static unsigned long number(const char *text, const char *option)
{
	char *end;
	unsigned long value;

	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno || *end || end == text || *text == '-' || !value || value > 1000000)
		errx(2, "%s: \"%s\" is not a number from 1 to 1000000", option, text);
	return value;
}

static enum mode parse_mode(const char *text)
{
	for (int i = 0; i < MODES; i++)
		if (!strcmp(text, modes[i].argument))
			return (enum mode)i;
	errx(2, "unknown mode \"%s\"; see spawn --help", text);
}

static void parse(int argc, char **argv, struct options *o)
{
	static const struct option longs[] = {
		{ "count", required_argument, NULL, 'n' },
		{ "tick", required_argument, NULL, 'k' },
		{ "tabs", required_argument, NULL, 't' },
		{ "mib", required_argument, NULL, 'm' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c;

	*o = (struct options){ .count = 100, .tabs = 8, .mib = 4 };
	while ((c = getopt_long(argc, argv, "n:k:t:m:h", longs, NULL)) != -1) {
		switch (c) {
		case 'n':
			o->count = number(optarg, "--count");
			break;
		case 'k':
			o->tick = number(optarg, "--tick");
			break;
		case 't':
			o->tabs = number(optarg, "--tabs");
			break;
		case 'm':
			o->mib = number(optarg, "--mib");
			break;
		case 'h':
			fputs(usage_text, stdout);
			exit(0);
		default:
			exit(2);
		}
	}
	if (optind + 1 != argc)
		errx(2, "give exactly one mode; see spawn --help");
	o->mode = parse_mode(argv[optind]);
}

int main(int argc, char **argv)
{
	struct options o;
	struct ticker t;

	parse(argc, argv, &o);
	ticker_init(&t, o.tick, o.mode == BROWSER ? o.count * o.tabs : o.count);
	if (o.mode == BROWSER)
		run_browser(&o, &t);
	else
		run_latency(&o, &t);
	ticker_print(&t, modes[o.mode].record);
	return 0;
}
