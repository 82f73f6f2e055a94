/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef TRAPLESS_XEN_FRAME_TABLE_H
#define TRAPLESS_XEN_FRAME_TABLE_H

#include "layout.h"

#pragma GCC visibility push(hidden)

/* Not 0: no frame is left out of Xen's frame table, so that mfn_to_pdx() changes nothing. */
extern u8 frame_is_pdx;

#pragma GCC visibility pop

void frame_table_init(void);

#endif /* TRAPLESS_XEN_FRAME_TABLE_H */
