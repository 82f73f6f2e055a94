// SPDX-License-Identifier: GPL-2.0-only
/*
 * The kernel functions that allocate and free page tables, with the cache in
 * front of them.
 *
 *   served here       pte_alloc_one, __pmd_alloc, __pud_alloc, pgd_alloc
 *   taken back here   free_page_and_swap_cache (how a table is freed after its
 *                     RCU grace period), pgd_free
 *
 * Invariants:
 *
 *  - Each function either serves the request from the cache, with the result that
 *    stock Linux would have given, and returns that it has; or it has changed
 *    nothing, and the stock function runs. So this file refuses to be built for
 *    any series but those of series.h; series_tables.h has what differs.
 *  - Stock functions and these run concurrently, at every miss and while hooks
 *    are set and removed: either may free a table that the other allocated
 *    (pool.c says why that is safe).
 *  - None of them sleeps; see direct_hook.h.
 *
 * Tables of init_mm belong to the kernel for ever and stay stock; those few are
 * counted among the misses where the cache is empty.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/pgtable.h>

#include <asm/pgalloc.h>
#include <asm/vsyscall.h>

#include "direct_hook.h"
#include "series_tables.h"
#include "trapless.h"

/* Without CONFIG_PREEMPTION ftrace does not wait for tasks, see below. */
#if !defined(CONFIG_X86_64) || !defined(CONFIG_XEN_PV) || \
	!defined(CONFIG_X86_VSYSCALL_EMULATION) || \
	!defined(CONFIG_PREEMPTION)
#error "the functions below repeat Debian's amd64 configuration"
#endif

/* On bare metal there is no table for user mode alone. */
static bool user_pgds;

static void table_free(struct page *page, enum tpt_level level)
{
	if (!tpt_pool_return(page))
		__free_pages(page, tpt_caches[level].order);
}

/* Called by entry.S, as are the functions below. Return: as pte_alloc_one(), or NULL. */
pgtable_t tpt_pte_alloc_one(struct mm_struct *mm);
pgtable_t tpt_pte_alloc_one(struct mm_struct *mm)
{
	struct page *page = tpt_pool_alloc(TPT_PTE);

	if (!page)
		return NULL;
	if (!series_pte_ctor(page)) {
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
	page = tpt_pool_alloc(TPT_PMD);
	if (!page)
		return false;
	if (!series_pmd_ctor(page)) {
		table_free(page, TPT_PMD);
		return false;
	}

	ptl = pud_lock(mm, pud);
	if (!pud_present(*pud)) {
		mm_inc_nr_pmds(mm);
		smp_wmb(); /* the table's contents before the pointer to it */
		pud_populate(mm, pud, page_address(page));
	} else {
		series_pmd_dtor(page);
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
	page = tpt_pool_alloc(TPT_PUD);
	if (!page)
		return false;
	series_pud_ctor(page);

	spin_lock(&mm->page_table_lock);
	if (!p4d_present(*p4d)) {
		mm_inc_nr_puds(mm);
		smp_wmb(); /* the table's contents before the pointer to it */
		p4d_populate(mm, p4d, page_address(page));
	} else {
		series_pud_dtor(page);
		table_free(page, TPT_PUD);
	}
	spin_unlock(&mm->page_table_lock);
	return true;
}

/* Xen PV runs user mode on a top table of its own, kept in page->private. */
static struct page *user_pgd_alloc(void)
{
	struct page *page = tpt_pool_alloc(TPT_USER_PGD);
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

	page = tpt_pool_alloc(TPT_PGD);
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
	series_set_pgd_mm(page, mm);
	list_add(series_pgd_node(page), tpt_stock.pgd_list);
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
	list_del(series_pgd_node(page));
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

/*
 * Without Xen the kernel frees tables together with data pages, without calling
 * the stock function that we hook; these two do so instead. Return:
 * whether the table was ours.
 */
long tpt_pte_free_tlb(struct mmu_gather *tlb, struct page *page);
long tpt_pte_free_tlb(struct mmu_gather *tlb, struct page *page)
{
	if (!tpt_pool_owns(page))
		return false;
	series_pte_dtor(page);
	tpt_stock.tlb_remove_table(tlb, page);
	return true;
}

long tpt_pud_free_tlb(struct mmu_gather *tlb, pud_t *pud);
long tpt_pud_free_tlb(struct mmu_gather *tlb, pud_t *pud)
{
	if (!tpt_pool_owns(virt_to_page(pud)))
		return false;
	series_pud_dtor(virt_to_page(pud));
	tpt_stock.tlb_remove_table(tlb, virt_to_page(pud));
	return true;
}

/* In the order of entry.S. */
static struct direct_hook hooks[] = {
	{ .symbol = "free_page_and_swap_cache" },
	{ .symbol = "pgd_free" },
	{ .symbol = "pte_alloc_one" },
	{ .symbol = "__pmd_alloc" },
	{ .symbol = "__pud_alloc" },
	{ .symbol = "pgd_alloc" },
	{ .symbol = "___pte_free_tlb" },
	{ .symbol = "___pud_free_tlb" },
};

/* The address of each behind its hook, for entry.S. */
unsigned long tpt_bodies[ARRAY_SIZE(hooks)];

static bool is_hooked(const char *symbol, bool bare)
{
	if ((!strcmp(symbol, "pte_alloc_one") && tpt_is_left_out("pte")) ||
	    (!strcmp(symbol, "__pmd_alloc") && tpt_is_left_out("pmd")) ||
	    (!strcmp(symbol, "__pud_alloc") && tpt_is_left_out("pud")) ||
	    (!strcmp(symbol, "pgd_alloc") && tpt_is_left_out("pgd")) ||
	    (!strcmp(symbol, "pgd_free") && tpt_is_left_out("pgd")))
		return false;
	if (!strcmp(symbol, "__pmd_alloc"))
		return !bare;
	if (!strcmp(symbol, "___pte_free_tlb") ||
	    !strcmp(symbol, "___pud_free_tlb"))
		return bare;
	return true;
}

static struct ftrace_ops ops;

/**
 * tpt_tables_resolve - find every function of hooks[]
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int tpt_tables_resolve(void)
{
	struct direct_hook *pointers[ARRAY_SIZE(hooks)];
	unsigned int i;
	int rc;

	for (i = 0; i < ARRAY_SIZE(hooks); i++)
		pointers[i] = &hooks[i];
	rc = direct_hook_resolve(pointers, ARRAY_SIZE(hooks));
	for (i = 0; i < ARRAY_SIZE(hooks); i++)
		tpt_bodies[i] = hooks[i].body;
	return rc;
}

/**
 * tpt_tables_hook - put the cache in front of the kernel's allocator
 * @bare: no hypervisor. Huge pages then share tables of the PMD level among
 *        processes, by counts that the kernel keeps in the page: these stay stock.
 *
 * Return: 0, or why the kernel refused, with nothing changed; -EBUSY if another
 * user of direct calls, such as a BPF program, holds one of the functions, or if
 * kernel.ftrace_enabled is 0.
 */
int tpt_tables_hook(bool bare)
{
	unsigned int i;
	int rc = 0;

	user_pgds = !bare;
	for (i = 0; i < ARRAY_SIZE(hooks) && !rc; i++)
		if (is_hooked(hooks[i].symbol, bare))
			rc = ftrace_set_filter_ip(&ops, hooks[i].ip, 0, 0);
	if (!rc)
		rc = series_hooks_in(&ops, (unsigned long)tpt_entry);
	if (rc) {
		pr_err("the kernel's functions cannot be hooked: %d\n", rc);
		series_hooks_forget(&ops);
		return rc;
	}
	for (i = 0; i < ARRAY_SIZE(hooks); i++) {
		if (is_hooked(hooks[i].symbol, bare) &&
		    !direct_hook_is_live(hooks[i].ip)) {
			tpt_tables_unhook();
			return -EBUSY;
		}
	}
	return 0;
}

/*
 * Restore the stock functions. ftrace waits until every task has voluntarily given
 * up the CPU once, so no task is inside this file when it returns.
 */
void tpt_tables_unhook(void)
{
	if (series_hooks_out(&ops, (unsigned long)tpt_entry))
		direct_hook_stranded();
	series_hooks_forget(&ops);
}
