// SPDX-License-Identifier: GPL-2.0-only
/*
 * Checks in the tables' contents what Xen guarantees of every validated table.
 *
 * No other run is needed for comparison: page typing must permit each present entry
 * of a table under a pin. It is the only check with one right answer when two
 * processors race.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>

#include "table_test.h"

static unsigned int illegal;
module_param(illegal, uint, 0444);
MODULE_PARM_DESC(illegal, "entries found in validated tables that none may hold");

/* Superpages, Xen's own bits, and bits that the hardware reserves. */
#define NEVER_IN_TABLES		_PAGE_PSE
#define ADDRESS_BITS		40

static int in_pool(u64 frame)
{
	unsigned int page;

	for (page = 0; page < TT_PAGES; page++)
		if (tt_pages[page].mfn == frame)
			return page;
	return -1;
}

/* Levels at which a page is a table now, one bit each. */
static u8 typed[TT_PAGES];

static bool legal(unsigned int level, unsigned int slot, u64 entry)
{
	u64 frame = (entry & TT_FRAME_MASK) >> PAGE_SHIFT;
	int page = in_pool(frame);

	if (!(entry & _PAGE_PRESENT))
		return true;
	if (level == 4 && slot >= TT_XEN_FIRST && slot <= TT_XEN_LAST)
		return true;
	if (frame >> (ADDRESS_BITS - PAGE_SHIFT))
		return false;
	if (level > 1) {
		if (entry & NEVER_IN_TABLES)
			return false;
		if (page < 0)	/* not in the pool: must be a table of the kernel */
			return frame == tt_special_frame(TT_LIVE_L3) ||
			       frame == tt_special_frame(TT_LIVE_ROOT);
		/* A table of the next level; or linear, and then read-only. */
		if (typed[page] == level - 1)
			return true;
		return !(entry & _PAGE_RW) &&
		       (typed[page] == level || !typed[page]);
	}
	if (page < 0) {
		int special = tt_special_find(frame);

		return special != TT_FOREIGN_HIGH && special != TT_FOREIGN_LOW &&
		       special != TT_LOCAL_APIC && special != TT_IOMMU &&
		       (special != TT_GIVEN || !tt_special_given()) &&
		       !(entry & _PAGE_RW &&
			 (special == TT_GDT || special == TT_LIVE_ROOT ||
			  special == TT_LIVE_L3));
	}
	return !(entry & _PAGE_RW) || !typed[page];
}

/*
 * Tables below a pinned table are typed as well. A read-only entry may be a
 * linear one, to a table of the same level: then that table's level counts.
 */
static void mark(unsigned int page, unsigned int level)
{
	unsigned int slot;

	if (typed[page])
		return;
	typed[page] = level;
	for (slot = 0; level > 1 && slot < TT_SLOTS; slot++) {
		u64 entry = READ_ONCE(tt_pages[page].entry[slot]);
		int next = in_pool((entry & TT_FRAME_MASK) >> PAGE_SHIFT);

		if (!(entry & _PAGE_PRESENT) || next < 0)
			continue;
		if (level == 4 && slot >= TT_XEN_FIRST && slot <= TT_XEN_LAST)
			continue;
		if (!(entry & _PAGE_RW) && tt_pages[next].level == level)
			continue;
		mark(next, level - 1);
	}
}

/* Count the illegal entries of all tables under a pin. */
void tt_count_illegal(void)
{
	unsigned int page, slot;

	memset(typed, 0, sizeof(typed));
	for (page = 0; page < TT_PAGES; page++)
		if (tt_pages[page].pinned)
			mark(page, tt_pages[page].pinned);
	for (page = 0; page < TT_PAGES; page++) {
		if (typed[page] && (page < TT_DATA || !tt_pages[page].read_only)) {
			pr_err("page %u is a table of level %u, and writable\n", page, typed[page]);
			illegal++;
		}
		for (slot = 0; typed[page] && slot < TT_SLOTS; slot++) {
			u64 entry = READ_ONCE(tt_pages[page].entry[slot]);

			if (legal(typed[page], slot, entry))
				continue;
			if (illegal++ < 8)
				pr_err("level %u page %u slot %u: %llx\n",
				       typed[page], page, slot, entry);
		}
	}
}
