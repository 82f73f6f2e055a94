// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A tracker by mprotect(2) and a handler for SIGSEGV: watched memory is read-only, and
 * the first store to a page runs the handler, which marks the page and makes it
 * writable. One tracker a process.
 *
 * One lock is held by the handler from the mark to the change of protection, and by
 * collect() from taking the mark to protecting again: else a page could end up
 * writable and not marked.
 */
#define _GNU_SOURCE
#include "../include/dirty_conformance.h"
#include "ranges.h"

#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Of a watched range; a part of it that is left by unwatch keeps the whole's marks. */
struct marks {
	uintptr_t start, end;
	unsigned char *dirty; /* a byte a page */
};

static struct ranges watched;
static struct marks *marks;
static size_t count;
static atomic_flag busy = ATOMIC_FLAG_INIT;
static struct sigaction before;
static long page;
static pid_t owner;
static const char *why = "";

static void lock(void)
{
	while (atomic_flag_test_and_set(&busy))
		;
}

static void unlock(void)
{
	atomic_flag_clear(&busy);
}

static int is_watched(uintptr_t at)
{
	for (size_t i = 0; i < watched.count; i++)
		if (watched.items[i].start <= at && at < watched.items[i].end)
			return 1;
	return 0;
}

/* Of ranges that were watched there one after the other, the last. */
static unsigned char *mark_of(uintptr_t at)
{
	for (size_t i = count; i-- > 0;)
		if (marks[i].start <= at && at < marks[i].end)
			return &marks[i].dirty[(at - marks[i].start) / page];
	return NULL;
}

static void on_fault(int signal, siginfo_t *info, void *context)
{
	uintptr_t at = (uintptr_t)info->si_addr & -page;
	unsigned char *mark = NULL;

	(void)context;
	lock();
	if (info->si_code == SEGV_ACCERR)
		mark = mark_of(at);
	/* What was watched until a moment ago as well: the store was on its way here. */
	if (mark) {
		*mark = is_watched(at);
		if (mprotect((void *)at, page, PROT_READ | PROT_WRITE))
			abort(); /* vm.max_map_count, most likely */
	}
	unlock();
	if (!mark)
		sigaction(signal, &before, NULL); /* it comes again, to whom it is for */
}

static int open_tracker(pid_t pid, void **handle)
{
	struct sigaction action = { .sa_sigaction = on_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };

	if (pid != getpid()) {
		why = "a handler for signals is for its own process";
		return -ENOTSUP;
	}
	if (owner == pid) {
		why = "this process is tracked already";
		return -EBUSY;
	}
	if (owner)
		watched.count = count = 0; /* of the parent, whose child this is */
	page = sysconf(_SC_PAGESIZE);
	if (sigaction(SIGSEGV, &action, &before))
		return -errno;
	owner = pid;
	*handle = &watched;
	return 0;
}

static int make_read_only(void *context, uintptr_t start, uintptr_t end, int is_writable)
{
	(void)context;
	return is_writable && mprotect((void *)start, end - start, PROT_READ) ? -errno : 0;
}

static int make_writable(void *context, uintptr_t start, uintptr_t end, int is_writable)
{
	(void)context;
	return !is_writable && mprotect((void *)start, end - start, PROT_READ | PROT_WRITE) ? -errno : 0;
}

static int watch(void *handle, uintptr_t start, size_t length)
{
	unsigned char *dirty = mmap(NULL, length / page, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	struct marks *more;
	int error = -ENOMEM;

	(void)handle;
	if (dirty == MAP_FAILED)
		return -ENOMEM;
	lock();
	more = realloc(marks, (count + 1) * sizeof(*more));
	if (more) {
		marks = more;
		marks[count++] = (struct marks){ start, start + length, dirty };
		error = ranges_add(&watched, start, start + length);
	}
	unlock();
	return error ? error : each_mapped(getpid(), start, start + length, make_read_only, NULL);
}

static int unwatch(void *handle, uintptr_t start, size_t length)
{
	int error = each_mapped(getpid(), start, start + length, make_writable, NULL);

	(void)handle;
	if (error)
		return error;
	lock();
	error = ranges_remove(&watched, start, start + length);
	unlock();
	return error;
}

static int collect_range(struct range *range, dirty_conformance_report report, void *context)
{
	uintptr_t at = range->start;

	while (at < range->end) {
		uintptr_t first = at;
		unsigned char *dirty;

		while (at < range->end && *(dirty = mark_of(at))) {
			*dirty = 0;
			at += page;
		}
		if (at == first) {
			at += page;
			continue;
		}
		if (mprotect((void *)first, at - first, PROT_READ) && errno != ENOMEM)
			return -errno; /* ENOMEM: some of it is not mapped any more */
		if (report(context, first, at - first, 0))
			return -E2BIG;
	}
	return 0;
}

static int collect(void *handle, dirty_conformance_report report, void *context)
{
	int error = 0;

	(void)handle;
	lock();
	for (size_t i = 0; i < watched.count && !error; i++)
		error = collect_range(&watched.items[i], report, context);
	unlock();
	return error;
}

static void close_tracker(void *handle)
{
	(void)handle;
	for (size_t i = 0; i < watched.count; i++)
		each_mapped(getpid(), watched.items[i].start, watched.items[i].end, make_writable, NULL);
	sigaction(SIGSEGV, &before, NULL);
	free(watched.items);
	watched = (struct ranges){ NULL, 0 };
	owner = 0;
}

static const char *last_error(void *handle)
{
	(void)handle;
	return why;
}

static const struct dirty_conformance_plugin plugin = {
	.version = DIRTY_CONFORMANCE_VERSION,
	.name = "bare mprotect",
	.open = open_tracker,
	.watch = watch,
	.unwatch = unwatch,
	.collect = collect,
	.close = close_tracker,
	.error = last_error,
};

const struct dirty_conformance_plugin *dirty_conformance_plugin(void)
{
	return &plugin;
}
