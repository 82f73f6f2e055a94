// SPDX-License-Identifier: GPL-2.0-only
/*
 * __xen_pgd_walk(): every page-table page of an address space, for pinning and
 * unpinning. Stock looks at 512 entries a table, each through pv_ops, and nearly
 * all are zero; here 32 are taken at a time while they are.
 *
 * Invariant: the pages, their levels and their order are stock's. An entry of
 * zero is p?d_none() at every level, so no page is behind it.
 */
#include <linux/mm.h>
#include <linux/pgtable.h>

#include <xen/xen-ops.h>

#include "pvmmu.h"
#include "walk.h"

#define LINE	8	/* entries of a cache line */
#define LINES	4	/* looked at together: one branch for 32 entries */

static bool is_zero_line(const u64 *line)
{
	return !(line[0] | line[1] | line[2] | line[3] |
		 line[4] | line[5] | line[6] | line[7]);
}

static bool are_zero_lines(const u64 *lines)
{
	u64 any = 0;
	unsigned int i;

#pragma GCC unroll 32
	for (i = 0; i < LINES * LINE; i++)
		any |= lines[i];
	return !any;
}

/* The first entry at or after @i that is not zero, @end if there is none. */
static unsigned int skip_zeroes(const u64 *table, unsigned int i,
				unsigned int end)
{
	while (i < end && !table[i]) {
		if (i % (LINES * LINE) == 0 && i + LINES * LINE <= end &&
		    are_zero_lines(table + i))
			i += LINES * LINE;
		else if (i % LINE == 0 && i + LINE <= end &&
			 is_zero_line(table + i))
			i += LINE;
		else
			i++;
	}
	return i;
}

static void walk_pmds(struct mm_struct *mm, pmd_t *pmd, pvmmu_visit_t *visit,
		      unsigned int nr)
{
	unsigned int i = skip_zeroes((u64 *)pmd, 0, nr);

	for (; i < nr; i = skip_zeroes((u64 *)pmd, i + 1, nr))
		if (!pmd_none(pmd[i]))
			visit(mm, pmd_page(pmd[i]), PT_PTE);
}

static void walk_puds(struct mm_struct *mm, pud_t *pud, pvmmu_visit_t *visit,
		      bool last, unsigned long limit)
{
	unsigned int nr = last ? pud_index(limit) + 1 : PTRS_PER_PUD;
	unsigned int i;

	for (i = skip_zeroes((u64 *)pud, 0, nr); i < nr;
	     i = skip_zeroes((u64 *)pud, i + 1, nr)) {
		pmd_t *pmd;

		if (pud_none(pud[i]))
			continue;
		pmd = pmd_offset(&pud[i], 0);
		visit(mm, virt_to_page(pmd), PT_PMD);
		walk_pmds(mm, pmd, visit, last && i == nr - 1 ?
			  pmd_index(limit) + 1 : PTRS_PER_PMD);
	}
}

/* Called by entry.S with the arguments of __xen_pgd_walk(). */
pvmmu_walk_t pvmmu_pgd_walk;
void pvmmu_pgd_walk(struct mm_struct *mm, pgd_t *pgd, pvmmu_visit_t *visit,
		    unsigned long limit)
{
	/* Xen's own mappings, in the middle of the address space. */
	const unsigned int hole_low = pgd_index(GUARD_HOLE_BASE_ADDR);
	const unsigned int hole_high = pgd_index(GUARD_HOLE_END_ADDR);
	unsigned int i, nr;

	limit--;	/* the last byte to be touched */
	BUG_ON(limit >= FIXADDR_TOP);

	nr = pgd_index(limit) + 1;
	for (i = skip_zeroes((u64 *)pgd, 0, nr); i < nr;
	     i = skip_zeroes((u64 *)pgd, i + 1, nr)) {
		p4d_t *p4d = p4d_offset(&pgd[i], 0); /* folded: pgd[i] */
		pud_t *pud;

		if ((i >= hole_low && i < hole_high) || p4d_none(*p4d))
			continue;
		pud = pud_offset(p4d, 0);
		visit(mm, virt_to_page(pud), PT_PUD);
		walk_puds(mm, pud, visit, i == nr - 1, limit);
	}

	/* Last, so that the callback can use it as a cue to flush. */
	visit(mm, virt_to_page(pgd), PT_PGD);
}
