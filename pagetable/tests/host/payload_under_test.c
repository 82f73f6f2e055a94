// SPDX-License-Identifier: GPL-2.0-only
/*
 * The payload's files for the semi-writable type and its hypercalls, unchanged, in one unit so that their statics can be
 * called; all their variables in two sections, so that they can be saved.
 */
#pragma clang section bss = "payload_bss" data = "payload_data"
#include "marks.c"
#include "semi_writable.c"
#include "evict.c"
#include "teardown.c"
#include "payload.c"
#include "switches.c"
#pragma clang section bss = "" data = ""
#include "under_test.h"

/* What the switches turn on is tested on the real hypervisor. */
void frame_table_init(void)
{
}

void l1_bits_init(void)
{
}

long ranges_call(struct domain *d, u32 op, const void *arg)
{
	return op == TPT_OP_PROTECT ? FAKE_PROTECT : FAKE_MOVE;
}

int payload_map(struct domain *d, u64 dfn, u64 mfn, unsigned long count,
		u32 flags)
{
	return new_iommu_legacy_map(d, dfn, mfn, count, flags);
}

int payload_unmap(struct domain *d, u64 dfn, unsigned long count)
{
	return new_iommu_legacy_unmap(d, dfn, count);
}

long payload_callback(int op, void *arg)
{
	return new_do_callback_op(op, arg);
}

int payload_domain_kill(struct domain *d)
{
	return new_domain_kill(d);
}

bool payload_has_map(void)
{
	return map;
}

bool payload_holds(u64 mfn)
{
	return mark_possible(mfn) && mark_is_set(mfn_to_pdx(mfn), HELD);
}

struct domain_marks payload_marks_of(const struct domain *d)
{
	return map ? *marks_of(d) : (struct domain_marks){ };
}

/* Like Xen, run the hooks before and after whatever the action returns. */
int payload_try_revert(void)
{
	int rc = before_revert(NULL);

	if (rc)
		return rc;
	rc = revert(NULL);
	after_revert(NULL);
	return rc;
}

int payload_revert_action(void)
{
	int rc = revert(NULL);

	after_revert(NULL);
	return rc;
}
