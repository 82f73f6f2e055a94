// SPDX-License-Identifier: GPL-2.0-only
/*
 * The payload's operations on ranges of entries, PROTECT and MOVE, beside what they stand
 * for: without the payload the same is done by one mmu_update an entry, by the rules of
 * trapless_pagetable.h as they are written here once more. The record has the result, and
 * what changed in the tables; later calls show the references.
 *
 * Invariants:
 *
 *  - A call is about a page that is a validated level 1 table for certain, or about one
 *    that is none for certain: of nothing else the result could be foretold. Certain is a
 *    table under a pin, by way of entries that may be written.
 *  - A range ends before an entry that names a frame of which it is not known whose it is.
 */
#include <linux/module.h>

#include "call.h"
#include "table_test.h"

static unsigned int ranges_served;
module_param(ranges_served, uint, 0444);
MODULE_PARM_DESC(ranges_served, "ranges in which the payload has changed entries; some of a race are missed");

/* Not one of these bits is set in an entry that PROTECT and MOVE look at, but present. */
#define NOT_PLAIN	(~(TT_FRAME_MASK | TT_NX | _BITULL(52) | 0xfff) | \
			 _PAGE_PWT | _PAGE_PCD | _PAGE_PSE)
#define HARDWARE_BITS	((u64)(_PAGE_ACCESSED | _PAGE_DIRTY))

enum owner { NOT_OURS, OURS, UNKNOWN };

/**
 * struct tt_range - a call in the making
 * @page:  its tables; @page[1] of MOVE only, else as @page[0]
 * @mfn:   their frames, or one that is not a table's
 * @first: the first entry in each
 * @count: how many
 * @set:   bits that a moved entry gets
 * @error: what the call is refused with, or 0
 */
struct tt_range {
	unsigned int page[2];
	u64 mfn[2];
	unsigned int first[2];
	unsigned int count;
	u64 set;
	int error;
};

static bool leads_to(unsigned int from, unsigned int level, unsigned int page)
{
	unsigned int slot, next;

	if (level == 1)
		return from == page;
	for (slot = 0; slot < TT_SLOTS; slot++) {
		u64 entry = READ_ONCE(tt_pages[from].entry[slot]);

		if ((entry & (_PAGE_PRESENT | _PAGE_RW)) != (_PAGE_PRESENT | _PAGE_RW) ||
		    (level == 4 && slot >= TT_XEN_FIRST && slot <= TT_XEN_LAST))
			continue;
		for (next = 0; next < TT_PAGES; next++)
			if (tt_pages[next].mfn == (entry & TT_FRAME_MASK) >> PAGE_SHIFT &&
			    leads_to(next, level - 1, page))
				return true;
	}
	return false;
}

static bool is_table(unsigned int page)
{
	unsigned int root;

	for (root = 0; root < TT_PAGES; root++)
		if (tt_pages[root].pinned &&
		    leads_to(root, tt_pages[root].pinned, page))
			return true;
	return false;
}

static enum owner owner_of(u64 entry)
{
	u64 mfn = (entry & TT_FRAME_MASK) >> PAGE_SHIFT;
	unsigned int page;

	for (page = 0; page < TT_PAGES; page++)
		if (tt_pages[page].mfn == mfn)
			return OURS;
	switch (tt_special_find(mfn)) {
	case TT_IO_APIC:
	case TT_HPET:
	case TT_PCI_CONFIG:
	case TT_PCI_HOLE:
	case TT_VGA:
		return NOT_OURS;
	default:
		return UNKNOWN;
	}
}

static bool is_plain(u64 entry)
{
	return (entry & (NOT_PLAIN | _PAGE_PRESENT)) == _PAGE_PRESENT;
}

static bool is_served(u64 entry)
{
	return is_plain(entry) && owner_of(entry) == OURS;
}

/* How many entries of the range can be foretold. */
static unsigned int foreseeable(const struct tt_range *range)
{
	const u64 *entry = tt_pages[range->page[0]].entry + range->first[0];
	unsigned int i;

	for (i = 0; i < range->count; i++)
		if (is_plain(entry[i]) && owner_of(entry[i]) == UNKNOWN)
			break;
	return i;
}

static long update(unsigned int page, unsigned int slot, u64 value, unsigned int command)
{
	struct mmu_update req = {
		.ptr = tt_pages[page].mfn << PAGE_SHIFT | slot * sizeof(u64) | command,
		.val = value,
	};

	return HYPERVISOR_mmu_update(&req, 1, NULL, DOMID_SELF);
}

static long protect_by_updates(const struct tt_range *range)
{
	unsigned int slot = range->first[0], end = slot + range->count;
	long changed = 0, rc;

	for (; slot < end; slot++) {
		u64 old = READ_ONCE(tt_pages[range->page[0]].entry[slot]);

		if (!(old & _PAGE_RW) || !is_served(old))
			continue;
		rc = update(range->page[0], slot, old & ~(u64)_PAGE_RW,
			    MMU_PT_UPDATE_PRESERVE_AD);
		if (rc)
			return rc;
		changed++;
	}
	return changed;
}

static long move_by_updates(const struct tt_range *range)
{
	long moved = 0, rc;
	unsigned int i;

	for (i = 0; i < range->count; i++) {
		unsigned int from = range->first[0] + i, to = range->first[1] + i;
		u64 old = READ_ONCE(tt_pages[range->page[0]].entry[from]);
		u64 there = READ_ONCE(tt_pages[range->page[1]].entry[to]);

		if (!is_served(old) || there & ~HARDWARE_BITS)
			continue;
		rc = update(range->page[1], to, old | range->set, MMU_NORMAL_PT_UPDATE);
		if (!rc)
			rc = update(range->page[0], from, 0, MMU_NORMAL_PT_UPDATE);
		if (rc)
			return rc;
		moved++;
	}
	return moved;
}

static long ask_once(const struct tt_range *range, bool move, bool readable)
{
	struct tpt_protect protect = {
		.table = range->mfn[0],
		.first = range->first[0],
		.count = range->count,
	};
	struct tpt_move both = {
		.from = range->mfn[0],
		.to = range->mfn[1],
		.from_first = range->first[0],
		.to_first = range->first[1],
		.count = range->count,
		.set = range->set,
	};
	void *argument = move ? (void *)&both : (void *)&protect;

	return tpt_call(move ? TPT_OP_MOVE : TPT_OP_PROTECT, readable ? argument : NULL);
}

/* Return: the payload's answer, -ENOSYS without one or if the part is off. */
static long ask(const struct tt_range *range, bool move)
{
	long rc = ask_once(range, move, range->error != -EFAULT);

	if (rc == -EAGAIN) {
		tt_settle();
		rc = ask_once(range, move, range->error != -EFAULT);
	}
	if (rc == -EOPNOTSUPP)
		rc = -ENOSYS;
	ranges_served += rc > 0;
	return rc;
}

static unsigned int some_table(void)
{
	unsigned int tries, page;

	for (tries = 0; tries < 8; tries++) {
		page = tt_pick(1);
		if (is_table(page))
			return page;
	}
	return TT_PAGES;
}

/* One thing that makes the call one to be refused. */
static void spoil(struct tt_range *range, bool move)
{
	unsigned int which = move ? tt_random(2) : 0, page;

	switch (tt_random(move ? 11 : 9)) {
	case 0:
		range->error = -EFAULT;
		return;
	case 1:
		range->count = 0;
		break;
	case 2:
		range->first[which] = TT_SLOTS + tt_random(1 << 20);
		break;
	case 3:
		range->count = ~0U - tt_random(TT_SLOTS);
		break;
	case 4:
		range->mfn[which] = tt_pages[tt_pick(0)].mfn;
		range->error = -EPERM;
		return;
	case 5:
		range->mfn[which] = tt_special_frame(tt_random(2) ? TT_FOREIGN_HIGH : TT_HPET);
		range->error = -EPERM;
		return;
	case 6:
		range->mfn[which] = 1ULL << (28 + tt_random(36));
		range->error = -EPERM;
		return;
	case 7:
		/* A table in use, but of a higher level. */
		for (page = 0; page < TT_PAGES && tt_pages[page].pinned < 2; page++)
			;
		if (page == TT_PAGES)
			return;
		range->mfn[which] = tt_pages[page].mfn;
		range->error = -EPERM;
		return;
	case 8:
		range->first[which] = TT_SLOTS + 1 - range->count;
		break;
	case 9:
		range->set |= _BITULL(tt_random(9));
		break;
	default:
		range->set |= _BITULL(12 + tt_random(52));
		break;
	}
	range->error = -EINVAL;
}

static bool choose(struct tt_range *range, bool move)
{
	unsigned int which, most = TT_SLOTS;

	memset(range, 0, sizeof(*range));
	for (which = 0; which < 2; which++) {
		range->page[which] = which && !move ? range->page[0] : some_table();
		if (range->page[which] == TT_PAGES)
			return false;
		range->mfn[which] = tt_pages[range->page[which]].mfn;
		range->first[which] = tt_slot(tt_pages[range->page[which]].entry);
		most = min(most, TT_SLOTS - range->first[which]);
	}
	/* To where it is free, or among what is there. */
	if (move && tt_chance(2)) {
		range->first[1] = tt_random(TT_SLOTS);
		most = TT_SLOTS - max(range->first[0], range->first[1]);
	}
	range->count = tt_chance(3) ? most : 1 + tt_random(min(most, 40U));
	range->set = move && tt_chance(2) ? 1ULL << (9 + tt_random(3)) : 0;
	range->count = foreseeable(range);
	if (!range->count)
		return false;
	if (tt_chance(5))
		spoil(range, move);
	return true;
}

void tt_call_range(void)
{
	bool move = tt_chance(2);
	struct tt_range range;
	long rc;

	if (!choose(&range, move))
		return;
	tt_log_call(TT_RANGE);
	tt_log_in((u64)range.first[0] << 32 | range.first[1]);
	tt_log_in((u64)range.page[0] << 32 | range.page[1]);
	tt_log_in(range.count);
	tt_log_what(move, min(range.count, 255U),
		    (u64)range.page[0] << 16 | range.first[0], range.set);
	tt_preempt_call();
	rc = ask(&range, move);
	if (rc == -ENOSYS)
		rc = range.error ?: move ? move_by_updates(&range) :
					   protect_by_updates(&range);
	tt_log_out(tt_changes(range.page[0]));
	tt_log_out(tt_changes(range.page[1]));
	tt_log_out(rc);
	tt_log_end(min(rc, 0L), max(rc, 0L));
}

/**
 * tt_race_range - one call beside other processors' calls
 *
 * Return: 0 or more if it was served, an error if it was refused, -ENOSYS without the payload.
 */
long tt_race_range(void)
{
	bool move = tt_chance(2);
	struct tt_range range = { };
	unsigned int which;

	for (which = 0; which < 2; which++) {
		range.page[which] = tt_pick(tt_chance(8) ? 1 + tt_random(4) : 1);
		range.mfn[which] = tt_pages[range.page[which]].mfn;
		range.first[which] = tt_random(TT_SLOTS);
	}
	range.count = 1 + tt_random(TT_SLOTS - max(range.first[0], range.first[1]));
	return ask(&range, move);
}
