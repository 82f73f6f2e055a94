// SPDX-License-Identifier: GPL-2.0-only
/*
 * Into which blocks decide() of e500_bt_tlb.c, which the Makefile cuts out, divides
 * memory: the worked example of the paper's section 5.1, and layouts of random sites,
 * each with what is remembered and without.
 *
 * The witness is arithmetic on addresses: blocks are of a size that the e500v2 has,
 * aligned, in order and without holes; a block is traced if and only if it has a
 * site, and then is no larger than any page in it allows; and none could be four times
 * as large. The list of sites that decide() searches is the test's own, not an xarray.
 *
 * The paper counts 7 entries for its example, three of them of 8, 32 and 128 MB, which
 * are not among the sizes that it lists. With those that are, there are 10.
 */
#include <stdio.h>
#include <stdlib.h>

#include "e500_bt.h"

#define PAGES		65536u		/* 256 MB */
#define MOST		8
#define LAYOUTS		2000
#define MB		256u		/* pages */

static struct {
	unsigned long gfn;
	struct bt_page page;
} site[MOST];
static unsigned int sites;

static struct bt_page *next_site(unsigned long *at, unsigned long last, bool after)
{
	unsigned int i, best = sites;

	for (i = 0; i < sites; i++)
		if (site[i].gfn >= *at + after && site[i].gfn <= last &&
		    (best == sites || site[i].gfn < site[best].gfn))
			best = i;
	if (best == sites)
		return NULL;
	*at = site[best].gfn;
	return &site[best].page;
}

#define xa_find(pages, at, last, mark)		((void)(pages), next_site(at, last, false))
#define xa_find_after(pages, at, last, mark)	((void)(pages), next_site(at, last, true))
#define min(a, b)				((a) < (b) ? (a) : (b))

#include DECIDE

static u8 remembered[PAGES];

static void fail(unsigned long gfn, const char *what, unsigned long found)
{
	printf("%08lx: %s: %#lx\n", gfn << 12, what, found);
	exit(1);
}

/* The smallest size that a page with sites in a block allows; -1 if there is none. */
static int allowed(unsigned long first, unsigned long pages)
{
	unsigned int i;
	int limit = -1;

	for (i = 0; i < sites; i++)
		if (site[i].gfn - first < pages && (limit < 0 || site[i].page.tsize < limit))
			limit = site[i].page.tsize;
	return limit;
}

/* Check all blocks; returns how many there are, and writes their sizes in pages. */
static unsigned int check(struct kvmppc_bt *bt, unsigned int *sizes)
{
	unsigned long gfn, pages, larger, inside;
	unsigned int n = 0;
	u8 decided;
	int limit;

	for (gfn = 0; gfn < PAGES; gfn += pages) {
		decided = decide(bt, gfn);
		pages = 1ul << ((decided & DECIDED_TSIZE) - BOOK3E_PAGESZ_4K);
		if (decided & 1)
			fail(gfn, "no size of the processor's", decided);
		if (gfn & (pages - 1))
			fail(gfn, "not aligned", pages);
		limit = allowed(gfn, pages);
		if (!(decided & DECIDED_TRACED) != (limit < 0))
			fail(gfn, "traced without a site, or not with one", decided);
		if (limit >= 0 && limit < (decided & DECIDED_TSIZE))
			fail(gfn, "larger than its sites allow", decided);
		larger = 4 * pages;
		limit = allowed(gfn & ~(larger - 1), larger);
		if (larger <= PAGES && (limit < 0 || limit >= (decided & DECIDED_TSIZE) + 2))
			fail(gfn, "smaller than it need be", decided);
		inside = gfn + rand() % pages;
		if (decide(bt, inside) != decided)
			fail(inside, "another answer inside of the block", decided);
		if (sizes)
			sizes[n] = pages;
		n++;
	}
	return n;
}

static unsigned int check_both(unsigned int *sizes)
{
	struct kvmppc_bt forgetful = { 0 }, bt = { .decided = remembered, .ndecided = PAGES };
	unsigned int n;

	memset(remembered, 0, sizeof(remembered));
	n = check(&bt, sizes);
	if (check(&bt, NULL) != n)
		fail(0, "another number of blocks when they are remembered", n);
	if (check(&forgetful, NULL) != n)
		fail(0, "another number of blocks when nothing is remembered", n);
	return n;
}

int main(void)
{
	/* 4 MB around the site 0xc0801234, in an entry of 256 MB at 0xc0000000. */
	static const unsigned int example[] = {
		4 * MB, 4 * MB, 4 * MB, 4 * MB, 16 * MB, 16 * MB, 16 * MB,
		64 * MB, 64 * MB, 64 * MB,
	};
	static unsigned int sizes[PAGES];
	unsigned int n, layout, i;
	unsigned long gfn;

	site[0].gfn = 0x00801234 >> 12;
	site[0].page.tsize = BOOK3E_PAGESZ_4M;
	sites = 1;
	n = check_both(sizes);
	if (n != ARRAY_SIZE(example) || memcmp(sizes, example, sizeof(example)))
		fail(site[0].gfn, "the paper's example has other entries", n);

	srand(1);
	for (layout = 0; layout < LAYOUTS; layout++) {
		sites = 0;
		for (i = rand() % 8; i; i--) {
			/* Near each other, or anywhere; a page has one size. */
			gfn = layout % 2 ? rand() % PAGES : 0x800u + rand() % 0x400;
			if (allowed(gfn, 1) >= 0)
				continue;
			site[sites].gfn = gfn;
			site[sites++].page.tsize = BOOK3E_PAGESZ_4K + 2 * (rand() % 6);
		}
		n += check_both(NULL);
	}
	printf("split: the paper's example is %zu entries; %u layouts: %u blocks as they should be\n",
	       ARRAY_SIZE(example), LAYOUTS, n);
	return 0;
}
