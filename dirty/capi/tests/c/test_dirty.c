// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The C interface as a program in C, or in C++, sees it: what it answers to
 * misuse, that nothing is lost on the way to the caller, and what it does among
 * threads and forked children. What back ends find is tested elsewhere.
 */
#include "check.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>

/* Every call on a handle that names nothing. */
static void check_refused(int64_t handle, int error)
{
	struct dirty_extent extent;
	char *memory = new_memory(1);

	CHECK(dirty_watch(handle, (uintptr_t)memory, page_size()) == -error);
	CHECK(strstr(dirty_last_error(), "handle"));
	CHECK(dirty_watch_all(handle) == -error);
	CHECK(dirty_unwatch(handle, (uintptr_t)memory, page_size()) == -error);
	CHECK(dirty_collect(handle) == -error);
	CHECK(dirty_collect_range(handle, (uintptr_t)memory, page_size()) == -error);
	CHECK(dirty_peek(handle) == -error);
	CHECK(dirty_peek_range(handle, (uintptr_t)memory, page_size()) == -error);
	CHECK(dirty_read(handle, &extent, 1) == -error);
	CHECK(dirty_discard(handle) == -error);
	CHECK(!dirty_backend(handle));
	CHECK(dirty_close(handle) == -error);
	munmap(memory, page_size());
}

static void test_handles(void)
{
	int64_t handle = dirty_open(0, NULL, 0), other;
	const int64_t wrong[] = { 0,	     -1,	 -EBADF,    3,	       handle + 1,
				  (int)handle, INT64_MIN, INT64_MAX, -handle };

	CHECK(handle > UINT32_MAX);
	for (size_t i = 0; i < ARRAY_SIZE(wrong); i++)
		check_refused(wrong[i], EBADF);

	CHECK(dirty_close(handle) == 0);
	check_refused(handle, EBADF);
	other = dirty_open(0, "auto", 0);
	CHECK(other > handle);
	check_refused(handle, EBADF);
	CHECK(dirty_collect(other) == 0);
	CHECK(dirty_close(other) == 0);
}

static void test_open(void)
{
	pid_t child = fork();

	if (child == 0)
		_exit(0);
	CHECK(child > 0 && waitpid(child, NULL, 0) == child);
	CHECK(dirty_open(child, NULL, 0) == -ESRCH);
	CHECK(dirty_open(-1, NULL, 0) == -ESRCH);
	CHECK(dirty_open(INT_MIN, NULL, 0) == -ESRCH);
	CHECK(dirty_open(0, NULL, 1) == -EINVAL);
	CHECK(strstr(dirty_last_error(), "flags"));
	CHECK(dirty_open(0, "", 0) == -EINVAL);
	CHECK(dirty_open(0, "\xff\xfe", 0) == -EINVAL);
	CHECK(dirty_open(0, "uffd", 0) == -EINVAL);
	CHECK(strstr(dirty_last_error(), "\"uffd\"") && strstr(dirty_last_error(), "uffd-async"));
}

/* A userfaultfd of the own process, and of a child. */
static void test_open_fd(void)
{
	int null = open("/dev/null", O_RDWR), own = syscall(SYS_userfaultfd, 1), ends[2], number;
	char *memory = new_memory(4);
	int64_t tracker;
	pid_t child;

	CHECK(dirty_open_fd(0, -1) == -EBADF);
	CHECK(dirty_open_fd(0, 1000000) == -EBADF);
	CHECK(strstr(dirty_last_error(), "1000000"));
	CHECK(dirty_open_fd(0, null) == -EOPNOTSUPP);
	CHECK(strstr(dirty_last_error(), "no userfaultfd"));
	CHECK(dirty_open_fd(-1, null) == -ESRCH);
	CHECK(close(null) == 0);
	CHECK(own >= 0);
	tracker = dirty_open_fd(0, own);
	if (tracker == -EOPNOTSUPP) {
		printf("# SKIPPED: %s\n", dirty_last_error());
		CHECK(close(own) == 0);
		return;
	}
	/* The descriptor stays the caller's. */
	CHECK(fcntl(own, F_GETFD) >= 0 && close(own) == 0);
	CHECK(tracker > UINT32_MAX && !strcmp(dirty_backend(tracker), "uffd-async"));
	CHECK(dirty_watch(tracker, (uintptr_t)memory, 4 * page_size()) == 0);
	memory[page_size()] = 1;
	CHECK(dirty_collect(tracker) >= 1);
	CHECK(dirty_discard(tracker) >= 1);
	CHECK(dirty_close(tracker) == 0);

	CHECK(pipe(ends) == 0);
	child = fork();
	if (child == 0) {
		number = syscall(SYS_userfaultfd, 1);
		if (write(ends[1], &number, sizeof(number)) == sizeof(number))
			pause();
		_exit(1);
	}
	CHECK(child > 0 && read(ends[0], &number, sizeof(number)) == sizeof(number));
	own = syscall(SYS_pidfd_getfd, syscall(SYS_pidfd_open, child, 0), number, 0);
	CHECK(own >= 0);
	CHECK(dirty_open_fd(0, own) == -EOPNOTSUPP);
	CHECK(strstr(dirty_last_error(), "not one for the memory of process"));
	tracker = dirty_open_fd(child, own);
	CHECK(tracker > UINT32_MAX && dirty_watch_all(tracker) == 0);
	CHECK(dirty_close(tracker) == 0 && close(own) == 0);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, NULL, 0) == child);
}

static void test_ranges(void)
{
	size_t page = page_size();
	uintptr_t memory = (uintptr_t)new_memory(8), top = UINTPTR_MAX - page + 1;
	int64_t tracker = dirty_open(0, NULL, 0);
	const struct {
		uintptr_t start;
		size_t length;
	} bad[] = {
		{ memory, 0 },	    { memory + 1, page }, { memory, page - 1 },
		{ memory, top },    { memory, SIZE_MAX }, { top, page },
		{ top, 2 * page },  { 0, SIZE_MAX },	  { UINTPTR_MAX, SIZE_MAX },
		{ UINTPTR_MAX, 1 },
	};

	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		CHECK(dirty_watch(tracker, bad[i].start, bad[i].length) == -EINVAL);
		CHECK(dirty_unwatch(tracker, bad[i].start, bad[i].length) == -EINVAL);
		CHECK(dirty_collect_range(tracker, bad[i].start, bad[i].length) == -EINVAL);
		CHECK(dirty_peek_range(tracker, bad[i].start, bad[i].length) == -EINVAL);
	}
	CHECK(dirty_collect_range(tracker, memory, page) == -ENOENT);
	CHECK(strstr(dirty_last_error(), "not watched"));
	CHECK(dirty_peek_range(tracker, memory, page) == -ENOENT);
	CHECK(dirty_watch(tracker, memory, 8 * page) == 0);
	CHECK(dirty_watch(tracker, memory + page, page) == -EEXIST);
	CHECK(dirty_unwatch(tracker, memory, 9 * page) == -ENOENT);
	CHECK(dirty_unwatch(tracker, memory + 2 * page, page) == 0);
	CHECK(dirty_unwatch(tracker, memory, 8 * page) == -ENOENT);
	CHECK(dirty_collect_range(tracker, memory, 8 * page) == -ENOENT);
	CHECK(dirty_watch(tracker, memory + 2 * page, page) == 0);
	CHECK(dirty_collect_range(tracker, memory, 8 * page) == 0);
	CHECK(dirty_collect(tracker) == 0);
	CHECK(dirty_close(tracker) == 0);
	munmap((void *)memory, 8 * page);
}

enum { EXTENTS = 10 };

/* Dirty every other page, so that each is an extent of its own. */
static void dirty_alternate(char *memory)
{
	for (int i = 0; i < EXTENTS; i++)
		memory[2 * i * page_size()]++;
}

static void test_nothing_is_lost(void)
{
	size_t page = page_size(), length = 2 * EXTENTS * page;
	char *memory = new_memory(2 * EXTENTS);
	int64_t tracker = dirty_open(0, NULL, 0), count;

	CHECK(dirty_watch(tracker, (uintptr_t)memory, length) == 0);
	for (size_t capacity = 1; capacity <= EXTENTS + 1; capacity++) {
		struct dirty_extent *out = new_array(capacity);
		int64_t found = 0;

		dirty_alternate(memory);
		CHECK(dirty_collect(tracker) == EXTENTS);
		while ((count = dirty_read(tracker, out, capacity)) > 0) {
			CHECK(dirty_collect(tracker) == -EBUSY || found + count == EXTENTS);
			for (int64_t i = 0; i < count; i++, found++) {
				CHECK(out[i].start == (uintptr_t)memory + 2 * found * page);
				CHECK(out[i].end == out[i].start + page);
				CHECK(out[i].reason == DIRTY_REASON_WRITTEN && !out[i].reserved);
			}
		}
		CHECK(count == 0 && found == EXTENTS);
		CHECK(dirty_collect(tracker) == 0);
		free_array(out, capacity);
	}

	/* What is refused takes nothing. */
	dirty_alternate(memory);
	CHECK(dirty_collect(tracker) == EXTENTS);
	struct dirty_extent all[EXTENTS + 1];

	CHECK(dirty_read(tracker, NULL, 1) == -EFAULT);
	CHECK(dirty_read(tracker, (struct dirty_extent *)((uintptr_t)all + 1), 1) == -EINVAL);
	CHECK(dirty_read(tracker, all, 0) == -EINVAL);
	CHECK(dirty_read(tracker, all, SIZE_MAX) == -EINVAL);
	CHECK(dirty_collect(tracker) == -EBUSY);
	CHECK(strstr(dirty_last_error(), "10 extents"));
	CHECK(dirty_read(tracker, all, EXTENTS + 1) == EXTENTS);
	CHECK(dirty_read(tracker, all, EXTENTS + 1) == 0);

	dirty_alternate(memory);
	CHECK(dirty_collect(tracker) == EXTENTS);
	CHECK(dirty_read(tracker, all, 4) == 4);
	CHECK(dirty_discard(tracker) == EXTENTS - 4);
	CHECK(dirty_discard(tracker) == 0);
	CHECK(dirty_read(tracker, all, 4) == 0);
	CHECK(dirty_collect(tracker) == 0);

	/* So is what was given back: zeros, whether or not it was copied. */
	CHECK(madvise(memory, page, MADV_DONTNEED) == 0);
	CHECK(dirty_collect(tracker) == 1);
	CHECK(dirty_read(tracker, all, 1) == 1);
	CHECK(dirty_reason_is_mapped(all[0].reason) && all[0].end - all[0].start == page);

	/* A range that is unmapped is reported as such. */
	CHECK(munmap(memory, length) == 0);
	CHECK(dirty_collect(tracker) == 1);
	CHECK(dirty_read(tracker, all, 1) == 1);
	CHECK(all[0].reason == DIRTY_REASON_UNMAPPED && all[0].end - all[0].start == length);
	CHECK(dirty_close(tracker) == 0);
}

static const char *const every_backend[] = { "epml",	   "dbit", "uffd-async", "soft-dirty",
					      "spml",	   "mprotect", "uffd-sync" };

/* Read one extent, which must be these pages, and all that there is. */
static void check_one(int64_t tracker, char *start, size_t pages)
{
	struct dirty_extent extent;

	CHECK(dirty_read(tracker, &extent, 1) == 1);
	CHECK(extent.start == (uintptr_t)start && extent.end == extent.start + pages * page_size());
	CHECK(dirty_read(tracker, &extent, 1) == 0);
}

/* A collect of a range leaves the rest to others; a peek leaves all. */
static void test_parts(void)
{
	size_t page = page_size();

	for (size_t i = 0; i < ARRAY_SIZE(every_backend); i++) {
		char *memory = new_memory(8);
		int64_t tracker = dirty_open(0, every_backend[i], 0);

		if (tracker == -EOPNOTSUPP) {
			printf("# %s\n", dirty_last_error());
			munmap(memory, 8 * page);
			continue;
		}
		CHECK(dirty_watch(tracker, (uintptr_t)memory, 8 * page) == 0);
		for (int round = 0; round < 3; round++) {
			for (int at = 1; at < 7; at++)
				memory[at * page]++;
			CHECK(dirty_peek(tracker) == 1);
			CHECK(dirty_collect_range(tracker, (uintptr_t)memory, page) == -EBUSY);
			check_one(tracker, memory + page, 6);
			CHECK(dirty_peek_range(tracker, (uintptr_t)memory + 5 * page, 3 * page) == 1);
			CHECK(dirty_discard(tracker) == 1); /* that answer alone */
			CHECK(dirty_collect_range(tracker, (uintptr_t)memory + 2 * page, 2 * page) == 1);
			check_one(tracker, memory + 2 * page, 2);
			CHECK(dirty_collect_range(tracker, (uintptr_t)memory, 4 * page) == 1);
			check_one(tracker, memory + page, 1);
			memory[3 * page]++;
			CHECK(dirty_collect_range(tracker, (uintptr_t)memory + 4 * page, 4 * page) == 1);
			check_one(tracker, memory + 4 * page, 3);
			CHECK(dirty_collect(tracker) == 1);
			check_one(tracker, memory + 3 * page, 1);
			CHECK(dirty_collect(tracker) == 0 && dirty_peek(tracker) == 0);
		}
		/* What is not watched any more is forgotten. */
		memory[0]++;
		memory[page]++;
		CHECK(dirty_peek(tracker) == 1 && dirty_discard(tracker) == 1);
		CHECK(dirty_unwatch(tracker, (uintptr_t)memory, page) == 0);
		CHECK(dirty_collect(tracker) == 1);
		check_one(tracker, memory + page, 1);
		CHECK(dirty_close(tracker) == 0);
		munmap(memory, 8 * page);
	}
}

/* The answer may be stored into watched memory; that is a write like another. */
static void test_watched_array(void)
{
	size_t page = page_size();

	for (size_t i = 0; i < ARRAY_SIZE(every_backend); i++) {
		char *memory = new_memory(4);
		struct dirty_extent *out = (struct dirty_extent *)(memory + 3 * page);
		int64_t tracker = dirty_open(0, every_backend[i], 0);

		if (tracker == -EOPNOTSUPP) {
			printf("# %s\n", dirty_last_error());
		} else {
			CHECK(dirty_watch(tracker, (uintptr_t)memory, 4 * page) == 0);
			CHECK(dirty_collect(tracker) == 0);
			memory[0]++;
			CHECK(dirty_collect(tracker) == 1);
			CHECK(dirty_read(tracker, out, 2) == 1);
			CHECK(out->start == (uintptr_t)memory && out->end == out->start + page);
			CHECK(dirty_collect(tracker) == 1);
			CHECK(dirty_read(tracker, out, 2) == 1);
			CHECK(out->start == (uintptr_t)out && out->end == out->start + page);
			CHECK(dirty_close(tracker) == 0);
		}
		munmap(memory, 4 * page);
	}
}

static void test_capabilities(void)
{
	struct {
		struct dirty_capabilities known;
		uint64_t later;
	} record;
	struct dirty_capabilities *known = &record.known;
	int64_t tracker = dirty_open(0, NULL, 0);
	const char *name = dirty_backend(tracker);

	memset(&record, 0xff, sizeof(record));
	CHECK(dirty_capabilities(name, known) == -E2BIG);
	known->size = 0;
	CHECK(dirty_capabilities(name, known) == -EINVAL);
	known->size = sizeof(*known) - 1;
	CHECK(dirty_capabilities(name, known) == -EINVAL);
	known->size = sizeof(*known);
	CHECK(dirty_capabilities(NULL, known) == -EFAULT);
	CHECK(dirty_capabilities(name, NULL) == -EFAULT);
	CHECK(dirty_capabilities("no such", known) == -EINVAL);
	CHECK(dirty_capabilities(name, (struct dirty_capabilities *)((char *)known + 1)) ==
	      -EINVAL);
	CHECK(known->granule_pages == UINT32_MAX); /* untouched so far */

	CHECK(dirty_capabilities(name, known) == 0);
	CHECK(known->size == sizeof(*known) && known->granule_pages == 1);
	CHECK(known->inexact[0] && known->privilege);
	CHECK(record.later == UINT64_MAX);
	known->size = sizeof(record);
	CHECK(dirty_capabilities(name, known) == 0);
	CHECK(known->size == sizeof(record) && record.later == 0);

	known->size = sizeof(*known);
	CHECK(dirty_capabilities("mprotect", known) == 0);
	CHECK(known->kernel_writes == DIRTY_SEES_FAILS && !known->other_process);
	CHECK(known->cost == DIRTY_COST_SIGNAL_PER_PAGE);
	CHECK(dirty_close(tracker) == 0);
}

struct seen {
	int all;
	int working;
};

static void visit(void *context, const char *backend, const char *rejected)
{
	struct seen *seen = (struct seen *)context;
	struct dirty_capabilities known;

	known.size = sizeof(known);
	CHECK(dirty_capabilities(backend, &known) == 0);
	seen->all++;
	if (rejected)
		CHECK(rejected[0]);
	else
		seen->working++;
}

static void test_survey(void)
{
	struct seen seen = { 0, 0 };

	CHECK(dirty_survey(visit, &seen) == seen.working);
	CHECK(seen.all >= 4 && seen.working >= 1);
	CHECK(dirty_survey(NULL, NULL) == -EFAULT);
}

static void test_reasons(void)
{
	CHECK(!strcmp(dirty_reason_text(DIRTY_REASON_WRITTEN), "written"));
	CHECK(strstr(dirty_reason_text(DIRTY_REASON_EXITED), "ended"));
	CHECK(strstr(dirty_reason_text(DIRTY_REASON_DISCARDED), "zeros"));
	CHECK(strstr(dirty_reason_text(DIRTY_REASON_DISCARDED + 1), "unknown"));
	CHECK(dirty_reason_is_zero(DIRTY_REASON_DISCARDED) == 1);
	CHECK(dirty_reason_is_mapped(DIRTY_REASON_DISCARDED) == 1);
	CHECK(dirty_reason_is_zero(DIRTY_REASON_WRITTEN) == 0);
	CHECK(dirty_reason_is_zero(DIRTY_REASON_DISCARDED + 1) == 0);
	CHECK(strstr(dirty_reason_text(UINT32_MAX), "all dirty"));
}

static void check_child(pid_t child)
{
	int status;

	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	CHECK(!WIFSIGNALED(status) || WTERMSIG(status) != SIGALRM); /* it hung */
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* The child's copy is refused, its own works; the parent's is not disturbed. */
static void test_fork(void)
{
	size_t page = page_size();
	char *memory = new_memory(4);
	int64_t tracker = dirty_open(0, NULL, 0), closed = dirty_open(0, NULL, 0);
	struct dirty_extent extent;
	pid_t child;

	CHECK(dirty_close(closed) == 0);
	CHECK(dirty_watch(tracker, (uintptr_t)memory, 4 * page) == 0);
	memory[0]++;
	child = fork();
	if (child == 0) {
		int64_t own;

		check_refused(tracker, EXDEV);
		CHECK(dirty_collect(INT64_MAX) == -EBADF);
		own = dirty_open(0, NULL, 0);
		CHECK(own > tracker);
		check_refused(tracker, EXDEV);
		check_refused(closed, EXDEV);
		CHECK(dirty_watch(own, (uintptr_t)memory, 4 * page) == 0);
		memory[2 * page]++;
		CHECK(dirty_collect(own) == 1);
		CHECK(dirty_read(own, &extent, 1) == 1);
		CHECK(extent.start == (uintptr_t)memory + 2 * page);
		CHECK(dirty_close(own) == 0);
		check_refused(own, EBADF);
		_exit(0);
	}
	check_child(child);
	CHECK(dirty_collect(tracker) == 1);
	CHECK(dirty_read(tracker, &extent, 1) == 1);
	CHECK(extent.start == (uintptr_t)memory);
	CHECK(dirty_close(tracker) == 0);
	munmap(memory, 4 * page);
}

/* A child that writes when asked to, tracked by its pid until it ends. */
static void test_other_process(void)
{
	size_t page = page_size();
	char *memory = new_memory(4), byte = 0;
	struct dirty_extent extent;
	int64_t tracker;
	int tell[2], told[2];
	pid_t child;

	CHECK(pipe(tell) == 0 && pipe(told) == 0);
	child = fork();
	if (child == 0) {
		close(tell[1]);
		memory[0]++; /* now a page of its own */
		CHECK(write(told[1], &byte, 1) == 1);
		while (read(tell[0], &byte, 1) == 1) {
			memory[page]++;
			CHECK(write(told[1], &byte, 1) == 1);
		}
		_exit(0);
	}
	CHECK(child > 0 && read(told[0], &byte, 1) == 1);
	tracker = dirty_open(child, NULL, 0);
	if (tracker == -EOPNOTSUPP) {
		printf("# other process: %s\n", dirty_last_error());
	} else {
		CHECK(dirty_watch(tracker, (uintptr_t)memory, 4 * page) == 0);
		CHECK(write(tell[1], &byte, 1) == 1 && read(told[0], &byte, 1) == 1);
		CHECK(dirty_collect(tracker) == 1);
		CHECK(dirty_read(tracker, &extent, 1) == 1);
		CHECK(extent.start == (uintptr_t)memory + page);
		CHECK(extent.reason == DIRTY_REASON_WRITTEN);
	}
	close(tell[1]);
	check_child(child);
	if (tracker > 0) {
		/* Each page has ended once, in whatever order it is asked. */
		CHECK(dirty_peek(tracker) == 1);
		CHECK(dirty_read(tracker, &extent, 1) == 1);
		CHECK(extent.reason == DIRTY_REASON_EXITED);
		CHECK(dirty_collect_range(tracker, (uintptr_t)memory + page, page) == 1);
		CHECK(dirty_read(tracker, &extent, 1) == 1);
		CHECK(extent.reason == DIRTY_REASON_EXITED && extent.end - extent.start == page);
		CHECK(dirty_collect_range(tracker, (uintptr_t)memory + page, page) == -ESRCH);
		CHECK(dirty_collect(tracker) == 2);
		CHECK(dirty_discard(tracker) == 2);
		CHECK(dirty_collect(tracker) == -ESRCH);
		CHECK(dirty_peek(tracker) == -ESRCH);
		CHECK(dirty_close(tracker) == 0);
	}
	close(tell[0]);
	close(told[0]);
	close(told[1]);
	munmap(memory, 4 * page);
}

/* A program that is executed inherits nothing of it. */
static void test_descriptors(void)
{
	int64_t tracker = dirty_open(0, NULL, 0);
	DIR *directory = opendir("/proc/self/fd");
	struct dirent *entry;
	int open = 0;

	CHECK(tracker > 0 && directory);
	while ((entry = readdir(directory))) {
		char target[PATH_MAX];
		int fd = atoi(entry->d_name);
		ssize_t length = readlinkat(dirfd(directory), entry->d_name, target,
					    sizeof(target) - 1);

		if (length <= 0)
			continue;
		target[length] = 0;
		if (strstr(target, "pidfd") || strstr(target, "userfaultfd") ||
		    strstr(target, "/maps") || strstr(target, "/pagemap")) {
			CHECK(fcntl(fd, F_GETFD) & FD_CLOEXEC);
			open++;
		}
	}
	CHECK(open >= 3);
	closedir(directory);
	CHECK(dirty_close(tracker) == 0);
}

enum { THREADS = 4, SHARED = 6, ROUNDS = 4000 };

static int64_t shared[SHARED];

static int is_one_of(int64_t result, int first, int second)
{
	return result >= 0 || result == -first || result == -second;
}

/* Every thread does everything to every handle. */
static void *hammer(void *argument)
{
	unsigned int seed = (unsigned int)(uintptr_t)argument;
	size_t page = page_size();
	char *memory = new_memory(4);

	for (int round = 0; round < ROUNDS; round++) {
		int64_t *slot = &shared[rand_r(&seed) % SHARED];
		int64_t handle = __atomic_load_n(slot, __ATOMIC_SEQ_CST), count, opened;
		struct dirty_extent extents[2];

		memory[0]++;
		switch (rand_r(&seed) % 7) {
		case 0:
			opened = dirty_open(0, NULL, 0);
			CHECK(opened > 0);
			handle = __atomic_exchange_n(slot, opened, __ATOMIC_SEQ_CST);
			CHECK(is_one_of(dirty_close(handle), EBADF, EBADF));
			CHECK(dirty_collect(handle) == -EBADF);
			break;
		case 1:
			CHECK(is_one_of(dirty_close(handle), EBADF, EBADF));
			CHECK(dirty_collect(handle) == -EBADF);
			break;
		case 2:
			CHECK(is_one_of(dirty_watch(handle, (uintptr_t)memory, 4 * page), EBADF,
					EEXIST));
			break;
		case 3:
			CHECK(is_one_of(dirty_unwatch(handle, (uintptr_t)memory, page), EBADF,
					ENOENT));
			break;
		case 4:
			count = dirty_collect_range(handle, (uintptr_t)memory, 2 * page);
			CHECK(is_one_of(count, EBADF, EBUSY) || count == -ENOENT);
			count = dirty_peek(handle);
			CHECK(is_one_of(count, EBADF, EBUSY));
			break;
		default:
			CHECK(is_one_of(dirty_collect(handle), EBADF, EBUSY));
			while ((count = dirty_read(handle, extents, 2)) > 0)
				CHECK(count <= 2);
			CHECK(is_one_of(count, EBADF, EBADF));
		}
	}
	for (int i = 0; i < SHARED; i++)
		dirty_close(__atomic_load_n(&shared[i], __ATOMIC_SEQ_CST));
	munmap(memory, 4 * page);
	return NULL;
}

static void test_threads(void)
{
	pthread_t threads[THREADS];

	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_create(&threads[i], NULL, hammer, (void *)(uintptr_t)(i + 1)));
	for (int i = 0; i < THREADS; i++)
		CHECK(!pthread_join(threads[i], NULL));
}

static void *collect_forever(void *argument)
{
	int64_t tracker = *(int64_t *)argument;

	for (;;) {
		CHECK(dirty_collect(tracker) >= 0);
		dirty_discard(tracker);
		pthread_testcancel();
	}
	return NULL;
}

/* Cancellation waits until a call is done: the handle is not left locked. */
static void test_cancel(void)
{
	char *memory = new_memory(64);
	int64_t tracker = dirty_open(0, NULL, 0);

	CHECK(dirty_watch(tracker, (uintptr_t)memory, 64 * page_size()) == 0);
	for (int i = 0; i < 100; i++) {
		pthread_t thread;
		void *result;

		CHECK(!pthread_create(&thread, NULL, collect_forever, &tracker));
		if (i % 2)
			usleep(100);
		CHECK(!pthread_cancel(thread) && !pthread_join(thread, &result));
		CHECK(result == PTHREAD_CANCELED);
		CHECK(dirty_discard(tracker) >= 0);
	}
	CHECK(dirty_close(tracker) == 0);
	munmap(memory, 64 * page_size());
}

/*
 * AddressSanitizer's allocator (LLVM 14) has no arenas, and no fork handlers: a
 * child born while another thread allocates may wait forever in its first
 * malloc(). What is tested beside the program's allocator is tested without it.
 */
#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define OTHER_MALLOC
#endif
#endif

#ifndef OTHER_MALLOC
static int world_is_stopped, stopped_threads;

static void stand_still(int signal)
{
	const struct timespec moment = { 0, 50000 };
	int error = errno;

	(void)signal;
	__atomic_add_fetch(&stopped_threads, 1, __ATOMIC_SEQ_CST);
	while (__atomic_load_n(&world_is_stopped, __ATOMIC_SEQ_CST))
		nanosleep(&moment, NULL);
	__atomic_sub_fetch(&stopped_threads, 1, __ATOMIC_SEQ_CST);
	errno = error;
}

static void wait_for_stopped(int count)
{
	while (__atomic_load_n(&stopped_threads, __ATOMIC_SEQ_CST) != count)
		sched_yield();
}

static void *allocate_forever(void *argument)
{
	for (size_t size = 1;; size = size * 7 % 40009 + 1) {
		void *block = malloc(size);

		CHECK(block);
		*(volatile char *)block = 1;
		free(block);
		if (size % 64 == 0)
			malloc_trim(0);
	}
	return argument;
}

static void *discard_forever(void *argument)
{
	for (;;)
		CHECK(dirty_discard(*(int64_t *)argument) >= -EBADF);
	return NULL;
}

/* What a garbage collector does: collect and read with the world stopped. */
static void stop_the_world(const char *backend)
{
	enum { WORLD = 5, STOPS = 150, PAGES = 512 };
	size_t page = page_size();
	char *memory = new_memory(PAGES);
	int64_t tracker = dirty_open(0, backend, 0), other = dirty_open(0, backend, 0), count;
	struct sigaction action;
	pthread_t world[WORLD];

	if (tracker < 0)
		return;
	memset(&action, 0, sizeof(action));
	action.sa_handler = stand_still;
	CHECK(!sigaction(SIGUSR1, &action, NULL));
	CHECK(dirty_watch(tracker, (uintptr_t)memory, PAGES * page) == 0);
	for (int i = 0; i < WORLD; i++)
		CHECK(!pthread_create(&world[i], NULL, i ? allocate_forever : discard_forever,
				      &other));
	for (int stop = 1; stop <= STOPS; stop++) {
		struct dirty_extent extents[16];
		int reported = 0;

		/* More extents than before, and other mappings: the books must grow. */
		for (int i = 0; i < stop; i++)
			memory[2 * i * page]++;
		CHECK(mmap(memory + (PAGES - stop % 64 - 1) * page, page, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) != MAP_FAILED);
		usleep(stop * 7 % 100);
		__atomic_store_n(&world_is_stopped, 1, __ATOMIC_SEQ_CST);
		for (int i = 0; i < WORLD; i++)
			CHECK(!pthread_kill(world[i], SIGUSR1));
		wait_for_stopped(WORLD);
		/* By ranges and by peeks, too: what they keep must grow. */
		CHECK(dirty_peek(tracker) > 0 && dirty_discard(tracker) > 0);
		count = dirty_collect_range(tracker, (uintptr_t)memory + stop * page, 64 * page);
		CHECK(count >= 0 && dirty_discard(tracker) == count);
		CHECK(dirty_collect(tracker) > 0);
		while ((count = dirty_read(tracker, extents, 16)) > 0)
			reported += count;
		__atomic_store_n(&world_is_stopped, 0, __ATOMIC_SEQ_CST);
		wait_for_stopped(0);
		CHECK(count == 0 && reported > 0);
	}
	_exit(0);
}

static void test_stopped_world(void)
{
	const char *const backends[] = { "uffd-async", "soft-dirty", "mprotect", "uffd-sync" };

	for (size_t i = 0; i < ARRAY_SIZE(backends); i++) {
		pid_t child = fork();

		if (child == 0) {
			alarm(60);
			CHECK(mallopt(M_ARENA_MAX, 1));
			stop_the_world(backends[i]);
			_exit(0);
		}
		check_child(child);
	}
}

/* Forked children of a program whose threads are inside of the library. */
static void test_fork_among_threads(void)
{
	char *memory = new_memory(64);
	int64_t tracker = dirty_open(0, NULL, 0);
	pthread_t thread;

	CHECK(dirty_watch(tracker, (uintptr_t)memory, 64 * page_size()) == 0);
	CHECK(!pthread_create(&thread, NULL, collect_forever, &tracker));
	for (int i = 0; i < 50; i++) {
		pid_t child = fork();

		if (child == 0) {
			alarm(60);
			check_refused(tracker, EXDEV);
			int64_t own = dirty_open(0, NULL, 0);

			CHECK(own > 0 && dirty_close(own) == 0);
			_exit(0);
		}
		check_child(child);
	}
	CHECK(!pthread_cancel(thread) && !pthread_join(thread, NULL));
	CHECK(dirty_close(tracker) == 0);
	munmap(memory, 64 * page_size());
}
#endif

int main(void)
{
	const struct {
		const char *name;
		void (*run)(void);
	} tests[] = {
		{ "handles", test_handles },
		{ "open", test_open },
		{ "open by a descriptor", test_open_fd },
		{ "ranges", test_ranges },
		{ "nothing is lost", test_nothing_is_lost },
		{ "parts", test_parts },
		{ "watched array", test_watched_array },
		{ "capabilities", test_capabilities },
		{ "survey", test_survey },
#ifndef OTHER_MALLOC
		{ "stopped world", test_stopped_world },
#endif
		{ "reasons", test_reasons },
		{ "fork", test_fork },
		{ "other process", test_other_process },
		{ "descriptors", test_descriptors },
		{ "threads", test_threads },
		{ "cancel", test_cancel },
#ifndef OTHER_MALLOC
		{ "fork among threads", test_fork_among_threads },
#endif
	};
	const size_t count = ARRAY_SIZE(tests);

	alarm(300); /* a lock that is waited for forever */
	setvbuf(stdout, NULL, _IONBF, 0);
	printf("1..%zu\n", count);
	for (size_t i = 0; i < count; i++) {
		tests[i].run();
		printf("ok %zu %s\n", i + 1, tests[i].name);
	}
	return 0;
}
