/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The kernel's own queue of hypercalls, one a CPU (arch/x86/xen/multicalls.c), whose
 * functions are not exported.
 *
 * Interrupts are off from the first use to multicall_flush(). The queue has room for
 * MULTICALL_CALLS calls, MULTICALL_ARGUMENTS bytes of what they point to, and
 * MULTICALL_CALLS callbacks; it issues itself when it is full.
 */
#ifndef PVMMU_MULTICALL_H
#define PVMMU_MULTICALL_H

#include <linux/types.h>

#define MULTICALL_CALLS		32
#define MULTICALL_ARGUMENTS	512

int pvmmu_multicall_resolve(void);
void multicall_call(unsigned long op, unsigned long first, unsigned long second,
		    unsigned long third);
void multicall_mmuext(unsigned int command, unsigned long mfn);
void multicall_callback(void (*function)(void *data), void *data);
void multicall_flush(void);

#endif /* PVMMU_MULTICALL_H */
