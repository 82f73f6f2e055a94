// SPDX-License-Identifier: GPL-2.0-only
/*
 * filemap_map_pages() in one hypercall, as in fault_around.c, whose invariants hold
 * here too, for Linux 6.12. Repeated are that function, filemap_map_pmd(),
 * filemap_map_folio_range() with filemap_map_order0_folio(), which does the same for
 * one page, and set_pte_range() for a read fault. Nothing differs but:
 *
 *  - the entries are written by the batch;
 *  - no trace point is passed (mm_filemap_map_pages, rss_stat), for those are not
 *    exported.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/percpu_counter.h>
#include <linux/pgtable.h>
#include <linux/rcupdate.h>
#include <linux/userfaultfd_k.h>
#include <linux/xarray.h>

#include "batch.h"
#include "stock_symbols.h"
#include "pvmmu.h"
#include "series_mmu.h"

#if !SERIES_IS(6, 12)
#error "the functions below repeat Linux 6.12"
#endif

static struct {
	struct folio *(*next_uptodate_folio)(struct xa_state *xas,
					     struct address_space *mapping,
					     pgoff_t end_pgoff);
	vm_fault_t (*do_set_pmd)(struct vm_fault *vmf, struct page *page);
	void (*folio_add_file_rmap_ptes)(struct folio *folio, struct page *page,
					 int nr, struct vm_area_struct *vma);
	void (*pmd_install)(struct mm_struct *mm, pmd_t *pmd, pgtable_t *pte);
	series_lock_table_t *lock_table;
	bool (*shmem_mapping)(struct address_space *mapping);
} stock;

/**
 * pvmmu_fault_around_resolve - find the stock functions needed here
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_fault_around_resolve(void)
{
	const struct stock_symbol symbols[] = {
		{ "next_uptodate_folio", &stock.next_uptodate_folio },
		{ "do_set_pmd", &stock.do_set_pmd },
		{ "folio_add_file_rmap_ptes", &stock.folio_add_file_rmap_ptes },
		{ "pmd_install", &stock.pmd_install },
		{ SERIES_LOCK_TABLE_SYMBOL, &stock.lock_table },
		{ "shmem_mapping", &stock.shmem_mapping },
	};

	return stock_symbols_resolve(symbols, ARRAY_SIZE(symbols));
}

/* Return: true, with @folio consumed, if there is no table for entries. */
static bool map_pmd(struct vm_fault *vmf, struct folio *folio, pgoff_t start)
{
	if (pmd_trans_huge(*vmf->pmd)) {
		folio_unlock(folio);
		folio_put(folio);
		return true;
	}

	if (pmd_none(*vmf->pmd) && folio_test_pmd_mappable(folio) &&
	    !stock.do_set_pmd(vmf, folio_file_page(folio, start))) {
		folio_unlock(folio);
		return true;
	}

	if (pmd_none(*vmf->pmd) && vmf->prealloc_pte)
		stock.pmd_install(vmf->vma->vm_mm, vmf->pmd,
				  &vmf->prealloc_pte);
	return false;
}

/**
 * struct around - a fault-around under way
 * @batch:     its entries
 * @vmf:       the fault
 * @rss:       pages mapped
 * @mmap_miss: pages that were in the cache
 */
struct around {
	struct batch batch;
	struct vm_fault *vmf;
	unsigned long rss;
	unsigned int mmap_miss;
};

/*
 * set_pte_range() and what its callers do after it. Return: VM_FAULT_NOPAGE if the
 * address that faulted is among the pages.
 */
static vm_fault_t map_run(struct around *around, struct folio *folio,
			  struct page *page, pte_t *ptep, unsigned int nr,
			  unsigned long addr)
{
	struct vm_fault *vmf = around->vmf;
	struct vm_area_struct *vma = vmf->vma;
	bool is_marked = vmf->flags & FAULT_FLAG_ORIG_PTE_VALID &&
			 pte_marker_uffd_wp(vmf->orig_pte);
	unsigned int i;

	if (!nr)
		return 0;
	flush_icache_pages(vma, page, nr);
	stock.folio_add_file_rmap_ptes(folio, page, nr, vma);
	for (i = 0; i < nr; i++) {
		pte_t entry = pte_sw_mkyoung(mk_pte(page + i, vma->vm_page_prot));

		if (unlikely(is_marked))
			entry = pte_mkuffd_wp(entry);
		batch_add(&around->batch, ptep + i, pte_val_ma(entry),
			  MMU_NORMAL_PT_UPDATE);
	}
	around->rss += nr;
	folio_ref_add(folio, nr);
	return in_range(vmf->address, addr, nr * PAGE_SIZE) ? VM_FAULT_NOPAGE : 0;
}

/* Maps the pages of a folio that are not mapped. Return: as map_run(). */
static vm_fault_t map_folio(struct around *around, struct folio *folio,
			    unsigned long start, unsigned long addr,
			    unsigned int nr_pages)
{
	struct page *page = folio_page(folio, start);
	pte_t *ptep = around->vmf->pte;
	unsigned int i, first = 0;
	vm_fault_t ret = 0;

	for (i = 0; i < nr_pages; i++) {
		if (!PageHWPoison(page + i)) {
			if (!folio_test_workingset(folio))
				around->mmap_miss++;
			/* Leave markers, too, to the regular fault handler. */
			if (pte_none(ptep_get(ptep + i)))
				continue;
		}
		ret |= map_run(around, folio, page + first, ptep + first,
			       i - first, addr + first * PAGE_SIZE);
		first = i + 1;
	}
	return ret | map_run(around, folio, page + first, ptep + first,
			     nr_pages - first, addr + first * PAGE_SIZE);
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
	XA_STATE(xas, &mapping->i_pages, start_pgoff);
	struct around around;
	unsigned int saved, folio_type;
	unsigned long addr;
	struct folio *folio;
	vm_fault_t ret = 0;

	/* Its batch starts with the table. */
	around.vmf = vmf;
	around.rss = 0;
	around.mmap_miss = 0;

	/* First, so that a truncation meanwhile does no harm. */
	file_end = DIV_ROUND_UP(i_size_read(mapping->host), PAGE_SIZE) - 1;
	end_pgoff = min(end_pgoff, file_end);

	rcu_read_lock();
	folio = stock.next_uptodate_folio(&xas, mapping, end_pgoff);
	if (!folio)
		goto out;

	/* Huge pages only within the file, but for shmem. */
	if ((stock.shmem_mapping(mapping) ||
	     file_end >= folio_next_index(folio)) &&
	    map_pmd(vmf, folio, start_pgoff)) {
		ret = VM_FAULT_NOPAGE;
		goto out;
	}

	addr = vma->vm_start + ((start_pgoff - vma->vm_pgoff) << PAGE_SHIFT);
	vmf->pte = series_lock_table(stock.lock_table, vma->vm_mm, vmf->pmd,
				     addr, &vmf->ptl);
	if (series_is_gone(vmf->pte, vmf->ptl)) {
		folio_unlock(folio);
		folio_put(folio);
		goto out;
	}
	batch_start(&around.batch, vmf->pte);

	folio_type = mm_counter_file(folio);
	do {
		unsigned long end = folio_next_index(folio) - 1;

		addr += (xas.xa_index - last_pgoff) << PAGE_SHIFT;
		vmf->pte += xas.xa_index - last_pgoff;
		last_pgoff = xas.xa_index;
		ret |= map_folio(&around, folio, xas.xa_index - folio->index, addr,
				 min(end, end_pgoff) - xas.xa_index + 1);
		folio_unlock(folio);
		folio_put(folio);
		folio = stock.next_uptodate_folio(&xas, mapping, end_pgoff);
	} while (folio);
	percpu_counter_add(&vma->vm_mm->rss_stat[folio_type], around.rss);
	batch_flush(&around.batch);
	pte_unmap_unlock(vmf->pte, vmf->ptl);
out:
	rcu_read_unlock();

	saved = READ_ONCE(file->f_ra.mmap_miss);
	WRITE_ONCE(file->f_ra.mmap_miss,
		   around.mmap_miss >= saved ? 0 : saved - around.mmap_miss);
	return ret;
}
