/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef TRAPLESS_XEN_L1_BITS_H
#define TRAPLESS_XEN_L1_BITS_H

#include "layout.h"

#pragma GCC visibility push(hidden)

/*
 * What makes an entry plain: of these bits it has PTE_PRESENT, and none of the others, which
 * select a cache attribute, make Xen check more than the page, or are reserved.
 */
extern u64 l1_checked_bits;

#pragma GCC visibility pop

void l1_bits_init(void);

#endif /* TRAPLESS_XEN_L1_BITS_H */
