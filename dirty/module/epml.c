// SPDX-License-Identifier: GPL-2.0-only
/*
 * The mechanism of docs/epml.md: at the first store to a page, the processor itself
 * logs the page's address and a tag that stands for the process. Processors are armed
 * while they run threads of a tracked process.
 *
 * All trackers of a memory share one session, which collects what is logged for it.
 * Logged pages wait in the session, and are not logged again (L is set), until a
 * collect reports them to all trackers and then clears L.
 *
 * Invariants:
 *
 * - A watched page whose L is set is in a ring or in its session, so the next collect
 *   reports it. A page that is reported was armed again by the same collect, before a
 *   READ can return it.
 * - If an entry cannot be kept, the session is marked lost: the next collect reports,
 *   and arms, all that is watched.
 *
 * - A page that a store's fault has mapped is reported, also before the store: with a
 *   huge page all of it. The process may be stopped in between, and a checkpointer
 *   takes a page that is there and clean for one that it has already. Two tracepoints
 *   see these faults as they begin; so this holds for collects while the process is
 *   stopped, which is in no fault then.
 *
 * In the model L belongs to an address and a tag, not to a page-table entry. Changes
 * of mappings are handled in memory.c.
 *
 * Entries may have tags that are no longer in use, or addresses that are not watched;
 * both are dropped. A session is freed by RCU, after no interrupt and no context switch
 * can see it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ktime.h>
#include <linux/llist.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/tracepoint.h>
#include <linux/xarray.h>
#include <asm/trap_pf.h>

#include "epml_device.h"
#include "tracking.h"
#include "trapless_epml.h"

/**
 * struct block - pages of a block that were logged and not reported yet
 * @pages: changed by atomic operations
 * @index: in session.blocks
 * @node:  in session.news
 * @fault: bit 0: one of @pages was mapped by a store's fault, perhaps as part of a huge
 *         page. Set after it, and taken before
 * @due:   bit 0: the block is in session.news. Set after bits of @pages are set, and
 *         cleared before they are taken, so a block with pages is always due, or
 *         about to be
 */
struct block {
	DECLARE_BITMAP(pages, TPD_BLOCK_PAGES);
	unsigned long index;
	struct llist_node node;
	unsigned long fault;
	unsigned long due;
};

/**
 * struct session - what EPML keeps for a memory
 * @trackers: how many; under memory->harvest
 * @count:    how many blocks
 * @blocks:   struct block, by address / TPD_BLOCK_SIZE; they live as long as the session
 * @news:     blocks that have pages to report
 * @lost:     an entry could not be kept
 * @arms:     times that a processor was armed for it
 */
struct session {
	unsigned int trackers;
	atomic_t count;
	struct xarray blocks;
	struct llist_head news;
	bool lost;
	atomic64_t arms;
};

/*
 * Blocks that a session may have: one for each block that its process ever wrote to,
 * 128 GiB of addresses. Limited because they are allocated in interrupts, where they
 * are not charged to a cgroup.
 */
#define BLOCKS_MAX	65536

/* One tracker's, with the values of the counters when it began. */
struct watcher {
	struct session *session;
	u64 arms;
	u64 interrupts;
};

/* By tag. Changed under the memory's harvest, read under RCU. */
static DEFINE_XARRAY(sessions);

static struct session *session_of(const struct tpd_tracker *tracker)
{
	return ((struct watcher *)tracker->private)->session;
}

/* Entries of a tag were lost; ~0: of an unknown tag. With interrupts off. */
static void lose(u64 tag)
{
	struct session *session;
	unsigned long index;

	rcu_read_lock();
	xa_for_each(&sessions, index, session)
		if (tag > TRAPLESS_EPML_TAG_MASK || index == tag)
			WRITE_ONCE(session->lost, true);
	rcu_read_unlock();
}

static struct block *new_block(struct session *session, unsigned long index)
{
	struct block *block;
	unsigned long flags;
	int err;

	if (atomic_read(&session->count) >= BLOCKS_MAX)
		return NULL;
	block = kzalloc(sizeof(*block), GFP_NOWAIT | __GFP_NOWARN);
	if (!block)
		return NULL;
	block->index = index;
	xa_lock_irqsave(&session->blocks, flags);
	err = __xa_insert(&session->blocks, index, block, GFP_NOWAIT | __GFP_NOWARN);
	xa_unlock_irqrestore(&session->blocks, flags);
	if (!err) {
		atomic_inc(&session->count);
		return block;
	}
	kfree(block);
	/* The reader of another ring may have inserted it first. */
	return xa_load(&session->blocks, index);
}

/**
 * struct place - where entries of one block are noted
 * @key:     the bits that such entries have in common; 0: none yet
 * @session: whose block it is; NULL: the tag is not in use
 * @block:   NULL: such entries are dropped
 */
struct place {
	u64 key;
	struct session *session;
	struct block *block;
};

/* Queue the place's block for the next collect. */
static void leave(const struct place *place)
{
	if (place->block && !test_and_set_bit(0, &place->block->due))
		llist_add(&place->block->node, &place->session->news);
}

static void enter(struct place *place, u64 entry)
{
	struct session *session = xa_load(&sessions, entry & TRAPLESS_EPML_TAG_MASK);
	u64 address = entry & ~TRAPLESS_EPML_TAG_MASK;
	struct block *block = NULL;

	if (session && address < TASK_SIZE_MAX) {
		block = xa_load(&session->blocks, address / TPD_BLOCK_SIZE);
		if (!block)
			block = new_block(session, address / TPD_BLOCK_SIZE);
	}
	if (session && !block)
		WRITE_ONCE(session->lost, true);
	place->session = session;
	place->block = block;
}

/* Entries of a log, as the processor wrote them: not trusted. With interrupts off. */
static void take(const u64 *entries, unsigned int count)
{
	const u64 within = TPD_BLOCK_SIZE - PAGE_SIZE;
	struct place place = { 0 };
	unsigned int i;

	rcu_read_lock();
	for (i = 0; i < count; i++) {
		u64 entry = READ_ONCE(entries[i]);

		if ((entry & ~within) != place.key) {
			leave(&place);
			place.key = entry & ~within;
			enter(&place, entry);
		}
		if (place.block)
			set_bit(entry / PAGE_SIZE % TPD_BLOCK_PAGES, place.block->pages);
	}
	leave(&place);
	rcu_read_unlock();
}

/* A fault of the current task begins: in user mode, or in a copy by the kernel. Interrupts are off. */
static void on_fault(void *data, unsigned long address, struct pt_regs *regs, unsigned long error)
{
	struct tpd_memory *memory = tpd_memory_of(current->mm);
	struct place place = { 0 };

	if (!memory || !(error & X86_PF_WRITE) || address >= TASK_SIZE_MAX)
		return;
	rcu_read_lock();
	enter(&place, (address & PAGE_MASK) | memory->tag);
	if (place.block) {
		set_bit(address / PAGE_SIZE % TPD_BLOCK_PAGES, place.block->pages);
		set_bit(0, &place.block->fault);
	}
	leave(&place);
	rcu_read_unlock();
}

static struct tracepoint *faults[2];

static void unhook_faults(unsigned int count)
{
	while (count--)
		tracepoint_probe_unregister(faults[count], on_fault, NULL);
	tracepoint_synchronize_unregister();
}

static int hook_faults(void)
{
	static const char *const names[ARRAY_SIZE(faults)] = {
		"page_fault_user",
		"page_fault_kernel",
	};
	unsigned int i;
	int err;

	for (i = 0; i < ARRAY_SIZE(faults); i++) {
		faults[i] = tpd_tracepoint(names[i]);
		err = faults[i] ? tracepoint_probe_register(faults[i], on_fault, NULL) : -ENOENT;
		if (err) {
			unhook_faults(i);
			return err;
		}
	}
	return 0;
}

/* Addresses whose L was cleared, for the flush. */
struct span {
	unsigned long first;
	unsigned long last;
};

static void extend(struct span *span, unsigned long start, unsigned long end)
{
	span->first = min(span->first, start);
	span->last = max(span->last, end);
}

/* Processors may have cached that L was set. */
static void flush(struct tpd_tracker *tracker, const struct span *span)
{
	u64 begin = ktime_get_ns();

	if (span->first >= span->last)
		return;
	tpd_stock.flush_tlb_mm_range(tracker->memory->mm, span->first, span->last, PAGE_SHIFT,
				     false);
	tracker->stats.flush_ns += ktime_get_ns() - begin;
}

#define for_each_epml_tracker(tracker, memory)				\
	list_for_each_entry(tracker, &(memory)->trackers, node)		\
		if ((tracker)->mechanism == &tpd_epml)

struct look {
	struct tpd_walk walk;
	bool huge;
};

static void see_huge(struct tpd_walk *walk, const struct tpd_leaf *leaf)
{
	container_of(walk, struct look, walk)->huge = true;
}

/* Small pages are of no interest. */
static void see_table(struct tpd_walk *walk, const pte_t *entry, unsigned long address,
		      unsigned long end)
{
}

/* Under mmap_lock for reading. */
static bool may_be_huge(struct mm_struct *mm, unsigned long base)
{
	struct look look = {
		.walk = { .wanted = _PAGE_PRESENT, .leaf = see_huge, .table = see_table },
	};

	return tpd_walk(&look.walk, mm, base, base + TPD_BLOCK_SIZE) || look.huge;
}

/* Take the pages that wait in a block. Return: how many. */
static unsigned int take_block(struct block *block, unsigned long *pages, bool *fault)
{
	unsigned int i;

	clear_bit(0, &block->due);
	smp_mb__after_atomic(); /* as leave() does it: pages, then due */
	*fault = test_and_clear_bit(0, &block->fault);
	for (i = 0; i < BITS_TO_LONGS(TPD_BLOCK_PAGES); i++)
		pages[i] = READ_ONCE(block->pages[i]) ? xchg(&block->pages[i], 0) : 0;
	return bitmap_weight(pages, TPD_BLOCK_PAGES);
}

static void report_news(struct tpd_memory *memory, struct session *session, struct span *span)
{
	struct llist_node *news = llist_del_all(&session->news);
	struct tpd_tracker *tracker;
	u64 logged = 0, foreign = 0;
	struct block *block, *next;

	llist_for_each_entry_safe(block, next, news, node) {
		unsigned long base = block->index * TPD_BLOCK_SIZE;
		DECLARE_BITMAP(pages, TPD_BLOCK_PAGES);
		bool fault;
		unsigned int count = take_block(block, pages, &fault);

		logged += count;
		if (fault && may_be_huge(memory->mm, base))
			bitmap_fill(pages, TPD_BLOCK_PAGES);
		else if (!count)
			continue;
		/* L of unwatched pages stays set, until they are watched. */
		if (!tpd_found_block(memory, base, pages, &tpd_epml)) {
			foreign += count;
			continue;
		}
		epml_device_rearm(memory->tag, base, pages);
		extend(span, base, base + TPD_BLOCK_SIZE);
	}
	for_each_epml_tracker(tracker, memory) {
		tracker->stats.logged += logged;
		tracker->stats.foreign += foreign;
	}
}

static void report_all(struct tpd_memory *memory, struct span *span)
{
	struct tpd_tracker *tracker;
	struct tpd_range *range;
	unsigned int i;

	tpd_found_all(memory, &tpd_epml);
	for_each_epml_tracker(tracker, memory) {
		tpd_for_each_range(tracker, i, range) {
			epml_device_rearm_range(memory->tag, range->start, range->end);
			extend(span, range->start, range->end);
		}
	}
}

/* Report and arm again all pages that were logged before the call. */
static void report(struct tpd_tracker *tracker, struct span *span)
{
	struct session *session = session_of(tracker);
	struct watcher *watcher = tracker->private;

	epml_device_drain();
	report_news(tracker->memory, session, span);
	/* Losses from here on are for the next collect. */
	if (xchg(&session->lost, false) || !epml_device_present())
		report_all(tracker->memory, span);
	tracker->stats.arms = atomic64_read(&session->arms) - watcher->arms;
	tracker->stats.interrupts = epml_device_interrupts() - watcher->interrupts;
}

static int epml_collect(struct tpd_tracker *tracker)
{
	struct span span = { .first = ULONG_MAX };

	report(tracker, &span);
	flush(tracker, &span);
	return 0;
}

/* Stores before the watch may have set L there: take what they logged first. */
static int epml_arm(struct tpd_tracker *tracker, unsigned long start, unsigned long end)
{
	struct span span = { .first = ULONG_MAX };

	report(tracker, &span);
	epml_device_rearm_range(tracker->memory->tag, start, end);
	extend(&span, start, end);
	flush(tracker, &span);
	return 0;
}

static void switch_in(struct tpd_memory *memory)
{
	struct session *session = xa_load(&sessions, memory->tag);

	if (session && epml_device_arm(memory->tag))
		atomic64_inc(&session->arms);
}

static void switch_out(struct tpd_memory *memory)
{
	if (epml_device_armed() == memory->tag)
		epml_device_arm(0);
}

static struct tpd_switch switches = {
	.in = switch_in,
	.out = switch_out,
};

static void free_session(struct session *session)
{
	struct block *block;
	unsigned long index;

	xa_for_each(&session->blocks, index, block)
		kfree(block);
	xa_destroy(&session->blocks);
	kfree(session);
}

/* Get or make the session of a memory, and count a tracker. */
static struct session *get_session(unsigned int tag)
{
	struct session *session = xa_load(&sessions, tag);
	int err;

	if (!session) {
		session = kzalloc(sizeof(*session), TPD_GFP);
		if (!session)
			return ERR_PTR(-ENOMEM);
		xa_init_flags(&session->blocks, XA_FLAGS_LOCK_IRQ);
		init_llist_head(&session->news);
		/* A node has the tags of many processes: not charged to one's cgroup. */
		err = xa_insert(&sessions, tag, session, TPD_GFP & ~__GFP_ACCOUNT);
		if (err) {
			kfree(session);
			return ERR_PTR(err);
		}
	}
	session->trackers++;
	return session;
}

static int epml_attach(struct tpd_tracker *tracker)
{
	struct watcher *watcher;
	struct session *session;

	if (!epml_device_present())
		return -EOPNOTSUPP;
	watcher = kzalloc(sizeof(*watcher), TPD_GFP);
	if (!watcher)
		return -ENOMEM;
	session = get_session(tracker->memory->tag);
	if (IS_ERR(session)) {
		kfree(watcher);
		return PTR_ERR(session);
	}
	watcher->session = session;
	watcher->arms = atomic64_read(&session->arms);
	watcher->interrupts = epml_device_interrupts();
	tracker->private = watcher;
	tpd_switch_now(&switches, tracker->memory, true);
	return 0;
}

static void epml_detach(struct tpd_tracker *tracker)
{
	struct session *session = session_of(tracker);

	kfree(tracker->private);
	if (--session->trackers)
		return;
	/* From now on no switch arms a processor for it. Then disarm those that are. */
	xa_erase(&sessions, tracker->memory->tag);
	tpd_switch_now(&switches, tracker->memory, false);
	synchronize_rcu();
	free_session(session);
}

static const struct epml_reader reader = {
	.take = take,
	.lose = lose,
};

static int epml_probe(void)
{
	int err = epml_device_init(&reader);

	if (err)
		return err;
	err = tpd_switch_register(&switches);
	if (err)
		goto exit;
	err = hook_faults();
	if (err)
		goto unregister;
	return 0;

unregister:
	tpd_switch_unregister(&switches);
exit:
	epml_device_exit();
	return err;
}

static void epml_remove(void)
{
	unhook_faults(ARRAY_SIZE(faults));
	tpd_switch_unregister(&switches);
	epml_device_exit();
}

const struct tpd_mechanism tpd_epml = {
	.name = "epml",
	.probe = epml_probe,
	.remove = epml_remove,
	.attach = epml_attach,
	.detach = epml_detach,
	.arm = epml_arm,
	.collect = epml_collect,
};
