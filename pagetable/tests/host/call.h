/* SPDX-License-Identifier: GPL-2.0-only */
/* The guest's side of the hypercalls. */
#ifndef TRAPLESS_CALL_H
#define TRAPLESS_CALL_H

#include "fake_xen.h"

struct answer {
	long rc;
	u32 done;
};

struct tpt_batch *guest_batch(void);
u64 *guest_list(void);

/* MARK or RELEASE, entered in the ledger as the ABI says of the answer. */
struct answer call_batch(int op, const u64 *mfns, u32 count);
/* The same with whatever the caller wrote to guest memory. */
struct answer call_prepared(int op, const u64 *mfns, u32 count);

/* One EVICT, entered in the ledger; the report is @report. */
long call_evict(struct tpt_evict *report);

/* After a race: which of two overlapping calls won is the payload's choice. */
void ledger_follow_marks(void);

#endif /* TRAPLESS_CALL_H */
