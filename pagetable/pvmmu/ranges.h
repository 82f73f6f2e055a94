/* SPDX-License-Identifier: GPL-2.0-only */
/* Ranges of entries that the hypervisor's payload changes in one call: see ranges.c. */
#ifndef PVMMU_RANGES_H
#define PVMMU_RANGES_H

#include <linux/types.h>

#include <asm/pgtable_types.h>

long ranges_protect(const pte_t *first, unsigned int count);
long ranges_move(const pte_t *to, const pte_t *from, unsigned int count, pteval_t set);

#endif /* PVMMU_RANGES_H */
