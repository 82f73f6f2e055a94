/* SPDX-License-Identifier: GPL-2.0-only */
/* What this module uses of memory management, where the series of Linux differ. */
#ifndef PVMMU_SERIES_MMU_H
#define PVMMU_SERIES_MMU_H

#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/pgtable.h>
#include <linux/rmap.h>

#include "series.h"
#include "series_table.h"

#if SERIES_IS(6, 1)

/* Makes a page of anonymous memory the area's own, and exclusive. */
#define SERIES_MOVE_ANON_SYMBOL	"page_move_anon_rmap"
typedef void series_move_anon_t(struct page *page, struct vm_area_struct *vma);

static inline void series_move_anon(series_move_anon_t *stock, struct page *page,
				    struct vm_area_struct *vma)
{
	stock(page, vma);
}

static inline bool series_in_swap_cache(struct page *page)
{
	return PageSwapCache(page);
}

/* Return: the lock of a table of the lowest level. */
static inline spinlock_t *series_table_lock(struct page *table)
{
	return ptlock_ptr(table);
}

/* Return: the top table at a place of pgd_list. */
static inline struct page *series_pgd_page(struct list_head *node)
{
	return list_entry(node, struct page, lru);
}

/* Return: whose it is. */
static inline struct mm_struct *series_pgd_mm(struct page *table)
{
	return table->pt_mm;
}

/* Another entry maps a page of a file. */
static inline void series_dup_file_rmap(struct page *page)
{
	page_dup_file_rmap(page, false);
}

/*
 * fork maps a page of anonymous memory in the child, too. Return: 0, or an error if the
 * page may be pinned.
 */
static inline int series_try_dup_anon_rmap(struct page *page, struct vm_area_struct *src)
{
	return page_try_dup_anon_rmap(page, false, src);
}

/* Return: which of an address space's counts a page of a file belongs to. */
static inline int series_file_counter(struct page *page)
{
	return mm_counter_file(page);
}

/* add_mm_counter() without its trace point, which is not exported. */
static inline void series_count_pages(struct mm_struct *mm, int counter, int count)
{
	atomic_long_add(count, &mm->rss_stat.count[counter]);
}

/* Do others than processors hear of a flush, such as an IOMMU? */
static inline bool series_flush_is_heard(struct mm_struct *mm)
{
	return false;
}

/* Does mremap() move what is before a range in its table too, to move the table? */
#define SERIES_ALIGNS_MOVES	false

/* An entry does not map a page of anonymous memory any more. */
#define SERIES_REMOVE_RMAP_SYMBOL	"page_remove_rmap"
typedef void series_remove_rmap_t(struct page *page, struct vm_area_struct *vma,
				  bool compound);

static inline void series_remove_rmap(series_remove_rmap_t *stock, struct page *page,
				      struct vm_area_struct *vma)
{
	stock(page, vma, false);
}

typedef bool series_queue_page_t(struct mmu_gather *tlb, struct page *page, int size);

/* Queue a page to be freed. Return: whether the queue is full. */
static inline bool series_queue_page(series_queue_page_t *stock, struct mmu_gather *tlb,
				     struct page *page)
{
	return stock(tlb, page, PAGE_SIZE);
}

/* With these, dirty without write permission has a meaning of its own. */
static inline bool series_has_shadow_stacks(void)
{
	return false;
}

#elif SERIES_IS(6, 12)

#include <linux/mmu_notifier.h>
#include <linux/percpu_counter.h>

#include <asm/cpufeature.h>

static inline spinlock_t *series_table_lock(struct page *table)
{
	return ptlock_ptr(page_ptdesc(table));
}

static inline struct page *series_pgd_page(struct list_head *node)
{
	return ptdesc_page(list_entry(node, struct ptdesc, pt_list));
}

static inline struct mm_struct *series_pgd_mm(struct page *table)
{
	return page_ptdesc(table)->pt_mm;
}

static inline void series_dup_file_rmap(struct page *page)
{
	folio_dup_file_rmap_pte(page_folio(page), page);
}

static inline int series_try_dup_anon_rmap(struct page *page, struct vm_area_struct *src)
{
	return folio_try_dup_anon_rmap_pte(page_folio(page), page, src);
}

static inline int series_file_counter(struct page *page)
{
	return mm_counter_file(page_folio(page));
}

static inline void series_count_pages(struct mm_struct *mm, int counter, int count)
{
	percpu_counter_add(&mm->rss_stat[counter], count);
}

static inline bool series_flush_is_heard(struct mm_struct *mm)
{
	return mm_has_notifiers(mm);
}

#define SERIES_ALIGNS_MOVES	true

#define SERIES_REMOVE_RMAP_SYMBOL	"folio_remove_rmap_ptes"
typedef void series_remove_rmap_t(struct folio *folio, struct page *page, int count,
				  struct vm_area_struct *vma);

static inline void series_remove_rmap(series_remove_rmap_t *stock, struct page *page,
				      struct vm_area_struct *vma)
{
	stock(page_folio(page), page, 1, vma);
}

typedef bool series_queue_page_t(struct mmu_gather *tlb, struct page *page,
				 bool delay_rmap, int size);

static inline bool series_queue_page(series_queue_page_t *stock, struct mmu_gather *tlb,
				     struct page *page)
{
	return stock(tlb, page, false, PAGE_SIZE);
}

static inline bool series_has_shadow_stacks(void)
{
	return boot_cpu_has(X86_FEATURE_SHSTK) ||
	       boot_cpu_has(X86_FEATURE_USER_SHSTK);
}

#define SERIES_MOVE_ANON_SYMBOL	"folio_move_anon_rmap"
typedef void series_move_anon_t(struct folio *folio, struct vm_area_struct *vma);

/* Its callers mark the page themselves since 6.7. */
static inline void series_move_anon(series_move_anon_t *stock, struct page *page,
				    struct vm_area_struct *vma)
{
	stock(page_folio(page), vma);
	SetPageAnonExclusive(page);
}

static inline bool series_in_swap_cache(struct page *page)
{
	return folio_test_swapcache(page_folio(page));
}

#endif

#endif /* PVMMU_SERIES_MMU_H */
