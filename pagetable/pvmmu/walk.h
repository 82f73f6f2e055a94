/* SPDX-License-Identifier: GPL-2.0-only */
/* The walk over the tables of an address space, as in the stock kernel's mmu_pv.c. */
#ifndef PVMMU_WALK_H
#define PVMMU_WALK_H

#include <linux/mm_types.h>

enum pt_level {
	PT_PGD,
	PT_P4D,
	PT_PUD,
	PT_PMD,
	PT_PTE
};

typedef void pvmmu_visit_t(struct mm_struct *mm, struct page *page,
			   enum pt_level level);
typedef void pvmmu_walk_t(struct mm_struct *mm, pgd_t *pgd, pvmmu_visit_t *visit,
			  unsigned long limit);

#endif /* PVMMU_WALK_H */
