// SPDX-License-Identifier: GPL-2.0-only
/*
 * The patched Xen's side of the test: the new files, unchanged, and the changed
 * functions of drivers/passthrough/iommu.c, of which hooks.h is cut from the
 * patch. All variables in two sections, so that the model can save them.
 *
 * In the model, what iommu_legacy_map() and iommu_legacy_unmap() call maps and
 * flushes in one.
 */
#pragma clang section bss = "payload_bss" data = "payload_data"
#include "xen/arch/x86/pv/semi-writable.c"
#include "xen/arch/x86/pv/semi-writable-op.c"
#pragma clang section bss = "" data = ""

#include "source.h"
#include "stock.h"

static const bool iommu_dont_flush_iotlb;

#define this_cpu(variable) (variable)
#define iommu_map(d, dfn, mfn, count, flags, flush_flags) \
	((void)(flush_flags), \
	 original_iommu_legacy_map(d, dfn, mfn, count, flags))
#define iommu_unmap(d, dfn, count, flags, flush_flags) \
	((void)(flush_flags), original_iommu_legacy_unmap(d, dfn, count))
#define iommu_iotlb_flush(d, dfn, count, flush_flags)	0

#include "hooks.h"

int source_map(struct domain *d, unsigned long dfn, unsigned long mfn,
	       unsigned long count, unsigned int flags)
{
	return iommu_legacy_map(d, _dfn(dfn), _mfn(mfn), count, flags);
}

int source_unmap(struct domain *d, unsigned long dfn, unsigned long count)
{
	return iommu_legacy_unmap(d, _dfn(dfn), count);
}

bool source_serves(unsigned int op)
{
	return pv_semi_writable_is_op(op) && is_pv_domain(current->domain);
}

long source_op(unsigned int op, void *arg)
{
	return pv_semi_writable_op(op, guest_handle_from_ptr(arg, void));
}

int source_relinquish(struct domain *d)
{
	return pv_semi_writable_relinquish(d);
}

bool source_has_map(void)
{
	return mark_map;
}

void source_forget_map(void)
{
	vfree(mark_map);
	mark_map = NULL;
}

bool source_holds(unsigned long mfn)
{
	return mark_possible(_mfn(mfn)) &&
	       mark_is_set(mfn_to_pdx(_mfn(mfn)), HELD);
}

bool source_marked(const struct domain *d, unsigned long mfn)
{
	return pv_semi_writable(d, _mfn(mfn));
}

struct source_domain source_of(struct domain *d)
{
	struct semi_writable_domain *sw = semi_writable_of(d);

	return (struct source_domain){
		.next = sw->lock.next,
		.serving = sw->lock.serving,
		.marked = sw->marked,
		.held = sw->held,
		.scanned = sw->scanned,
		.waiting = (unsigned int *)&sw->waiting.counter,
	};
}

/* The counts, under the name that the tests know. */
extern struct tpt_stats semi_writable_stats __attribute__((alias("stats")));

_Static_assert(sizeof(struct semi_writable_domain) <= SOURCE_DOMAIN_BYTES,
	       "no room in the model's struct domain");
