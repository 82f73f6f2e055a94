// SPDX-License-Identifier: GPL-2.0-only
/*
 * Shadow PML: the hypervisor's log of guest-physical pages, which a VMM forwards
 * into a ring of ours (trapless_spml.h, docs/spml.md).
 *
 * Why no write is missed. While any process is tracked by SPML, the VMM logs all of
 * the guest's memory for all processors, whatever runs. Logging goes on across
 * context switches, and no entry is dropped because another process ran: only the
 * first write to a page is logged, and it may come through the kernel's own mapping.
 * So a page that was written since the last drain, through any address, is in the
 * ring after the next drain, which protects it again. Each drain sets the bit of the
 * page's number in the bitmap of every tracker. A collect drains, then tests the bit
 * of each page that a present entry of a watched range maps:
 * - The entry is the same as at the write: the page's bit is set.
 * - The entry was changed since (migration, swap, unmapping): the MMU notifier in
 *   memory.c has marked it, or tpd_found_active() does after the walk.
 * - There was no entry at the write: filling the page was a write, too, and logged.
 * A tracker clears bits only after its walk, without having released the log's lock
 * since its drain.
 *
 * The reverse mapping. The paper's authors searched the process's page tables for
 * each logged page, 15.7 s per GiB. An array from page numbers to addresses would
 * hold one address per page, but a page that is mapped twice has two. One walk that
 * tests a bitmap is linear in what is watched, needs one bit per page, and handles
 * pages that are mapped twice. It goes by whole tables: a function call for each
 * entry would cost more than the test itself.
 *
 * Nothing from the host is trusted: a page number is checked before it is used as an
 * index, and anything impossible (a head too far ahead, a page beyond memory, an
 * unknown answer) is treated as an overrun: all that is watched is reported.
 *
 * Lock: log.lock, inside of mmap_lock, outside of page-table locks.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": spml: " fmt

#include <linux/bitmap.h>
#include <linux/ktime.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/reboot.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include <asm/cpufeature.h>
#include <asm/io.h>
#include <asm/processor.h>

#include "trapless_spml.h"
#include "series_memory.h"
#include "tracking.h"

#define FEWEST_ENTRIES	512u

static unsigned int spml_entries;
module_param(spml_entries, uint, 0444);
MODULE_PARM_DESC(spml_entries, "entries of SPML's ring, a power of two (0: one for each page of memory)");

static bool spml_schedule;
module_param(spml_schedule, bool, 0444);
MODULE_PARM_DESC(spml_schedule, "report to the VMM when tracked processes are scheduled, as the paper does; nothing needs it");

/**
 * struct spml - what SPML keeps for a tracker; under log.lock
 * @node:    in log.trackers
 * @memory:  the tracker's
 * @entries: taken from the ring since the last collect
 * @overrun: entries were lost since
 * @pending: a bit for each page number: written since
 */
struct spml {
	struct list_head node;
	struct tpd_memory *memory;
	u64 entries;
	bool overrun;
	unsigned long pending[];
};

/**
 * struct log - the one log of this machine
 * @lock:     all that follows, and the order of DRAINs
 * @trackers: struct spml
 * @ring:     shared with the VMM
 * @entries:  of the ring
 * @tail:     how many entries we took; our own copy
 * @frames:   pages of memory, rounded up to blocks, so that a huge page is either
 *            wholly below it or not at all; page numbers from the ring are below
 * @port:     for calls
 */
static struct log {
	struct mutex lock;
	struct list_head trackers;
	struct trapless_spml_ring *ring;
	u32 entries;
	u32 tail;
	unsigned long frames;
	u16 port;
} log = {
	.lock = __MUTEX_INITIALIZER(log.lock),
	.trackers = LIST_HEAD_INIT(log.trackers),
};

static int call(u32 function, u64 first, u64 second)
{
	u32 result = function;

	asm volatile("inl %w[port], %%eax"
		     : "+a" (result)
		     : [port] "d" (log.port), "b" (first), "c" (second)
		     : "memory");
	return (s32)result;
}

static size_t ring_bytes(u32 entries)
{
	return TRAPLESS_SPML_ENTRIES_OFFSET + (size_t)entries * sizeof(u64);
}

static void all_overrun(void)
{
	struct spml *spml;

	list_for_each_entry(spml, &log.trackers, node)
		spml->overrun = true;
}

static void note(unsigned long frame)
{
	struct spml *spml;

	list_for_each_entry(spml, &log.trackers, node)
		__set_bit(frame, spml->pending);
}

/* Make all pages written until now pending for every tracker, or note an overrun. */
static void drain(void)
{
	const u64 *entries = (void *)log.ring + TRAPLESS_SPML_ENTRIES_OFFSET;
	bool complete = call(TRAPLESS_SPML_DRAIN, 0, 0) == TRAPLESS_SPML_OK;
	struct spml *spml;
	u32 head, count, i;

	/* The entries were stored before the head. */
	head = smp_load_acquire(&log.ring->head);
	count = head - log.tail;
	if (count > log.entries) {
		complete = false;
		count = 0;
	}
	for (i = 0; i < count; i++) {
		u64 frame = READ_ONCE(entries[(log.tail + i) & (log.entries - 1)]);

		if (frame < log.frames)
			note(frame);
		else
			complete = false;
	}
	log.tail = head;
	/* The entries are read before the VMM may overwrite them. */
	smp_store_release(&log.ring->tail, head);
	list_for_each_entry(spml, &log.trackers, node)
		spml->entries += count;
	if (!complete)
		all_overrun();
}

/**
 * struct lookup - a walk that asks for each page whether it is pending
 * @walk:    the walk
 * @tracker: whose
 * @spml:    the same
 * @start:   of the range ...
 * @end:     ... to here (exclusive); huge pages may lie on both sides
 * @pages:   of the current block
 * @found:   pages found
 */
struct lookup {
	struct tpd_walk walk;
	struct tpd_tracker *tracker;
	struct spml *spml;
	unsigned long start;
	unsigned long end;
	DECLARE_BITMAP(pages, TPD_BLOCK_PAGES);
	u64 found;
};

/* Memory beyond log.frames was added after load: its entries counted as overruns. */
static void look_up_table(struct tpd_walk *walk, const pte_t *entry, unsigned long address,
			  unsigned long end)
{
	struct lookup *lookup = container_of(walk, struct lookup, walk);
	const unsigned long *pending = lookup->spml->pending;
	const unsigned long frames = log.frames;
	unsigned long offset = address / PAGE_SIZE % TPD_BLOCK_PAGES;
	unsigned long behind = offset + (end - address) / PAGE_SIZE;

	for (; offset < behind; entry++, offset++) {
		pte_t value = READ_ONCE(*entry);
		unsigned long frame;

		/* The zero page (a special entry) is never written. */
		if (!pte_present(value) || pte_special(value))
			continue;
		frame = pte_pfn(value);
		if (frame < frames && test_bit(frame, pending))
			__set_bit(offset, lookup->pages);
	}
}

static void look_up_huge(struct tpd_walk *walk, const struct tpd_leaf *leaf)
{
	struct lookup *lookup = container_of(walk, struct lookup, walk);
	const unsigned long *pending = lookup->spml->pending;
	unsigned long frame = page_to_pfn(leaf->page);
	unsigned long end = min(frame + leaf->pages, log.frames);

	if (frame >= log.frames)
		return;
	/* A huge page is aligned to its size, so its bits begin at a word of the bitmap. */
	if (leaf->pages == TPD_BLOCK_PAGES)
		bitmap_or(lookup->pages, lookup->pages, pending + BIT_WORD(frame),
			  TPD_BLOCK_PAGES);
	else if (find_next_bit(pending, end, frame) < end)
		tpd_found(lookup->tracker->memory, leaf->address,
			  leaf->address + leaf->pages * PAGE_SIZE);
}

static void end_block(struct tpd_walk *walk, unsigned long base)
{
	struct lookup *lookup = container_of(walk, struct lookup, walk);
	unsigned int count = bitmap_weight(lookup->pages, TPD_BLOCK_PAGES);

	if (!count)
		return;
	lookup->found += count;
	tpd_found_block(lookup->tracker->memory, base, lookup->pages, &tpd_spml);
	bitmap_zero(lookup->pages, TPD_BLOCK_PAGES);
}

/* Memory that was mapped into a watched range and cannot be tracked: always reported. */
static void doubt(struct tpd_walk *walk, unsigned long start, unsigned long end)
{
	struct lookup *lookup = container_of(walk, struct lookup, walk);

	tpd_found(lookup->tracker->memory, start, end);
}

/*
 * The user knows the content of a new range, so its pages are not pending. But keep
 * pending what the user may not know: the rest of a huge page that the range cuts, and
 * pages that are mapped more than once, as another of their addresses may be watched.
 */
static void forget(struct tpd_walk *walk, const struct tpd_leaf *leaf)
{
	struct lookup *lookup = container_of(walk, struct lookup, walk);
	unsigned long first = max(leaf->address, lookup->start);
	unsigned long last = min(leaf->address + leaf->pages * PAGE_SIZE, lookup->end);
	unsigned long frame;

	if (!leaf->page || first >= last)
		return;
	frame = page_to_pfn(leaf->page) + (first - leaf->address) / PAGE_SIZE;
	last = frame + (last - first) / PAGE_SIZE;
	if (last <= log.frames && series_mapcount(page_folio(leaf->page)) == 1)
		bitmap_clear(lookup->spml->pending, frame, last - frame);
}

static int look(struct lookup *lookup, unsigned long start, unsigned long end)
{
	struct tpd_tracker *tracker = lookup->tracker;
	u64 begin = ktime_get_ns();
	int err;

	lookup->start = start;
	lookup->end = end;
	err = tpd_walk(&lookup->walk, tracker->memory->mm, start, end);
	tracker->stats.walk_ns += ktime_get_ns() - begin;
	return err;
}

static int spml_arm(struct tpd_tracker *tracker, unsigned long start, unsigned long end)
{
	struct lookup lookup = {
		.walk = { .wanted = _PAGE_PRESENT | _PAGE_PROTNONE, .leaf = forget },
		.tracker = tracker,
		.spml = tracker->private,
	};
	int err;

	if (mutex_lock_killable(&log.lock))
		return -EINTR;
	drain();
	err = look(&lookup, start, end);
	mutex_unlock(&log.lock);
	return err;
}

static int collect(struct tpd_tracker *tracker)
{
	struct spml *spml = tracker->private;
	struct lookup lookup = {
		.walk = {
			.wanted = _PAGE_PRESENT | _PAGE_PROTNONE,
			.leaf = look_up_huge,
			.table = look_up_table,
			.done = end_block,
			.odd = doubt,
		},
		.tracker = tracker,
		.spml = spml,
	};
	struct tpd_range *range;
	unsigned int i;
	int err;

	drain();
	tpd_for_each_range(tracker, i, range) {
		err = look(&lookup, range->start, range->end);
		if (err)
			return err;
	}
	if (spml->overrun)
		tpd_found_all(tracker->memory, &tpd_spml);
	tracker->stats.logged += spml->entries;
	tracker->stats.foreign += spml->entries - min(spml->entries, lookup.found);
	spml->entries = 0;
	spml->overrun = false;
	bitmap_zero(spml->pending, log.frames);
	return 0;
}

static int spml_collect(struct tpd_tracker *tracker)
{
	int err;

	if (mutex_lock_killable(&log.lock))
		return -EINTR;
	err = collect(tracker);
	mutex_unlock(&log.lock);
	return err;
}

static void schedule_in(struct tpd_memory *memory)
{
	call(TRAPLESS_SPML_SCHEDULE_IN, memory->tag, 0);
}

static void schedule_out(struct tpd_memory *memory)
{
	call(TRAPLESS_SPML_SCHEDULE_OUT, memory->tag, 0);
}

static struct tpd_switch spml_switch = {
	.in = schedule_in,
	.out = schedule_out,
};

/* Whether another tracker of SPML tracks the same memory. */
static bool is_enabled(const struct tpd_memory *memory)
{
	struct spml *spml;

	list_for_each_entry(spml, &log.trackers, node)
		if (spml->memory == memory)
			return true;
	return false;
}

static int enable(struct spml *spml)
{
	if (!is_enabled(spml->memory) &&
	    call(TRAPLESS_SPML_ENABLE, spml->memory->tag, 0) != TRAPLESS_SPML_OK)
		return -EIO;
	list_add(&spml->node, &log.trackers);
	return 0;
}

static int spml_attach(struct tpd_tracker *tracker)
{
	size_t words = BITS_TO_LONGS(log.frames);
	struct spml *spml = kvzalloc(struct_size(spml, pending, words), TPD_GFP);
	int err = -EINTR;

	if (!spml)
		return -ENOMEM;
	spml->memory = tracker->memory;
	if (!mutex_lock_killable(&log.lock)) {
		err = enable(spml);
		mutex_unlock(&log.lock);
	}
	if (err) {
		kvfree(spml);
		return err;
	}
	tracker->private = spml;
	if (spml_schedule)
		tpd_switch_now(&spml_switch, tracker->memory, true);
	return 0;
}

static void spml_detach(struct tpd_tracker *tracker)
{
	struct spml *spml = tracker->private;

	if (spml_schedule)
		tpd_switch_now(&spml_switch, tracker->memory, false);
	mutex_lock(&log.lock);
	list_del(&spml->node);
	if (!is_enabled(spml->memory))
		call(TRAPLESS_SPML_DISABLE, spml->memory->tag, 0);
	mutex_unlock(&log.lock);
	kvfree(spml);
}

/* Before kexec: nothing may write to the next kernel's memory. */
static int on_reboot(struct notifier_block *block, unsigned long action, void *data)
{
	call(TRAPLESS_SPML_UNREGISTER_RING, 0, 0);
	return NOTIFY_DONE;
}

static struct notifier_block reboot = { .notifier_call = on_reboot };

static int find_vmm(void)
{
	u32 base, version, port, unused;

	if (!boot_cpu_has(X86_FEATURE_HYPERVISOR))
		return -ENODEV;
	base = hypervisor_cpuid_base(TRAPLESS_SPML_SIGNATURE, 1);
	if (!base)
		return -ENODEV;
	cpuid(base + 1, &version, &port, &unused, &unused);
	if (version != TRAPLESS_SPML_VERSION || port > U16_MAX) {
		pr_err("the VMM speaks version %u, this module %u\n", version,
		       TRAPLESS_SPML_VERSION);
		return -EPROTO;
	}
	log.port = port;
	return 0;
}

/* As many entries as wanted, or as fit into the contiguous memory that there is. */
static int make_ring(void)
{
	u32 entries = spml_entries ?: roundup_pow_of_two(log.frames);

	if (spml_entries && !is_power_of_2(spml_entries)) {
		pr_err("spml_entries=%u is not a power of two\n", spml_entries);
		return -EINVAL;
	}
	for (entries = min_t(u32, entries, TRAPLESS_SPML_MAX_ENTRIES);; entries /= 2) {
		log.ring = alloc_pages_exact(ring_bytes(entries),
					     (TPD_GFP & ~__GFP_ACCOUNT) | __GFP_ZERO);
		if (log.ring)
			break;
		if (entries <= FEWEST_ENTRIES)
			return -ENOMEM;
	}
	log.entries = entries;
	log.tail = 0;
	if (call(TRAPLESS_SPML_REGISTER_RING, virt_to_phys(log.ring), entries) ==
	    TRAPLESS_SPML_OK)
		return 0;
	pr_err("the VMM refuses a ring of %u entries\n", entries);
	free_pages_exact(log.ring, ring_bytes(entries));
	return -EIO;
}

static void remove_ring(void)
{
	call(TRAPLESS_SPML_UNREGISTER_RING, 0, 0);
	free_pages_exact(log.ring, ring_bytes(log.entries));
}

static int spml_probe(void)
{
	int err = find_vmm();

	if (err)
		return err;
	log.frames = round_up(PHYS_PFN(__pa(high_memory - 1)) + 1, TPD_BLOCK_PAGES);
	err = make_ring();
	if (err)
		return err;
	if (spml_schedule)
		err = tpd_switch_register(&spml_switch);
	if (err) {
		remove_ring();
		return err;
	}
	register_reboot_notifier(&reboot);
	return 0;
}

static void spml_remove(void)
{
	unregister_reboot_notifier(&reboot);
	if (spml_schedule)
		tpd_switch_unregister(&spml_switch);
	remove_ring();
}

const struct tpd_mechanism tpd_spml = {
	.name = "spml",
	.probe = spml_probe,
	.remove = spml_remove,
	.attach = spml_attach,
	.detach = spml_detach,
	.arm = spml_arm,
	.collect = spml_collect,
};
