/* SPDX-License-Identifier: GPL-2.0-only */
/* Tables of the lowest level: where they are, and new ones. */
#ifndef PVMMU_TABLE_H
#define PVMMU_TABLE_H

#include <linux/mm.h>
#include <linux/pgtable.h>

/*
 * Return: the entry for the table of the lowest level, or NULL if there is none. @next is
 * where this table, or the first that is missing, ends; at most @end.
 */
static inline pmd_t *present_pmd_until(struct mm_struct *mm, unsigned long address,
				       unsigned long end, unsigned long *next)
{
	pgd_t *pgd = pgd_offset(mm, address);
	p4d_t *p4d;
	pud_t *pud;
	pmd_t *pmd;

	*next = pgd_addr_end(address, end);
	if (pgd_none(*pgd) || pgd_bad(*pgd))
		return NULL;
	p4d = p4d_offset(pgd, address);
	if (p4d_none(*p4d) || p4d_bad(*p4d))
		return NULL;
	*next = pud_addr_end(address, end);
	pud = pud_offset(p4d, address);
	if (pud_none(*pud) || pud_bad(*pud))
		return NULL;
	*next = pmd_addr_end(address, end);
	pmd = pmd_offset(pud, address);
	return pmd_none(*pmd) || pmd_bad(*pmd) ? NULL : pmd;
}

static inline pmd_t *present_pmd(struct mm_struct *mm, unsigned long address)
{
	unsigned long next;

	return present_pmd_until(mm, address, address + PAGE_SIZE, &next);
}

int pvmmu_table_resolve(void);
pmd_t *pvmmu_make_table(struct mm_struct *mm, unsigned long address);

#endif /* PVMMU_TABLE_H */
