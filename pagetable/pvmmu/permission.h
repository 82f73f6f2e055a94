/* SPDX-License-Identifier: GPL-2.0-only */
/* What a present entry lets its process do: write, or only read. */
#ifndef PVMMU_PERMISSION_H
#define PVMMU_PERMISSION_H

#include <linux/pgtable.h>

static inline bool is_writable(pte_t pte)
{
	const pteval_t wanted = _PAGE_PRESENT | _PAGE_RW;

	return (pte_flags(pte) & wanted) == wanted;
}

static inline bool is_protected(pte_t pte)
{
	return (pte_flags(pte) & (_PAGE_PRESENT | _PAGE_RW)) == _PAGE_PRESENT;
}

#endif /* PVMMU_PERMISSION_H */
