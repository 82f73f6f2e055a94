/* SPDX-License-Identifier: GPL-2.0-only */
/* The vendor's function; see stacking.S. */
#ifndef TRAPLESS_TEST_VENDOR_H
#define TRAPLESS_TEST_VENDOR_H

long vendor_do_mmu_update(void);

#endif /* TRAPLESS_TEST_VENDOR_H */
