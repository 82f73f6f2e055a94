// SPDX-License-Identifier: GPL-2.0-only
/*
 * Puts the patched Xen where the tests of pagetable/tests/host expect the
 * payload. Two things differ. A struct domain goes when its domain does, so what
 * the teardown left in it is not counted. There is no revert: a machine that
 * owes nothing is switched off instead.
 */
#include "fake_xen.h"
#include "original.h"
#include "source.h"

int payload_map(struct domain *d, u64 dfn, u64 mfn, unsigned long count,
		u32 flags)
{
	return source_map(d, dfn, mfn, count, flags);
}

int payload_unmap(struct domain *d, u64 dfn, unsigned long count)
{
	return source_unmap(d, dfn, count);
}

long payload_xenoprof(int op, void *arg)
{
	return source_serves(op) ? source_op(op, arg) :
				   original_do_xenoprof_op(op, arg);
}

int payload_domain_kill(struct domain *d)
{
	int rc = original_domain_kill(d);

	return rc ? rc : source_relinquish(d);
}

bool payload_has_map(void)
{
	return source_has_map();
}

bool semi_writable_test(const struct domain *d, u64 mfn)
{
	return source_marked(d, mfn);
}

bool payload_holds(u64 mfn)
{
	return source_holds(mfn);
}

struct domain_marks payload_marks_of(const struct domain *d)
{
	struct source_domain s = source_of((struct domain *)d);

	return (struct domain_marks){
		.next = s.next,
		.serving = s.serving,
		.frames = { [MARKED] = s.marked, [HELD] = s.held },
		.scanned = d->life == DEAD ? 0 : s.scanned,
	};
}

unsigned int *source_waiting(struct domain *d)
{
	return source_of(d).waiting;
}

u64 semi_writable_owed(void)
{
	return semi_writable_stats.semi_writable + semi_writable_stats.held -
	       source_of(&dom0).held;
}

int payload_try_revert(void)
{
	if (semi_writable_owed())
		return -EBUSY;
	source_forget_map();
	return 0;
}

int payload_revert_action(void)
{
	return payload_try_revert();
}
