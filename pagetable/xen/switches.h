/* SPDX-License-Identifier: GPL-2.0-only */
/* The parts of the payload that the hardware domain turns on and off. */
#ifndef TRAPLESS_XEN_SWITCHES_H
#define TRAPLESS_XEN_SWITCHES_H

#include "layout.h"

#pragma GCC visibility push(hidden)

/* Not 0: in force. Read on hot paths, by any CPU, at any time. */
extern u8 zero_runs_enabled;
extern u8 l1_update_enabled;
extern u8 table_refs_enabled;
extern u8 ranges_enabled;

#pragma GCC visibility pop

u32 switches_present(void);
u32 switches_get(void);
long switches_set(u32 on);

#endif /* TRAPLESS_XEN_SWITCHES_H */
