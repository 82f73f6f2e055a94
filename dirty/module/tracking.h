/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the parts of trapless_dirty share.
 *
 *   device.c    the character device: checks requests and dispatches them
 *   memory.c    one object for each tracked mm: its trackers, and changes of its
 *               mappings by the kernel (MMU notifier)
 *   lookup.c    finds this object by an mm, or by a tag in a log
 *   found.c     one tracker's watched ranges and the pages found written there
 *   dbit.c      mechanism: the dirty bit of the process's page-table entries
 *   spml.c      mechanism: the hypervisor's log, forwarded
 *   epml.c      mechanism: the processor's log
 *   switch.c    when a processor begins and ends to run threads of a tracked process
 *   kernel_writes.c
 *               writes through the kernel's own mapping (get_user_pages)
 *   secondary.c memory that virtual machines or devices map as well
 *   walk.c      page tables of another process
 *   stock.c     symbols that are not exported, and tracepoints
 *   known.c     the stock functions that were compared with ours
 *
 * Locks, outermost first: memory->harvest (mutex; also keeps the list of
 * trackers), mmap_lock, page-table locks, memory->lock (spinlock, interrupts off:
 * the log's interrupt marks pages).
 */
#ifndef TRAPLESS_TRACKING_H
#define TRAPLESS_TRACKING_H

#include <linux/bitmap.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/types.h>

#include "trapless_dirty.h"

/* Pages are found by blocks of one page table: 2 MiB. */
#define TPD_BLOCK_PAGES	512
#define TPD_BLOCK_SIZE	((unsigned long)TPD_BLOCK_PAGES << PAGE_SHIFT)

/*
 * For allocations that a user causes and that may sleep: where the cgroup or the machine
 * is short of memory they fail with -ENOMEM, without OOM kill and without a message.
 * What the kernel allocates on our behalf (an mm's first MMU notifier, page tables of
 * vmalloc) has the kernel's own flags.
 */
#define TPD_GFP		(GFP_KERNEL_ACCOUNT | __GFP_RETRY_MAYFAIL | __GFP_NOWARN)

struct tpd_memory;
struct tpd_tracker;
struct tracepoint;

/**
 * struct tpd_mechanism - a way to find writes
 * @name:    for messages
 * @probe:   called once, at module load: 0 if this machine has the mechanism, else a
 *           negative errno, with a message if an operator would want to know why
 * @remove:  undoes @probe; no tracker is attached any more
 * @attach:  a tracker begins; under memory->harvest. 0 or negative errno
 * @detach:  it ends; the process may be gone; under memory->harvest
 * @arm:     find writes to the range from now on; the caller forgets what was found
 *           in it before. Under memory->harvest and mmap_lock for reading. 0 or
 *           negative errno
 * @collect: mark all pages written since the last collect, by tpd_found_block() and
 *           the like, and arm them again. Under memory->harvest and mmap_lock for
 *           reading. 0 or negative errno; no write is lost either way
 *
 * If @arm or @collect clear something that processors cache, they flush the TLBs
 * before they return.
 */
struct tpd_mechanism {
	const char *name;
	int (*probe)(void);
	void (*remove)(void);
	int (*attach)(struct tpd_tracker *tracker);
	void (*detach)(struct tpd_tracker *tracker);
	int (*arm)(struct tpd_tracker *tracker, unsigned long start, unsigned long end);
	int (*collect)(struct tpd_tracker *tracker);
};

extern const struct tpd_mechanism tpd_dbit, tpd_spml, tpd_epml;

/**
 * struct tpd_range - addresses that a tracker watches
 * @start:  page-aligned
 * @end:    page-aligned
 * @found:  the pages found written: see found.c; under memory->lock
 */
struct tpd_range {
	unsigned long start;
	unsigned long end;
	struct tpd_found *found;
};

/**
 * struct tpd_tracker - one open file that is attached
 * @memory:    what it tracks
 * @node:      in memory->trackers
 * @mechanism: how it finds writes
 * @ranges:    what it watches, sorted; changed under both memory->harvest and
 *             memory->lock, so holding either is enough to read
 * @count:     how many ranges
 * @room:      how many fit into @ranges
 * @overrun:   the log ran over and no collect has reported it; memory->lock
 * @stats:     what GET_STATS returns; memory->lock
 * @private:   the mechanism's own
 */
struct tpd_tracker {
	struct tpd_memory *memory;
	struct list_head node;
	const struct tpd_mechanism *mechanism;
	struct tpd_range **ranges;
	unsigned int count;
	unsigned int room;
	bool overrun;
	struct trapless_dirty_stats stats;
	void *private;
};

/**
 * struct tpd_memory - a tracked mm
 * @mm:        the mm; its structure lives as long as this, its pages may be gone
 * @notifier:  called before and after the kernel changes its mappings
 * @users:     trackers, with those that are about to begin or are ending
 * @harvest:   serialises arming, collecting, and beginning and ending trackers
 * @lock:      protects what was found
 * @trackers:  changed under @harvest and @lock
 * @ranges:    how many ranges all trackers watch; under @harvest
 * @active:    how many changes of mappings are in progress; under @lock
 * @first:     from here ...
 * @last:      ... to here (exclusive), while @active
 * @stale:     an entry was cleared whose TLB flush may be outstanding; under @lock
 * @writes:    writes through the kernel's own mapping: see kernel_writes.c, whose
 *             lock protects this and the next four
 * @write_count: how many
 * @inside:    how many of these belong to calls that have not returned
 * @unnoted:   such a write could not be noted: from now on all pages are reported
 * @ended:     nothing is noted any more
 * @secondary: others map it, or did: see secondary.c
 * @hash:      for tpd_memory_of()
 * @tag:       1 to 4095: stands for this mm in logs, while it is tracked
 */
struct tpd_memory {
	struct mm_struct *mm;
	struct mmu_notifier notifier;
	unsigned int users;
	struct mutex harvest;
	spinlock_t lock;
	struct list_head trackers;
	unsigned int ranges;
	unsigned int active;
	unsigned long first;
	unsigned long last;
	bool stale;
	struct list_head writes;
	unsigned int write_count;
	unsigned int inside;
	bool unnoted;
	bool ended;
	bool secondary;
	struct hlist_node hash;
	unsigned int tag;
	struct rcu_head rcu;
};

/* lookup.c */

/**
 * tpd_memory_of - the tracked memory of an mm, if it is tracked
 * @mm: any, NULL too
 *
 * Under rcu_read_lock() or with preemption off, where the result is good.
 */
struct tpd_memory *tpd_memory_of(struct mm_struct *mm);
/* The same by its tag. */
struct tpd_memory *tpd_memory_by_tag(unsigned int tag);
int tpd_lookup_add(struct tpd_memory *memory);
void tpd_lookup_remove(struct tpd_memory *memory);
void tpd_lookup_exit(void);

/* memory.c */
struct tpd_tracker *tpd_attach(struct mm_struct *mm, const struct tpd_mechanism *mechanism);
void tpd_detach(struct tpd_tracker *tracker);
void tpd_found_active(struct tpd_memory *memory);
void tpd_memory_exit(void);

/* found.c: these four may be called from anywhere, interrupts too. */

/* Pages from start to end (exclusive) were written, for trackers of all mechanisms. */
void tpd_found(struct tpd_memory *memory, unsigned long start, unsigned long end);
void tpd_found_locked(struct tpd_memory *memory, unsigned long start, unsigned long end);
/* The page at an address was written, for trackers of one mechanism. True if watched by one. */
bool tpd_found_page(struct tpd_memory *memory, unsigned long address,
		    const struct tpd_mechanism *mechanism);
/* The same for pages of the block that begins at base. True if a part of it is watched. */
bool tpd_found_block(struct tpd_memory *memory, unsigned long base,
		     const unsigned long *pages, const struct tpd_mechanism *mechanism);
/* The log ran over: mark all that trackers of the mechanism watch. */
void tpd_found_all(struct tpd_memory *memory, const struct tpd_mechanism *mechanism);

/* The rest of found.c: under memory->harvest. */
void tpd_found_by(struct tpd_tracker *tracker, unsigned long start, unsigned long end);
int tpd_watch(struct tpd_tracker *tracker, unsigned long start, unsigned long end);
int tpd_unwatch(struct tpd_tracker *tracker, unsigned long start, unsigned long end);
void tpd_unwatch_all(struct tpd_tracker *tracker);
unsigned int tpd_take(struct tpd_tracker *tracker, struct trapless_dirty_range *ranges,
		      unsigned int capacity, unsigned long *from, unsigned long to);

#define tpd_for_each_range(tracker, i, range)					\
	for ((i) = 0; (i) < (tracker)->count && ((range) = (tracker)->ranges[i]); (i)++)

/* walk.c: page tables of another process. */

/**
 * struct tpd_leaf - a present leaf entry
 * @address: of the first page
 * @pages:   how many it maps: 1, or those of a huge page
 * @page:    the first one's struct page; NULL for what has none (zero page)
 * @entry:   the entry itself: the dirty bit is cleared by an atomic operation
 */
struct tpd_leaf {
	unsigned long address;
	unsigned long pages;
	struct page *page;
	unsigned long *entry;
};

/**
 * struct tpd_walk - what to do with page tables
 * @wanted:     _PAGE_... bits, of which one must be set in a present entry
 * @absent:     visit entries that are neither present nor empty (swapped out,
 *              migrating) as well, with no page
 * @leaf:       called for each such entry, under its page-table lock
 * @table:      called in place of @leaf for entries of a lowest-level table, once
 *              for all of its entries in the range: the first one, its address, and
 *              where they end. Under the same lock; @wanted and @absent are ignored.
 *              For walks that need nearly every entry: there a call for each would
 *              cost more than all else. May be NULL
 * @settle:     called before that lock is released; may be NULL
 * @done:       called after each block that had a page table, without that lock;
 *              may be NULL
 * @odd:        called for memory without struct pages, or whose tables other
 *              processes share: it cannot be tracked. NULL: tpd_walk() ends with
 *              -EOPNOTSUPP
 *
 * The callbacks get the walk itself; use container_of() for the caller's own data.
 */
struct tpd_walk {
	unsigned long wanted;
	bool absent;
	void (*leaf)(struct tpd_walk *walk, const struct tpd_leaf *leaf);
	void (*table)(struct tpd_walk *walk, const pte_t *entry, unsigned long address,
		      unsigned long end);
	void (*settle)(struct tpd_walk *walk);
	void (*done)(struct tpd_walk *walk, unsigned long base);
	void (*odd)(struct tpd_walk *walk, unsigned long start, unsigned long end);
};

/* Under mmap_lock for reading. 0, -EOPNOTSUPP, or -EINTR after a fatal signal. */
int tpd_walk(struct tpd_walk *walk, struct mm_struct *mm, unsigned long start,
	     unsigned long end);

/* kernel_writes.c */
int tpd_kernel_writes_init(void);
void tpd_kernel_writes_exit(void);
/* Mark what may be being written. Under memory->harvest and mmap_lock for reading. */
void tpd_kernel_writes_collect(struct tpd_memory *memory);
int tpd_kernel_writes_watch(struct tpd_memory *memory, unsigned long start, unsigned long end);
void tpd_kernel_writes_forget(struct tpd_memory *memory);

/* secondary.c */
int tpd_secondary_init(void);
void tpd_secondary_exit(void);
bool tpd_secondary_alone(struct tpd_memory *memory);
bool tpd_secondary_came(struct tpd_memory *memory);

/* switch.c */

/**
 * struct tpd_switch - callbacks for when tracked threads run
 * @in:  a thread of @memory runs on this processor from now on; may be called again
 *       while it does
 * @out: none runs any more; may be called although none did
 *
 * Called in the scheduler with interrupts off: take no locks but raw ones.
 */
struct tpd_switch {
	struct list_head node;
	void (*in)(struct tpd_memory *memory);
	void (*out)(struct tpd_memory *memory);
};

int tpd_switch_register(struct tpd_switch *user);
void tpd_switch_unregister(struct tpd_switch *user);
/* Call user->in(), or user->out(), on all processors that run a thread of memory now. */
void tpd_switch_now(struct tpd_switch *user, struct tpd_memory *memory, bool in);

/* stock.c */
extern struct tpd_stock {
	struct mm_struct *(*mm_access)(struct task_struct *task, unsigned int mode);
	void (*flush_tlb_mm_range)(struct mm_struct *mm, unsigned long start, unsigned long end,
				   unsigned int stride_shift, bool freed_tables);
	void (*lru_add_drain_all)(void);
} tpd_stock;
int tpd_stock_resolve(void);
struct tracepoint *tpd_tracepoint(const char *name);

/* known.c */
int tpd_known_check(void);
bool tpd_is_left_out(const char *mechanism);
int tpd_left_out_show(char *buf);

#endif /* TRAPLESS_TRACKING_H */
