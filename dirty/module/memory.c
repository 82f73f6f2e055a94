// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tracked memory: one object for each mm that has trackers, and what the kernel
 * itself does to its mappings.
 *
 * Kernel code that clears or cleans an entry (reclaim, migration, writeback, KSM,
 * madvise, munmap, mremap, the splitting of huge pages) calls the MMU notifiers
 * before and after. In between, a write may set a dirty bit, or be logged by an
 * address, that no collect looks at any more.
 *
 * Invariant: a range whose entries were changed is reported as a whole by every
 * collect from before the change is visible until one that began after its end.
 * During the change `active` sees to that, which every collect reads after its walk;
 * after it, the marks that changes_end() sets. Three kinds of change keep dirty bits
 * and are ignored: of protection (mprotect), write-protection of private memory by
 * fork, and clear_refs.
 *
 * TLB: some of these changes flush only later. So marked pages are returned to user
 * space only after one more flush (`stale`).
 */
#include <linux/sched/mm.h>
#include <linux/wait_bit.h>
#include <linux/slab.h>

#include "series_memory.h"
#include "tracking.h"

/* Serialises making and removing tracked memories; taken inside mmap_lock. */
static DEFINE_MUTEX(memories);
/* Memories that are not freed yet. */
static atomic_t live = ATOMIC_INIT(0);

static bool keeps_dirty_bits(const struct mmu_notifier_range *range)
{
	switch (range->event) {
	case MMU_NOTIFY_PROTECTION_VMA:
	case MMU_NOTIFY_SOFT_DIRTY:
		return true;
	case MMU_NOTIFY_PROTECTION_PAGE:
		/* fork() sends this for private memory only, writeback for shared. */
		return series_is_private(range);
	default:
		return false;
	}
}

static struct tpd_memory *of_notifier(struct mmu_notifier *notifier)
{
	return container_of(notifier, struct tpd_memory, notifier);
}

static int changes_begin(struct mmu_notifier *notifier, const struct mmu_notifier_range *range)
{
	struct tpd_memory *memory = of_notifier(notifier);

	if (keeps_dirty_bits(range))
		return 0;
	spin_lock_irq(&memory->lock);
	if (!memory->active++) {
		memory->first = range->start;
		memory->last = range->end;
	}
	memory->first = min(memory->first, range->start);
	memory->last = max(memory->last, range->end);
	spin_unlock_irq(&memory->lock);
	return 0;
}

static void changes_end(struct mmu_notifier *notifier, const struct mmu_notifier_range *range)
{
	struct tpd_memory *memory = of_notifier(notifier);

	if (keeps_dirty_bits(range))
		return;
	spin_lock_irq(&memory->lock);
	memory->active--;
	memory->stale = true;
	tpd_found_locked(memory, range->start, range->end);
	spin_unlock_irq(&memory->lock);
}

/**
 * tpd_found_active - mark the ranges that are being changed right now
 * @memory: the tracked memory
 *
 * Called after the walk of a collect: a change that hid a write from the walk has
 * begun by then.
 */
void tpd_found_active(struct tpd_memory *memory)
{
	spin_lock_irq(&memory->lock);
	if (memory->active) {
		memory->stale = true;
		tpd_found_locked(memory, memory->first, memory->last);
	}
	spin_unlock_irq(&memory->lock);
}

static struct mmu_notifier *new_memory(struct mm_struct *mm)
{
	struct tpd_memory *memory = kzalloc(sizeof(*memory), TPD_GFP);

	if (!memory)
		return ERR_PTR(-ENOMEM);
	atomic_inc(&live);
	memory->mm = mm;
	mutex_init(&memory->harvest);
	spin_lock_init(&memory->lock);
	INIT_LIST_HEAD(&memory->trackers);
	INIT_LIST_HEAD(&memory->writes);
	return &memory->notifier;
}

/* After the last notification, from a callback of SRCU. */
static void free_memory(struct mmu_notifier *notifier)
{
	struct tpd_memory *memory = of_notifier(notifier);

	tpd_kernel_writes_forget(memory);
	kfree_rcu(memory, rcu);
	if (atomic_dec_and_test(&live))
		wake_up_var(&live);
}

static const struct mmu_notifier_ops notifier_ops = {
	.invalidate_range_start = changes_begin,
	.invalidate_range_end = changes_end,
	.alloc_notifier = new_memory,
	.free_notifier = free_memory,
};

/* Get or make the memory of an mm, and count a user. Under mmap_lock for writing. */
static struct tpd_memory *get_memory(struct mm_struct *mm)
{
	struct mmu_notifier *notifier = mmu_notifier_get_locked(&notifier_ops, mm);
	struct tpd_memory *memory;
	int err = -EOPNOTSUPP;

	if (IS_ERR(notifier))
		return ERR_CAST(notifier);
	memory = of_notifier(notifier);
	if (!tpd_secondary_alone(memory))
		goto put;
	if (!memory->users) {
		err = tpd_lookup_add(memory);
		if (err)
			goto put;
	}
	memory->users++;
	return memory;
put:
	mmu_notifier_put(notifier);
	return ERR_PTR(err);
}

/* Drop a user; after the last one, lookups do not find the memory any more. */
static void put_memory(struct tpd_memory *memory)
{
	mutex_lock(&memories);
	if (!--memory->users)
		tpd_lookup_remove(memory);
	mmu_notifier_put(&memory->notifier);
	mutex_unlock(&memories);
}

static int begin(struct tpd_tracker *tracker)
{
	struct tpd_memory *memory = tracker->memory;
	int err;

	if (mutex_lock_killable(&memory->harvest))
		return -EINTR;
	spin_lock_irq(&memory->lock);
	list_add(&tracker->node, &memory->trackers);
	spin_unlock_irq(&memory->lock);
	err = tracker->mechanism->attach(tracker);
	if (err) {
		spin_lock_irq(&memory->lock);
		list_del(&tracker->node);
		spin_unlock_irq(&memory->lock);
	}
	mutex_unlock(&memory->harvest);
	return err;
}

/**
 * tpd_attach - make a tracker
 * @mm:        what it tracks; the caller holds a user of it
 * @mechanism: how writes are found
 *
 * Return: the tracker, or an error: -ENOMEM, -EINTR, -ENOSPC (too many mms are
 * tracked), -EOPNOTSUPP (others map this memory, see secondary.c), or the mechanism's.
 */
struct tpd_tracker *tpd_attach(struct mm_struct *mm, const struct tpd_mechanism *mechanism)
{
	struct tpd_tracker *tracker = kzalloc(sizeof(*tracker), TPD_GFP);
	struct tpd_memory *memory;
	int err = -EINTR;

	if (!tracker)
		return ERR_PTR(-ENOMEM);
	if (mmap_write_lock_killable(mm))
		goto free;
	/* Inside mmap_lock: a process that holds its own for long does not block others. */
	mutex_lock(&memories);
	memory = get_memory(mm);
	mutex_unlock(&memories);
	mmap_write_unlock(mm);
	err = PTR_ERR_OR_ZERO(memory);
	if (err)
		goto free;
	tracker->memory = memory;
	tracker->mechanism = mechanism;
	err = begin(tracker);
	if (!err)
		return tracker;
	put_memory(memory);
free:
	kfree(tracker);
	return ERR_PTR(err);
}

/**
 * tpd_detach - end a tracker and free all that it holds
 * @tracker: the tracker
 */
void tpd_detach(struct tpd_tracker *tracker)
{
	struct tpd_memory *memory = tracker->memory;

	mutex_lock(&memory->harvest);
	tracker->mechanism->detach(tracker);
	tpd_unwatch_all(tracker);
	spin_lock_irq(&memory->lock);
	list_del(&tracker->node);
	spin_unlock_irq(&memory->lock);
	mutex_unlock(&memory->harvest);
	put_memory(memory);
	kfree(tracker);
}

/* Wait until everything that detached trackers left is freed. */
void tpd_memory_exit(void)
{
	/* Callbacks of SRCU have no barrier for modules. */
	wait_var_event(&live, !atomic_read(&live));
	mmu_notifier_synchronize();
	rcu_barrier();
}
