/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * dirtyforwarded [CASE...]: what the hypervisor's log (SPML) must report. A copy of
 * the memory is updated with the reported pages; a page that differs was missed.
 *
 * Reported pages that were not written are counted, and no failure: a hypervisor may
 * log a page when it is first read.
 *
 * "overrun" needs a ring that is smaller than what it writes, or a VMM that reports
 * overruns; "walk" and "switch" measure; all others need a VMM without faults.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#define TRACKER_MECHANISM TRAPLESS_DIRTY_SPML
#include "tracker.h"

#define PAGES 3000UL
#define ROUNDS 8

static char *copy;

/* Update the copy, then find pages that differ. Returns how many pages were reported. */
static size_t follow(int fd, const char *memory, size_t pages)
{
	char reported[PAGES] = { 0 };
	size_t count = harvest(fd, memory, pages, reported), missed = 0;

	for (size_t i = 0; i < pages; i++)
		if (reported[i])
			memcpy(copy + i * PAGE, memory + i * PAGE, PAGE);
	for (size_t i = 0; i < pages; i++)
		missed += !!memcmp(copy + i * PAGE, memory + i * PAGE, PAGE);
	if (missed)
		errx(1, "%zu pages missed", missed);
	return count;
}

/* Start watching; the copy equals the memory. */
static int begin(const char *memory, size_t pages)
{
	int fd = watching(getpid(), memory, pages);

	copy = map_private(pages);
	memcpy(copy, memory, pages * PAGE);
	return fd;
}

static void touch(char *memory, size_t page)
{
	(*(volatile uint64_t *)(memory + page * PAGE + page % 500 * 8))++;
}

static void rounds(void)
{
	char *memory = small_pages(PAGES);
	int fd = begin(memory, PAGES);
	size_t reported = 0, written = 0;
	uint64_t state = 1;

	for (unsigned int round = 0; round < ROUNDS; round++) {
		char distinct[PAGES] = { 0 };

		for (size_t i = 0; i < PAGES / (round + 1); i++) {
			size_t page = next_random(&state) % PAGES;

			touch(memory, page);
			written += !distinct[page];
			distinct[page] = 1;
		}
		reported += follow(fd, memory, PAGES);
	}
	printf("written=%zu reported=%zu\n", written, reported);
}

/* Writes through another mapping of the page; the log has that address, which is not watched. */
static void alias(void)
{
	int file = memfd_create("alias", 0), fd;
	char *other, *memory;

	if (file < 0 || ftruncate(file, PAGES * PAGE))
		err(1, "memfd");
	other = map_at(NULL, PAGES * PAGE, MAP_SHARED, file);
	memory = map_at(NULL, PAGES * PAGE, MAP_SHARED, file);
	memset(memory, 1, PAGES * PAGE);
	fd = begin(memory, PAGES);
	for (unsigned int round = 0; round < ROUNDS; round++) {
		for (size_t i = round; i < PAGES; i += 7) {
			touch(other, i);
			if (i % 2)
				touch(memory, i);
		}
		follow(fd, memory, PAGES);
	}
}

/* The kernel writes first, through its own mapping; then the process does. */
static void kernel_first(void)
{
	char *memory = small_pages(PAGES);
	int fd = begin(memory, PAGES), zero = open("/dev/zero", O_RDONLY);
	int self = open("/proc/self/mem", O_RDWR);

	if (zero < 0 || self < 0)
		err(1, "/dev/zero, /proc/self/mem");
	for (size_t i = 0; i < PAGES; i += 3) {
		struct iovec from = { "written", 8 }, to = { memory + i * PAGE, 8 };
		char *second = memory + (i + 1) * PAGE;

		if (process_vm_writev(getpid(), &from, 1, &to, 1, 0) != 8 ||
		    pwrite(self, "written", 8, (uintptr_t)second) != 8 ||
		    read(zero, memory + (i + 2) * PAGE, 8) != 8)
			err(1, "a write by the kernel");
		if (i % 2)
			touch(memory, i);
	}
	follow(fd, memory, PAGES);
}

/* Pages with content, in huge pages, as the kernel must confirm. */
static char *huge_pages(size_t pages)
{
	char *memory = map_private(pages + 512), line[128];
	unsigned long huge_kib = 0;
	FILE *rollup;

	memory = (char *)(((uintptr_t)memory + 512 * PAGE - 1) & -(512 * PAGE));
	if (madvise(memory, pages * PAGE, MADV_HUGEPAGE))
		err(1, "MADV_HUGEPAGE");
	memset(memory, 1, pages * PAGE);
	rollup = fopen("/proc/self/smaps_rollup", "r");
	while (rollup && fgets(line, sizeof(line), rollup))
		sscanf(line, "AnonHugePages: %lu", &huge_kib);
	if (huge_kib < pages * PAGE / 1024)
		errx(1, "only %lu KiB in huge pages", huge_kib);
	fclose(rollup);
	return memory;
}

static void huge(void)
{
	size_t pages = 1024;
	char *memory = huge_pages(pages);
	int fd = begin(memory, pages);

	for (unsigned int round = 0; round < ROUNDS; round++) {
		for (size_t i = round; i < pages; i += 50)
			touch(memory, i);
		printf("reported=%zu\n", follow(fd, memory, pages));
	}
}

/* One half of a huge page is watched later than the other, and only that half is forgotten. */
static void halves(void)
{
	size_t half = 256;
	char *memory = huge_pages(2 * half);
	int fd = begin(memory, half);

	for (size_t i = 0; i < half; i += 10)
		touch(memory, i);
	must(watch(fd, memory + half * PAGE, half), "WATCH");
	printf("reported=%zu\n", follow(fd, memory, half));
}

/* Pages are discarded, faulted in as zeros, moved, and copied for a child. */
static void changes(void)
{
	char *memory = small_pages(PAGES);
	int fd = begin(memory, PAGES);
	pid_t pid;

	touch(memory, 10);
	if (madvise(memory, 100 * PAGE, MADV_DONTNEED))
		err(1, "MADV_DONTNEED");
	follow(fd, memory, PAGES);
	for (size_t i = 0; i < 200; i++)
		touch(memory, i);
	follow(fd, memory, PAGES);
	pid = start_child();
	if (!pid) {
		memset(memory, 7, PAGES * PAGE);
		_exit(0);
	}
	for (size_t i = 0; i < PAGES; i += 2)
		touch(memory, i);
	follow(fd, memory, PAGES);
	wait_child(pid);
	for (size_t i = 0; i < PAGES; i += 3)
		touch(memory, i);
	follow(fd, memory, PAGES);
}

/* Collected while it is PROT_NONE, so that its entries are not present in the usual form. */
static void hidden(void)
{
	char *memory = small_pages(PAGES);
	int fd = begin(memory, PAGES);

	for (size_t i = 0; i < PAGES; i += 3)
		touch(memory, i);
	if (mprotect(memory, PAGES * PAGE, PROT_NONE))
		err(1, "PROT_NONE");
	must(collect(fd), "COLLECT");
	if (mprotect(memory, PAGES * PAGE, PROT_READ | PROT_WRITE))
		err(1, "PROT_WRITE");
	follow(fd, memory, PAGES);
}

static char *shared_memory;
static volatile int stop;

static void *keep_writing(void *seed)
{
	uint64_t state = (uintptr_t)seed;

	while (!stop)
		touch(shared_memory, next_random(&state) % PAGES);
	return NULL;
}

/* Threads write during collects; after they have stopped the copy must be equal. */
static void threads(void)
{
	char reported[PAGES];
	pthread_t thread[3];
	int fd;

	shared_memory = small_pages(PAGES);
	for (size_t i = 0; i < 3; i++)
		if (pthread_create(&thread[i], NULL, keep_writing, (void *)(i + 1)))
			errx(1, "no thread");
	fd = begin(shared_memory, PAGES);
	for (unsigned int round = 0; round < 3 * ROUNDS; round++) {
		usleep(1000);
		harvest(fd, shared_memory, PAGES, reported);
		for (size_t i = 0; i < PAGES; i++)
			if (reported[i])
				memcpy(copy + i * PAGE, shared_memory + i * PAGE, PAGE);
		memset(reported, 0, sizeof(reported));
	}
	stop = 1;
	for (size_t i = 0; i < 3; i++)
		pthread_join(thread[i], NULL);
	follow(fd, shared_memory, PAGES);
}

/* Two trackers, and an untracked process with the same addresses. */
static void others(void)
{
	char *memory = small_pages(PAGES), reported[PAGES] = { 0 };
	int fd = begin(memory, PAGES), second = watching(getpid(), memory, PAGES);
	pid_t pid = start_child();
	size_t count;

	if (!pid)
		for (;;)
			for (size_t i = 0; i < PAGES; i++)
				touch(memory, i);
	/* Fork's copies are reported, as the entries change. */
	usleep(300000);
	for (size_t i = 0; i < PAGES; i++)
		touch(memory, i);
	follow(fd, memory, PAGES);
	for (size_t i = 0; i < PAGES; i += 100)
		touch(memory, i);
	count = follow(fd, memory, PAGES);
	printf("written=%lu reported=%zu\n", PAGES / 100, count);
	if (count > PAGES / 10)
		errx(1, "pages of another process are reported");
	if (harvest(second, memory, PAGES, reported) != PAGES)
		errx(1, "the second tracker did not get all");
	kill(pid, SIGKILL);
}

/* Everything is reported, with the reason. */
static void overrun(void)
{
	char *memory = small_pages(PAGES);
	int fd = begin(memory, PAGES);
	unsigned int overruns = 0;

	for (unsigned int round = 0; round < ROUNDS; round++) {
		struct trapless_dirty_collect how;
		char reported[PAGES] = { 0 };

		for (size_t i = 0; i < PAGES; i++)
			touch(memory, i);
		must(ioctl(fd, TRAPLESS_DIRTY_COLLECT, &how), "COLLECT");
		overruns += !!(how.flags & TRAPLESS_DIRTY_OVERRUN);
		if (read_into(fd, memory, PAGES, reported) != PAGES)
			errx(1, "pages were lost");
	}
	printf("overruns=%u\n", overruns);
	if (!overruns)
		errx(1, "no overrun was reported: is the ring small?");
}

/* What a collect costs; all pages written. */
static void walk(void)
{
	size_t pages = (64UL << 20) / PAGE;
	char *memory = small_pages(pages);
	struct trapless_dirty_stats before, after;
	struct trapless_dirty_collect how;
	int fd = watching(getpid(), memory, pages);

	for (unsigned int round = 0; round < 2; round++) {
		for (size_t i = 0; i < pages; i++)
			touch(memory, i);
		must(ioctl(fd, TRAPLESS_DIRTY_GET_STATS, &before), "GET_STATS");
		must(ioctl(fd, TRAPLESS_DIRTY_COLLECT, &how), "COLLECT");
		must(ioctl(fd, TRAPLESS_DIRTY_GET_STATS, &after), "GET_STATS");
	}
	printf("pages=%zu walk_ns=%llu logged=%llu\n", pages, after.walk_ns - before.walk_ns,
	       after.logged - before.logged);
}

#define TURNS 2000

static uint64_t turns_ns(const int *there, const int *back)
{
	uint64_t begin = now_ns();
	char byte = 0;

	for (unsigned int i = 0; i < TURNS; i++)
		if (write(there[1], &byte, 1) != 1 || read(back[0], &byte, 1) != 1)
			err(1, "pipe");
	return now_ns() - begin;
}

/* Two processes take turns, one of them tracked: what a turn costs. */
static void switches(void)
{
	int there[2], back[2];
	uint64_t untracked;
	char byte;
	pid_t pid;

	if (pipe(there) || pipe(back))
		err(1, "pipe");
	pid = start_child();
	if (!pid)
		while (read(there[0], &byte, 1) == 1 && write(back[1], &byte, 1) == 1)
			;
	turns_ns(there, back);
	untracked = turns_ns(there, back);
	tracker_of(getpid());
	turns_ns(there, back);
	printf("untracked_ns=%llu tracked_ns=%llu\n", (unsigned long long)untracked / TURNS,
	       (unsigned long long)turns_ns(there, back) / TURNS);
	kill(pid, SIGKILL);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "rounds", rounds },
		{ "alias", alias },
		{ "kernel-first", kernel_first },
		{ "huge", huge },
		{ "halves", halves },
		{ "changes", changes },
		{ "hidden", hidden },
		{ "threads", threads },
		{ "others", others },
		{ "overrun", overrun },
		{ "walk", walk },
		{ "switch", switches },
	};

	return run_cases(CASES(cases), argc, argv);
}
