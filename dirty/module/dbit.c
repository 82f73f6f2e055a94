// SPDX-License-Identifier: GPL-2.0-only
/*
 * The mechanism that every processor has: it sets the dirty bit of a leaf entry at the
 * first write through it. A collect reads and clears the bits. The tracked process
 * takes no fault, neither before nor after.
 *
 * Invariants:
 * - After bits were cleared the TLBs are flushed before the lock of their page table is
 *   released, one flush per table. The kernel relies on it that no processor writes
 *   through a clean entry without setting the bit: reclaim starts I/O on that. And a
 *   write through a stale TLB entry then happens before the page is reported, and so
 *   before the user reads it.
 * - Pages whose bits were cleared are marked, for every tracker of the memory, before
 *   memory->harvest is released; no READ comes in between.
 * - Before a bit is cleared the page itself is marked dirty (set_page_dirty), which
 *   reclaim and writeback read as well: no data is lost to swap or to a file.
 * - Bits that the kernel itself clears are handled in memory.c.
 */
#include <linux/ktime.h>
#include <linux/mm.h>

#include "series_memory.h"
#include "tracking.h"

/**
 * struct harvest - a walk that takes dirty bits
 * @walk:    the walk
 * @memory:  whose
 * @pages:   of the current block
 * @any:     some of @pages is set
 * @first:   of the bits taken under this lock, for the flush ...
 * @last:    ... to here (exclusive)
 * @found:   pages found
 * @flushes: nanoseconds
 */
struct harvest {
	struct tpd_walk walk;
	struct tpd_memory *memory;
	DECLARE_BITMAP(pages, TPD_BLOCK_PAGES);
	bool any;
	unsigned long first;
	unsigned long last;
	unsigned long found;
	u64 flushes;
};

static void take_bit(struct tpd_walk *walk, const struct tpd_leaf *leaf)
{
	struct harvest *harvest = container_of(walk, struct harvest, walk);
	unsigned long end = leaf->address + leaf->pages * PAGE_SIZE;

	/* Besides us only the processor changes a bit now, and it only sets it. */
	if (!series_take_dirty(leaf->entry))
		return;
	if (leaf->page && !PageDirty(leaf->page))
		set_page_dirty(leaf->page);
	harvest->first = min(harvest->first, leaf->address);
	harvest->last = max(harvest->last, end);
	harvest->found += leaf->pages;
	if (leaf->pages > TPD_BLOCK_PAGES) {
		tpd_found(harvest->memory, leaf->address, end);
		return;
	}
	if (leaf->pages == 1)
		__set_bit(leaf->address / PAGE_SIZE % TPD_BLOCK_PAGES, harvest->pages);
	else
		bitmap_fill(harvest->pages, TPD_BLOCK_PAGES);
	harvest->any = true;
}

static void end_block(struct tpd_walk *walk, unsigned long base)
{
	struct harvest *harvest = container_of(walk, struct harvest, walk);

	if (!harvest->any)
		return;
	tpd_found_block(harvest->memory, base, harvest->pages, &tpd_dbit);
	bitmap_zero(harvest->pages, TPD_BLOCK_PAGES);
	harvest->any = false;
}

/* Memory that was mapped into a watched range and cannot be tracked: always reported. */
static void doubt(struct tpd_walk *walk, unsigned long start, unsigned long end)
{
	tpd_found(container_of(walk, struct harvest, walk)->memory, start, end);
}

static void flush(struct tpd_walk *walk)
{
	struct harvest *harvest = container_of(walk, struct harvest, walk);
	u64 begin;

	if (harvest->first >= harvest->last)
		return;
	begin = ktime_get_ns();
	tpd_stock.flush_tlb_mm_range(harvest->memory->mm, harvest->first, harvest->last,
				     PAGE_SHIFT, false);
	harvest->first = ULONG_MAX;
	harvest->last = 0;
	harvest->flushes += ktime_get_ns() - begin;
}

static int harvest_range(struct tpd_tracker *tracker, struct harvest *harvest,
			 unsigned long start, unsigned long end)
{
	u64 begin = ktime_get_ns();
	int err = tpd_walk(&harvest->walk, tracker->memory->mm, start, end);

	tracker->stats.walk_ns += ktime_get_ns() - begin - harvest->flushes;
	tracker->stats.flush_ns += harvest->flushes;
	harvest->flushes = 0;
	return err;
}

static struct harvest new_harvest(struct tpd_tracker *tracker)
{
	return (struct harvest){
		.walk = {
			.wanted = SERIES_DIRTY_BITS,
			.leaf = take_bit,
			.settle = flush,
			.done = end_block,
			.odd = doubt,
		},
		.memory = tracker->memory,
		.first = ULONG_MAX,
	};
}

static int dbit_arm(struct tpd_tracker *tracker, unsigned long start, unsigned long end)
{
	struct harvest harvest = new_harvest(tracker);

	harvest.walk.odd = NULL;
	return harvest_range(tracker, &harvest, start, end);
}

static int dbit_collect(struct tpd_tracker *tracker)
{
	struct harvest harvest = new_harvest(tracker);
	struct tpd_range *range;
	unsigned int i;
	int err = 0;

	tpd_for_each_range(tracker, i, range) {
		err = harvest_range(tracker, &harvest, range->start, range->end);
		if (err)
			break;
	}
	tracker->stats.logged += harvest.found;
	return err;
}

static int dbit_probe(void)
{
	/* A PV guest of Xen may change its page tables only through Xen. */
	return boot_cpu_has(X86_FEATURE_XENPV) ? -EOPNOTSUPP : 0;
}

static void dbit_remove(void)
{
}

static int dbit_attach(struct tpd_tracker *tracker)
{
	return 0;
}

static void dbit_detach(struct tpd_tracker *tracker)
{
}

const struct tpd_mechanism tpd_dbit = {
	.name = "dbit",
	.probe = dbit_probe,
	.remove = dbit_remove,
	.attach = dbit_attach,
	.detach = dbit_detach,
	.arm = dbit_arm,
	.collect = dbit_collect,
};
