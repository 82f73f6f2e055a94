/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * cow: processes that share memory copy-on-write do random operations on it, and
 * each knows what every page must hold.
 *
 *   cow [--seed N] [--pages N] [--rounds N]
 *
 * The memory is one range of pages: anonymous ones and private pages of a file,
 * in any mix. A process writes, protects, discards, replaces and moves runs of
 * pages, forks children that do the same while it continues, and compares. A child
 * begins with its parent's memory, and its parent's record of it, as of the fork;
 * what either does afterwards must not affect the other. In addition there are
 * shared pages, one a process, that all processes must see.
 *
 * The children's own children are counted in shared memory: --rounds limits the
 * steps of one process, CHILDREN the processes.
 */
#define _GNU_SOURCE
#include <getopt.h>

#include "oracle.h"

#define CHILDREN 40 /* in all */
#define ALIVE 3	    /* children of one process at a time */
#define DEPTH 3
#define LONGEST_RUN 24

/* What a process knows of a page. */
struct known {
	uint64_t tag;	  /* it holds this */
	uint64_t backing; /* and this after it has been discarded */
	int writable;
};

/* What all processes see. */
struct common {
	unsigned int started;
	uint64_t tag[CHILDREN + 1];
	char page[CHILDREN + 1][PAGE] __attribute__((aligned(PAGE)));
};

static char *memory;
static struct known *known;
static unsigned long count, rounds = 60;
static struct common *common;
static uint64_t state;
static char what[32];

static uint64_t below(uint64_t limit)
{
	return next_random(&state) % limit;
}

static void *page(unsigned long index)
{
	return memory + index * PAGE;
}

static void protect(unsigned long first, unsigned long length, int writable)
{
	if (mprotect(page(first), length * PAGE, writable ? PROT_READ | PROT_WRITE : PROT_READ))
		err(1, "mprotect");
	for (unsigned long i = first; i < first + length; i++)
		known[i].writable = writable;
}

static void write_run(unsigned long first, unsigned long length)
{
	for (unsigned long i = first; i < first + length; i++) {
		uint64_t tag = next_random(&state);

		if (!known[i].writable)
			protect(i, 1, 1);
		fill_page(page(i), tag);
		known[i].tag = tag;
	}
}

static void discard(unsigned long first, unsigned long length)
{
	if (madvise(page(first), length * PAGE, MADV_DONTNEED))
		err(1, "MADV_DONTNEED");
	for (unsigned long i = first; i < first + length; i++)
		known[i].tag = known[i].backing;
}

static void replace(unsigned long first, unsigned long length)
{
	munmap(page(first), length * PAGE);
	map_at(page(first), length * PAGE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
	for (unsigned long i = first; i < first + length; i++)
		known[i] = (struct known){ .writable = 1 };
}

/* Move a run to the other half of memory. */
static void move(unsigned long first, unsigned long length)
{
	unsigned long half = count / 2;
	unsigned long to = first < half ? first + half : first - half;

	if ((first < half) != (first + length <= half))
		return;
	if (mremap(page(first), length * PAGE, length * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED,
		   page(to)) == MAP_FAILED) {
		/* The run has several areas; the target was unmapped all the same. */
		if (errno != EFAULT)
			err(1, "mremap");
		replace(to, length);
		return;
	}
	memcpy(known + to, known + first, length * sizeof(*known));
	replace(first, length);
}

static void check(void)
{
	for (unsigned long i = 0; i < count; i++)
		check_page(page(i), known[i].tag, what, i);
}

static void share(unsigned int self)
{
	uint64_t tag = next_random(&state);

	check_page(common->page[self], common->tag[self], "shared", self);
	fill_page(common->page[self], tag);
	common->tag[self] = tag;
}

static void live(unsigned int self, unsigned int depth);

/* Return: whether there is a new child. */
static int spawn(unsigned int depth)
{
	unsigned int number = __atomic_add_fetch(&common->started, 1, __ATOMIC_RELAXED);
	uint64_t seed = next_random(&state);

	if (number > CHILDREN)
		return 0;
	if (!start_child()) {
		state = seed;
		live(number, depth + 1);
		/* Not comparing the shared pages: the parent may be writing its own. */
		_exit(0);
	}
	return 1;
}

static void reap(void)
{
	int status;

	if (wait(&status) < 0)
		err(1, "wait");
	if (status)
		errx(1, "%s: a child failed", what);
}

static void live(unsigned int self, unsigned int depth)
{
	unsigned int children = 0;

	snprintf(what, sizeof(what), "process %u", self);
	check();
	for (unsigned long round = 0; round < rounds >> depth; round++) {
		unsigned long first = below(count);
		unsigned long length = 1 + below(LONGEST_RUN);

		if (first + length > count)
			length = count - first;
		switch (below(16)) {
		case 0:
			protect(first, length, 0);
			break;
		case 1:
			protect(first, length, 1);
			break;
		case 2:
			discard(first, length);
			break;
		case 3:
			replace(first, length);
			break;
		case 4:
			move(first, length);
			break;
		case 5:
		case 6:
		case 7:
			if (depth < DEPTH && children < ALIVE)
				children += spawn(depth);
			break;
		case 8:
			if (children) {
				reap();
				children--;
			}
			break;
		case 9:
			check();
			break;
		case 10:
			share(self);
			break;
		default:
			write_run(first, length);
		}
	}
	check();
	for (; children; children--)
		reap();
	check();
	check_page(common->page[self], common->tag[self], "shared", self);
}

static void make_file(char *path)
{
	char content[PAGE];
	int fd = mkstemp(path);

	if (fd < 0)
		err(1, "%s", path);
	unlink(path);
	for (unsigned long i = 0; i < count / 4; i++) {
		fill_page(content, i + 1);
		if (write(fd, content, PAGE) != (ssize_t)PAGE)
			err(1, "write");
	}
	map_at(memory, count / 4 * PAGE, MAP_PRIVATE | MAP_FIXED, fd);
	for (unsigned long i = 0; i < count / 4; i++)
		known[i].tag = known[i].backing = i + 1;
	close(fd);
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "seed", required_argument, NULL, 's' },
		{ "pages", required_argument, NULL, 'p' },
		{ "rounds", required_argument, NULL, 'r' },
		{ 0 },
	};
	char path[] = "/tmp/cow-XXXXXX";
	unsigned long seed = 1;
	int c;

	count = 512;
	while ((c = getopt_long(argc, argv, "s:p:r:", longs, NULL)) != -1) {
		switch (c) {
		case 's':
			seed = number(optarg, "--seed");
			break;
		case 'p':
			count = number(optarg, "--pages");
			break;
		case 'r':
			rounds = number(optarg, "--rounds");
			break;
		default:
			return 2;
		}
	}
	state = seed * 0x9e3779b97f4a7c15ULL;
	memory = map_private(count);
	known = calloc(count, sizeof(*known));
	common = map_at(NULL, sizeof(*common), MAP_SHARED | MAP_ANONYMOUS, -1);
	if (!known)
		err(1, "calloc");
	for (unsigned long i = 0; i < count; i++)
		known[i].writable = 1;
	make_file(path);
	write_run(count / 2, count / 2);
	live(0, 0);
	printf("processes=%u\n", common->started < CHILDREN ? common->started : CHILDREN);
	return 0;
}
