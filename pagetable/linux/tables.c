// SPDX-License-Identifier: GPL-2.0-only
/*
 * The kernel functions through which page tables come and go, with the cache
 * in front.
 *
 *   served here       pte_alloc_one, __pmd_alloc, __pud_alloc, pgd_alloc
 *   taken back here   free_page_and_swap_cache (how a table is freed after its
 *                     RCU grace period), pgd_free
 *
 * Invariants:
 *
 *  - Each function serves what it can from the cache, as stock Linux 6.1 would
 *    have served it, and says so; in every other case it has done nothing and
 *    the stock function runs. So this file refuses to be built for any other
 *    kernel.
 *  - Stock functions and these run side by side, when hooks come and go as
 *    in every miss: either may free what the other allocated (pool.c says why
 *    that is safe).
 *  - None of them sleeps; see direct_hook.h.
 *
 * Tables of init_mm belong to the kernel for ever and stay stock.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/version.h>

#include <asm/pgalloc.h>
#include <asm/vsyscall.h>

#include "direct_hook.h"
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

/* On bare metal there is no table for user mode alone. */
static bool user_pgds;

static void table_free(struct page *page, enum tpt_level level)
{
	if (!tpt_pool_return(page))
		__free_pages(page, tpt_caches[level].order);
}

/* Called by entry.S like all that follow. Return: as pte_alloc_one(), or NULL. */
pgtable_t tpt_pte_alloc_one(struct mm_struct *mm);
pgtable_t tpt_pte_alloc_one(struct mm_struct *mm)
{
	struct page *page = tpt_cache_pop(TPT_PTE);

	if (!page)
		return NULL;
	if (!pgtable_pte_page_ctor(page)) {
		table_free(page, TPT_PTE);
		return NULL;
	}
	return page;
}

/* Return: whether the level is there now, as after a successful __pmd_alloc(). */
long tpt_pmd_alloc(struct mm_struct *mm, pud_t *pud, unsigned long address);
long tpt_pmd_alloc(struct mm_struct *mm, pud_t *pud, unsigned long address)
{
	struct page *page;
	spinlock_t *ptl;

	if (mm == tpt_stock.init_mm)
		return false;
	page = tpt_cache_pop(TPT_PMD);
	if (!page)
		return false;
	if (!pgtable_pmd_page_ctor(page)) {
		table_free(page, TPT_PMD);
		return false;
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
	return true;
}

/* Return: whether the level is there now, as after a successful __pud_alloc(). */
long tpt_pud_alloc(struct mm_struct *mm, p4d_t *p4d, unsigned long address);
long tpt_pud_alloc(struct mm_struct *mm, p4d_t *p4d, unsigned long address)
{
	struct page *page;

	if (mm == tpt_stock.init_mm)
		return false;
	page = tpt_cache_pop(TPT_PUD);
	if (!page)
		return false;

	spin_lock(&mm->page_table_lock);
	if (!p4d_present(*p4d)) {
		mm_inc_nr_puds(mm);
		smp_wmb(); /* the table's contents before the pointer to it */
		p4d_populate(mm, p4d, page_address(page));
	} else {
		table_free(page, TPT_PUD);
	}
	spin_unlock(&mm->page_table_lock);
	return true;
}

/* Xen PV runs user mode on a top table of its own, kept in page->private. */
static struct page *user_pgd_alloc(void)
{
	struct page *page = tpt_cache_pop(TPT_USER_PGD);
	pgd_t *user_pgd;

	if (!page)
		return NULL;
	user_pgd = page_address(page);
	user_pgd[pgd_index(VSYSCALL_ADDR)] =
		__pgd(__pa(tpt_stock.level3_user_vsyscall) | _PAGE_TABLE);
	return page;
}

/* Return: as pgd_alloc() with xen_pgd_alloc() in it, or NULL. */
pgd_t *tpt_pgd_alloc(struct mm_struct *mm);
pgd_t *tpt_pgd_alloc(struct mm_struct *mm)
{
	struct page *page, *user_page = NULL;
	pgd_t *pgd;

	page = tpt_cache_pop(TPT_PGD);
	if (!page)
		return NULL;
	if (user_pgds) {
		user_page = user_pgd_alloc();
		if (!user_page) {
			table_free(page, TPT_PGD);
			return NULL;
		}
		set_page_private(page, (unsigned long)page_address(user_page));
	}
	pgd = page_address(page);
	mm->pgd = pgd;

	spin_lock(tpt_stock.pgd_lock);
	clone_pgd_range(pgd + KERNEL_PGD_BOUNDARY,
			tpt_stock.init_top_pgt + KERNEL_PGD_BOUNDARY,
			KERNEL_PGD_PTRS);
	page->pt_mm = mm;
	list_add(&page->lru, tpt_stock.pgd_list);
	spin_unlock(tpt_stock.pgd_lock);
	return pgd;
}

/* Return: whether both top tables are free, as after pgd_free(). */
long tpt_pgd_free(struct mm_struct *mm, pgd_t *pgd);
long tpt_pgd_free(struct mm_struct *mm, pgd_t *pgd)
{
	struct page *page = virt_to_page(pgd);
	void *user_pgd = (void *)page_private(page);

	if (!tpt_pool_owns(page))
		return false;
	spin_lock(tpt_stock.pgd_lock);
	list_del(&page->lru);
	spin_unlock(tpt_stock.pgd_lock);
	if (user_pgds && user_pgd)
		table_free(virt_to_page(user_pgd), TPT_USER_PGD);
	table_free(page, TPT_PGD);
	return true;
}

/* Return: whether the page was a table of ours. */
long tpt_free_table(struct page *page);
long tpt_free_table(struct page *page)
{
	return tpt_pool_return(page);
}

static struct direct_hook hooks[] = {
	{ .symbol = "pte_alloc_one", .entry = tpt_entry_pte_alloc_one },
	{ .symbol = "__pud_alloc", .entry = tpt_entry_pud_alloc },
	{ .symbol = "pgd_alloc", .entry = tpt_entry_pgd_alloc },
	{ .symbol = "pgd_free", .entry = tpt_entry_pgd_free },
	{ .symbol = "free_page_and_swap_cache", .entry = tpt_entry_free_table },
	{ .symbol = "__pmd_alloc", .entry = tpt_entry_pmd_alloc },
#ifdef TPT_NEGATIVE_CONTROL_UNKNOWN_FUNCTION
	{ .symbol = "trapless_no_such_function", .entry = tpt_entry_pgd_free },
#endif
};

/* How many of them are in force, the first ones. */
static unsigned int hooked;

/**
 * tpt_tables_resolve - find every function of hooks[]
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int tpt_tables_resolve(void)
{
	struct direct_hook *pointers[ARRAY_SIZE(hooks)];
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(hooks); i++)
		pointers[i] = &hooks[i];
	return direct_hook_resolve(pointers, ARRAY_SIZE(hooks));
}

/**
 * tpt_tables_hook - put the cache in front of the kernel's allocator
 * @bare: no hypervisor. Huge pages then share tables of the PMD level by their
 *        reference count, in which the pool's own would be taken for a sharer
 *        (huge_pmd_unshare()): these stay stock.
 *
 * Return: 0, or why the kernel refused, with nothing changed.
 */
int tpt_tables_hook(bool bare)
{
	unsigned int count = ARRAY_SIZE(hooks) - bare;
	int rc;

	user_pgds = !bare;
	for (; hooked < count; hooked++) {
		rc = direct_hook_in(&hooks[hooked]);
		if (rc) {
			pr_err("%s cannot be led to us: %d\n",
			       hooks[hooked].symbol, rc);
			tpt_tables_unhook();
			return rc;
		}
	}
	return 0;
}

/* Stock again. Nobody is inside this file when it returns. */
void tpt_tables_unhook(void)
{
	while (hooked)
		direct_hook_out(&hooks[--hooked]);
	synchronize_rcu_tasks();
}
