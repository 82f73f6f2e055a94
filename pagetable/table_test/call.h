/* SPDX-License-Identifier: GPL-2.0-only */
/* Raw access to the hypercalls, for tests that must be able to misuse them. */
#ifndef TRAPLESS_TEST_CALL_H
#define TRAPLESS_TEST_CALL_H

#include <asm/xen/hypercall.h>

#include "trapless_pagetable.h"

static inline long tpt_call(unsigned int op, void *arg)
{
	return _hypercall2(long, callback_op, op, arg);
}

/* One call; the caller sees rc and done as the hypervisor gave them. */
static inline long tpt_call_batch(unsigned int op, const u64 *mfns,
				  unsigned int count, unsigned int *done)
{
	struct tpt_batch batch = {
		.count = count,
		.done = ~0u,
		.mfns = (unsigned long)mfns,
	};
	long rc = tpt_call(op, &batch);

	*done = batch.done;
	return rc;
}

#endif /* TRAPLESS_TEST_CALL_H */
