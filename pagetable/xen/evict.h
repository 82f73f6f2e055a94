/* SPDX-License-Identifier: GPL-2.0-only */
/* Every domain's marks taken back, by the hardware domain; see evict.c. */
#ifndef TRAPLESS_EVICT_H
#define TRAPLESS_EVICT_H

#include "layout.h"
#include "../abi/trapless_pagetable.h"

#pragma GCC visibility push(hidden)	/* PC-relative, never through a GOT */

bool evict_is_closed(void);
long evict_some(struct tpt_evict *report);
void evict_undo(void);

#pragma GCC visibility pop

#endif /* TRAPLESS_EVICT_H */
