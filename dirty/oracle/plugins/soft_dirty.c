// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A tracker by soft-dirty bits, as the kernel's documentation has it
 * (admin-guide/mm/soft-dirty.rst): read bit 55 of /proc/PID/pagemap, then write 4 to
 * /proc/PID/clear_refs. It does not stop the process in between.
 */
#define _GNU_SOURCE
#include "../include/dirty_conformance.h"
#include "ranges.h"

#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define SOFT_DIRTY (1ULL << 55)

struct tracker {
	pid_t pid;
	int pagemap, clear_refs;
	struct ranges watched;
	long page;
	dirty_conformance_report report;
	void *context;
};

static const char *why = "";

static int clear_bits(struct tracker *tracker)
{
	return pwrite(tracker->clear_refs, "4", 1, 0) == 1 ? 0 : -errno;
}

static int is_dirty(struct tracker *tracker, uintptr_t at)
{
	uint64_t entry = 0;

	if (pread(tracker->pagemap, &entry, sizeof(entry), at / tracker->page * 8) != sizeof(entry))
		return 0;
	return !!(entry & SOFT_DIRTY);
}

static int open_files(struct tracker *tracker, pid_t pid)
{
	char path[64];

	tracker->pid = pid;
	tracker->page = sysconf(_SC_PAGESIZE);
	snprintf(path, sizeof(path), "/proc/%d/pagemap", pid);
	tracker->pagemap = open(path, O_RDONLY | O_CLOEXEC);
	snprintf(path, sizeof(path), "/proc/%d/clear_refs", pid);
	tracker->clear_refs = open(path, O_WRONLY | O_CLOEXEC);
	return tracker->pagemap < 0 || tracker->clear_refs < 0 ? -errno : 0;
}

static void close_files(struct tracker *tracker)
{
	close(tracker->pagemap);
	close(tracker->clear_refs);
}

/* A kernel without it takes the 4 and never sets the bit. */
static int kernel_has_it(void)
{
	struct tracker own = { 0 };
	volatile char *page;
	int has = 0;

	if (open_files(&own, getpid()))
		return 0;
	page = mmap(NULL, own.page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (page != MAP_FAILED) {
		*page = 1;
		has = !clear_bits(&own) && !is_dirty(&own, (uintptr_t)page);
		*page = 2;
		has = has && is_dirty(&own, (uintptr_t)page);
		munmap((void *)page, own.page);
	}
	close_files(&own);
	return has;
}

static int open_tracker(pid_t pid, void **handle)
{
	struct tracker *tracker;
	int error;

	if (!kernel_has_it()) {
		why = "this kernel has no soft-dirty bits";
		return -ENOTSUP;
	}
	tracker = calloc(1, sizeof(*tracker));
	if (!tracker)
		return -ENOMEM;
	error = open_files(tracker, pid);
	*handle = tracker;
	return error;
}

/* All is soft-dirty until the first collect clears it: that one reports too much. */
static int watch(void *handle, uintptr_t start, size_t length)
{
	struct tracker *tracker = handle;

	return ranges_add(&tracker->watched, start, start + length);
}

static int unwatch(void *handle, uintptr_t start, size_t length)
{
	struct tracker *tracker = handle;

	return ranges_remove(&tracker->watched, start, start + length);
}

static int report_dirty(void *handle, uintptr_t start, uintptr_t end, int is_writable)
{
	struct tracker *tracker = handle;
	uint64_t entries[512];

	(void)is_writable;
	while (start < end) {
		size_t pages = (end - start) / tracker->page;
		ssize_t got;

		if (pages > 512)
			pages = 512;
		got = pread(tracker->pagemap, entries, pages * 8, start / tracker->page * 8);
		if (got < 0)
			return -errno;
		if (got == 0)
			return 0; /* beyond the process's memory */
		pages = got / 8;
		for (size_t i = 0; i < pages; i++) {
			size_t first = i;

			while (i < pages && entries[i] & SOFT_DIRTY)
				i++;
			if (i > first && tracker->report(tracker->context, start + first * tracker->page,
							 (i - first) * tracker->page, 0))
				return -E2BIG;
		}
		start += pages * tracker->page;
	}
	return 0;
}

static int collect(void *handle, dirty_conformance_report report, void *context)
{
	struct tracker *tracker = handle;

	tracker->report = report;
	tracker->context = context;
	for (size_t i = 0; i < tracker->watched.count; i++) {
		struct range *range = &tracker->watched.items[i];
		int error = each_mapped(tracker->pid, range->start, range->end, report_dirty, tracker);

		if (error)
			return error;
	}
	return clear_bits(tracker);
}

static void close_tracker(void *handle)
{
	struct tracker *tracker = handle;

	close_files(tracker);
	free(tracker->watched.items);
	free(tracker);
}

static const char *last_error(void *handle)
{
	(void)handle;
	return why;
}

static const struct dirty_conformance_plugin plugin = {
	.version = DIRTY_CONFORMANCE_VERSION,
	.name = "bare soft-dirty",
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
