// SPDX-License-Identifier: GPL-2.0-only
/*
 * The page tables of another process, leaf by leaf. walk_page_range() is not
 * exported to modules.
 *
 * Invariant: a table is read only while it cannot go away. mmap_lock, held for
 * reading, keeps mappings and upper levels. A lowest-level table can be freed by a
 * collapse into a huge page: up to Linux 6.1 only with mmap_lock held for writing, later
 * also between two notifications of a change (memory.c), so that its pages are reported
 * without a visit. An entry is given to the visitor under its page-table lock, which
 * software takes for every change; only the processor sets bits without it.
 */
#include <linux/hugetlb.h>
#include <linux/mm.h>
#include <linux/sched/signal.h>

#include "series_memory.h"
#include "tracking.h"

/* Memory without struct pages. */
static bool is_device(const struct vm_area_struct *vma)
{
	return vma->vm_flags & (VM_PFNMAP | VM_IO | VM_MIXEDMAP) ||
	       vma_is_dax((struct vm_area_struct *)vma);
}

/* Tables of shared hugetlb mappings belong to other processes as well. */
static bool is_odd(const struct vm_area_struct *vma)
{
	if (is_vm_hugetlb_page((struct vm_area_struct *)vma))
		return vma->vm_flags & VM_MAYSHARE;
	return is_device(vma);
}

static void visit(struct tpd_walk *walk, unsigned long *entry, unsigned long address,
		  unsigned long pages, struct page *page)
{
	const struct tpd_leaf leaf = {
		.address = address,
		.pages = pages,
		.page = page,
		.entry = entry,
	};

	walk->leaf(walk, &leaf);
}

static void settle(struct tpd_walk *walk)
{
	if (walk->settle)
		walk->settle(walk);
}

static void walk_table(struct tpd_walk *walk, struct mm_struct *mm, pmd_t *pmd,
		       unsigned long address, unsigned long end)
{
	spinlock_t *lock;
	pte_t *pte, *table = series_lock_table(SERIES_LOCK_TABLE, mm, pmd, address, &lock);

	/* Whoever replaced it told the notifiers. */
	if (series_is_gone(table, lock))
		return;
	if (walk->table) {
		walk->table(walk, table, address, end);
		goto out;
	}
	for (pte = table; address < end; pte++, address += PAGE_SIZE) {
		pte_t entry = *pte;

		if (pte_present(entry) && pte_flags(entry) & walk->wanted)
			visit(walk, &pte->pte, address, 1,
			      pte_special(entry) ? NULL : pte_page(entry));
		else if (walk->absent && !pte_present(entry) && !pte_none(entry))
			visit(walk, &pte->pte, address, 1, NULL);
	}
out:
	settle(walk);
	pte_unmap_unlock(table, lock);
}

/* A huge page is visited as a whole, even if the range covers only a part of it. */
static void walk_huge_pmd(struct tpd_walk *walk, struct mm_struct *mm, pmd_t *pmd,
			  unsigned long address)
{
	spinlock_t *lock = pmd_lock(mm, pmd);

	if (pmd_present(*pmd) && pmd_leaf(*pmd) && pmd_flags(*pmd) & walk->wanted)
		visit(walk, &pmd->pmd, address & PMD_MASK, HPAGE_PMD_NR, pmd_page(*pmd));
	settle(walk);
	spin_unlock(lock);
}

static void walk_huge_pud(struct tpd_walk *walk, struct mm_struct *mm, pud_t *pud,
			  unsigned long address)
{
	spin_lock(&mm->page_table_lock);
	if (pud_present(*pud) && pud_leaf(*pud) && pud_flags(*pud) & walk->wanted)
		visit(walk, &pud->pud, address & PUD_MASK, 1UL << (PUD_SHIFT - PAGE_SHIFT),
		      pud_page(*pud));
	settle(walk);
	spin_unlock(&mm->page_table_lock);
}

/* To the end of the block at most. Return: whether there was a table or a huge page. */
static bool walk_block(struct tpd_walk *walk, struct mm_struct *mm, unsigned long address,
		       unsigned long end, unsigned long *next)
{
	pgd_t *pgd = pgd_offset(mm, address);
	p4d_t *p4d;
	pud_t *pud;
	pmd_t *pmd, entry;

	*next = pgd_addr_end(address, end);
	if (pgd_none(*pgd))
		return false;
	p4d = p4d_offset(pgd, address);
	*next = p4d_addr_end(address, end);
	if (p4d_none(*p4d))
		return false;
	pud = pud_offset(p4d, address);
	*next = pud_addr_end(address, end);
	if (pud_none(*pud))
		return false;
	if (!pud_present(*pud)) {
		if (walk->absent)
			visit(walk, &pud->pud, address & PUD_MASK,
			      1UL << (PUD_SHIFT - PAGE_SHIFT), NULL);
		return walk->absent;
	}
	if (pud_leaf(*pud)) {
		walk_huge_pud(walk, mm, pud, address);
		return true;
	}
	pmd = pmd_offset(pud, address);
	*next = pmd_addr_end(address, end);
again:
	entry = READ_ONCE(*pmd);
	if (pmd_none(entry))
		return false;
	if (!pmd_present(entry)) {
		/* A huge page under migration. */
		if (walk->absent)
			visit(walk, &pmd->pmd, address & PMD_MASK, HPAGE_PMD_NR, NULL);
		return walk->absent;
	}
	if (pmd_leaf(entry)) {
		walk_huge_pmd(walk, mm, pmd, address);
		/* Split meanwhile: visit its pages instead. */
		entry = READ_ONCE(*pmd);
		if (pmd_present(entry) && !pmd_leaf(entry))
			goto again;
		return true;
	}
	if (pmd_bad(entry))
		return false;
	walk_table(walk, mm, pmd, address, *next);
	return true;
}

/**
 * tpd_walk - visit the leaf entries of a range
 * @walk:  what to do
 * @mm:    whose; mmap_lock held for reading
 * @start: page-aligned
 * @end:   page-aligned, greater
 *
 * Return: 0, -EOPNOTSUPP (see struct tpd_walk), -EINTR after a fatal signal; what
 * was visited before stays visited.
 */
int tpd_walk(struct tpd_walk *walk, struct mm_struct *mm, unsigned long start,
	     unsigned long end)
{
	VMA_ITERATOR(vmi, mm, start);
	struct vm_area_struct *vma;

	for_each_vma_range(vmi, vma, end) {
		unsigned long address = max(start, vma->vm_start);
		unsigned long last = min(end, vma->vm_end);

		/* Special mappings that nobody can write to, such as the vDSO's data. */
		if (!(vma->vm_flags & VM_MAYWRITE) && is_odd(vma))
			continue;
		if (is_odd(vma)) {
			if (!walk->odd)
				return -EOPNOTSUPP;
			walk->odd(walk, address, last);
			continue;
		}
		while (address < last) {
			unsigned long base = address & ~(TPD_BLOCK_SIZE - 1);
			bool any = walk_block(walk, mm, address, last, &address);

			if (any && walk->done)
				walk->done(walk, base);
			if (fatal_signal_pending(current))
				return -EINTR;
			cond_resched();
		}
	}
	return 0;
}
