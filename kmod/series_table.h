/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How to lock a page table of the lowest level, where the series of Linux differ: since
 * 6.5 the table may be gone. After series_lock_table() its lock is held unless
 * series_is_gone() says so.
 */
#ifndef TRAPLESS_SERIES_TABLE_H
#define TRAPLESS_SERIES_TABLE_H

#include <linux/mm.h>

#include "series.h"

#if SERIES_IS(6, 1)

/* The function that locks a table, if it is not exported. */
#define SERIES_LOCK_TABLE_SYMBOL	NULL
typedef void series_lock_table_t(void);

/*
 * @stock: the function of SERIES_LOCK_TABLE_SYMBOL
 *
 * Return: the table with its lock held; a table does not go away under mmap_lock.
 */
static inline pte_t *series_lock_table(series_lock_table_t *stock,
				       struct mm_struct *mm, pmd_t *pmd,
				       unsigned long address, spinlock_t **lock)
{
	return pte_offset_map_lock(mm, pmd, address, lock);
}

static inline bool series_is_gone(const pte_t *table, spinlock_t *lock)
{
	return false;
}

#elif SERIES_IS(6, 12)

#define SERIES_LOCK_TABLE_SYMBOL	"__pte_offset_map_lock"
typedef pte_t *series_lock_table_t(struct mm_struct *mm, pmd_t *pmd,
				   unsigned long address, spinlock_t **lock);

/*
 * Return: the table with its lock held; NULL if it is gone, as when the kernel replaces
 * a table of file pages by a huge page.
 */
static inline pte_t *series_lock_table(series_lock_table_t *stock,
				       struct mm_struct *mm, pmd_t *pmd,
				       unsigned long address, spinlock_t **lock)
{
	pte_t *table = stock(mm, pmd, address, lock);

	/* What pte_unmap_unlock() releases: for sparse, until series_is_gone() says otherwise. */
	__acquire(RCU);
	__acquire(*lock);
	return table;
}

/* If so, no lock was taken. A macro, as sparse does not follow locks through functions. */
#define series_is_gone(table, lock)	\
	((table) ? false : ({ __release(lock); __release(RCU); true; }))

#endif

#endif /* TRAPLESS_SERIES_TABLE_H */
