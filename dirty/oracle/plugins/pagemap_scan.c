// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A tracker by asynchronous write protection (Linux 6.7), as the kernel's documentation
 * has it (admin-guide/mm/pagemap.rst): register memory with a userfaultfd, protect it,
 * and have PAGEMAP_SCAN return written pages and protect them again in one step. What
 * is mapped after watch() is not registered.
 */
#define _GNU_SOURCE
#include "../include/dirty_conformance.h"
#include "ranges.h"

#include <fcntl.h>
#include <linux/types.h>
#include <linux/userfaultfd.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

/* Of linux/fs.h and linux/userfaultfd.h since Linux 6.7. */
struct scan {
	__u64 size, flags, start, end, walk_end, vec, vec_len, max_pages;
	__u64 category_inverted, category_mask, category_anyof_mask, return_mask;
};

struct page_region {
	__u64 start, end, categories;
};

#define SCAN			_IOWR('f', 16, struct scan)
#define WP_MATCHING		(1 << 0)
#define CHECK_WPASYNC		(1 << 1)
#define IS_WRITTEN		(1 << 1)
#define FEATURE_HUGETLBFS_SHMEM	(1 << 12)
#define FEATURE_UNPOPULATED	(1 << 13)
#define FEATURE_ASYNC		(1 << 15)

struct tracker {
	int uffd, pagemap;
	struct ranges watched;
};

static const char *why = "";

static int open_tracker(pid_t pid, void **handle)
{
	struct uffdio_api api = {
		.api = UFFD_API,
		.features = FEATURE_HUGETLBFS_SHMEM | FEATURE_UNPOPULATED | FEATURE_ASYNC,
	};
	struct tracker *tracker;
	int uffd, pagemap;

	if (pid != getpid()) {
		why = "a userfaultfd is for the process that made it";
		return -ENOTSUP;
	}
	uffd = syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | UFFD_USER_MODE_ONLY);
	if (uffd < 0 || ioctl(uffd, UFFDIO_API, &api)) {
		why = "this kernel has no asynchronous write protection";
		return -ENOTSUP;
	}
	pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
	tracker = calloc(1, sizeof(*tracker));
	if (pagemap < 0 || !tracker)
		return -errno;
	tracker->uffd = uffd;
	tracker->pagemap = pagemap;
	*handle = tracker;
	return 0;
}

static int protect(void *handle, uintptr_t start, uintptr_t end, int is_writable)
{
	struct tracker *tracker = handle;
	struct uffdio_range range = { start, end - start };
	struct uffdio_register registration = { .range = range, .mode = UFFDIO_REGISTER_MODE_WP };
	struct uffdio_writeprotect protection = { .range = range, .mode = UFFDIO_WRITEPROTECT_MODE_WP };

	(void)is_writable;
	if (ioctl(tracker->uffd, UFFDIO_REGISTER, &registration) ||
	    ioctl(tracker->uffd, UFFDIO_WRITEPROTECT, &protection))
		return -errno;
	return 0;
}

static int unregister(void *handle, uintptr_t start, uintptr_t end, int is_writable)
{
	struct tracker *tracker = handle;
	struct uffdio_range range = { start, end - start };

	(void)is_writable;
	ioctl(tracker->uffd, UFFDIO_UNREGISTER, &range); /* what was mapped since is not registered */
	return 0;
}

static int watch(void *handle, uintptr_t start, size_t length)
{
	struct tracker *tracker = handle;
	int error = each_mapped(getpid(), start, start + length, protect, tracker);

	return error ? error : ranges_add(&tracker->watched, start, start + length);
}

static int unwatch(void *handle, uintptr_t start, size_t length)
{
	struct tracker *tracker = handle;
	int error = each_mapped(getpid(), start, start + length, unregister, tracker);

	return error ? error : ranges_remove(&tracker->watched, start, start + length);
}

static int collect(void *handle, dirty_conformance_report report, void *context)
{
	struct tracker *tracker = handle;
	struct page_region found[512];

	for (size_t i = 0; i < tracker->watched.count; i++) {
		struct scan scan = {
			.size = sizeof(scan),
			.flags = WP_MATCHING | CHECK_WPASYNC,
			.start = tracker->watched.items[i].start,
			.end = tracker->watched.items[i].end,
			.vec = (uintptr_t)found,
			.vec_len = 512,
			.category_mask = IS_WRITTEN,
			.return_mask = IS_WRITTEN,
		};

		while (scan.start < scan.end) {
			int count = ioctl(tracker->pagemap, SCAN, &scan);

			if (count < 0)
				return -errno;
			for (int k = 0; k < count; k++)
				if (report(context, found[k].start, found[k].end - found[k].start, 0))
					return -E2BIG;
			scan.start = scan.walk_end;
		}
	}
	return 0;
}

static void close_tracker(void *handle)
{
	struct tracker *tracker = handle;

	close(tracker->uffd);
	close(tracker->pagemap);
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
	.name = "bare PAGEMAP_SCAN",
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
