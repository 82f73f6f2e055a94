/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Shared by the programs that test trapless_dirty's device: its calls, and cases
 * that are run one by one.
 *
 * Each case is a process of its own: what it opens is closed at its end, and a case
 * that fails or crashes does not affect the others. The last line about a case is
 * "ok CASE" or "FAILED CASE"; the reason is in the lines before it.
 */
#ifndef TRACKER_H
#define TRACKER_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE first"
#endif

#include <sys/ioctl.h>

#include "oracle.h"
#include "trapless_dirty.h"

/* The mechanism of attach(). */
#ifndef TRACKER_MECHANISM
#define TRACKER_MECHANISM TRAPLESS_DIRTY_DBIT
#endif

struct test_case {
	const char *name;
	void (*run)(void);
};

static inline int open_device(void)
{
	int fd = open(TRAPLESS_DIRTY_DEVICE, O_RDWR | O_CLOEXEC);

	if (fd < 0)
		err(1, "%s", TRAPLESS_DIRTY_DEVICE);
	return fd;
}

static inline int attach(int fd, pid_t pid)
{
	struct trapless_dirty_attach whom = { .pid = pid, .mechanism = TRACKER_MECHANISM };

	return ioctl(fd, TRAPLESS_DIRTY_ATTACH, &whom);
}

static inline int over(int fd, unsigned long command, const void *start, size_t pages)
{
	struct trapless_dirty_range range = { .start = (uintptr_t)start };

	range.end = range.start + pages * PAGE;
	return ioctl(fd, command, &range);
}

static inline int watch(int fd, const void *start, size_t pages)
{
	return over(fd, TRAPLESS_DIRTY_WATCH, start, pages);
}

static inline int unwatch(int fd, const void *start, size_t pages)
{
	return over(fd, TRAPLESS_DIRTY_UNWATCH, start, pages);
}

static inline int collect(int fd)
{
	struct trapless_dirty_collect how = { .flags = ~0ULL };
	int done = ioctl(fd, TRAPLESS_DIRTY_COLLECT, &how);

	if (!done && how.flags & ~(uint64_t)TRAPLESS_DIRTY_OVERRUN)
		errx(1, "collect has left flags %#llx", (unsigned long long)how.flags);
	return done;
}

/* Returns how many ranges were stored, or -1. */
static inline int take(int fd, struct trapless_dirty_range *ranges, unsigned int capacity)
{
	struct trapless_dirty_read what = { .ranges = (uintptr_t)ranges, .capacity = capacity };

	return ioctl(fd, TRAPLESS_DIRTY_READ, &what) ? -1 : (int)what.count;
}

static inline void must(int done, const char *what)
{
	if (done < 0)
		err(1, "%s", what);
}

/* Check that a call was refused, for one of two reasons. */
static inline void refused(int done, int reason, int other, const char *what)
{
	int why = errno;

	if (done >= 0)
		errx(1, "%s was accepted, not refused with %s", what, strerrorname_np(reason));
	if (why != reason && why != other)
		errx(1, "%s was refused with %s, not with %s", what, strerrorname_np(why),
		     strerrorname_np(reason));
}

static inline int tracker_of(pid_t pid)
{
	int fd = open_device();

	must(attach(fd, pid), "ATTACH");
	return fd;
}

static inline int watching(pid_t pid, const void *start, size_t pages)
{
	int fd = tracker_of(pid);

	must(watch(fd, start, pages), "WATCH");
	return fd;
}

/* Set reported[] from READ, all of whose ranges must lie in these pages. */
static inline size_t read_into(int fd, const void *start, size_t pages, char *reported)
{
	struct trapless_dirty_range ranges[16];
	uintptr_t first = (uintptr_t)start, last = first + pages * PAGE;
	size_t sum = 0;
	int count;

	do {
		uint64_t end = 0;

		count = take(fd, ranges, 16);
		must(count, "READ");
		for (int i = 0; i < count; i++) {
			if (ranges[i].start >= ranges[i].end || ranges[i].start % PAGE ||
			    ranges[i].end % PAGE || (i && ranges[i].start <= end))
				errx(1, "READ: %#llx to %#llx after %#llx",
				     (unsigned long long)ranges[i].start,
				     (unsigned long long)ranges[i].end, (unsigned long long)end);
			end = ranges[i].end;
			if (ranges[i].start < first || end > last)
				errx(1, "READ: %#llx to %#llx is not watched",
				     (unsigned long long)ranges[i].start, (unsigned long long)end);
			for (uint64_t at = ranges[i].start; at < end; at += PAGE)
				reported[(at - first) / PAGE] = 1;
			sum += (end - ranges[i].start) / PAGE;
		}
	} while (count == 16);
	return sum;
}

/* Collect and read: how many pages, and which. */
static inline size_t harvest(int fd, const void *start, size_t pages, char *reported)
{
	must(collect(fd), "COLLECT");
	return read_into(fd, start, pages, reported);
}

/* Check that exactly the written pages are reported. */
static inline void check_reported(const char *reported, const char *written, size_t pages, const char *what)
{
	for (size_t i = 0; i < pages; i++)
		if (reported[i] != written[i])
			errx(1, "%s: page %zu was %s and %s", what, i,
			     written[i] ? "written" : "not written",
			     reported[i] ? "reported" : "not reported");
}

/* Pages with content, without huge pages. */
static inline char *small_pages(size_t pages)
{
	char *memory = map_private(pages);

	if (madvise(memory, pages * PAGE, MADV_NOHUGEPAGE))
		err(1, "MADV_NOHUGEPAGE");
	memset(memory, 1, pages * PAGE);
	return memory;
}

static inline int run_case(const struct test_case *one)
{
	pid_t pid;
	int status;

	fflush(stdout);
	pid = start_child();
	if (!pid) {
		one->run();
		exit(0);
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			err(1, "waitpid");
	fflush(stderr);
	if (status)
		printf("FAILED %s (wait status %#x)\n", one->name, (unsigned int)status);
	else
		printf("ok %s\n", one->name);
	return status != 0;
}

/* Run the cases named, or all; returns the program's exit code. */
static inline int run_cases(const struct test_case *cases, size_t count, int argc, char **argv)
{
	int failed = 0;

	for (int i = 1; i < argc; i++) {
		size_t at = 0;

		while (at < count && strcmp(cases[at].name, argv[i]))
			at++;
		if (at == count)
			errx(2, "no case is called \"%s\"", argv[i]);
		failed |= run_case(&cases[at]);
	}
	for (size_t at = 0; argc == 1 && at < count; at++)
		failed |= run_case(&cases[at]);
	return failed;
}

#define CASES(cases) (cases), sizeof(cases) / sizeof(*(cases))

#endif /* TRACKER_H */
