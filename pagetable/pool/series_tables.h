/* SPDX-License-Identifier: GPL-2.0-only */
/* What page tables are to the kernel's accounting and locks, where its series differ. */
#ifndef TRAPLESS_SERIES_TABLES_H
#define TRAPLESS_SERIES_TABLES_H

#include <linux/memcontrol.h>
#include <linux/mm.h>

#include "series.h"

#if SERIES_IS(6, 1)

/* Debian's configuration has it; its name has changed. */
#ifndef CONFIG_PAGE_TABLE_ISOLATION
#error "the pool repeats Debian's amd64 configuration"
#endif

static inline bool series_pte_ctor(struct page *page)
{
	return pgtable_pte_page_ctor(page);
}

static inline void series_pte_dtor(struct page *page)
{
	pgtable_pte_page_dtor(page);
}

static inline bool series_pmd_ctor(struct page *page)
{
	return pgtable_pmd_page_ctor(page);
}

static inline void series_pmd_dtor(struct page *page)
{
	pgtable_pmd_page_dtor(page);
}

/* Tables of the third level are not counted. */
static inline void series_pud_ctor(struct page *page)
{
}

static inline void series_pud_dtor(struct page *page)
{
}

/* A top table's place in pgd_list, and whose it is. */
static inline struct list_head *series_pgd_node(struct page *page)
{
	return &page->lru;
}

static inline void series_set_pgd_mm(struct page *page, struct mm_struct *mm)
{
	page->pt_mm = mm;
}

static inline bool series_charges_memory(void)
{
	return memcg_kmem_enabled();
}

#elif SERIES_IS(6, 12)

#ifndef CONFIG_MITIGATION_PAGE_TABLE_ISOLATION
#error "the pool repeats Debian's amd64 configuration"
#endif

static inline bool series_pte_ctor(struct page *page)
{
	return pagetable_pte_ctor(page_ptdesc(page));
}

static inline void series_pte_dtor(struct page *page)
{
	pagetable_pte_dtor(page_ptdesc(page));
}

static inline bool series_pmd_ctor(struct page *page)
{
	return pagetable_pmd_ctor(page_ptdesc(page));
}

static inline void series_pmd_dtor(struct page *page)
{
	pagetable_pmd_dtor(page_ptdesc(page));
}

static inline void series_pud_ctor(struct page *page)
{
	pagetable_pud_ctor(page_ptdesc(page));
}

static inline void series_pud_dtor(struct page *page)
{
	pagetable_pud_dtor(page_ptdesc(page));
}

static inline struct list_head *series_pgd_node(struct page *page)
{
	return &page_ptdesc(page)->pt_list;
}

static inline void series_set_pgd_mm(struct page *page, struct mm_struct *mm)
{
	page_ptdesc(page)->pt_mm = mm;
}

static inline bool series_charges_memory(void)
{
	return memcg_kmem_online();
}

#endif

#endif /* TRAPLESS_SERIES_TABLES_H */
