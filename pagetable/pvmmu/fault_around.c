// SPDX-License-Identifier: GPL-2.0-only
/*
 * filemap_map_pages() in one hypercall: a read fault maps up to 16 pages that are
 * in the page cache, with one hypercall for all of them instead of one for each.
 *
 * Invariant: the batch is written before the table's lock is dropped. The stock
 * function and do_set_pte() are repeated here, and nothing else differs. So:
 *
 *  - Code that takes the lock afterwards sees every entry: truncation and unmapping
 *    (zap_pte_range), page_mkclean and write faults do.
 *  - A folio is unlocked while its entry may still be in the batch, but its map
 *    count already includes it. A reverse-map walk without the lock
 *    (page_vma_mapped_walk without PVMW_SYNC) may miss the entry, finds the
 *    folio still mapped, and gives up on it: reclaim and migration try again.
 *  - The code in between does not read back an entry that it has written.
 *  - Xen treats a table that is not pinned as an ordinary page, and still writes it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/pgtable.h>
#include <linux/rcupdate.h>
#include <linux/userfaultfd_k.h>
#include <linux/xarray.h>

#include "batch.h"
#include "stock_symbols.h"
#include "pvmmu.h"
#include "series.h"

#if !SERIES_IS(6, 1)
#error "the functions below repeat Linux 6.1"
#endif
#if !defined(SPLIT_RSS_COUNTING)
#error "count_page() repeats Debian's amd64 configuration"
#endif

static struct {
	struct folio *(*next_uptodate_page)(struct folio *folio,
					    struct address_space *mapping,
					    struct xa_state *xas,
					    pgoff_t end_pgoff);
	vm_fault_t (*do_set_pmd)(struct vm_fault *vmf, struct page *page);
	void (*page_add_file_rmap)(struct page *page,
				   struct vm_area_struct *vma, bool compound);
	void (*pmd_install)(struct mm_struct *mm, pmd_t *pmd, pgtable_t *pte);
} stock;

/**
 * pvmmu_fault_around_resolve - find the stock functions needed here
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_fault_around_resolve(void)
{
	const struct stock_symbol symbols[] = {
		{ "next_uptodate_page", &stock.next_uptodate_page },
		{ "do_set_pmd", &stock.do_set_pmd },
		{ "page_add_file_rmap", &stock.page_add_file_rmap },
		{ "pmd_install", &stock.pmd_install },
	};

	return stock_symbols_resolve(symbols, ARRAY_SIZE(symbols));
}

/* Return: true, with @page consumed, if there is no table for entries. */
static bool map_pmd(struct vm_fault *vmf, struct page *page)
{
	struct mm_struct *mm = vmf->vma->vm_mm;

	if (pmd_trans_huge(*vmf->pmd)) {
		unlock_page(page);
		put_page(page);
		return true;
	}

	if (pmd_none(*vmf->pmd) && PageTransHuge(page)) {
		if (!stock.do_set_pmd(vmf, page)) {
			unlock_page(page);
			return true;
		}
	}

	if (pmd_none(*vmf->pmd) && vmf->prealloc_pte)
		stock.pmd_install(mm, vmf->pmd, &vmf->prealloc_pte);

	/* Leave all that is not a table to the regular fault handler. */
	if (pmd_devmap(*vmf->pmd) || pmd_none(*vmf->pmd) ||
	    pmd_trans_huge(*vmf->pmd) || pmd_bad(*vmf->pmd)) {
		unlock_page(page);
		put_page(page);
		return true;
	}
	return false;
}

static bool folio_has_more(struct folio *folio, pgoff_t index, pgoff_t max)
{
	if (!folio_test_large(folio) || folio_test_hugetlb(folio))
		return false;
	if (index >= max)
		return false;
	return index < folio_next_index(folio) - 1;
}

/* inc_mm_counter_fast(): the task's share is added to the mm's by the stock code. */
static void count_page(struct mm_struct *mm, int member)
{
	if (likely(current->mm == mm))
		current->rss_stat.count[member]++;
	else
		atomic_long_inc(&mm->rss_stat.count[member]);
}

/* do_set_pte() for a read fault, into the batch. */
static void map_page(struct batch *batch, struct vm_fault *vmf,
		     struct page *page, unsigned long addr)
{
	struct vm_area_struct *vma = vmf->vma;
	pte_t entry;

	flush_icache_page(vma, page);
	entry = pte_sw_mkyoung(mk_pte(page, vma->vm_page_prot));
	if (unlikely(pte_marker_uffd_wp(vmf->orig_pte)))
		entry = pte_mkuffd_wp(pte_wrprotect(entry));
	count_page(vma->vm_mm, mm_counter_file(page));
	stock.page_add_file_rmap(page, vma, false);
	batch_add(batch, vmf->pte, pte_val_ma(entry), MMU_NORMAL_PT_UPDATE);
	update_mmu_cache(vma, addr, vmf->pte);
}

/* Called by entry.S with the arguments of filemap_map_pages(). */
vm_fault_t pvmmu_map_pages(struct vm_fault *vmf, pgoff_t start_pgoff,
			   pgoff_t end_pgoff);
vm_fault_t pvmmu_map_pages(struct vm_fault *vmf, pgoff_t start_pgoff,
			   pgoff_t end_pgoff)
{
	struct vm_area_struct *vma = vmf->vma;
	struct file *file = vma->vm_file;
	struct address_space *mapping = file->f_mapping;
	pgoff_t file_end, last_pgoff = start_pgoff;
	unsigned long addr;
	XA_STATE(xas, &mapping->i_pages, start_pgoff);
	struct folio *folio;
	struct page *page;
	unsigned int mmap_miss = READ_ONCE(file->f_ra.mmap_miss);
	struct batch batch;
	vm_fault_t ret = 0;

	rcu_read_lock();
	folio = stock.next_uptodate_page(xas_find(&xas, end_pgoff), mapping,
					 &xas, end_pgoff);
	if (!folio)
		goto out;

	if (map_pmd(vmf, &folio->page)) {
		ret = VM_FAULT_NOPAGE;
		goto out;
	}

	addr = vma->vm_start + ((start_pgoff - vma->vm_pgoff) << PAGE_SHIFT);
	vmf->pte = pte_offset_map_lock(vma->vm_mm, vmf->pmd, addr, &vmf->ptl);
	batch_start(&batch, vmf->pte);

	file_end = DIV_ROUND_UP(i_size_read(mapping->host), PAGE_SIZE) - 1;
	if (end_pgoff > file_end)
		end_pgoff = file_end;

	do {
again:
		page = folio_file_page(folio, xas.xa_index);
		if (PageHWPoison(page))
			goto unlock;

		if (mmap_miss > 0)
			mmap_miss--;

		addr += (xas.xa_index - last_pgoff) << PAGE_SHIFT;
		vmf->pte += xas.xa_index - last_pgoff;
		last_pgoff = xas.xa_index;

		/* Leave markers, too, to the regular fault handler. */
		if (!pte_none(*vmf->pte))
			goto unlock;

		/* The address that faulted. */
		if (vmf->address == addr)
			ret = VM_FAULT_NOPAGE;

		map_page(&batch, vmf, page, addr);
		if (folio_has_more(folio, xas.xa_index, end_pgoff)) {
			xas.xa_index++;
			folio_ref_inc(folio);
			goto again;
		}
		folio_unlock(folio);
		continue;
unlock:
		if (folio_has_more(folio, xas.xa_index, end_pgoff)) {
			xas.xa_index++;
			goto again;
		}
		folio_unlock(folio);
		folio_put(folio);
	} while ((folio = stock.next_uptodate_page(xas_next_entry(&xas, end_pgoff),
						   mapping, &xas,
						   end_pgoff)) != NULL);

	batch_flush(&batch);
	pte_unmap_unlock(vmf->pte, vmf->ptl);
out:
	rcu_read_unlock();
	WRITE_ONCE(file->f_ra.mmap_miss, mmap_miss);
	return ret;
}
