// SPDX-License-Identifier: GPL-2.0-only
/* The bits that make an entry plain on this processor: see l1_entry.h. */
#include "l1_entry.h"

#define MSR_EFER			0xc0000080
#define EFER_NX				(1UL << 11)

u64 l1_checked_bits;

/* Called before the first entry is looked at. */
void l1_bits_init(void)
{
	u32 efer, high;

	asm volatile("rdmsr" : "=a" (efer), "=d" (high) : "c" (MSR_EFER));
	l1_checked_bits = ~(PTE_RW | PTE_USER | PTE_ACCESSED | PTE_DIRTY |
			    PTE_GLOBAL | PTE_AVAILABLE | PTE_GUEST_KERNEL |
			    PTE_FRAME | (efer & EFER_NX ? PTE_NX : 0));
}
