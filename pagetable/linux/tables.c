// SPDX-License-Identifier: GPL-2.0-only
/*
 * The kernel functions through which page tables come and go, with the cache
 * in front: stock Linux 6.1 code, read and repeated, so this file refuses to
 * be built for any other.
 *
 *   served here       pte_alloc_one, __pmd_alloc, __pud_alloc, pgd_alloc,
 *                     xen_pgd_alloc
 *   taken back here   free_page_and_swap_cache (how a table is freed after its
 *                     RCU grace period), pgd_free, xen_pgd_free
 *
 * Invariant: each function does what the stock one does, and only the page it
 * does it with may come from the pool. During the livepatch transition, and
 * after it is reversed, stock and new functions run side by side: either may
 * free what the other allocated (pool.c says why that is safe).
 *
 * Tables of init_mm belong to the kernel for ever and stay stock.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/livepatch.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pgtable.h>
#include <linux/version.h>

#include <asm/pgalloc.h>
#include <asm/vsyscall.h>

#include "trapless.h"

#if LINUX_VERSION_CODE < KERNEL_VERSION(6, 1, 0) || \
	LINUX_VERSION_CODE >= KERNEL_VERSION(6, 2, 0)
#error "the functions below repeat Linux 6.1"
#endif
#if !defined(CONFIG_X86_64) || !defined(CONFIG_XEN_PV) || \
	!defined(CONFIG_X86_VSYSCALL_EMULATION) || \
	!defined(CONFIG_PAGE_TABLE_ISOLATION)
#error "the functions below repeat Debian's amd64 configuration"
#endif

/* Possession of a page table, from the pool or from the kernel's allocator. */
static struct page *table_alloc(enum tpt_level level)
{
	struct tpt_cache *cache = &tpt_caches[level];
	struct page *page = tpt_cache_pop(level);

	return page ?: alloc_pages(cache->gfp, cache->order);
}

static void table_free(struct page *page, enum tpt_level level)
{
	if (!tpt_pool_return(page))
		__free_pages(page, tpt_caches[level].order);
}

static pgtable_t new_pte_alloc_one(struct mm_struct *mm)
{
	struct page *page = table_alloc(TPT_PTE);

	if (!page)
		return NULL;
	if (!pgtable_pte_page_ctor(page)) {
		table_free(page, TPT_PTE);
		return NULL;
	}
	return page;
}

static int new_pmd_alloc(struct mm_struct *mm, pud_t *pud,
			 unsigned long address)
{
	struct page *page;
	spinlock_t *ptl;

	if (mm == tpt_stock.init_mm)
		page = alloc_pages(GFP_PGTABLE_KERNEL, 0);
	else
		page = table_alloc(TPT_PMD);
	if (!page)
		return -ENOMEM;
	if (!pgtable_pmd_page_ctor(page)) {
		table_free(page, TPT_PMD);
		return -ENOMEM;
	}

	ptl = pud_lock(mm, pud);
	if (!pud_present(*pud)) {
		mm_inc_nr_pmds(mm);
		smp_wmb(); /* the table's contents before the pointer to it */
		pud_populate(mm, pud, page_address(page));
	} else {
		pgtable_pmd_page_dtor(page);
		table_free(page, TPT_PMD);
	}
	spin_unlock(ptl);
	return 0;
}

static int new_pud_alloc(struct mm_struct *mm, p4d_t *p4d,
			 unsigned long address)
{
	struct page *page;

	if (mm == tpt_stock.init_mm)
		page = alloc_pages(GFP_PGTABLE_KERNEL, 0);
	else
		page = table_alloc(TPT_PUD);
	if (!page)
		return -ENOMEM;

	spin_lock(&mm->page_table_lock);
	if (!p4d_present(*p4d)) {
		mm_inc_nr_puds(mm);
		smp_wmb(); /* the table's contents before the pointer to it */
		p4d_populate(mm, p4d, page_address(page));
	} else {
		table_free(page, TPT_PUD);
	}
	spin_unlock(&mm->page_table_lock);
	return 0;
}

static pgd_t *new_pgd_alloc(struct mm_struct *mm)
{
	struct page *page = table_alloc(TPT_PGD);
	pgd_t *pgd;

	if (!page)
		return NULL;
	pgd = page_address(page);
	mm->pgd = pgd;
	if (paravirt_pgd_alloc(mm)) {
		table_free(page, TPT_PGD);
		return NULL;
	}

	spin_lock(tpt_stock.pgd_lock);
	clone_pgd_range(pgd + KERNEL_PGD_BOUNDARY,
			tpt_stock.init_top_pgt + KERNEL_PGD_BOUNDARY,
			KERNEL_PGD_PTRS);
	page->pt_mm = mm;
	list_add(&page->lru, tpt_stock.pgd_list);
	spin_unlock(tpt_stock.pgd_lock);
	return pgd;
}

static void new_pgd_free(struct mm_struct *mm, pgd_t *pgd)
{
	struct page *page = virt_to_page(pgd);

	spin_lock(tpt_stock.pgd_lock);
	list_del(&page->lru);
	spin_unlock(tpt_stock.pgd_lock);
	paravirt_pgd_free(mm, pgd);
	table_free(page, TPT_PGD);
}

/* Xen PV runs user mode on a PGD of its own, kept in page->private. */
static int new_xen_pgd_alloc(struct mm_struct *mm)
{
	struct page *page = virt_to_page(mm->pgd);
	struct page *user_page;
	pgd_t *user_pgd;

	BUG_ON(PagePinned(page));
	BUG_ON(page_private(page));

	user_page = table_alloc(TPT_USER_PGD);
	if (!user_page)
		return -ENOMEM;
	user_pgd = page_address(user_page);
	user_pgd[pgd_index(VSYSCALL_ADDR)] =
		__pgd(__pa(tpt_stock.level3_user_vsyscall) | _PAGE_TABLE);
	set_page_private(page, (unsigned long)user_pgd);
	return 0;
}

static void new_xen_pgd_free(struct mm_struct *mm, pgd_t *pgd)
{
	void *user_pgd = (void *)page_private(virt_to_page(pgd));

	if (user_pgd)
		table_free(virt_to_page(user_pgd), TPT_USER_PGD);
}

static void new_free_page_and_swap_cache(struct page *page)
{
	if (tpt_pool_return(page))
		return;
	tpt_stock.free_swap_cache(page);
	if (READ_ONCE(*tpt_stock.huge_zero_page) != page)
		put_page(page);
}

static struct klp_func funcs[] = {
	{ .old_name = "pte_alloc_one", .new_func = new_pte_alloc_one },
	{ .old_name = "__pmd_alloc", .new_func = new_pmd_alloc },
	{ .old_name = "__pud_alloc", .new_func = new_pud_alloc },
	{ .old_name = "pgd_alloc", .new_func = new_pgd_alloc },
	{ .old_name = "pgd_free", .new_func = new_pgd_free },
	{ .old_name = "xen_pgd_alloc", .new_func = new_xen_pgd_alloc },
	{ .old_name = "xen_pgd_free", .new_func = new_xen_pgd_free },
	{ .old_name = "free_page_and_swap_cache",
	  .new_func = new_free_page_and_swap_cache },
#ifdef TPT_NEGATIVE_CONTROL_UNKNOWN_FUNCTION
	{ .old_name = "trapless_no_such_function", .new_func = new_pgd_free },
#endif
	{ }
};

static struct klp_object objects[] = { { .funcs = funcs }, { } };
static struct klp_patch patch = { .mod = THIS_MODULE, .objs = objects };

/* Return: 0, or why the kernel's livepatch core refused. */
int tpt_tables_patch(void)
{
	return klp_enable_patch(&patch);
}
