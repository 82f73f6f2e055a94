// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Random sequences of calls with random handles, ranges and sizes, from
 * libFuzzer's bytes. What must hold after each: nothing crashes (arrays end
 * where nothing may be written), a handle is refused exactly when it is not
 * open, what is read are sorted pages of the arena, and a copy of the memory that
 * is updated by nothing but what is read (but for what a peek found) ends as the
 * memory itself.
 *
 * Only an arena of this program's own making is ever watched.
 */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

enum { PAGES = 32, HANDLES = 4, CAPACITY = 8, STEPS = 64 };

static const char *backend; /* the best of this machine */
static size_t page;
static char *arena;
static struct dirty_extent *array;
static const uint8_t *input;
static size_t left;

struct tracker {
	int64_t handle;
	int open;
	int64_t unread; /* extents of the last collect or peek */
	int peeked; /* it was a peek */
	int watched[PAGES];
	char copy[PAGES]; /* a byte of each watched page, as last reported */
};

static struct tracker trackers[HANDLES];

static uint8_t byte(void)
{
	return left ? left--, *input++ : 0;
}

static uint64_t word(void)
{
	uint64_t value = 0;

	for (int i = 0; i < 8; i++)
		value = value << 8 | byte();
	return value;
}

static void touch(int index)
{
	arena[index * page]++;
}

/* What the caller of the library does with each reported page. */
static void copy(struct tracker *tracker, uintptr_t start, uintptr_t end)
{
	for (uintptr_t at = start; at < end; at += page)
		tracker->copy[(at - (uintptr_t)arena) / page] = *(char *)at;
}

static void opened(struct tracker *tracker, int64_t handle)
{
	CHECK(handle > UINT32_MAX || (handle < 0 && handle > -4096));
	if (handle < 0)
		return;
	if (tracker->open)
		CHECK(dirty_close(tracker->handle) == 0);
	memset(tracker, 0, sizeof(*tracker));
	tracker->handle = handle;
	tracker->open = 1;
}

static void open_one(struct tracker *tracker)
{
	const char *const names[] = { NULL, "auto", "mprotect", "uffd-sync", "", "x\n%s" };
	uint8_t which = byte() % 32;
	char raw[9] = "";
	int64_t handle;

	if (which >= 8) {
		handle = dirty_open(0, backend, 0);
	} else if (which >= 6) {
		uint64_t value = word();

		memcpy(raw, &value, 8);
		handle = dirty_open(byte() & 1 ? 0 : -(int)byte(), raw, (uint32_t)word());
	} else {
		handle = dirty_open(0, names[which], 0);
	}
	opened(tracker, handle);
}

/* Any number, another file, a userfaultfd in some state or other. */
static void open_by_descriptor(struct tracker *tracker)
{
	struct uffdio_api api = { .api = UFFD_API };
	uint8_t which = byte() % 16, state = byte();
	int64_t handle;
	int fd;

	if (which == 1) {
		fd = open("/dev/null", O_RDWR | O_CLOEXEC);
		CHECK(dirty_open_fd(0, fd) == -EOPNOTSUPP);
		CHECK(close(fd) == 0);
		return;
	}
	if (which == 0) {
		fd = (int)word();
		handle = dirty_open_fd(state & 1 ? 0 : -(int)state, fd);
		CHECK(handle == -EBADF || fd >= 0);
	} else {
		fd = (int)syscall(SYS_userfaultfd, (state & 1 ? O_CLOEXEC : 0) |
					  (state & 2 ? O_NONBLOCK : 0) | UFFD_USER_MODE_ONLY);
		if (fd < 0)
			return;
		if (state % 16 == 4) {
			api.features = byte();
			(void)ioctl(fd, UFFDIO_API, &api);
		}
		handle = dirty_open_fd(0, fd);
		CHECK(handle > 0 || handle == -EOPNOTSUPP);
		/* Once more, initialised by the call before. */
		if (state % 16 == 5) {
			int64_t second = dirty_open_fd(0, fd);

			CHECK(second == -EOPNOTSUPP || dirty_close(second) == 0);
		}
		CHECK(fcntl(fd, F_GETFD) >= 0 && close(fd) == 0);
	}
	opened(tracker, handle);
}

/* Some range: pages of the arena, or any numbers that are no range at all. */
static void any_range(uintptr_t *start, size_t *length)
{
	switch (byte() % 5) {
	case 0:
		*start = word();
		*length = word();
		break;
	case 1:
		*start = (uintptr_t)arena;
		*length = PAGES * page;
		break;
	case 2:
		*start = (uintptr_t)arena + byte();
		*length = byte();
		break;
	default:
		*start = (uintptr_t)arena + byte() % PAGES * page;
		*length = byte() % PAGES * page;
	}
	if ((*start | *length) % page == 0 && *length && *start + *length > *start &&
	    (*start < (uintptr_t)arena || *start + *length > (uintptr_t)arena + PAGES * page)) {
		*start = (uintptr_t)arena;
		*length = page;
	}
}

/* What the library ought to say of the range; the pages are first to end - 1. */
static int expected(const struct tracker *tracker, uintptr_t start, size_t length, int watch,
		    int *first, int *end)
{
	int all = 1, any = 0;

	if ((start | length) % page || !length || start + length <= start)
		return -EINVAL;
	*first = (int)((start - (uintptr_t)arena) / page);
	*end = *first + (int)(length / page);
	for (int i = *first; i < *end; i++) {
		all &= tracker->watched[i];
		any |= tracker->watched[i];
	}
	if (watch)
		return any ? -EEXIST : 0;
	return all ? 0 : -ENOENT;
}

static void change_range(struct tracker *tracker, int watch)
{
	uintptr_t start;
	size_t length;
	int first, end, result, want;

	any_range(&start, &length);
	result = watch ? dirty_watch(tracker->handle, start, length) :
			 dirty_unwatch(tracker->handle, start, length);
	want = expected(tracker, start, length, watch, &first, &end);
	CHECK(result == (tracker->open ? want : -EBADF));
	if (result)
		return;
	for (int i = first; i < end; i++)
		tracker->watched[i] = watch;
	copy(tracker, start, start + length);
}

/* What dirty_collect() and its kin returned; want is 0 or what they refuse. */
static void found(struct tracker *tracker, int64_t count, int64_t want, int peeked)
{
	if (!tracker->open)
		CHECK(count == -EBADF);
	else if (want == -EINVAL)
		CHECK(count == -EINVAL);
	else if (tracker->unread)
		CHECK(count == -EBUSY);
	else
		CHECK(want ? count == want : count >= 0);
	if (count >= 0) {
		tracker->unread = count;
		tracker->peeked = peeked;
	}
}

static void collect(struct tracker *tracker)
{
	found(tracker, dirty_collect(tracker->handle), 0, 0);
}

static void collect_range(struct tracker *tracker)
{
	int first, end, peek = byte() % 4 == 0;
	uintptr_t start;
	size_t length;
	int64_t count;

	if (byte() % 8 == 0) {
		found(tracker, dirty_peek(tracker->handle), 0, 1);
		return;
	}
	any_range(&start, &length);
	count = peek ? dirty_peek_range(tracker->handle, start, length) :
		       dirty_collect_range(tracker->handle, start, length);
	found(tracker, count, expected(tracker, start, length, 0, &first, &end), peek);
}

static void read_some(struct tracker *tracker)
{
	size_t capacity = byte() % (CAPACITY + 1);
	struct dirty_extent *out = array + (CAPACITY - capacity);
	uint8_t wrong = byte();
	int64_t count, want = capacity ? 0 : -EINVAL;

	if (wrong % 16 == 0) {
		out = NULL;
		want = -EFAULT;
	} else if (wrong % 16 == 1) {
		capacity = word() | (size_t)1 << 63;
		want = -EINVAL;
	} else if (wrong % 16 == 2) {
		out = (struct dirty_extent *)((char *)out + wrong / 16 % 7 + 1);
		want = -EINVAL;
	}
	count = dirty_read(tracker->handle, out, capacity);
	if (!tracker->open)
		want = -EBADF;
	if (want) {
		CHECK(count == want);
		return;
	}
	CHECK(count >= 0 && (size_t)count <= capacity);
	CHECK(count == tracker->unread || (size_t)count == capacity);
	tracker->unread -= count;
	for (int64_t i = 0; i < count; i++) {
		CHECK(out[i].start < out[i].end && !((out[i].start | out[i].end) % page));
		CHECK(!i || out[i - 1].end <= out[i].start);
		CHECK(out[i].start >= (uintptr_t)arena);
		CHECK(out[i].end <= (uintptr_t)arena + PAGES * page);
		CHECK(dirty_reason_text(out[i].reason));
		/* What a peek found is left to a collect. */
		if (!tracker->peeked)
			copy(tracker, out[i].start, out[i].end);
	}
}

static void change_memory(void)
{
	int index = byte() % PAGES, pages = byte() % (PAGES - index) + 1;
	char *start = arena + index * page;

	switch (byte() % 3) {
	case 0:
		CHECK(madvise(start, pages * page, MADV_DONTNEED) == 0);
		break;
	case 1:
		CHECK(mmap(start, pages * page, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start);
		break;
	default:
		CHECK(mmap(start, pages * page, PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == start);
	}
}

/* The record is as long as it says, so that the sanitizer sees a byte too many. */
static void ask(struct tracker *tracker)
{
	uint64_t value = word();
	uint32_t room = byte();
	struct dirty_capabilities *known;
	char raw[9] = "";
	int result;

	known = (struct dirty_capabilities *)malloc(room < sizeof(room) ? sizeof(room) : room);
	memcpy(raw, &value, 8);
	known->size = room;
	result = dirty_capabilities(byte() & 1 ? raw : "mprotect", known);
	CHECK(result == -EINVAL || (result == 0 && room >= sizeof(*known)));
	free(known);
	CHECK(dirty_reason_text((uint32_t)value));
	CHECK(!dirty_backend(tracker->handle) == !tracker->open);
	CHECK(strlen(dirty_last_error()) < 1024);
}

/* A number from nowhere, but none that names an open tracker. */
static void any_handle(void)
{
	int64_t handle = (int64_t)word();

	if (byte() & 1)
		handle = trackers[byte() % HANDLES].handle + (int8_t)byte();
	for (int i = 0; i < HANDLES; i++)
		if (trackers[i].open && trackers[i].handle == handle)
			return;
	CHECK(dirty_collect(handle) == -EBADF);
	CHECK(dirty_collect_range(handle, (uintptr_t)arena, page) == -EBADF);
	CHECK(dirty_peek(handle) == -EBADF);
	CHECK(dirty_read(handle, array, CAPACITY) == -EBADF);
	CHECK(dirty_discard(handle) == -EBADF);
	CHECK(dirty_close(handle) == -EBADF);
}

/* When nothing is left to be read, the copy is what memory is. */
static void finish(struct tracker *tracker)
{
	int64_t count;

	if (!tracker->open) {
		CHECK(dirty_close(tracker->handle) == -EBADF);
		return;
	}
	for (int round = 0; round < 2; round++) {
		do {
			count = dirty_read(tracker->handle, array, CAPACITY);
			CHECK(count >= 0);
			for (int64_t i = 0; i < count && !tracker->peeked; i++)
				copy(tracker, array[i].start, array[i].end);
		} while (count > 0);
		tracker->peeked = 0;
		CHECK(round || dirty_collect(tracker->handle) >= 0);
	}
	for (int i = 0; i < PAGES; i++)
		CHECK(!tracker->watched[i] || tracker->copy[i] == arena[i * page]);
	CHECK(dirty_close(tracker->handle) == 0);
	CHECK(dirty_close(tracker->handle) == -EBADF);
}

/* One tracker has found something already, so that short inputs come far. */
static void start(void)
{
	trackers[0].handle = dirty_open(0, backend, 0);
	trackers[0].open = 1;
	CHECK(dirty_watch(trackers[0].handle, (uintptr_t)arena, PAGES * page) == 0);
	for (int i = 0; i < PAGES; i++)
		trackers[0].watched[i] = 1;
	copy(&trackers[0], (uintptr_t)arena, (uintptr_t)arena + PAGES * page);
	for (int i = 0; i < PAGES; i += 2)
		touch(i);
	collect(&trackers[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (!arena) {
		page = page_size();
		arena = new_memory(PAGES);
		array = new_array(CAPACITY);
		trackers[0].handle = dirty_open(0, NULL, 0);
		backend = dirty_backend(trackers[0].handle);
		CHECK(dirty_close(trackers[0].handle) == 0);
	}
	input = data;
	left = size;
	memset(trackers, 0, sizeof(trackers));
	start();
	for (int step = 0; left && step < STEPS; step++) {
		uint8_t what = byte();
		struct tracker *tracker = &trackers[what / 16 % HANDLES];

		switch (what % 16) {
		case 0:
			open_one(tracker);
			break;
		case 1:
			open_by_descriptor(tracker);
			break;
		case 2:
			CHECK(dirty_close(tracker->handle) == (tracker->open ? 0 : -EBADF));
			tracker->open = 0;
			break;
		case 3 ... 4:
			change_range(tracker, 1);
			break;
		case 5:
			change_range(tracker, 0);
			break;
		case 6 ... 7:
			touch(byte() % PAGES);
			break;
		case 8: /* more extents than are read at once */
			for (int i = byte() % 2; i < PAGES; i += 2)
				touch(i);
			break;
		case 9:
			collect(tracker);
			break;
		case 10:
			collect_range(tracker);
			break;
		case 11 ... 12:
			read_some(tracker);
			break;
		case 13:
			change_memory();
			break;
		case 14:
			ask(tracker);
			break;
		default:
			any_handle();
		}
	}
	for (int i = 0; i < HANDLES; i++)
		finish(&trackers[i]);
	CHECK(mmap(arena, PAGES * page, PROT_READ | PROT_WRITE,
		   MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == arena);
	return 0;
}
