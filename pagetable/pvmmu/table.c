// SPDX-License-Identifier: GPL-2.0-only
/* New tables, by the stock functions, which are not exported: see table.h. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/pgtable.h>

#include "stock_symbols.h"
#include "table.h"

static int (*stock_pud_alloc)(struct mm_struct *mm, p4d_t *p4d, unsigned long address);
static int (*stock_pmd_alloc)(struct mm_struct *mm, pud_t *pud, unsigned long address);
static int (*stock_pte_alloc)(struct mm_struct *mm, pmd_t *pmd);

/**
 * pvmmu_table_resolve - find the stock functions needed here
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_table_resolve(void)
{
	const struct stock_symbol symbols[] = {
		{ "__pud_alloc", &stock_pud_alloc },
		{ "__pmd_alloc", &stock_pmd_alloc },
		{ "__pte_alloc", &stock_pte_alloc },
	};

	return stock_symbols_resolve(symbols, ARRAY_SIZE(symbols));
}

/**
 * pvmmu_make_table - make a table of the lowest level, if there is none
 * @mm:      whose; its mmap_lock is held for writing
 * @address: an address that it maps
 *
 * Return: the entry that leads to it, or NULL if there is no memory.
 */
pmd_t *pvmmu_make_table(struct mm_struct *mm, unsigned long address)
{
	p4d_t *p4d = p4d_offset(pgd_offset(mm, address), address);
	pud_t *pud;
	pmd_t *pmd;

	if (p4d_none(*p4d) && stock_pud_alloc(mm, p4d, address))
		return NULL;
	pud = pud_offset(p4d, address);
	if (pud_none(*pud) && stock_pmd_alloc(mm, pud, address))
		return NULL;
	pmd = pmd_offset(pud, address);
	if (pmd_none(*pmd) && stock_pte_alloc(mm, pmd))
		return NULL;
	return pmd;
}
