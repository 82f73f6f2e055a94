// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The same random calls through the C library (where the shim is) and by bare system calls on files of their own:
 * results, errno, positions and every byte must be the same, but for the soft-dirty bit, the write-protection bit
 * and the entries of empty pages that a tracker has marked.
 *
 * fuzz SEED CALLS
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define ROOM 40000
#define SOFT_DIRTY (1ULL << 55)
#define UFFD_WP (1ULL << 57)
#define EXCLUSIVE (1ULL << 56)
#define OF_FILE (1ULL << 61)
#define SWAP (1ULL << 62)

static unsigned char ours[ROOM], theirs[ROOM];
static uint64_t state;
static char *memory, *gone;
static long page;

static uint64_t any(uint64_t below)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state % below;
}

static void fail(const char *what, long call, long a, int a_errno, long b, int b_errno)
{
	printf("call %ld, %s: through the shim %ld (%s), by the kernel %ld (%s)\n", call, what, a, strerror(a_errno),
	       b, strerror(b_errno));
	exit(1);
}

static off_t any_offset(void)
{
	switch (any(6)) {
	case 0:
		return (off_t)(state * 31);
	case 1:
		return -(off_t)any(10000);
	case 2:
		return any(1 << 20);
	case 3:
		return INT64_MAX - any(5000);
	default:
		return ((uintptr_t)memory / page + any(3000)) * 8 + (any(8) ? 0 : any(8));
	}
}

static size_t any_length(void)
{
	switch (any(8)) {
	case 0:
		return any(100);
	case 1:
		return 0;
	default:
		return any(2000) * 8;
	}
}

/* Entries start where the read did, whatever the alignment of the buffer. */
static void compare(long call, size_t at, ssize_t length)
{
	for (ssize_t i = 0; i + 8 <= length; i += 8) {
		uint64_t a, b;

		memcpy(&a, ours + at + i, 8);
		memcpy(&b, theirs + at + i, 8);
		if ((b & UFFD_WP) && (b & SWAP) && (b & 31) == 31)
			b = 0;
		/* Whether a file is mapped once is for other processes to change. */
		if (b & OF_FILE)
			b = (b & ~EXCLUSIVE) | (a & EXCLUSIVE);
		if ((a ^ b) & ~(SOFT_DIRTY | UFFD_WP)) {
			printf("call %ld: entry %zd is %#lx, by the kernel %#lx\n", call, i / 8, (long)a, (long)b);
			exit(1);
		}
		memcpy(ours + at + i, theirs + at + i, 8);
	}
	if (memcmp(ours, theirs, ROOM)) {
		printf("call %ld: bytes beside the entries were changed\n", call);
		exit(1);
	}
}

struct scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t inverted, mask, anyof, returned;
};

struct region {
	uint64_t start, end, categories;
};

/* More than this program's memory can be in. */
static struct region found[2][20000];

/* What a tracker does not change: FILE, PRESENT, PFNZERO, HUGE. */
#define UNCHANGED 0x6cULL
#define KNOWN 0xffULL
#define PAGEMAP_SCAN 0xc0606610UL

/* Mostly good; sometimes one number is any other. */
static struct scan any_scan(void)
{
	size_t first = any(2900);
	struct scan scan = {
		.size = sizeof(scan),
		.start = (uintptr_t)memory + first * page,
		.end = (uintptr_t)memory + (first + any(3000 - first)) * page + any(2) * any(page),
		.vec = 1, /* its buffer */
		.vec_len = any(300),
		.max_pages = any(3) ? 0 : any(200),
		.inverted = any(256) & UNCHANGED,
		.mask = any(4) ? 0 : any(256) & UNCHANGED,
		.anyof = any(2) ? 0 : any(256) & UNCHANGED,
		.returned = any(256) & UNCHANGED,
	};

	if (!any(3)) {
		uint64_t *numbers = (uint64_t *)&scan, any_number = state * 31;

		numbers[any(12)] = any(2) ? any_number : any_number >> any(64);
		scan.vec = any(4) ? 1 : any(2) ? 0 : (uintptr_t)gone;
		/* What protects is not for comparing: see the client's case. */
		scan.flags &= ~3ULL;
	}
	/* Nor is what a tracker changes, but numbers that mean nothing are. */
	scan.inverted &= UNCHANGED | ~KNOWN;
	scan.mask &= UNCHANGED | ~KNOWN;
	scan.anyof &= UNCHANGED | ~KNOWN;
	scan.returned &= UNCHANGED | ~KNOWN;
	return scan;
}

static void scan_both(int fd_ours, int fd_theirs, int is_bad, long call)
{
	int a_errno, b_errno;
	struct scan a = any_scan(), b, *pa = is_bad && any(2) ? (struct scan *)gone : &a;
	long x, y;

	b = a;
	if (a.vec == 1) {
		a.vec = (uintptr_t)found[0];
		b.vec = (uintptr_t)found[1];
	}
	errno = 0;
	x = ioctl(fd_ours, PAGEMAP_SCAN, pa);
	a_errno = errno;
	errno = 0;
	y = syscall(SYS_ioctl, fd_theirs, PAGEMAP_SCAN, pa == &a ? &b : pa);
	b_errno = errno;
	if ((x < 0) != (y < 0) || (x < 0 && a_errno != b_errno) ||
	    (x >= 0 && (x != y || a.walk_end != b.walk_end))) {
		printf("start %#lx end %#lx (walked to %#lx, %#lx) vec %#lx of %lu, at most %lu, %lx %lx %lx %lx\n",
		       a.start, a.end, a.walk_end, b.walk_end, a.vec, a.vec_len, a.max_pages, a.inverted, a.mask,
		       a.anyof, a.returned);
		fail("PAGEMAP_SCAN", call, x, a_errno, y, b_errno);
	}
	if (x > 0 && memcmp(found[0], found[1], x * sizeof(struct region))) {
		printf("call %ld: other regions than the kernel's\n", call);
		exit(1);
	}
}

static const char * const commands[] = { "4",	 "4\n",	 " +4\t", "004", "4 4", "44",  "",     "\n",  "-4",
				  "1",	 "5",	 "6",	  "x",	 "+",	"4\0x", "0x4", "4           5" };

int main(int argc, char **argv)
{
	int refs[2], maps[2];
	long calls = argc > 2 ? atol(argv[2]) : 10000;

	state = 88172645463325252ULL + (argc > 1 ? atol(argv[1]) : 0);
	page = sysconf(_SC_PAGESIZE);
	/* Reads go beyond the memory, where nothing is to change: code that runs for the first time is mapped then. */
	memory = mmap(NULL, 6000 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory != MAP_FAILED)
		memory = mmap(memory, 3000 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED,
			      -1, 0);
	gone = mmap(NULL, page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	maps[0] = open("/proc/self/pagemap", O_RDONLY);
	refs[0] = open("/proc/self/clear_refs", O_WRONLY);
	maps[1] = syscall(SYS_openat, AT_FDCWD, "/proc/self/pagemap", O_RDONLY);
	refs[1] = syscall(SYS_openat, AT_FDCWD, "/proc/self/clear_refs", O_WRONLY);
	if (memory == MAP_FAILED || gone == MAP_FAILED || maps[0] < 0 || maps[1] < 0 || refs[0] < 0 || refs[1] < 0)
		return 2;
	memset(theirs, 0x55, ROOM);
	memset(ours, 0x55, ROOM);

	for (long call = 0; call < calls; call++) {
		size_t at = any(64), length = any_length();
		int is_bad = !any(20), a_errno, b_errno;
		void *a = is_bad ? gone : (void *)(ours + at), *b = is_bad ? gone : (void *)(theirs + at);
		const char *what;
		off_t offset = any_offset();
		ssize_t x, y;

		if (any(3) == 0)
			memory[any(3000) * page] = 1;
		if (any(200) == 0)
			madvise(memory + any(2000) * page, any(1000) * page, MADV_DONTNEED);
		errno = 0;
		switch (any(12)) {
		case 0: {
			int whence = any(4);

			what = "lseek";
			x = lseek(maps[0], offset, whence);
			a_errno = errno;
			errno = 0;
			y = syscall(SYS_lseek, maps[1], offset, whence);
			length = 0;
			break;
		}
		case 1:
		case 2:
			what = "read";
			x = read(maps[0], a, length);
			a_errno = errno;
			errno = 0;
			y = syscall(SYS_read, maps[1], b, length);
			break;
		case 3:
		case 4:
			what = "pread";
			x = pread(maps[0], a, length, offset);
			a_errno = errno;
			errno = 0;
			y = syscall(SYS_pread64, maps[1], b, length, offset);
			break;
		case 5: {
			size_t first = any(length + 1) & ~7UL;
			struct iovec va[2] = { { a, first }, { (char *)a + first, length - first } };
			struct iovec vb[2] = { { b, first }, { (char *)b + first, length - first } };

			what = any(2) ? "readv" : "preadv";
			x = *what == 'r' ? readv(maps[0], va, 2) : preadv(maps[0], va, 2, offset);
			a_errno = errno;
			errno = 0;
			y = *what == 'r' ? syscall(SYS_readv, maps[1], vb, 2) :
					   syscall(SYS_preadv, maps[1], vb, 2, offset, 0);
			break;
		}
		case 6: {
			const char *text = is_bad ? gone : commands[any(sizeof(commands) / sizeof(*commands))];

			what = "write to clear_refs";
			length = is_bad ? 1 + any(20) : any(3) ? strlen(text) : strlen(text) + 1;
			x = any(2) ? write(refs[0], text, length) : pwrite(refs[0], text, length, offset);
			a_errno = errno;
			errno = 0;
			if (x < 0 && a_errno == EINVAL && offset < 0)
				y = syscall(SYS_pwrite64, refs[1], text, length, offset);
			else
				y = syscall(SYS_write, refs[1], text, length);
			length = 0;
			break;
		}
		case 9:
		case 10:
		case 11:
			scan_both(maps[0], maps[1], is_bad, call);
			continue;
		case 7:
			what = "write to pagemap";
			x = write(maps[0], a, length);
			a_errno = errno;
			errno = 0;
			y = syscall(SYS_write, maps[1], b, length);
			length = 0;
			break;
		default:
			what = "read from clear_refs";
			x = read(refs[0], a, length);
			a_errno = errno;
			errno = 0;
			y = syscall(SYS_read, refs[1], b, length);
			length = 0;
		}
		b_errno = errno;
		if (x != y || (x < 0 && a_errno != b_errno))
			fail(what, call, x, a_errno, y, b_errno);
		compare(call, at, length && x > 0 && !is_bad ? x : 0);
		x = syscall(SYS_lseek, maps[0], 0, SEEK_CUR);
		y = syscall(SYS_lseek, maps[1], 0, SEEK_CUR);
		if (x != y)
			fail("position after the call", call, x, 0, y, 0);
	}
	return 0;
}
