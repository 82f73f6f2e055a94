/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is done as fork copies an area from a parent to its child (copy_range.c), by
 * parts that share the hook: fork.c, fork_text.c, fork_copy.c.
 */
#ifndef PVMMU_COPY_RANGE_H
#define PVMMU_COPY_RANGE_H

#include <linux/mm.h>
#include <linux/pgtable.h>

/* Pages of an area that the child gets copies of. */
#define FORK_COPIES	2

/**
 * struct fork_copies - pages that the child gets copies of at once
 * @count:   how many
 * @address: where they are
 * @page:    the parent's
 */
struct fork_copies {
	unsigned int count;
	unsigned long address[FORK_COPIES];
	struct page *page[FORK_COPIES];
};

/* Return: the entry for the table of the lowest level, or NULL if there is none. */
static inline pmd_t *present_pmd(struct mm_struct *mm, unsigned long address)
{
	pgd_t *pgd = pgd_offset(mm, address);
	p4d_t *p4d;
	pud_t *pud;
	pmd_t *pmd;

	if (pgd_none(*pgd) || pgd_bad(*pgd))
		return NULL;
	p4d = p4d_offset(pgd, address);
	if (p4d_none(*p4d) || p4d_bad(*p4d))
		return NULL;
	pud = pud_offset(p4d, address);
	if (pud_none(*pud) || pud_bad(*pud))
		return NULL;
	pmd = pmd_offset(pud, address);
	return pmd_none(*pmd) || pmd_bad(*pmd) ? NULL : pmd;
}

/* fork.c */
void pvmmu_fork_protect(struct vm_area_struct *src, const struct fork_copies *copies);

/* fork_copy.c */
void pvmmu_fork_copy_begin(struct vm_area_struct *src, struct fork_copies *copies);
void pvmmu_fork_copy_end(const struct fork_copies *copies);

/* fork_text.c */
void pvmmu_fork_text(struct vm_area_struct *dst, struct vm_area_struct *src);

#endif /* PVMMU_COPY_RANGE_H */
