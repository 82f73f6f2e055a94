/* SPDX-License-Identifier: GPL-2.0-only */
/* The semi-writable page type; states and rules: semi_writable.c. */
#ifndef TRAPLESS_SEMI_WRITABLE_H
#define TRAPLESS_SEMI_WRITABLE_H

#include "layout.h"
#include "../abi/trapless_pagetable.h"

#pragma GCC visibility push(hidden)	/* PC-relative, never through a GOT */

extern struct tpt_stats semi_writable_stats;

bool semi_writable_test(const struct domain *d, u64 mfn);
int semi_writable_mark(struct domain *d, const u64 *mfns, u32 count, u32 *done);
int semi_writable_release(struct domain *d, const u64 *mfns, u32 count,
			  u32 *done);
u32 semi_writable_take_back(struct domain *d, const u64 *mfns, u32 count,
			    int *error);
u64 semi_writable_owed(void);

#pragma GCC visibility pop

static inline void semi_writable_count(tpt_u64 *counter, long delta)
{
	__atomic_fetch_add(counter, (tpt_u64)delta, __ATOMIC_RELAXED);
}

#endif /* TRAPLESS_SEMI_WRITABLE_H */
