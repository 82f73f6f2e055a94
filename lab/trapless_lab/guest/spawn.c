/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * spawn MODE: create processes and print the cost of each.
 *
 * The first three modes are lmbench's process latencies: one child at a time,
 * waited for, the mean over N on CLOCK_MONOTONIC. "browser" is the workload of
 * the PiBooster paper (section 5.1): tabs are opened one by one, each a process
 * that touches memory of its own, all live together, then all are closed.
 *
 * As in lmbench, a child executes a program that does nothing itself (nothing.c):
 * this measures the process, not the start-up of busybox's "true". The shell is
 * busybox's.
 *
 * Output is machine-readable, one record a line, printed after the measurement,
 * which therefore does not include the console's cost:
 *
 *   fork_exit ns=NANOSECONDS n=PROCESSES    mean of one process
 *   tick ns=NANOSECONDS                     since the start, one a tick
 *
 * and all of it as an interval of the record's name (interval.h).
 */
#include <err.h>
#include <errno.h>
#include <getopt.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#define INTERVALS_MAX 1
#include "interval.h"
#include "marker.h"

static const char usage_text[] =
	"usage: spawn MODE [options]\n"
	"\n"
	"modes:\n"
	"  fork-exit   fork, child exits\n"
	"  fork-exec   fork, child runs /bin/nothing\n"
	"  fork-sh     fork, child runs /bin/sh -c /bin/nothing\n"
	"  browser     open tabs one by one, then close them all\n"
	"\n"
	"options:\n"
	"  -n, --count N        processes to make (browser: rounds of all tabs)\n"
	"  -w, --warm-up N      fork-*: processes to make before the clock starts\n"
	"  -k, --tick K         write a tick into QEMU's trace every K processes\n"
	"  -t, --tabs N         browser: tabs open at once (default 8)\n"
	"  -m, --mib N          browser: MiB each tab touches (default 4)\n"
	"  -p, --pause MS       sleep so long after each process, or each tab that opened;\n"
	"                       the mean has it in it\n";

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
	unsigned long warm_up;
	unsigned long tick;
	unsigned long tabs;
	unsigned long mib;
	unsigned long pause_ms;
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
	t->start = interval_start();
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
	uint64_t spent = interval_stop(t->start, record);

	printf("%s ns=%llu n=%lu\n", record, (unsigned long long)(spent / t->done), t->done);
	for (unsigned long i = 0; i < t->ticks; i++)
		printf("tick ns=%llu\n", (unsigned long long)t->times[i]);
	intervals_print();
}

static void pause_ms(unsigned long ms)
{
	struct timespec left = { .tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000 };

	while (ms && nanosleep(&left, &left) && errno == EINTR)
		;
}

static void one_process(enum mode mode)
{
	pid_t pid = start_child();

	if (!pid) {
		if (mode == FORK_EXEC)
			execl("/bin/nothing", "nothing", NULL);
		else if (mode == FORK_SH)
			execl("/bin/sh", "sh", "-c", "/bin/nothing", NULL);
		_exit(mode != FORK_EXIT);
	}
	wait_child(pid);
}

static void run_latency(const struct options *o, struct ticker *t)
{
	for (unsigned long i = 0; i < o->count; i++) {
		one_process(o->mode);
		ticker_count(t);
		pause_ms(o->pause_ms);
	}
}

/* A tab touches its memory, reports that, and waits until its parent closes the pipe. */
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
				/* Otherwise no tab would ever see the pipe's end. */
				close(door[1]);
				tab(o->mib, ready[1], door[0]);
			}
			close(ready[1]);
			if (read(ready[0], &byte, 1) != 1)
				errx(1, "tab %lu of round %lu did not open", i, round);
			close(ready[0]);
			pause_ms(o->pause_ms);
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
		{ "warm-up", required_argument, NULL, 'w' },
		{ "tick", required_argument, NULL, 'k' },
		{ "tabs", required_argument, NULL, 't' },
		{ "mib", required_argument, NULL, 'm' },
		{ "pause", required_argument, NULL, 'p' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	int c;

	*o = (struct options){ .count = 100, .tabs = 8, .mib = 4 };
	while ((c = getopt_long(argc, argv, "n:w:k:t:m:p:h", longs, NULL)) != -1) {
		switch (c) {
		case 'n':
			o->count = number(optarg, "--count");
			break;
		case 'w':
			o->warm_up = number(optarg, "--warm-up");
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
		case 'p':
			o->pause_ms = number(optarg, "--pause");
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
	if (o->warm_up && o->mode == BROWSER)
		errx(2, "--warm-up: not for the browser, which starts from nothing");
}

int main(int argc, char **argv)
{
	struct options o;
	struct ticker t;

	parse(argc, argv, &o);
	for (unsigned long i = 0; i < o.warm_up; i++)
		one_process(o.mode);
	ticker_init(&t, o.tick, o.mode == BROWSER ? o.count * o.tabs : o.count);
	if (o.mode == BROWSER)
		run_browser(&o, &t);
	else
		run_latency(&o, &t);
	ticker_print(&t, modes[o.mode].record);
	return 0;
}
