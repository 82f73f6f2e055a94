// SPDX-License-Identifier: GPL-2.0-only
/*
 * fuzz_found: found.c, unchanged, beside a model that has one byte a page.
 *
 *   fuzz_found SEED
 *
 * Random ranges come and go, pages are found in all the ways there are, and taken
 * in pieces of random size. The invariant: what is taken is sorted, in ranges that
 * do not touch, watched, and has all that was found; and nothing else, unless an
 * allocation failed. It ends by abort() at the first difference.
 */
#include <stdio.h>

#include "found.c"

/* Not at the border of a chunk or a block. */
#define BASE	(5 * CHUNK_SIZE - 3 * TPD_BLOCK_SIZE + 7 * PAGE_SIZE)
#define PAGES	(3 * (CHUNK_SIZE / PAGE_SIZE))
#define CALLS	2000
#define ANSWER	40u

const struct tpd_mechanism tpd_dbit;
unsigned int failing;

static unsigned char watched[PAGES], found[PAGES];
static unsigned long state = 88172645463325252UL;

unsigned long next_random(void)
{
	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static void expect(bool holds, const char *what)
{
	if (holds)
		return;
	fprintf(stderr, "fuzz_found: %s\n", what);
	abort();
}

static unsigned long address(unsigned long page)
{
	return BASE + page * PAGE_SIZE;
}

static bool any_watched(unsigned long page, unsigned long count)
{
	return memchr(watched + page, 1, count);
}

static void watch(struct tpd_tracker *tracker, unsigned long page, unsigned long count)
{
	int err = tpd_watch(tracker, address(page), address(page + count));

	expect(err == (any_watched(page, count) ? -EEXIST : 0), "watch");
	if (err)
		return;
	memset(watched + page, 1, count);
	memset(found + page, 0, count);
}

static void unwatch(struct tpd_tracker *tracker, unsigned long page, unsigned long count)
{
	expect(!tpd_unwatch(tracker, address(page), address(page + count)), "unwatch");
	memset(watched + page, 0, count);
	memset(found + page, 0, count);
}

static void find(struct tpd_memory *memory, unsigned long page, unsigned long count)
{
	tpd_found(memory, address(page), address(page + count));
	for (; count; page++, count--)
		found[page] |= watched[page];
}

static void find_page(struct tpd_memory *memory, unsigned long page)
{
	unsigned long within = next_random() % PAGE_SIZE;

	expect(tpd_found_page(memory, address(page) + within, &tpd_dbit) == watched[page],
	       "found_page");
	found[page] |= watched[page];
}

static void find_block(struct tpd_memory *memory, unsigned long page)
{
	unsigned long base = address(page) / TPD_BLOCK_SIZE * TPD_BLOCK_SIZE;
	DECLARE_BITMAP(pages, TPD_BLOCK_PAGES);
	bool any = false;
	unsigned long i;

	for (i = 0; i < BITS_TO_LONGS(TPD_BLOCK_PAGES); i++)
		pages[i] = next_random() & next_random();
	for (i = 0; i < TPD_BLOCK_PAGES; i++) {
		unsigned long at = base + i * PAGE_SIZE;

		if (at < BASE || at >= address(PAGES) || !watched[(at - BASE) / PAGE_SIZE])
			continue;
		any = true;
		found[(at - BASE) / PAGE_SIZE] |= pages[i / BITS_PER_LONG] >> i % BITS_PER_LONG & 1;
	}
	expect(tpd_found_block(memory, base, pages, &tpd_dbit) == any, "found_block");
}

static void find_all(struct tpd_memory *memory)
{
	tpd_found_all(memory, &tpd_dbit);
	memcpy(found, watched, PAGES);
}

static void take(struct tpd_tracker *tracker)
{
	unsigned int i, count, capacity = 1 + next_random() % ANSWER;
	struct trapless_dirty_range ranges[ANSWER];
	unsigned long from = 0, end = 0, page;

	do {
		count = tpd_take(tracker, ranges, capacity, &from, ULONG_MAX);
		for (i = 0; i < count; i++) {
			expect(ranges[i].start > end && ranges[i].start < ranges[i].end, "order");
			end = ranges[i].end;
			for (page = (ranges[i].start - BASE) / PAGE_SIZE;
			     page < (end - BASE) / PAGE_SIZE; page++) {
				expect(page < PAGES && watched[page], "not watched");
				expect(found[page] || failing, "not found");
				found[page] = 0;
			}
		}
	} while (count == capacity);
	expect(!memchr(found, 1, PAGES), "lost");
}

static unsigned long random_count(unsigned long page)
{
	static const unsigned long most[] = { 3, 64, 600, 5 * TPD_BLOCK_PAGES, 300000 };
	unsigned long count = 1 + next_random() % most[next_random() % 5];

	return min(count, PAGES - page);
}

int main(int argc, char **argv)
{
	struct tpd_memory memory = { 0 };
	struct tpd_tracker tracker = { .memory = &memory, .mechanism = &tpd_dbit };
	unsigned long seed, call;

	if (argc != 2) {
		fprintf(stderr, "usage: fuzz_found SEED\n");
		return 2;
	}
	seed = strtoul(argv[1], NULL, 0);
	state ^= seed * 0x9e3779b97f4a7c15UL;
	/* In every third run allocations fail: up to all of them. */
	failing = seed % 3 ? 0 : 1 + seed % 5;
	memory.trackers.next = &tracker.node;
	memory.trackers.prev = &tracker.node;
	tracker.node.next = &memory.trackers;
	tracker.node.prev = &memory.trackers;
	for (call = 0; call < CALLS; call++) {
		unsigned long page = next_random() % PAGES;
		unsigned long count = random_count(page);

		switch (next_random() % 10) {
		case 0:
		case 1:
			watch(&tracker, page, count);
			break;
		case 2:
			unwatch(&tracker, page, count);
			break;
		case 3:
		case 4:
			find(&memory, page, count);
			break;
		case 5:
			find_page(&memory, page);
			break;
		case 6:
		case 7:
			find_block(&memory, page);
			break;
		case 8:
			if (!(next_random() % 16))
				find_all(&memory);
			break;
		case 9:
			take(&tracker);
			break;
		}
	}
	tpd_unwatch_all(&tracker);
	expect(!memory.ranges, "ranges left");
	return 0;
}
