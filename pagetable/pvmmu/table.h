/* SPDX-License-Identifier: GPL-2.0-only */
/* Tables of the lowest level: where they are, and new ones. */
#ifndef PVMMU_TABLE_H
#define PVMMU_TABLE_H

#include <linux/mm.h>
#include <linux/pgtable.h>

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

int pvmmu_table_resolve(void);
pmd_t *pvmmu_make_table(struct mm_struct *mm, unsigned long address);

#endif /* PVMMU_TABLE_H */
