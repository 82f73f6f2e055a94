// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A program written for soft-dirty, as the kernel documents it. It knows nothing of what answers it.
 *
 * client CASE: exits 0 if every answer is right, 1 with a line for each wrong one, 2 if it could not ask.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 2048
#define SOFT_DIRTY (1ULL << 55)

static size_t page;
static int wrong;

#define need(ok)                                                               \
	do {                                                                   \
		if (!(ok)) {                                                   \
			fprintf(stderr, "%s:%d: %s: %s\n", __func__, __LINE__, \
				#ok, strerror(errno));                         \
			exit(2);                                               \
		}                                                              \
	} while (0)

struct files {
	int clear_refs, pagemap;
};

static struct files open_files(const char *pid)
{
	struct files files;
	char path[64];

	snprintf(path, sizeof(path), "/proc/%s/clear_refs", pid);
	need((files.clear_refs = open(path, O_WRONLY | O_CLOEXEC)) >= 0);
	snprintf(path, sizeof(path), "/proc/%s/pagemap", pid);
	need((files.pagemap = open(path, O_RDONLY | O_CLOEXEC)) >= 0);
	return files;
}

static void clear(const struct files *files)
{
	need(write(files->clear_refs, "4\n", 2) == 2);
}

static void *map(size_t pages)
{
	char *memory = mmap(NULL, pages * page, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	need(memory != MAP_FAILED);
	return memory;
}

static void fill(char *memory, size_t pages)
{
	for (size_t i = 0; i < pages; i++)
		memory[i * page] = 1;
}

/* The ioctl PAGEMAP_SCAN, newer than some headers. */
#define PAGEMAP_SCAN 0xc0606610UL
#define IS_WPALLOWED (1 << 0)
#define IS_WRITTEN (1 << 1)
#define IS_FILE (1 << 2)
#define IS_PRESENT (1 << 3)
#define IS_SWAPPED (1 << 4)
#define IS_PFNZERO (1 << 5)
#define IS_SOFT_DIRTY (1 << 7)
#define WP_MATCHING (1 << 0)
#define CHECK_WPASYNC (1 << 1)

struct scan {
	uint64_t size, flags, start, end, walk_end, vec, vec_len, max_pages;
	uint64_t inverted, mask, anyof, returned;
};

struct region {
	uint64_t start, end, categories;
};

/* Mark the pages of all regions that have any of the categories. */
static void scan(const struct files *files, struct scan scan, size_t vec_len, uint64_t wanted, char *found)
{
	struct region *regions = calloc(vec_len, sizeof(*regions));
	uintptr_t memory = scan.start;

	need(regions);
	scan.size = sizeof(scan);
	scan.vec = (uintptr_t)regions;
	scan.vec_len = vec_len;
	memset(found, 0, (scan.end - scan.start) / page);
	while (scan.start < scan.end) {
		int count = ioctl(files->pagemap, PAGEMAP_SCAN, &scan);

		need(count >= 0 && (size_t)count <= vec_len);
		for (int i = 0; i < count; i++)
			for (uint64_t at = regions[i].start; at < regions[i].end; at += page)
				found[(at - memory) / page] |= !!(regions[i].categories & wanted);
		need(scan.walk_end > scan.start && scan.walk_end <= scan.end);
		scan.start = scan.walk_end;
	}
	free(regions);
}

enum { WAYS = 7 };

/* Which pages are soft-dirty, asked in one of so many ways. */
static void ask(const struct files *files, void *memory, size_t pages, char *dirty, int way)
{
	off_t at = (uintptr_t)memory / page * 8;
	uint64_t *entries = malloc(pages * 8);
	ssize_t length = pages * 8;
	struct iovec halves[2] = {
		{ entries, pages / 2 * 8 },
		{ entries + pages / 2, (pages - pages / 2) * 8 },
	};

	need(entries);
	switch (way % WAYS) {
	case 0:
		need(pread(files->pagemap, entries, length, at) == length);
		break;
	case 1:
		need(lseek(files->pagemap, at, SEEK_SET) == at);
		need(read(files->pagemap, entries, length) == length);
		need(lseek(files->pagemap, 0, SEEK_CUR) == at + length);
		break;
	case 2:
		need(preadv(files->pagemap, halves, 2, at) == length);
		break;
	case 3:
		need(lseek(files->pagemap, at, SEEK_SET) == at);
		for (size_t i = 0; i < pages; i++)
			need(read(files->pagemap, entries + i, 8) == 8);
		break;
	default: {
		struct scan all = { .start = (uintptr_t)memory, .end = (uintptr_t)memory + pages * page,
				    .returned = IS_SOFT_DIRTY };

		if (way == 5)
			all.mask = IS_SOFT_DIRTY;
		if (way == 6)
			all.max_pages = 100;
		scan(files, all, way == 4 ? 7 : 600, IS_SOFT_DIRTY, dirty);
		free(entries);
		return;
	}
	}
	for (size_t i = 0; i < pages; i++)
		dirty[i] = !!(entries[i] & SOFT_DIRTY);
	free(entries);
}

static void expect(const struct files *files, const char *what, void *memory, size_t pages, const char *expected)
{
	char *dirty = malloc(pages);

	need(dirty);
	for (int way = 0; way < WAYS; way++) {
		size_t missed = 0, spurious = 0;

		ask(files, memory, pages, dirty, way);
		for (size_t i = 0; i < pages; i++) {
			missed += expected[i] && !dirty[i];
			spurious += !expected[i] && dirty[i];
		}
		if (missed || spurious) {
			printf("%s (way %d): of %zu pages %zu missed, %zu spurious\n",
			       what, way, pages, missed, spurious);
			wrong = 1;
		}
	}
	free(dirty);
}

static void expect_all(const struct files *files, const char *what, void *memory, size_t pages, int dirty)
{
	char *expected = malloc(pages);

	need(expected);
	memset(expected, dirty, pages);
	expect(files, what, memory, pages, expected);
	free(expected);
}

/* Touch pages at random, several rounds, and expect just these. */
static void rounds(const struct files *files, char *memory)
{
	char expected[PAGES];

	for (int round = 0; round < 20; round++) {
		clear(files);
		memset(expected, 0, sizeof(expected));
		for (int i = 0; i < (round % 5) * 150; i++) {
			size_t at = rand() % PAGES;

			memory[at * page + rand() % page]++;
			expected[at] = 1;
		}
		expect(files, "touched", memory, PAGES, expected);
	}
}

static void case_basic(void)
{
	struct files files = open_files("self");
	char *memory = map(PAGES);

	fill(memory, PAGES);
	expect_all(&files, "before any clear", memory, PAGES, 1);
	rounds(&files, memory);
	/* A second pair, under the other name, sees the same. */
	char pid[16];

	snprintf(pid, sizeof(pid), "%d", getpid());
	struct files again = open_files(pid);

	rounds(&again, memory);
}

static int scan_errno(const struct files *files, const struct scan *scan)
{
	errno = 0;
	return ioctl(files->pagemap, PAGEMAP_SCAN, scan) < 0 ? errno : 0;
}

/* A userfaultfd of this program's own, which watches asynchronously. */
static int watch_by_own(char *memory, size_t pages)
{
	struct uffdio_api api = { .api = UFFD_API, .features = 1 << 15 | 1 << 13 };
	struct uffdio_register watch = { .range = { (uintptr_t)memory, pages * page },
					 .mode = UFFDIO_REGISTER_MODE_WP };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | 1);

	need(fd >= 0 && ioctl(fd, UFFDIO_API, &api) == 0 && ioctl(fd, UFFDIO_REGISTER, &watch) == 0);
	return fd;
}

/* What PAGEMAP_SCAN says beside soft-dirty, and what it does. */
static void case_scan(void)
{
	struct files files = open_files("self");
	char *memory = map(PAGES), *own = map(64), found[PAGES], expected[PAGES];
	struct scan all = { .size = sizeof(all), .start = (uintptr_t)memory,
			    .end = (uintptr_t)memory + PAGES * page };
	/* As a checkpointer asks: content of its own, and which of it is soft-dirty. */
	struct scan content = all, clean = all, protect = all;

	content.inverted = content.mask = IS_PFNZERO | IS_FILE;
	content.anyof = IS_PRESENT | IS_SWAPPED;
	content.returned = content.anyof | IS_SOFT_DIRTY;
	clean.inverted = clean.mask = clean.returned = IS_SOFT_DIRTY;
	need(madvise(memory, PAGES * page, MADV_NOHUGEPAGE) == 0);
	fill(memory, PAGES / 2);
	int fd = watch_by_own(own, 64);

	fill(own, 64);
	for (int round = 0; round < 5; round++) {
		clear(&files);
		memset(expected, 0, sizeof(expected));
		for (int i = 0; i < round * 100; i++)
			expected[rand() % (PAGES / 2)] = 1;
		for (size_t i = 0; i < PAGES; i++)
			if (expected[i])
				memory[i * page]++;
		scan(&files, content, 50, IS_SOFT_DIRTY, found);
		if (memcmp(found, expected, PAGES)) {
			printf("content: not the pages that were written\n");
			wrong = 1;
		}
		scan(&files, content, 50, IS_PRESENT | IS_SWAPPED, found);
		if (memchr(found, 0, PAGES / 2) || memchr(found + PAGES / 2, 1, PAGES / 2)) {
			printf("content: not the pages that there are\n");
			wrong = 1;
		}
		/* Those that are clean: all others, as they have been there since the clear. */
		clean.returned = IS_PRESENT;
		clean.anyof = IS_PRESENT;
		scan(&files, clean, 50, IS_PRESENT, found);
		for (size_t i = 0; i < PAGES / 2; i++)
			expected[i] = !expected[i];
		if (memcmp(found, expected, PAGES)) {
			printf("clean: not the other pages\n");
			wrong = 1;
		}
		/* The tracker is not seen. */
		struct scan traces = all;

		traces.returned = traces.anyof = IS_WPALLOWED;
		scan(&files, traces, 50, IS_WPALLOWED, found);
		if (memchr(found, 1, PAGES)) {
			printf("memory reads as watched by a userfaultfd\n");
			wrong = 1;
		}
		traces.returned = traces.mask = IS_WRITTEN | IS_PRESENT;
		traces.anyof = 0;
		scan(&files, traces, 50, IS_WRITTEN, found);
		if (memchr(found, 0, PAGES / 2)) {
			printf("memory reads as write-protected\n");
			wrong = 1;
		}
	}
	/* To protect is for memory that the program itself watches. The tracker's marks stay what they are. */
	clear(&files);
	memset(expected, 0, sizeof(expected));
	expected[3] = ++memory[3 * page];
	protect.flags = WP_MATCHING;
	protect.mask = protect.returned = IS_WRITTEN;
	scan(&files, protect, 50, IS_WRITTEN, found);
	if (memchr(found, 1, PAGES)) {
		printf("memory that the program does not watch was protected\n");
		wrong = 1;
	}
	memset(expected, 0, sizeof(expected));
	expected[3] = 1;
	expect(&files, "after a scan that protects", memory, PAGES, expected);
	protect.flags |= CHECK_WPASYNC;
	if (scan_errno(&files, &protect) != EPERM) {
		printf("memory that the program does not watch: no EPERM\n");
		wrong = 1;
	}
	protect.start = (uintptr_t)own;
	protect.end = protect.start + 64 * page;
	memset(expected, 1, 64);
	for (int round = 0; round < 3; round++) {
		scan(&files, protect, 50, IS_WRITTEN, found);
		if (memcmp(found, expected, 64)) {
			printf("own userfaultfd: not the pages that were written\n");
			wrong = 1;
		}
		expect_all(&files, "watched by its own userfaultfd", own, 64, 1);
		memset(expected, 0, 64);
		expected[5 * round] = ++own[5 * round * page];
		expected[5 * round] = 1;
	}
	close(fd);
	rounds(&files, memory);
	/* Others' are passed on. */
	int pipes[2], length = -1;

	need(pipe(pipes) == 0 && write(pipes[1], "abc", 3) == 3);
	need(ioctl(pipes[0], FIONREAD, &length) == 0 && length == 3);
}

/* Every way to come by a descriptor. */
static void case_descriptors(void)
{
	char *memory = map(PAGES);
	struct files files = open_files("thread-self");
	int directory = open("/proc/self", O_RDONLY | O_DIRECTORY), moved;
	char path[64], link[] = "/tmp/shim-client-XXXXXX";

	fill(memory, PAGES);
	rounds(&files, memory);

	need(directory >= 0);
	need((files.pagemap = openat(directory, "pagemap", O_RDONLY)) >= 0);
	rounds(&files, memory);
	need((moved = dup(files.pagemap)) >= 0);
	close(files.pagemap);
	files.pagemap = moved;
	rounds(&files, memory);
	need(dup2(moved, 900) == 900 && dup3(files.clear_refs, 901, O_CLOEXEC) == 901);
	files = (struct files){ .pagemap = 900, .clear_refs = 901 };
	rounds(&files, memory);
	need((files.pagemap = fcntl(900, F_DUPFD_CLOEXEC, 2000)) >= 2000);
	rounds(&files, memory);

	snprintf(path, sizeof(path), "/proc/self/fd/%d", files.pagemap);
	need((files.pagemap = open(path, O_RDONLY)) >= 0);
	rounds(&files, memory);
	need(mkdtemp(link) && rmdir(link) == 0 && symlink("/proc/self/pagemap", link) == 0);
	files.pagemap = open(link, O_RDONLY);
	unlink(link);
	need(files.pagemap >= 0);
	rounds(&files, memory);

	/* The same number for another file, closed behind the back of the C library. */
	need(close_range(files.pagemap, files.pagemap, 0) == 0);
	need(syscall(SYS_openat, AT_FDCWD, "/dev/zero", O_RDONLY) == files.pagemap);
	uint64_t zero = 1;

	if (read(files.pagemap, &zero, 8) != 8 || zero != 0) {
		printf("another file's content was changed\n");
		wrong = 1;
	}
}

struct writer {
	char *memory;
	unsigned int seed;
	int stop;
	char *written;
};

static void *write_some(void *argument)
{
	struct writer *writer = argument;

	while (!__atomic_load_n(&writer->stop, __ATOMIC_RELAXED)) {
		size_t at = rand_r(&writer->seed) % PAGES;

		writer->memory[at * page + 8]++;
		__atomic_store_n(&writer->written[at], 1, __ATOMIC_RELEASE);
	}
	return NULL;
}

/* Threads write while this one asks; a copy updated from the answers must equal the memory in the end. */
static void case_threads(void)
{
	enum { THREADS = 3 };
	struct files files = open_files("self");
	struct writer writers[THREADS];
	pthread_t threads[THREADS];
	char *memory = map(PAGES), *copy = map(PAGES), dirty[PAGES];

	fill(memory, PAGES);
	clear(&files);
	memcpy(copy, memory, PAGES * page);
	for (int i = 0; i < THREADS; i++) {
		writers[i] = (struct writer){ memory, i + 1, 0, calloc(PAGES, 1) };
		need(!pthread_create(&threads[i], NULL, write_some, &writers[i]));
	}
	for (int round = 0; round < 200; round++) {
		if (round == 199)
			for (int i = 0; i < THREADS; i++) {
				__atomic_store_n(&writers[i].stop, 1, __ATOMIC_RELAXED);
				pthread_join(threads[i], NULL);
			}
		/* Without a clear, for a write between the question and the clear is lost by this interface itself. */
		ask(&files, memory, PAGES, dirty, round);
		for (size_t i = 0; i < PAGES; i++)
			if (dirty[i])
				memcpy(copy + i * page, memory + i * page, page);
	}
	size_t missed = 0;

	for (size_t i = 0; i < PAGES; i++)
		missed += !!memcmp(copy + i * page, memory + i * page, page);
	if (missed) {
		printf("threads: %zu pages differ\n", missed);
		wrong = 1;
	}
	char expected[PAGES] = { 0 };

	for (int i = 0; i < THREADS; i++)
		for (size_t at = 0; at < PAGES; at++)
			expected[at] |= writers[i].written[at];
	expect(&files, "threads", memory, PAGES, expected);
	rounds(&files, memory);
}

static void case_fork(void)
{
	struct files files = open_files("self");
	char *memory = map(PAGES);
	int status;

	fill(memory, PAGES);
	clear(&files);
	expect_all(&files, "before fork", memory, PAGES, 0);
	pid_t child = fork();

	need(child >= 0);
	if (!child) {
		struct files own = open_files("self");

		expect_all(&own, "a child that did not clear", memory, PAGES, 1);
		rounds(&own, memory);
		_exit(wrong);
	}
	need(waitpid(child, &status, 0) == child);
	if (status) {
		printf("fork: the child says %#x\n", status);
		wrong = 1;
	}
	rounds(&files, memory);

	/* Made behind the back of the C library. */
	child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
	need(child >= 0);
	if (!child) {
		struct files own = open_files("self");

		expect_all(&own, "a cloned child that did not clear", memory, PAGES, 1);
		rounds(&own, memory);
		_exit(wrong);
	}
	need(waitpid(child, &status, 0) == child);
	if (status) {
		printf("clone: the child says %#x\n", status);
		wrong = 1;
	}

	/* A child in the same memory, with descriptors of its own. */
	child = vfork();
	need(child >= 0);
	if (!child) {
		close(files.pagemap);
		dup2(files.clear_refs, files.pagemap);
		execl("/bin/true", "true", NULL);
		_exit(2);
	}
	need(waitpid(child, &status, 0) == child && !status);
	rounds(&files, memory);
}

static void *ask_for_ever(void *memory)
{
	struct files files = open_files("self");
	uint64_t entry;

	for (;;) {
		clear(&files);
		need(pread(files.pagemap, &entry, 8, (uintptr_t)memory / page * 8) == 8);
	}
	return NULL;
}

/* Forks while another thread is busy with the same files: every child can use them. */
static void case_busy_forks(void)
{
	char *memory = map(PAGES);
	pthread_t thread;
	int status;

	fill(memory, PAGES);
	need(!pthread_create(&thread, NULL, ask_for_ever, memory));
	for (int i = 0; i < 50; i++) {
		pid_t child = fork();

		need(child >= 0);
		if (!child) {
			struct files own = open_files("self");

			clear(&own);
			expect_all(&own, "cleared in the child", memory, PAGES, 0);
			memory[0]++;
			expect_all(&own, "written in the child", memory, 1, 1);
			_exit(wrong);
		}
		need(waitpid(child, &status, 0) == child);
		if (status) {
			printf("busy forks: the child says %#x\n", status);
			wrong = 1;
		}
	}
	need(!pthread_cancel(thread) && !pthread_join(thread, NULL));
}

static void case_mappings(void)
{
	struct files files = open_files("self");
	char *memory = map(PAGES), expected[2 * PAGES] = { 0 };

	fill(memory, PAGES);
	clear(&files);
	char *new = map(PAGES);

	fill(new, PAGES);
	expect_all(&files, "new mapping", new, PAGES, 1);
	expect_all(&files, "old mapping", memory, PAGES, 0);

	/* A mapping that was never touched is soft-dirty as a whole until that is cleared; where nothing is, nothing is. */
	char *empty = map(PAGES);

	expect_all(&files, "new and empty", empty, PAGES, 1);
	need(!munmap(empty + 3 * page, page));
	memset(expected, 1, PAGES);
	expected[3] = 0;
	expect(&files, "with a hole", empty, PAGES, expected);
	need(mmap(empty + 3 * page, page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		  0) == empty + 3 * page);
	memset(expected, 0, PAGES);

	/* Empty pages are not soft-dirty once cleared, and are when written. */
	clear(&files);
	expect_all(&files, "empty", empty, PAGES, 0);
	empty[5 * page] = 1;
	expected[5] = 1;
	expect(&files, "first write", empty, PAGES, expected);

	/* Moved memory reads dirty: its content is new at that address. */
	clear(&files);
	char *moved = mremap(memory, PAGES * page, 2 * PAGES * page, MREMAP_MAYMOVE | MREMAP_FIXED,
			     map(3 * PAGES));

	need(moved != MAP_FAILED);
	expect_all(&files, "moved", moved, PAGES, 1);
	clear(&files);
	memset(expected, 0, sizeof(expected));
	moved[1] = moved[(PAGES + 7) * page] = 1;
	expected[0] = expected[PAGES + 7] = 1;
	expect(&files, "grown", moved, 2 * PAGES, expected);

	/* Discarded and written again; the same addresses mapped anew. */
	clear(&files);
	need(!madvise(moved, PAGES * page, MADV_DONTNEED));
	fill(moved, PAGES);
	expect_all(&files, "discarded, written", moved, PAGES, 1);
	clear(&files);
	need(!madvise(moved, PAGES * page, MADV_DONTNEED));
	expect_all(&files, "discarded", moved, PAGES, 0);
	need(mmap(moved, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		  0) == moved);
	expect_all(&files, "replaced and empty", moved, PAGES, 1);
	clear(&files);
	need(mmap(moved, PAGES * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1,
		  0) == moved);
	fill(moved, PAGES);
	expect_all(&files, "replaced", moved, PAGES, 1);

	/* A protection that comes and goes. */
	clear(&files);
	need(!mprotect(moved, PAGES * page, PROT_NONE));
	need(!mprotect(moved, PAGES * page, PROT_READ | PROT_WRITE));
	memset(expected, 0, sizeof(expected));
	moved[9 * page] = 2;
	expected[9] = 1;
	expect(&files, "protected and not", moved, PAGES, expected);
}

/* A child writes what it is asked to; the parent clears and asks for it. */
static void case_other(void)
{
	int commands[2], answers[2], status;
	char *memory = map(PAGES), expected[PAGES], name[16], byte = 0;

	fill(memory, PAGES);
	need(!pipe(commands) && !pipe(answers));
	pid_t child = fork();

	need(child >= 0);
	if (!child) {
		uint32_t at;

		close(commands[1]);
		while (read(commands[0], &at, sizeof(at)) == sizeof(at)) {
			memory[at * page]++;
			need(write(answers[1], &byte, 1) == 1);
		}
		_exit(0);
	}
	snprintf(name, sizeof(name), "%d", child);
	struct files files = open_files(name);

	expect_all(&files, "other, before any clear", memory, PAGES, 1);
	for (int round = 0; round < 10; round++) {
		clear(&files);
		memset(expected, 0, sizeof(expected));
		for (int i = 0; i < 100 * (round % 3); i++) {
			uint32_t at = rand() % PAGES;

			need(write(commands[1], &at, sizeof(at)) == sizeof(at));
			need(read(answers[0], &byte, 1) == 1);
			expected[at] = 1;
		}
		expect(&files, "other", memory, PAGES, expected);
	}
	close(commands[1]);
	need(waitpid(child, &status, 0) == child);
	if (status) {
		printf("other: the child ended with %#x\n", status);
		wrong = 1;
	}
	errno = 0;
	if (write(files.clear_refs, "4", 1) != -1 || errno != ESRCH) {
		printf("other: a clear of a process that has ended: %s\n", strerror(errno));
		wrong = 1;
	}
}

/* A clear must not leave more behind each time. */
static void case_many(void)
{
	struct files files = open_files("self");
	char line[256];
	long before = 0, after = 0;

	map(PAGES);
	for (int i = 0; i < 1000; i++) {
		if (i == 100 || i == 999) {
			FILE *maps = fopen("/proc/self/maps", "r");

			need(maps);
			before = after;
			after = 0;
			while (fgets(line, sizeof(line), maps)) {
				unsigned long start, end;

				need(sscanf(line, "%lx-%lx", &start, &end) == 2);
				after += (end - start) / page;
			}
			fclose(maps);
		}
		clear(&files);
	}
	printf("pages mapped after 100 clears %ld, after 999 %ld\n", before, after);
	if (after > before + 64)
		wrong = 1;
}

static struct files handler_files;
static char *handler_memory;
static volatile sig_atomic_t handled;

static void on_alarm(int number)
{
	uint64_t entries[16];
	off_t at = (uintptr_t)handler_memory / page * 8;
	int saved = errno;

	(void)number;
	if (pread(handler_files.pagemap, entries, sizeof(entries), at) != sizeof(entries))
		_exit(2);
	for (int i = 0; i < 16; i++)
		if (!(entries[i] & SOFT_DIRTY))
			_exit(1);
	handled++;
	errno = saved;
}

/* A handler that asks about memory of its own, while the program clears and asks. */
static void case_signals(void)
{
	struct itimerval timer = { { 0, 200 }, { 0, 200 } };
	struct files files = open_files("self");
	char *memory = map(PAGES);
	int before;

	handler_files = open_files("self");
	fill(memory, PAGES);
	rounds(&files, memory);
	signal(SIGALRM, on_alarm);
	for (int i = 0; i < 20; i++) {
		/* Made after the clear, and so dirty until the next. */
		handler_memory = map(16);
		fill(handler_memory, 16);
		need(!setitimer(ITIMER_REAL, &timer, NULL));
		for (before = handled; handled < before + 20;)
			expect_all(&files, "handler's", handler_memory, 16, 1);
		need(!setitimer(ITIMER_REAL, &(struct itimerval){ 0 }, NULL));
		clear(&files);
		expect_all(&files, "cleared", handler_memory, 16, 0);
	}
	rounds(&files, memory);
}

static void *wait_for_byte(void *pipe_end)
{
	char byte;

	need(read(*(int *)pipe_end, &byte, 1) == 1);
	return NULL;
}

/* Nothing of ours is open: what the program does with other files works as ever. */
static void case_others(void)
{
	int ends[2];
	pthread_t thread;
	void *result;
	char text[64];

	need(!pipe(ends));
	need(!pthread_create(&thread, NULL, wait_for_byte, &ends[0]));
	usleep(20000);
	need(!pthread_cancel(thread) && !pthread_join(thread, &result));
	if (result != PTHREAD_CANCELED) {
		printf("others: the thread was not cancelled\n");
		wrong = 1;
	}
	int copy = dup(ends[1]);

	need(write(copy, "text", 4) == 4 && read(ends[0], text, sizeof(text)) == 4);
	need(!memcmp(text, "text", 4) && !close(copy) && close(copy) == -1 && errno == EBADF);
	need(open("/nowhere", O_RDONLY) == -1 && errno == ENOENT);
	int file = open("/tmp", O_TMPFILE | O_RDWR, 0640);
	struct stat status;

	need(file >= 0 && !fstat(file, &status) && (status.st_mode & 07777) == (0640 & ~umask(0)));
	need(fcntl(file, F_GETFD) == 0 && !fcntl(file, F_SETFD, FD_CLOEXEC) && fcntl(file, F_GETFD) == FD_CLOEXEC);
}

/* Without a userfaultfd a clear fails, and everything reads dirty. */
static void case_refused(void)
{
	struct sock_filter code[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_userfaultfd, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog filter = { sizeof(code) / sizeof(*code), code };
	struct files files = open_files("self");
	char *memory = map(PAGES);

	fill(memory, PAGES);
	need(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0));
	need(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter));
	for (int i = 0; i < 3; i++) {
		errno = 0;
		if (write(files.clear_refs, "4", 1) != -1 || errno != EOPNOTSUPP) {
			printf("refused: %s\n", strerror(errno));
			wrong = 1;
		}
		expect_all(&files, "refused", memory, PAGES, 1);
	}
}

static int protect_by_own(char *memory)
{
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_PAGEFAULT_FLAG_WP };
	struct uffdio_range range = { (uintptr_t)memory, PAGES * page };
	struct uffdio_register reg = { .range = range, .mode = UFFDIO_REGISTER_MODE_WP };
	struct uffdio_writeprotect protect = { .range = range, .mode = UFFDIO_WRITEPROTECT_MODE_WP };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC | UFFD_USER_MODE_ONLY);

	need(fd >= 0 && !ioctl(fd, UFFDIO_API, &api) && !ioctl(fd, UFFDIO_REGISTER, &reg));
	need(!ioctl(fd, UFFDIO_WRITEPROTECT, &protect));
	return fd;
}

/* Memory that the program write-protects itself: the kernel's mark there says nothing about the last clear. */
static void case_userfaultfd(void)
{
	struct files files = open_files("self");
	char *before = map(PAGES), *after;
	int fd;

	fill(before, PAGES);
	fd = protect_by_own(before);
	for (int i = 0; i < 3; i++) {
		clear(&files);
		expect_all(&files, "protected before the clear", before, PAGES, 1);
	}
	close(fd);

	after = map(PAGES);
	fill(after, PAGES);
	fd = protect_by_own(after);
	expect_all(&files, "protected after the clear", after, PAGES, 1);
	clear(&files);
	expect_all(&files, "protected and cleared", after, PAGES, 1);
	close(fd);
}

static ssize_t dirty_at(int pagemap, uintptr_t at)
{
	uint64_t entry;
	ssize_t length = pread(pagemap, &entry, 8, at / page * 8);

	return length == 8 ? !!(entry & SOFT_DIRTY) : -1;
}

/* The tracked process becomes another program: all of that is dirty, until it is cleared in turn. */
static void case_exec(void)
{
	int in[2], out[2];
	char byte = 0, name[32];
	uintptr_t at;

	need(!pipe(in) && !pipe(out));
	pid_t child = fork();

	need(child >= 0);
	if (!child) {
		need(dup2(in[0], 0) == 0 && dup2(out[1], 1) == 1 && !close(in[1]));
		need(read(0, &byte, 1) == 1);
		execl("/proc/self/exe", "client", "echo", NULL);
		_exit(2);
	}
	snprintf(name, sizeof(name), "%d", child);
	struct files files = open_files(name);

	clear(&files);
	need(write(in[1], &byte, 1) == 1);
	need(read(out[0], &at, sizeof(at)) == sizeof(at));
	close(files.pagemap);
	close(files.clear_refs);
	files = open_files(name);
	int first = dirty_at(files.pagemap, at);

	clear(&files);
	int second = dirty_at(files.pagemap, at);

	need(write(in[1], &byte, 1) == 1 && read(out[0], &at, sizeof(at)) == sizeof(at));
	int third = dirty_at(files.pagemap, at);

	if (first != 1 || second != 0 || third != 1) {
		printf("exec: %d %d %d\n", first, second, third);
		wrong = 1;
	}
	close(in[1]);
	need(waitpid(child, NULL, 0) == child);
}

static void case_echo(void)
{
	static char memory[1 << 16];
	uintptr_t at = (uintptr_t)(memory + sizeof(memory) / 2);
	char byte;

	do {
		*(char *)at += 1;
		need(write(1, &at, sizeof(at)) == sizeof(at));
	} while (read(0, &byte, 1) == 1);
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{ "basic", case_basic },       { "descriptors", case_descriptors },
	{ "scan", case_scan },
	{ "threads", case_threads },   { "fork", case_fork },
	{ "mappings", case_mappings }, { "other", case_other },
	{ "many", case_many },	       { "signals", case_signals },
	{ "others", case_others },     { "refused", case_refused },
	{ "exec", case_exec },	       { "userfaultfd", case_userfaultfd },
	{ "echo", case_echo },	       { "busy-forks", case_busy_forks },
};

int main(int argc, char **argv)
{
	page = sysconf(_SC_PAGESIZE);
	setvbuf(stdout, NULL, _IOLBF, 0);
	for (size_t i = 0; argc == 2 && i < sizeof(cases) / sizeof(*cases); i++)
		if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			return wrong;
		}
	fprintf(stderr, "usage: client CASE\n");
	return 2;
}
