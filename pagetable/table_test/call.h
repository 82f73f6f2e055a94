/* SPDX-License-Identifier: GPL-2.0-only */
/* Raw access to the hypercalls, for tests that must be able to misuse them. */
#ifndef TRAPLESS_TEST_CALL_H
#define TRAPLESS_TEST_CALL_H

#include <linux/mm.h>

#include <asm/xen/hypercall.h>
#include <asm/xen/page.h>

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

/* The same for one page of this kernel. */
static inline long tpt_call_page(unsigned int op, struct page *page)
{
	u64 mfn = pfn_to_mfn(page_to_pfn(page));
	unsigned int done;

	return tpt_call_batch(op, &mfn, 1, &done);
}

/*
 * Whether a page may be marked still, after its release gave rc. Without the
 * payload no page is marked, and every operation fails.
 */
static inline bool tpt_may_be_marked(long rc)
{
	return rc && rc != -ENOENT && tpt_call(TPT_OP_VERSION, NULL) == -EFAULT;
}

#endif /* TRAPLESS_TEST_CALL_H */
