// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A program that reads its own soft-dirty bits pass after pass, as a collector does, answered by the kernel module.
 *
 * passes CASE: exits 0 if every answer is right, 1 with a line for each wrong one, 2 if it could not ask.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGES 3000UL
#define SOFT_DIRTY (1ULL << 55)
#define PRESENT (1ULL << 63)

static size_t page;
static int wrong, clear_refs = -1, pagemap = -1;

#define need(ok)                                                               \
	do {                                                                   \
		if (!(ok)) {                                                   \
			fprintf(stderr, "%s:%d: %s: %s\n", __func__, __LINE__, \
				#ok, strerror(errno));                         \
			exit(2);                                               \
		}                                                              \
	} while (0)

static void open_files(void)
{
	need((clear_refs = open("/proc/self/clear_refs", O_WRONLY | O_CLOEXEC)) >= 0);
	need((pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC)) >= 0);
}

static void clear(void)
{
	need(write(clear_refs, "4\n", 2) == 2);
}

static char *map(void *at, size_t pages)
{
	int fixed = at ? MAP_FIXED_NOREPLACE : 0;
	char *memory = mmap(at, pages * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | fixed, -1, 0);

	need(memory != MAP_FAILED);
	memset(memory, 1, pages * page);
	return memory;
}

/* Which pages from memory on read dirty: a byte each. */
static void ask(const char *memory, size_t pages, uint8_t *dirty)
{
	uint64_t entries[PAGES];
	off_t at = (uintptr_t)memory / page * 8;

	need(lseek(pagemap, at, SEEK_SET) == at);
	need(read(pagemap, entries, pages * 8) == (ssize_t)(pages * 8));
	need(lseek(pagemap, 0, SEEK_CUR) == at + (off_t)(pages * 8));
	for (size_t i = 0; i < pages; i++) {
		if ((entries[i] & ~SOFT_DIRTY) != PRESENT) {
			printf("page %zu: entry %#llx\n", i, (unsigned long long)entries[i]);
			wrong = 1;
		}
		dirty[i] = (entries[i] & SOFT_DIRTY) != 0;
	}
}

/* Exactly these read dirty: bit 0 of a page's byte says so. */
static void expect(const char *what, const char *memory, size_t pages, const uint8_t *wanted)
{
	uint8_t dirty[PAGES];
	size_t missed = 0, spurious = 0, first = pages;

	ask(memory, pages, dirty);
	for (size_t i = 0; i < pages; i++) {
		missed += wanted[i] && !dirty[i];
		spurious += !wanted[i] && dirty[i];
		if (first == pages && !wanted[i] != !dirty[i])
			first = i;
	}
	if (missed || spurious) {
		printf("%s: %zu pages missed, %zu spurious, the first is %zu of %p\n", what, missed,
		       spurious, first, memory);
		wrong = 1;
	}
}

static void expect_all(const char *what, const char *memory, size_t pages, int dirty)
{
	uint8_t wanted[PAGES];

	memset(wanted, dirty, sizeof(wanted));
	expect(what, memory, pages, wanted);
}

static void write_some(char *memory, uint8_t *written, unsigned int seed)
{
	for (size_t i = 0; i < PAGES / 10; i++) {
		size_t at = (seed = seed * 1103515245 + 12345) / 7 % PAGES;

		memory[at * page + seed % page]++;
		written[at] = 1;
	}
}

/* Known from the first question on; then exact, pass after pass; a write after the look is the next pass's. */
static void case_rounds(void)
{
	uint8_t written[PAGES], none[PAGES] = { 0 };
	char *memory = map(NULL, PAGES);

	open_files();
	expect_all("before the first clear", memory, PAGES, 1);
	clear();
	expect_all("asked for the first time", memory, PAGES, 1);
	clear();
	expect("nothing was written", memory, PAGES, none);
	for (unsigned int round = 0; round < 20; round++) {
		clear();
		memset(written, 0, sizeof(written));
		write_some(memory, written, round);
		expect("written in the pass", memory, PAGES, written);
		write_some(memory, written, round + 100);
		expect("asked again", memory, PAGES, written);
		memset(written, 0, sizeof(written));
		write_some(memory, written, round + 200);
		clear();
		expect("written after the look", memory, PAGES, written);
	}
	clear();
	write_some(memory, written, 7);
	clear();
	expect("cleared without a look", memory, PAGES, none);
}

/* One pass, many reads: answered as of the first. */
static void case_pieces(void)
{
	uint8_t written[PAGES] = { 0 }, dirty[PAGES];
	char *memory = map(NULL, PAGES);

	open_files();
	clear();
	ask(memory, PAGES, dirty);
	for (unsigned int round = 0; round < 20; round++) {
		clear();
		memset(written, 0, sizeof(written));
		write_some(memory, written, round);
		for (size_t at = 0; at < PAGES; at += 250)
			expect("a piece", memory + at * page, 250, written + at);
		/* Pieces that overlap. */
		for (size_t at = 100; at + 700 < PAGES; at += 300)
			expect("an overlapping piece", memory + at * page, 700, written + at);
	}
}

static void expect_replaced(const char *what, const char *memory)
{
	uint8_t dirty[PAGES];

	ask(memory, PAGES, dirty);
	for (size_t i = 1000; i < 1100; i++)
		if (!dirty[i]) {
			printf("%s: page %zu missed\n", what, i);
			wrong = 1;
		}
}

/*
 * Memory that is replaced, by mmap or by what mremap brings, is dirty. So may be what is around it: where a mapping is
 * cut, the kernel tells of a change in all of 2 MiB.
 */
static void case_replaced(void)
{
	char *memory = map(NULL, PAGES), *other = map(NULL, 100), *hole = memory + 1000 * page;
	uint8_t wanted[PAGES] = { 0 }, dirty[PAGES];

	open_files();
	clear();
	ask(memory, PAGES, dirty);
	ask(other, 100, dirty);
	clear();
	ask(memory, PAGES, dirty);
	/* Both in one pass. */
	clear();
	need(!munmap(hole, 100 * page));
	map(hole, 100);
	expect_replaced("mapped anew", memory);
	/* A pass in between, which does not look there. */
	clear();
	need(!munmap(hole, 100 * page));
	ask(memory, 500, dirty);
	clear();
	ask(other, 100, dirty);
	clear();
	need(mremap(other, 100 * page, 100 * page, MREMAP_MAYMOVE | MREMAP_FIXED, hole) == hole);
	expect_replaced("moved into a hole", memory);
	/* And watched again. */
	for (int i = 0; i < 40; i++) {
		clear();
		ask(memory, PAGES, dirty);
	}
	clear();
	write_some(memory, wanted, 3);
	expect("after that", memory, PAGES, wanted);
}

/* A child knows nothing, until it clears. */
static void case_fork(void)
{
	uint8_t written[PAGES] = { 0 }, dirty[PAGES];
	char *memory = map(NULL, PAGES);
	int status;
	pid_t child;

	open_files();
	clear();
	ask(memory, PAGES, dirty);
	clear();
	child = fork();
	need(child >= 0);
	if (!child) {
		open_files();
		expect_all("in the child", memory, PAGES, 1);
		clear();
		ask(memory, PAGES, dirty);
		clear();
		write_some(memory, written, 1);
		expect("of the child", memory, PAGES, written);
		exit(wrong);
	}
	need(waitpid(child, &status, 0) == child);
	wrong |= status != 0;
	clear();
	write_some(memory, written, 2);
	expect("of the parent", memory, PAGES, written);
}

/* The other ways to read, and what is left to the kernel. */
static void case_ways(void)
{
	uint64_t entries[PAGES], more[10];
	char *memory = map(NULL, PAGES);
	off_t at = (uintptr_t)memory / page * 8;
	struct iovec two[] = { { entries, 800 }, { more, sizeof(more) } };

	open_files();
	clear();
	need(pread(pagemap, entries, sizeof(entries), at) == sizeof(entries));
	clear();
	memory[99 * page]++;
	memory[104 * page]++;
	need(preadv(pagemap, two, 2, at) == 880);
	for (size_t i = 0; i < 110; i++) {
		uint64_t entry = i < 100 ? entries[i] : more[i - 100];

		if (!!(entry & SOFT_DIRTY) != (i == 99 || i == 104)) {
			printf("preadv: page %zu: entry %#llx\n", i, (unsigned long long)entry);
			wrong = 1;
		}
	}
	/* What is no entry, and where there is no memory. */
	wrong |= pread(pagemap, entries, 7, at) != -1 || errno != EINVAL;
	wrong |= pread(pagemap, entries, 8, (1LL << 47) / (off_t)page * 8) != 0;
	wrong |= pread(pagemap, entries, 0, at) != 0;
}

static const struct {
	const char *name;
	void (*run)(void);
} cases[] = {
	{ "rounds", case_rounds },     { "pieces", case_pieces },
	{ "replaced", case_replaced }, { "fork", case_fork },
	{ "ways", case_ways },
};

int main(int argc, char **argv)
{
	page = sysconf(_SC_PAGESIZE);
	/* A huge page is dirty as a whole. */
	need(!prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0));
	for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++)
		if (argc == 2 && !strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			return wrong;
		}
	fprintf(stderr, "usage: passes CASE\n");
	return 2;
}
