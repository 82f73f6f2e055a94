/* SPDX-License-Identifier: GPL-2.0-only */
/* The hardware's bits of a page-table entry. */
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

#endif /* TRAPLESS_XEN_PTE_H */
