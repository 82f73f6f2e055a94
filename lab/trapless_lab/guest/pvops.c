/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * pvops: the cost of operations that trapless does not accelerate but could harm.
 *
 * Each is lmbench's measurement of that name in its smallest form: a loop on
 * CLOCK_MONOTONIC after a tenth of it to warm up. One record a line, printed
 * after the loop:
 *
 *   NAME ns=NANOSECONDS n=OPERATIONS    of all operations together
 *
 * and the intervals of the loop under its name, after those called "warm-up" (interval.h).
 *
 * "page" in a name is the mean over the pages of one mapping of 4 MiB, without
 * the cost of mapping and unmapping it. Memory is aligned to the span of a page
 * table and has no huge pages, so that the number of tables is always the same.
 */
#define _GNU_SOURCE /* mremap */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/mman.h>
#include <sys/syscall.h>

#include "interval.h"

#define TABLE_SPAN	(2UL << 20)	/* memory that one page table maps */
#define LARGEST		(4UL << 20)
#define RING		8
#define BACKING		"/tmp/pvops.data"

/* Where every mapping is made: a reserved range that begins at a page table. */
static char *place;
static int backing;
static const char *running; /* the operation, for its intervals */

static void need(bool ok, const char *what)
{
	if (!ok)
		err(1, "%s", what);
}

static void *map(size_t size, int flags, int fd)
{
	char *memory = mmap(place, size, PROT_READ | PROT_WRITE,
			    MAP_FIXED | flags, fd, 0);

	need(memory != MAP_FAILED, "mmap");
	return memory;
}

static void *map_small_pages(size_t size)
{
	char *memory = map(size, MAP_PRIVATE | MAP_ANONYMOUS, -1);

	need(!madvise(memory, size, MADV_NOHUGEPAGE), "madvise");
	return memory;
}

static void unmap(void *memory, size_t size)
{
	need(!munmap(memory, size), "munmap");
}

static void touch(char *memory, size_t size)
{
	for (size_t at = 0; at < size; at += PAGE)
		*(volatile char *)(memory + at) = 1;
}

static void look(const char *memory, size_t size)
{
	for (size_t at = 0; at < size; at += PAGE)
		(void)*(volatile const char *)(memory + at);
}

/* Each function below runs its operation n times and returns how long that took. */

static uint64_t null_syscall(unsigned long n, size_t unused)
{
	uint64_t begun = interval_start();

	(void)unused;
	for (unsigned long i = 0; i < n; i++)
		syscall(SYS_getppid);
	return interval_stop(begun, running);
}

static void pass(int from, int to)
{
	char byte = 0;

	need(read(from, &byte, 1) == 1 && write(to, &byte, 1) == 1, "pipe");
}

static uint64_t pipe_alone(unsigned long n, size_t unused)
{
	int ends[2];
	uint64_t begun;

	(void)unused;
	need(!pipe(ends) && write(ends[1], "", 1) == 1, "pipe");
	begun = interval_start();
	for (unsigned long i = 0; i < n; i++)
		pass(ends[0], ends[1]);
	begun = interval_stop(begun, running);
	close(ends[0]);
	close(ends[1]);
	return begun;
}

static void laps(unsigned long n, int to, int from)
{
	char byte;

	for (unsigned long i = 0; i < n; i++)
		need(write(to, "", 1) == 1 && read(from, &byte, 1) == 1, "pipe");
}

/*
 * A token goes round n times; the children end when their pipe does. Two
 * laps before that have them all started.
 */
static uint64_t ring(unsigned long n, size_t processes)
{
	int pipes[RING][2];
	pid_t pids[RING];
	uint64_t begun;
	char byte;

	for (size_t i = 0; i < processes; i++)
		need(!pipe(pipes[i]), "pipe");
	for (size_t i = 1; i < processes; i++) {
		pids[i] = start_child();
		if (pids[i])
			continue;
		int from = pipes[i - 1][0], to = pipes[i][1];

		for (size_t j = 0; j < processes; j++) {
			if (pipes[j][0] != from)
				close(pipes[j][0]);
			if (pipes[j][1] != to)
				close(pipes[j][1]);
		}
		while (read(from, &byte, 1) == 1)
			need(write(to, &byte, 1) == 1, "pipe");
		_exit(0);
	}
	laps(2, pipes[0][1], pipes[processes - 1][0]);
	begun = interval_start();
	laps(n, pipes[0][1], pipes[processes - 1][0]);
	begun = interval_stop(begun, running);
	for (size_t i = 0; i < processes; i++) {
		close(pipes[i][0]);
		close(pipes[i][1]);
	}
	for (size_t i = 1; i < processes; i++)
		wait_child(pids[i]);
	return begun;
}

static uint64_t mmap_only(unsigned long n, size_t size)
{
	uint64_t begun = interval_start();

	for (unsigned long i = 0; i < n; i++)
		unmap(map_small_pages(size), size);
	return interval_stop(begun, running);
}

static uint64_t mmap_touch(unsigned long n, size_t size)
{
	uint64_t begun = interval_start();

	for (unsigned long i = 0; i < n; i++) {
		char *memory = map_small_pages(size);

		touch(memory, size);
		unmap(memory, size);
	}
	return interval_stop(begun, running);
}

static uint64_t mprotect_pages(unsigned long n, size_t size)
{
	char *memory = map_small_pages(size);
	uint64_t begun;

	touch(memory, size);
	begun = interval_start();
	for (unsigned long i = 0; i < n; i++)
		need(!mprotect(memory, size, i % 2 ? PROT_READ | PROT_WRITE : PROT_READ),
		     "mprotect");
	begun = interval_stop(begun, running);
	unmap(memory, size);
	return begun;
}

static uint64_t mremap_pages(unsigned long n, size_t size)
{
	char *memory = map_small_pages(size);
	char *other = place + LARGEST;
	uint64_t begun;

	touch(memory, size);
	begun = interval_start();
	for (unsigned long i = 0; i < n; i++) {
		void *moved = mremap(memory, size, size, MREMAP_MAYMOVE | MREMAP_FIXED, other);

		need(moved == other, "mremap");
		other = memory;
		memory = moved;
	}
	begun = interval_stop(begun, running);
	unmap(memory, size);
	return begun;
}

static uint64_t fault_anonymous(unsigned long n, size_t size)
{
	uint64_t spent = 0;

	for (unsigned long i = 0; i < n; i += size / PAGE) {
		char *memory = map_small_pages(size);
		uint64_t begun = interval_start();

		touch(memory, size);
		spent += interval_stop(begun, running);
		unmap(memory, size);
	}
	return spent;
}

static uint64_t fault_file(unsigned long n, size_t size, int flags, bool write)
{
	uint64_t spent = 0;

	for (unsigned long i = 0; i < n; i += size / PAGE) {
		char *memory = map(size, flags, backing);
		uint64_t begun = interval_start();

		if (write)
			touch(memory, size);
		else
			look(memory, size);
		spent += interval_stop(begun, running);
		unmap(memory, size);
	}
	return spent;
}

/* A read fault maps the pages around it, too: one fault serves sixteen pages. */
static uint64_t fault_file_read(unsigned long n, size_t size)
{
	return fault_file(n, size, MAP_PRIVATE, false);
}

static uint64_t fault_file_copy(unsigned long n, size_t size)
{
	return fault_file(n, size, MAP_PRIVATE, true);
}

static uint64_t fault_file_write(unsigned long n, size_t size)
{
	return fault_file(n, size, MAP_SHARED, true);
}

static const struct operation {
	const char *name;
	uint64_t (*run)(unsigned long n, size_t of);
	size_t of;	/* bytes, or processes */
	unsigned long n;
} operations[] = {
	{ "null_syscall", null_syscall, 0, 20000 },
	{ "pipe_alone", pipe_alone, 0, 4000 },
	{ "pipe_round_trip", ring, 2, 1000 },
	{ "ring_of_8", ring, RING, 200 },
	{ "mmap_64k", mmap_only, 64 << 10, 1000 },
	{ "mmap_256k", mmap_only, 256 << 10, 1000 },
	{ "mmap_1m", mmap_only, 1 << 20, 1000 },
	{ "mmap_4m", mmap_only, 4 << 20, 1000 },
	{ "mmap_touch_64k", mmap_touch, 64 << 10, 100 },
	{ "mmap_touch_256k", mmap_touch, 256 << 10, 50 },
	{ "mmap_touch_1m", mmap_touch, 1 << 20, 20 },
	{ "mmap_touch_4m", mmap_touch, 4 << 20, 10 },
	{ "fault_page_anonymous", fault_anonymous, LARGEST, 10 * LARGEST / PAGE },
	{ "fault_page_file_read", fault_file_read, LARGEST, 10 * LARGEST / PAGE },
	{ "fault_page_file_copy", fault_file_copy, LARGEST, 10 * LARGEST / PAGE },
	{ "fault_page_file_write", fault_file_write, LARGEST, 10 * LARGEST / PAGE },
	{ "mprotect_4k", mprotect_pages, PAGE, 1000 },
	{ "mprotect_1m", mprotect_pages, 1 << 20, 100 },
	{ "mremap_1m", mremap_pages, 1 << 20, 50 },
};

static void prepare(void)
{
	char *reserved = mmap(NULL, 2 * LARGEST + TABLE_SPAN, PROT_NONE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	char buffer[PAGE] = { 0 };

	need(reserved != MAP_FAILED, "mmap");
	place = (char *)(((uintptr_t)reserved + TABLE_SPAN - 1) & ~(TABLE_SPAN - 1));
	backing = open(BACKING, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	need(backing >= 0 && !unlink(BACKING), BACKING);
	for (size_t at = 0; at < LARGEST; at += PAGE)
		need(write(backing, buffer, PAGE) == PAGE, BACKING);
}

int main(void)
{
	prepare();
	for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++) {
		const struct operation *o = &operations[i];

		running = o->name;
		interval_warm_up = true;
		o->run(o->n / 10, o->of);
		interval_warm_up = false;
		printf("%s ns=%llu n=%lu\n", o->name,
		       (unsigned long long)o->run(o->n, o->of), o->n);
		intervals_print();
		fflush(stdout);
	}
	return 0;
}
