/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * forkdirty PAGES: the cost of a fork for a parent with PAGES dirty anonymous pages,
 * and of writing these pages again.
 *
 * What each field of the record times, as nanoseconds on CLOCK_MONOTONIC, the
 * mean of all rounds:
 *
 *   fork     the call of fork() in the parent, until it returns there: the
 *            kernel write-protects every dirty page in both processes
 *   exit     from there until the parent has waited for the child, which does
 *            nothing but exit
 *   redirty  one write to each page after that: each write faults, and as the parent
 *            is the only owner, the page becomes writable in place
 *   copied   the same, but while another child lives: each page is copied
 *
 *   fork_dirty pages=N fork=NS exit=NS redirty=NS copied=NS n=ROUNDS
 *
 * Each is an interval of that name (interval.h). With --only OPERATION that one alone is
 * between markers, and no warm-up is; with --clean no page is written after the warm-up, so
 * that "fork" and "exit" are those of a parent whose pages are all protected already.
 *
 * The process is of SCHED_BATCH, and so are its children: the scheduler may let a
 * new process of the normal policy run before fork has returned, which would put
 * the child's exit into "fork".
 *
 * The memory begins where a page table does, so that the number of tables is
 * the same in every run, and it has no huge pages. One round of each kind is a
 * warm-up.
 */
#define _GNU_SOURCE /* SCHED_BATCH */
#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "interval.h"

#define TABLE_SPAN (2UL << 20) /* memory that one page table maps */

static const char usage_text[] = "usage: forkdirty [--rounds N] [--only OPERATION] [--clean] PAGES\n";

static const char *only;
static bool clean;

struct spent {
	uint64_t fork;
	uint64_t exit;
	uint64_t redirty;
	uint64_t copied;
};

static char *map(unsigned long pages)
{
	size_t size = pages * PAGE + TABLE_SPAN;
	uintptr_t start;
	char *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		err(1, "mmap");
	start = ((uintptr_t)memory + TABLE_SPAN - 1) & ~(TABLE_SPAN - 1);
	if (madvise(memory, size, MADV_NOHUGEPAGE))
		err(1, "madvise");
	return (char *)start;
}

static bool is_between_markers(const char *name)
{
	return !only || (!interval_warm_up && !strcmp(only, name));
}

static uint64_t start(const char *name)
{
	return is_between_markers(name) ? interval_start() : now_ns();
}

static uint64_t stop(uint64_t begun, const char *name)
{
	return is_between_markers(name) ? interval_stop(begun, name) : now_ns() - begun;
}

static uint64_t dirty(char *memory, unsigned long pages, const char *name)
{
	uint64_t begun = start(name);

	for (unsigned long i = 0; i < pages; i++)
		++*(volatile char *)(memory + i * PAGE);
	return stop(begun, name);
}

static void alone(char *memory, unsigned long pages, struct spent *spent)
{
	uint64_t begun = start("fork");
	pid_t pid = start_child();

	if (!pid)
		_exit(0);
	spent->fork += stop(begun, "fork");
	begun = start("exit");
	wait_child(pid);
	spent->exit += stop(begun, "exit");
	if (!clean)
		spent->redirty += dirty(memory, pages, "redirty");
}

static void shared(char *memory, unsigned long pages, struct spent *spent)
{
	int door[2];
	char byte;
	pid_t pid;

	if (pipe(door))
		err(1, "pipe");
	pid = start_child();
	if (!pid) {
		close(door[1]);
		_exit(read(door[0], &byte, 1) != 0);
	}
	close(door[0]);
	spent->copied += dirty(memory, pages, "copied");
	close(door[1]);
	wait_child(pid);
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "rounds", required_argument, NULL, 'n' },
		{ "only", required_argument, NULL, 'o' },
		{ "clean", no_argument, NULL, 'c' },
		{ "help", no_argument, NULL, 'h' },
		{ 0 },
	};
	unsigned long pages, rounds = 10;
	struct spent spent = { 0 };
	char *memory;
	int c;

	while ((c = getopt_long(argc, argv, "n:o:ch", longs, NULL)) != -1) {
		switch (c) {
		case 'n':
			rounds = number(optarg, "--rounds");
			break;
		case 'o':
			only = optarg;
			break;
		case 'c':
			clean = true;
			break;
		case 'h':
			fputs(usage_text, stdout);
			return 0;
		default:
			return 2;
		}
	}
	if (optind + 1 != argc)
		errx(2, "give the number of pages; see forkdirty --help");
	pages = strcmp(argv[optind], "0") ? number(argv[optind], "PAGES") : 0;

	if (sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){ 0 }))
		err(1, "sched_setscheduler");
	memory = map(pages);
	interval_warm_up = true;
	dirty(memory, pages, "first");
	alone(memory, pages, &spent);
	if (!clean)
		shared(memory, pages, &spent);
	memset(&spent, 0, sizeof(spent));
	interval_warm_up = false;
	for (unsigned long i = 0; i < rounds; i++)
		alone(memory, pages, &spent);
	for (unsigned long i = 0; i < rounds && !clean; i++)
		shared(memory, pages, &spent);
	printf("fork_dirty pages=%lu fork=%llu exit=%llu redirty=%llu copied=%llu n=%lu\n", pages,
	       (unsigned long long)(spent.fork / rounds), (unsigned long long)(spent.exit / rounds),
	       (unsigned long long)(spent.redirty / rounds),
	       (unsigned long long)(spent.copied / rounds), rounds);
	intervals_print();
	return 0;
}
