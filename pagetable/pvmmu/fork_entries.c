// SPDX-License-Identifier: GPL-2.0-only
/*
 * fork copies a parent's entries one by one, each through the kernel's conversions
 * between machine and guest frames, a hook of set_pte() and a look for a page of any
 * kind. Here the entries of private areas that name a small page of anonymous memory
 * are copied as what they are, a machine frame and its flags; the stock function gets
 * all others, a page at a time.
 *
 * Invariants:
 *
 *  - What copy_present_pte() does with such a page is repeated, in its order and under
 *    its locks: a reference, a mapping and the child's count; the exclusive mark goes,
 *    under write_protect_seq, unless the page may be pinned for DMA. Such a page is left
 *    to stock, which copies it. The child's entry is the parent's, not accessed.
 *  - An entry is copied only if the parent's is without write permission: fork.c has
 *    removed it before, and the flush at the end of dup_mmap() makes that effective, as
 *    for stock. An entry that may be written is left to stock, which protects it.
 *  - Each entry is copied once: the stock function is called with the very part of the
 *    area that was left, in order. It takes nothing from an area but its bounds, flags
 *    and pointers, so a copy of the area with other bounds stands for its part. Nobody
 *    else sees the copy.
 *  - The child's table is not pinned yet: its entries are written directly.
 *  - Both tables are locked for some entries at a time, then the CPU may be given up.
 *  - Areas in which others take part are left to stock as a whole: with a userfaultfd,
 *    with secondary MMUs, which stock tells what is protected, and of devices. So are
 *    small ones, such as a stack, of which fork has copied pages, and a file's with few
 *    pages written: what is left one by one there costs more than the others gain.
 *  - If there is no memory for a table, the rest is left to stock, which finds the error.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/pgtable.h>
#include <linux/rmap.h>
#include <linux/sched.h>

#include <asm/xen/page.h>

#include "copy_range.h"
#include "pvmmu.h"
#include "series_mmu.h"
#include "stock_symbols.h"
#include "table.h"

/* Entries that are copied before the locks are dropped. */
#define ENTRIES		128
/* Pages of an area that is served, at least. */
#define FEW		64
/* Pages of an area that are left to stock, one by one, before all of the rest is. */
#define LEFT		32

static series_lock_table_t *stock_lock_table;
static unsigned long *stock_highest_pfn;

/**
 * pvmmu_fork_entries_resolve - find what of the kernel is needed here
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_fork_entries_resolve(void)
{
	const struct stock_symbol symbols[] = {
		{ "highest_memmap_pfn", &stock_highest_pfn },
		{ SERIES_LOCK_TABLE_SYMBOL, &stock_lock_table },
	};

	return stock_symbols_resolve(symbols, ARRAY_SIZE(symbols) -
				     !SERIES_LOCK_TABLE_SYMBOL);
}

static bool is_served(const struct vm_area_struct *dst, const struct vm_area_struct *src)
{
	return src->anon_vma && is_cow_mapping(src->vm_flags) &&
	       src->vm_end - src->vm_start >= FEW * PAGE_SIZE &&
	       !(src->vm_flags & (VM_HUGETLB | VM_PFNMAP | VM_MIXEDMAP | VM_IO)) &&
	       !src->vm_userfaultfd_ctx.ctx && !dst->vm_userfaultfd_ctx.ctx &&
	       !mm_has_notifiers(src->vm_mm);
}

/*
 * Return: the guest's number of a present entry's frame, as pte_pfn() has it, if the frame
 * is one of the domain's own in both tables; otherwise a number of no frame.
 */
static unsigned long own_pfn(pte_t pte)
{
	unsigned long mfn = (pte.pte & PTE_PFN_MASK) >> PAGE_SHIFT;
	unsigned long pfn = mfn_to_pfn_no_overrides(mfn);

	return pfn < xen_p2m_size && xen_p2m_addr[pfn] == mfn ? pfn : ~0UL;
}

/*
 * Return: the small page of anonymous memory that a protected entry names, or NULL. As
 * the page is its own head, it is not looked for.
 */
static struct page *anonymous_page(pte_t pte)
{
	const pteval_t looked_at = _PAGE_PRESENT | _PAGE_RW | _PAGE_SPECIAL |
				   _PAGE_DEVMAP;
	struct page *page;
	unsigned long pfn;

	if ((pte.pte & looked_at) != _PAGE_PRESENT)
		return NULL;
	pfn = own_pfn(pte);
	if (pfn > *stock_highest_pfn)
		return NULL;
	page = pfn_to_page(pfn);
	if (PageCompound(page) ||
	    !((unsigned long)page->mapping & PAGE_MAPPING_ANON))
		return NULL;
	return page;
}

/* Return: whether the entry is copied. */
static bool copy_entry(struct vm_area_struct *src, pte_t *to, pte_t pte)
{
	struct page *page = anonymous_page(pte);

	if (!page)
		return false;
	page_ref_inc(page);
	if (series_try_dup_anon_rmap(page, src)) {
		put_page(page);
		return false;
	}
	native_set_pte(to, pte_clear_uffd_wp(pte_mkold(pte)));
	return true;
}

/* Return: up to which address the entries from @start on are copied. */
static unsigned long copy_entries(struct vm_area_struct *dst, struct vm_area_struct *src,
				  pte_t *to, const pte_t *from, unsigned long start,
				  unsigned long end)
{
	unsigned long at;
	int count = 0;

	for (at = start; at < end; at += PAGE_SIZE, from++, to++) {
		pte_t pte = READ_ONCE(*from);

		if (pte_none(pte))
			continue;
		if (!copy_entry(src, to, pte))
			break;
		count++;
	}
	if (count)
		series_count_pages(dst->vm_mm, MM_ANONPAGES, count);
	return at;
}

/* The same; both addresses are in one table of each. */
static unsigned long copy_some(struct vm_area_struct *dst, struct vm_area_struct *src,
			       pmd_t *to_pmd, pmd_t *from_pmd, unsigned long start,
			       unsigned long end)
{
	spinlock_t *to_lock, *from_lock;
	unsigned long at = start;
	pte_t *to, *from;

	to = series_lock_table(stock_lock_table, dst->vm_mm, to_pmd, start, &to_lock);
	if (series_is_gone(to, to_lock))
		return start;
	from = series_lock_table(stock_lock_table, src->vm_mm, from_pmd, start,
				 &from_lock);
	if (!series_is_gone(from, from_lock)) {
		if (!PagePinned(virt_to_page(to)))
			at = copy_entries(dst, src, to, from, start, end);
		pte_unmap_unlock(from, from_lock);
	}
	pte_unmap_unlock(to, to_lock);
	return at;
}

/*
 * A lockless walker that pins pages tries again under the mmap_lock if it met us: see
 * page_needs_cow_for_dma(). The stock function counts for itself.
 */
static unsigned long copy_table(struct vm_area_struct *dst, struct vm_area_struct *src,
				pmd_t *to_pmd, pmd_t *from_pmd, unsigned long start,
				unsigned long end)
{
	unsigned long at = start, stop;

	do {
		stop = min(at + ENTRIES * PAGE_SIZE, end);
		raw_write_seqcount_begin(&src->vm_mm->write_protect_seq);
		at = copy_some(dst, src, to_pmd, from_pmd, at, stop);
		raw_write_seqcount_end(&src->vm_mm->write_protect_seq);
		cond_resched();
	} while (at == stop && at < end);
	return at;
}

/* Let the stock function copy a part of the area. Return: its error, or 0. */
static int copy_part(struct vm_area_struct *dst, const struct vm_area_struct *src,
		     unsigned long start, unsigned long end, copy_range_t *stock)
{
	struct vm_area_struct part;

	memcpy(&part, src, sizeof(part));
	part.vm_pgoff += (start - src->vm_start) >> PAGE_SHIFT;
	part.vm_start = start;
	part.vm_end = end;
	return stock(dst, &part);
}

/**
 * pvmmu_fork_entries - copy an area's entries
 * @dst:   an area of the child
 * @src:   the parent's
 * @stock: the stock function
 *
 * Return: as copy_page_range().
 */
int pvmmu_fork_entries(struct vm_area_struct *dst, struct vm_area_struct *src,
		       copy_range_t *stock)
{
	unsigned long at = src->vm_start, end = src->vm_end;
	unsigned int left = 0;

	if (!is_served(dst, src))
		return stock(dst, src);
	while (at < end) {
		pmd_t *from, *to;
		unsigned long stop;
		int rc;

		from = present_pmd_until(src->vm_mm, at, end, &stop);
		if (!from) {
			at = stop;
			continue;
		}
		to = pvmmu_make_table(dst->vm_mm, at);
		if (!to || left == LEFT)
			return copy_part(dst, src, at, end, stock);
		at = copy_table(dst, src, to, from, at, stop);
		if (at == stop)
			continue;
		rc = copy_part(dst, src, at, at + PAGE_SIZE, stock);
		if (rc)
			return rc;
		at += PAGE_SIZE;
		left++;
	}
	return 0;
}
