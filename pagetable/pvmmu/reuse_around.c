// SPDX-License-Identifier: GPL-2.0-only
/*
 * After a fork's child is gone, or has copied what it wrote, its parent takes
 * one fault for each page it writes again, only to learn that the page is its
 * alone (wp_page_reuse). Each costs a bounced fault, a hypercall and an iret.
 * Here such a fault gives back the write permission of the pages around it too,
 * as fault-around maps pages around a read fault, and all in one hypercall.
 *
 * Invariants:
 *
 *  - A neighbour becomes writable only if its own write fault would end in
 *    wp_page_reuse() at this moment: a present page of anonymous memory in the
 *    same area, which is exclusive already or passes do_wp_page()'s test under
 *    the page's lock. It is then marked exclusive, as there.
 *  - It becomes neither dirty nor accessed: the hardware sets these bits when the
 *    page is written. So tracking writes by the dirty bit misses nothing. If
 *    writes are tracked by faults, nothing is done (userfaultfd), or only for
 *    entries that are already reported as written (soft-dirty). The area's own
 *    soft-dirty flag cannot be used, as it is lost when areas merge.
 *  - The table's lock is held throughout and the hypercall is done under it.
 *  - Giving a permission needs no flush of any TLB.
 *
 * Only a fault next to an entry that is already writable does this: an isolated
 * fault does not suggest that its neighbours will be written.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ksm.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/pgtable.h>
#include <linux/rmap.h>
#include <linux/userfaultfd_k.h>

#include "batch.h"
#include "direct_hook.h"
#include "permission.h"
#include "pvmmu.h"
#include "series_mmu.h"

/* Entries that one fault looks at: an aligned block. */
#define AROUND	16

typedef int set_access_flags_t(struct vm_area_struct *vma,
			       unsigned long address, pte_t *ptep, pte_t entry,
			       int dirty);

static series_move_anon_t *stock_move_anon_rmap;

/**
 * pvmmu_reuse_around_resolve - find the stock function needed here
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_reuse_around_resolve(void)
{
	const struct stock_symbol symbol = { SERIES_MOVE_ANON_SYMBOL,
					     &stock_move_anon_rmap };

	return stock_symbols_resolve(&symbol, 1);
}

/* No one tracks the area's writes by faults. */
static bool is_plain_area(const struct vm_area_struct *vma)
{
	return (vma->vm_flags & (VM_WRITE | VM_SHARED)) == VM_WRITE &&
	       !(vma->vm_flags & (VM_HUGETLB | VM_PFNMAP | VM_MIXEDMAP)) &&
	       !userfaultfd_wp((struct vm_area_struct *)vma);
}

/* As do_wp_page() decides: is the page its only user's, once it is locked? */
static bool is_ours_alone(struct page *page)
{
	return !PageKsm(page) && !series_in_swap_cache(page) && page_count(page) == 1;
}

/**
 * pvmmu_make_exclusive - mark a page exclusive, if it is its user's alone
 * @page: a page of anonymous memory, not compound
 * @vma:  its area; the table's lock is held
 *
 * Return: whether it is exclusive.
 */
bool pvmmu_make_exclusive(struct page *page, struct vm_area_struct *vma)
{
	bool alone;

	if (PageAnonExclusive(page))
		return true;
	if (!is_ours_alone(page) || !trylock_page(page))
		return false;
	alone = is_ours_alone(page);
	if (alone)
		series_move_anon(stock_move_anon_rmap, page, vma);
	unlock_page(page);
	return alone;
}

static bool is_reusable(pte_t pte, struct vm_area_struct *vma)
{
	struct page *page;

	if (!is_protected(pte) || pte_special(pte) || pte_devmap(pte) ||
	    (IS_ENABLED(CONFIG_MEM_SOFT_DIRTY) && !pte_soft_dirty(pte)) ||
	    !pfn_valid(pte_pfn(pte)))
		return false;
	page = pte_page(pte);
	return PageAnon(page) && !PageCompound(page) &&
	       pvmmu_make_exclusive(page, vma);
}

/* Is this the end of wp_page_reuse(), for a page of anonymous memory? */
static bool is_reuse(struct vm_area_struct *vma, pte_t old, pte_t new)
{
	struct page *page;

	if (!is_protected(old) || !is_writable(new) || !is_plain_area(vma) ||
	    !pfn_valid(pte_pfn(new)))
		return false;
	page = pte_page(new);
	return PageAnon(page) && PageAnonExclusive(page);
}

/* The block around @address, as far as it lies in the area, in one hypercall. */
static bool reuse_block(struct vm_area_struct *vma, unsigned long address,
			pte_t *ptep, pte_t entry)
{
	unsigned long block = address & ~(AROUND * PAGE_SIZE - 1);
	unsigned long start = max(block, vma->vm_start);
	unsigned long end = min(block + AROUND * PAGE_SIZE, vma->vm_end);
	pte_t *first = ptep - ((address - start) >> PAGE_SHIFT);
	pte_t *last = ptep + ((end - address - 1) >> PAGE_SHIFT);
	struct batch batch;
	pte_t *around;

	if (!(ptep > first && is_writable(ptep[-1])) &&
	    !(ptep < last && is_writable(ptep[1])))
		return false;

	batch_start(&batch, first);
	batch_add(&batch, ptep, entry.pte, MMU_NORMAL_PT_UPDATE);
	for (around = first; around <= last; around++)
		if (around != ptep && is_reusable(*around, vma))
			batch_add(&batch, around, around->pte | _PAGE_RW,
				  MMU_PT_UPDATE_PRESERVE_AD);
	batch_flush(&batch);
	return true;
}

/* Called by entry.S with the arguments of ptep_set_access_flags(). */
set_access_flags_t pvmmu_set_access_flags;
int pvmmu_set_access_flags(struct vm_area_struct *vma, unsigned long address,
			   pte_t *ptep, pte_t entry, int dirty)
{
	set_access_flags_t *stock =
		(set_access_flags_t *)pvmmu_hook_set_access_flags.body;

	if (dirty && is_reuse(vma, *ptep, entry) &&
	    reuse_block(vma, address, ptep, entry))
		return 1;
	return stock(vma, address, ptep, entry, dirty);
}
