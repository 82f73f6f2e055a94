/* SPDX-License-Identifier: GPL-2.0-only */
/* The hardware's bits of a page-table entry, and the page that it may name. */
#ifndef TRAPLESS_XEN_PTE_H
#define TRAPLESS_XEN_PTE_H

#include "layout.h"

#define PTE_PRESENT			0x001UL
#define PTE_RW				0x002UL
#define PTE_USER			0x004UL
#define PTE_ACCESSED			0x020UL
#define PTE_DIRTY			0x040UL
#define PTE_GLOBAL			0x100UL
#define PTE_AVAILABLE			0xe00UL
#define PTE_NX				(1UL << 63)
#define PTE_FRAME			0x000ffffffffff000UL

static inline u64 pte_frame(u64 entry)
{
	return (entry & PTE_FRAME) >> XEN_PAGE_SHIFT;
}

/* The page of any number, NULL if that is no frame of RAM. Takes no reference. */
static inline struct page_info *valid_page(u64 mfn)
{
	if (!__mfn_valid(mfn))
		return NULL;
	block_speculation();
	return mfn_to_page(mfn);
}

#endif /* TRAPLESS_XEN_PTE_H */
