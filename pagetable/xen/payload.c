// SPDX-License-Identifier: GPL-2.0-only
/*
 * PiBooster's hypervisor half as a Xen livepatch payload: the hooks that skip device
 * mappings, the hypercalls, and the revert of the payload. teardown.c handles the
 * death of a domain. The other parts of the payload are zero_runs.S, l1_update.c,
 * table_refs.c and ranges.c, whose hypercalls are here, too.
 *
 * Invariants:
 *
 *  - A call that does not concern a semi-writable page reaches the stock
 *    function with its arguments unchanged.
 *  - The payload cannot be reverted while a frame is marked: stock Xen would
 *    assume that such a frame is mapped for DMA, and never map it again. Nor while
 *    a domain that can die has a held frame: its references would never be
 *    dropped. The deciding check runs inside the revert action, when no CPU is
 *    inside a hypercall; the check before it only refuses earlier and logs why.
 *  - A call affects only the domain that makes it. Operations that concern the host
 *    are for the hardware domain only; with one of them it takes every domain's marks
 *    back (evict.c), so that nobody else decides whether the payload can be reverted.
 *  - Xen refuses to replace a payload that has our hooks (-EOPNOTSUPP): it would run
 *    neither the one before a revert nor the one after, and the map would stay.
 *  - Applying and loading allocate nothing and change no state of Xen, so there
 *    is nothing to undo when either fails.
 */
#include "switches.h"
#include "semi_writable.h"
#include "evict.h"
#include "marks.h"
#include "parts.h"
#include "ranges.h"
#include "livepatch.h"
#include "original.h"

/* A PV domain's device addresses are machine addresses: dfn equals mfn. */
static int new_iommu_legacy_map(struct domain *d, u64 dfn, u64 mfn,
				unsigned long page_count, u32 flags)
{
	bool one_frame = page_count == 1 && dfn == mfn;
	int rc;

	if (one_frame && semi_writable_test(d, mfn)) {
		semi_writable_count(&semi_writable_stats.skipped_map, 1);
		return 0;
	}
	rc = original_iommu_legacy_map(d, dfn, mfn, page_count, flags);
	if (rc || !one_frame)
		return rc;
	/*
	 * A domain that maps its own grant changes no type, so a MARK may have
	 * come since the test above. MARK sets the bit before it unmaps, and we
	 * map before we look: one of the two sees the other.
	 */
	__atomic_thread_fence(__ATOMIC_SEQ_CST);
	if (semi_writable_test(d, mfn))
		rc = original_iommu_legacy_unmap(d, dfn, page_count);
	return rc;
}

static int new_iommu_legacy_unmap(struct domain *d, u64 dfn,
				  unsigned long page_count)
{
	if (page_count == 1 && semi_writable_test(d, dfn)) {
		semi_writable_count(&semi_writable_stats.skipped_unmap, 1);
		return 0;
	}
	return original_iommu_legacy_unmap(d, dfn, page_count);
}

static long op_version(struct domain *d, void *arg)
{
	struct tpt_version v = {
		.abi = TPT_ABI_VERSION,
		.max_batch = TPT_MAX_BATCH,
		.features = (domain_needs_iommu_sync(d) ? TPT_FEAT_SYNC : 0) |
			    (evict_is_closed() ? TPT_FEAT_EVICTED : 0),
		.parts = switches_present(),
	};

	return copy_to_guest_pv(arg, &v, sizeof(v)) ? -EFAULT : 0;
}

static long op_batch(struct domain *d, void *arg, bool mark)
{
	struct tpt_batch *guest = arg;
	struct tpt_batch batch;
	u64 *mfns;
	long rc;

	if (copy_from_guest_pv(&batch, arg, sizeof(batch)))
		return -EFAULT;
	if (batch.count > TPT_MAX_BATCH)
		return -E2BIG;
	if (!batch.count)
		return -EINVAL;
	/*
	 * Only for device mappings that follow page types, those of a strict
	 * hardware domain or of a guest that may have devices. In a relaxed
	 * hardware domain Xen maps all of its memory once and never looks
	 * again: a frame released as a live table would stay out of the
	 * devices' reach for good.
	 */
	if (!domain_needs_iommu_sync(d))
		return -EOPNOTSUPP;

	/* No work for a caller that the result cannot be copied to. */
	batch.done = 0;
	if (copy_to_guest_pv(&guest->done, &batch.done, sizeof(batch.done)))
		return -EFAULT;

	/* One copy: the guest may rewrite its list while we use ours. */
	mfns = _xmalloc(batch.count * sizeof(*mfns), sizeof(*mfns));
	if (!mfns || marks_init()) {
		rc = -ENOMEM;
		goto out;
	}
	if (copy_from_guest_pv(mfns, (void *)batch.mfns,
			       batch.count * sizeof(*mfns))) {
		rc = -EFAULT;
		goto out;
	}
	if (mark)
		rc = semi_writable_mark(d, mfns, batch.count, &batch.done);
	else
		rc = semi_writable_release(d, mfns, batch.count, &batch.done);
	if (copy_to_guest_pv(&guest->done, &batch.done, sizeof(batch.done)) &&
	    !rc)
		rc = -EFAULT;
out:
	xfree(mfns);
	return rc;
}

static long op_stats(void *arg)
{
	struct tpt_stats snapshot = semi_writable_stats;

	return copy_to_guest_pv(arg, &snapshot, sizeof(snapshot)) ? -EFAULT : 0;
}

static long op_get_switches(void *arg)
{
	u32 on = switches_get();

	return copy_to_guest_pv(arg, &on, sizeof(on)) ? -EFAULT : 0;
}

static long op_set_switches(const void *arg)
{
	u32 on;

	if (copy_from_guest_pv(&on, arg, sizeof(on)))
		return -EFAULT;
	return switches_set(on);
}

static long op_evict(void *arg)
{
	struct tpt_evict report = { };
	long rc;

	/* No work for a caller that the result cannot be copied to. */
	if (copy_to_guest_pv(arg, &report, sizeof(report)))
		return -EFAULT;
	rc = evict_some(&report);
	return copy_to_guest_pv(arg, &report, sizeof(report)) ? -EFAULT : rc;
}

static long op_admit(void)
{
	evict_undo();
	return 0;
}

static long new_do_callback_op(int op, void *arg)
{
	struct domain *d = current_domain();

	/* copy_*_guest_pv are wrong for any other kind of caller. */
	if (((u32)op & TPT_OP_MASK) != TPT_OP_BASE || !domain_is_pv(d))
		return original_do_callback_op(op, arg);

	switch ((u32)op) {
	case TPT_OP_VERSION:
		return op_version(d, arg);
	case TPT_OP_MARK:
		return op_batch(d, arg, true);
	case TPT_OP_RELEASE:
		return op_batch(d, arg, false);
	case TPT_OP_STATS:
		return d == hardware_domain ? op_stats(arg) : -EPERM;
	case TPT_OP_GET_SWITCHES:
		return d == hardware_domain ? op_get_switches(arg) : -EPERM;
	case TPT_OP_SET_SWITCHES:
		return d == hardware_domain ? op_set_switches(arg) : -EPERM;
	case TPT_OP_EVICT:
		return d == hardware_domain ? op_evict(arg) : -EPERM;
	case TPT_OP_ADMIT:
		return d == hardware_domain ? op_admit() : -EPERM;
	case TPT_OP_PROTECT:
	case TPT_OP_MOVE:
		/* Not linked into a payload without the part. */
		return PAYLOAD_PARTS & TPT_SWITCH_RANGES ?
			       ranges_call(d, (u32)op, arg) : -EOPNOTSUPP;
	}
	return -ENOSYS;
}

static bool reverted;

static int before_revert(struct payload *payload)
{
	if (!semi_writable_owed())
		return 0;
	printk("trapless: %llu frames are semi-writable: not reverting\n",
	       semi_writable_stats.semi_writable);
	if (semi_writable_stats.held)
		printk("trapless: %llu frames are held: not reverting\n",
		       semi_writable_stats.held);
	return -EBUSY;
}

/* Every other CPU waits with its Xen stack empty: no mark can come or go. */
static int revert(struct payload *payload)
{
	int rc = -EBUSY;

	if (!semi_writable_owed())
		rc = revert_payload(payload);
	reverted = !rc;
	return rc;
}

static void after_revert(struct payload *payload)
{
	if (reverted)
		marks_exit();
}

LIVEPATCH_PREREVERT_HOOK(before_revert);
LIVEPATCH_REVERT_HOOK(revert);
LIVEPATCH_POSTREVERT_HOOK(after_revert);

LIVEPATCH_FUNC(iommu_legacy_map);
LIVEPATCH_FUNC(iommu_legacy_unmap);
LIVEPATCH_FUNC(do_callback_op);
