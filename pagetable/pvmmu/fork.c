// SPDX-License-Identifier: GPL-2.0-only
/*
 * fork write-protects every private page that its parent has written, one
 * trapping instruction each (ptep_set_wrprotect). Here, before copy_page_range()
 * looks at an area, its writable entries are protected by hypercalls for many at
 * a time, or one for all of a table, where the hypervisor's payload has that
 * (ranges.c); the stock function then finds nothing to protect.
 *
 * Invariants:
 *
 *  - Removing the write permission early is always allowed: a write then faults,
 *    and the fault handler restores the permission that the page's state
 *    allows. That holds for a page pinned for DMA too, which fork must copy and
 *    leave to the parent: the stock function still finds it exclusive and
 *    pinned, copies it, and the parent's next write reuses it.
 *  - Accessed and dirty bits are kept: Xen merges them in
 *    (MMU_PT_UPDATE_PRESERVE_AD, TPT_OP_PROTECT), whatever the hardware does meanwhile.
 *  - Every hypercall is done before the table's lock is dropped, so no one sees
 *    an entry that is about to change.
 *  - The stock function notifies secondary MMUs, before anything is shared;
 *    until then only the parent owns the page, and it may write it.
 *  - An entry that Xen refuses stays writable, and the stock function protects it.
 *  - The flush of the parent's TLB that makes the protection effective is the
 *    stock one, at the end of dup_mmap(), as for the stock protection.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/sched.h>

#include "batch.h"
#include "copy_range.h"
#include "permission.h"
#include "pvmmu.h"
#include "ranges.h"
#include "series_mmu.h"
#include "stock_symbols.h"
#include "table.h"

/* So many writable entries are found before Xen is asked to look for the rest. */
#define FEW	8

static series_lock_table_t *stock_lock_table;

/**
 * pvmmu_fork_resolve - find the stock function needed here, if any
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_fork_resolve(void)
{
	const struct stock_symbol symbol = { SERIES_LOCK_TABLE_SYMBOL,
					     &stock_lock_table };

	return symbol.name ? stock_symbols_resolve(&symbol, 1) : 0;
}

static void protect_entry(struct batch *batch, const pte_t *ptep)
{
	batch_add(batch, ptep, ptep->pte & ~_PAGE_RW,
		  MMU_PT_UPDATE_PRESERVE_AD);
}

/* Where a few are writable, Xen looks for the rest, unless some have to stay as they are. */
static void protect_entries(pte_t *first, unsigned long addr, unsigned long end,
			    const struct fork_copies *copies)
{
	bool some = has_copies(addr, end, copies);
	pte_t *ptep, *writable = first;
	unsigned int found = 0;
	struct batch batch;

	batch_start(&batch, first);
	for (ptep = first; addr != end; ptep++, addr += PAGE_SIZE) {
		if (!is_writable(*ptep) || (some && is_copied_in_fork(addr, copies)))
			continue;
		if (!found)
			writable = ptep;
		protect_entry(&batch, ptep);
		/* From the first on: the batch is not needed then. */
		if (++found == FEW && !some &&
		    ranges_protect(writable, ptep - writable +
				   ((end - addr) >> PAGE_SHIFT)) >= 0)
			return;
	}
	batch_flush(&batch);
}

static void protect_table(struct mm_struct *mm, pmd_t *pmd, unsigned long addr,
			  unsigned long end, const struct fork_copies *copies)
{
	spinlock_t *ptl;
	pte_t *first;

	first = series_lock_table(stock_lock_table, mm, pmd, addr, &ptl);
	if (series_is_gone(first, ptl))
		return;
	/* An unpinned table is written without a trap. */
	if (PagePinned(virt_to_page(first)))
		protect_entries(first, addr, end, copies);
	pte_unmap_unlock(first, ptl);
}

static void protect_area(struct vm_area_struct *vma, const struct fork_copies *copies)
{
	struct mm_struct *mm = vma->vm_mm;
	unsigned long addr = vma->vm_start, next;

	for (; addr != vma->vm_end; addr = next) {
		pmd_t *pmd = present_pmd_until(mm, addr, vma->vm_end, &next);

		if (!pmd)
			continue;
		protect_table(mm, pmd, addr, next, copies);
		cond_resched();
	}
}

/**
 * pvmmu_fork_protect - protect the parent's entries of an area
 * @src:    the area
 * @copies: pages that stay as they are, since the child gets copies
 */
void pvmmu_fork_protect(struct vm_area_struct *src, const struct fork_copies *copies)
{
	/* An area without anon_vma is shared, or none of it was written. */
	if (src->anon_vma && is_cow_mapping(src->vm_flags) &&
	    !(src->vm_flags & (VM_HUGETLB | VM_PFNMAP | VM_MIXEDMAP)))
		protect_area(src, copies);
}
