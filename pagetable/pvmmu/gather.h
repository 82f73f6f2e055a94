/* SPDX-License-Identifier: GPL-2.0-only */
/* struct mmu_gather, whose header lacks a declaration in a module. */
#ifndef PVMMU_GATHER_H
#define PVMMU_GATHER_H

#include <linux/mm_types.h>

/* Not exported; used by an inline function alone that is not used here. */
void flush_tlb_mm_range(struct mm_struct *mm, unsigned long start, unsigned long end,
			unsigned int stride_shift, bool freed_tables);

#include <asm/tlb.h>

#endif /* PVMMU_GATHER_H */
