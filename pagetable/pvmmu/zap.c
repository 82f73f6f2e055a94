// SPDX-License-Identifier: GPL-2.0-only
/*
 * munmap() and madvise(MADV_DONTNEED) exchange each entry for zero, which traps. Here,
 * before unmap_page_range() looks at a range, its pages of anonymous memory are taken out
 * by a hypercall for many; the stock function finds what is left.
 *
 * Invariants:
 *
 *  - What stock does with such a page is repeated: the entry is cleared, its address is
 *    noted for the flush, the page is counted and unmapped under the table's lock, and
 *    queued in the same mmu_gather, which flushes before it frees a page. Stock does not
 *    need the accessed and dirty bits of these pages either.
 *  - Pages are queued after the lock is dropped, as the queue may have to be emptied,
 *    which may give up the CPU by cond_resched(), as we do between tables. Such a task
 *    is still waited for by synchronize_rcu_tasks(), so none is counted (inside.c).
 *    Nobody else drops their references: with the entry each has lost its
 *    mapping, but not the reference that came with it.
 *  - An entry that Xen did not clear is left to stock, as are pages of files, which need
 *    their bits and an earlier flush, swapped pages, and areas where userfaultfd leaves
 *    marks.
 *  - Unpinned tables, of an address space that ends, are written without a trap.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/sched.h>

#include "batch.h"
#include "gather.h"
#include "permission.h"
#include "pvmmu.h"
#include "series_mmu.h"
#include "stock_symbols.h"
#include "table.h"

static series_lock_table_t *stock_lock_table;
static series_remove_rmap_t *stock_remove_rmap;
static series_queue_page_t *stock_queue_page;
static void (*stock_flush_gather)(struct mmu_gather *tlb);
static void (*stock_flush_tlb_batched_pending)(struct mm_struct *mm);

/**
 * pvmmu_zap_resolve - find the stock functions needed here
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_zap_resolve(void)
{
	const struct stock_symbol symbols[] = {
		{ SERIES_REMOVE_RMAP_SYMBOL, &stock_remove_rmap },
		{ "__tlb_remove_page_size", &stock_queue_page },
		{ "tlb_flush_mmu", &stock_flush_gather },
		{ "flush_tlb_batched_pending", &stock_flush_tlb_batched_pending },
		{ SERIES_LOCK_TABLE_SYMBOL, &stock_lock_table },
	};

	return stock_symbols_resolve(symbols, ARRAY_SIZE(symbols) -
				     !SERIES_LOCK_TABLE_SYMBOL);
}

/**
 * struct zapped - pages that are taken out together
 * @count: how many
 * @entry: their entries
 * @page:  the pages
 */
struct zapped {
	unsigned int count;
	pte_t *entry[BATCH];
	struct page *page[BATCH];
};

/* Return: the page of anonymous memory behind an entry, or NULL. */
static struct page *anonymous_page(pte_t pte)
{
	struct page *page;

	if (!(pte.pte & _PAGE_PRESENT) || pte_special(pte) || pte_devmap(pte) ||
	    !pfn_valid(pte_pfn(pte)))
		return NULL;
	page = pte_page(pte);
	return PageAnon(page) && !PageCompound(page) ? page : NULL;
}

static void clear_entries(const struct zapped *zapped)
{
	struct batch batch;
	unsigned int i;

	batch_start(&batch, zapped->entry[0]);
	for (i = 0; i < zapped->count; i++)
		batch_add(&batch, zapped->entry[i], 0, MMU_NORMAL_PT_UPDATE);
	batch_flush(&batch);
}

/* Leave those in the list whose entries are cleared, and unmap these. */
static void unmap_cleared(struct mmu_gather *tlb, struct vm_area_struct *vma,
			  struct zapped *zapped, const pte_t *first, unsigned long start)
{
	unsigned int i, count = 0;

	for (i = 0; i < zapped->count; i++) {
		pte_t *entry = zapped->entry[i];

		if (!pte_none(*entry))
			continue;
		tlb_flush_pte_range(tlb, start + ((entry - first) << PAGE_SHIFT),
				    PAGE_SIZE);
		series_remove_rmap(stock_remove_rmap, zapped->page[i], vma);
		zapped->page[count++] = zapped->page[i];
	}
	zapped->count = count;
	series_count_pages(vma->vm_mm, MM_ANONPAGES, -(int)count);
}

static void queue_pages(struct mmu_gather *tlb, const struct zapped *zapped)
{
	unsigned int i;

	for (i = 0; i < zapped->count; i++)
		if (series_queue_page(stock_queue_page, tlb, zapped->page[i]))
			stock_flush_gather(tlb);
}

/*
 * As many as go together, from @start on, which lies in one table with @end. Return: up
 * to where it is done.
 */
static unsigned long zap_some(struct mmu_gather *tlb, struct vm_area_struct *vma,
			      pmd_t *pmd, unsigned long start, unsigned long end)
{
	struct zapped zapped = { .count = 0 };
	unsigned long at = start;
	pte_t *first, *entry;
	spinlock_t *lock;

	first = series_lock_table(stock_lock_table, vma->vm_mm, pmd, start, &lock);
	if (series_is_gone(first, lock))
		return end;
	if (!PagePinned(virt_to_page(first))) {
		pte_unmap_unlock(first, lock);
		return end;
	}
	stock_flush_tlb_batched_pending(vma->vm_mm);
	for (entry = first; at < end && zapped.count < BATCH; entry++, at += PAGE_SIZE) {
		struct page *page = anonymous_page(*entry);

		if (!page)
			continue;
		zapped.entry[zapped.count] = entry;
		zapped.page[zapped.count++] = page;
	}
	if (zapped.count) {
		clear_entries(&zapped);
		unmap_cleared(tlb, vma, &zapped, first, start);
	}
	pte_unmap_unlock(first, lock);
	queue_pages(tlb, &zapped);
	return at;
}

static bool is_plain(const struct vm_area_struct *vma, const struct zap_details *details)
{
	return vma->anon_vma && (!details || details->even_cows) &&
	       !(vma->vm_flags & (VM_HUGETLB | VM_PFNMAP | VM_MIXEDMAP | VM_IO)) &&
	       !vma->vm_userfaultfd_ctx.ctx && PagePinned(virt_to_page(vma->vm_mm->pgd));
}

/*
 * Called by entry.S before unmap_page_range(), with its arguments. mmap_lock is held, or
 * the lock of the file by which the area was found.
 */
void pvmmu_unmap_range(struct mmu_gather *tlb, struct vm_area_struct *vma,
		       unsigned long start, unsigned long end,
		       struct zap_details *details);
void pvmmu_unmap_range(struct mmu_gather *tlb, struct vm_area_struct *vma,
		       unsigned long start, unsigned long end,
		       struct zap_details *details)
{
	unsigned long next;

	if (!is_plain(vma, details))
		return;
	for (; start < end; start = next) {
		pmd_t *pmd = present_pmd(vma->vm_mm, start);

		next = pmd_addr_end(start, end);
		while (pmd && start < next)
			start = zap_some(tlb, vma, pmd, start, next);
		cond_resched();
	}
}
