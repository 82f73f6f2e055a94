/* SPDX-License-Identifier: GPL-2.0-only */
/* What this module uses of memory management, where the series of Linux differ. */
#ifndef TRAPLESS_SERIES_MEMORY_H
#define TRAPLESS_SERIES_MEMORY_H

#include <linux/mm.h>
#include <linux/mmu_notifier.h>

#include "series.h"
#include "series_table.h"

#if SERIES_IS(6, 1)

/* The fast half of get_user_pages: (start, nr_pages, gup_flags, pages). */
#define SERIES_GUP_FAST		"internal_get_user_pages_fast"

/* Not exported; see stock.c. */
#define SERIES_STOCK_SYMBOLS \
	{ "folio_mapcount", &series_stock.folio_mapcount }

extern struct series_stock {
	int (*folio_mapcount)(struct folio *folio);
} series_stock;

#define SERIES_LOCK_TABLE	NULL

/* The bits of a leaf entry that say that it was written through. */
#define SERIES_DIRTY_BITS	_PAGE_DIRTY

/* Take these bits. Return: was any set? The lock of the table is held. */
static inline bool series_take_dirty(unsigned long *entry)
{
	return test_and_clear_bit(_PAGE_BIT_DIRTY, entry);
}

static inline int series_mapcount(struct folio *folio)
{
	return series_stock.folio_mapcount(folio);
}

/* Does a range that is protected page by page lie in private memory? */
static inline bool series_is_private(const struct mmu_notifier_range *range)
{
	return range->vma && !(range->vma->vm_flags & VM_SHARED);
}

#elif SERIES_IS(6, 12)

#define SERIES_GUP_FAST		"gup_fast_fallback"

#define SERIES_STOCK_SYMBOLS \
	{ SERIES_LOCK_TABLE_SYMBOL, &series_stock.lock_table }

extern struct series_stock {
	series_lock_table_t *lock_table;
} series_stock;

#define SERIES_LOCK_TABLE	(series_stock.lock_table)

/*
 * Since 6.6 the kernel moves the dirty bit of an entry without write permission to a bit
 * of its own, on every processor: together they mean a shadow stack. fork does, and
 * mprotect.
 */
#define SERIES_DIRTY_BITS	(_PAGE_DIRTY | _PAGE_SAVED_DIRTY)

static inline bool series_take_dirty(unsigned long *entry)
{
	bool saved = test_and_clear_bit(_PAGE_BIT_SAVED_DIRTY, entry);

	return test_and_clear_bit(_PAGE_BIT_DIRTY, entry) || saved;
}

static inline int series_mapcount(struct folio *folio)
{
	return folio_mapcount(folio);
}

/* What kernel/locking/rwsem.c keeps in the low bits of an owner. */
#define SERIES_OWNER_READS	1UL
#define SERIES_OWNER_FLAGS	3UL

/*
 * The range does not name its area, which can be looked up only under mmap_lock. fork
 * holds that for writing; writeback, which is for shared memory, need not hold it.
 */
static inline bool series_is_private(const struct mmu_notifier_range *range)
{
	unsigned long owner = atomic_long_read(&range->mm->mmap_lock.owner);
	const struct vm_area_struct *vma;

	if (owner & SERIES_OWNER_READS ||
	    (owner & ~SERIES_OWNER_FLAGS) != (unsigned long)current)
		return false;
	vma = find_vma(range->mm, range->start);
	return vma && range->end <= vma->vm_end && !(vma->vm_flags & VM_SHARED);
}

#endif

#endif /* TRAPLESS_SERIES_MEMORY_H */
