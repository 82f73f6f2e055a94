// SPDX-License-Identifier: GPL-2.0-only
/* The hypercalls to PiBooster's hypervisor half; see trapless_pagetable.h. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/errno.h>
#include <linux/minmax.h>
#include <linux/printk.h>

#include <asm/xen/hypercall.h>

#include "trapless.h"

static long call(unsigned int op, void *arg)
{
	return _hypercall2(long, xenoprof_op, op, arg);
}

/**
 * tpt_hypervisor_check - is the hypervisor half there, ours, and of use?
 *
 * Return: 0, -ENODEV without it, -EPROTO if it speaks another version,
 * -EOPNOTSUPP if this domain's IOMMU does not follow page types, so that there
 * is nothing to save.
 */
int tpt_hypervisor_check(void)
{
	struct tpt_version version = { };
	long rc = call(TPT_OP_VERSION, &version);

	if (rc) {
		pr_err("no hypervisor half (hypercall: %ld): load the payload first\n",
		       rc);
		return -ENODEV;
	}
	if (version.abi != TPT_ABI_VERSION ||
	    version.max_batch != TPT_MAX_BATCH) {
		pr_err("hypervisor half speaks ABI %u with batches of %u, this module %u and %u\n",
		       version.abi, version.max_batch, TPT_ABI_VERSION,
		       TPT_MAX_BATCH);
		return -EPROTO;
	}
	if (!(version.features & TPT_FEAT_SYNC)) {
		pr_err("this domain's IOMMU does not follow page types (dom0-iommu=strict is not set): nothing to save\n");
		return -EOPNOTSUPP;
	}
	return 0;
}

static int batch(unsigned int op, u64 *mfns, unsigned int count,
		 unsigned int *done)
{
	long rc = 0;

	*done = 0;
	while (*done < count && !rc) {
		struct tpt_batch arg = {
			.count = min(count - *done, TPT_MAX_BATCH + 0u),
			.mfns = (unsigned long)(mfns + *done),
		};

		rc = call(op, &arg);
		*done += arg.done;
		if (!rc && !arg.done)
			rc = -EPROTO;	/* the ABI promises progress */
	}
	return rc;
}

/**
 * tpt_hypervisor_mark - make pages semi-writable
 * @mfns:  machine frame numbers
 * @count: how many, without limit
 * @done:  out: the first @done are semi-writable, all others as before
 *
 * Return: 0, or the error of frame @done; see struct tpt_batch.
 */
int tpt_hypervisor_mark(u64 *mfns, unsigned int count, unsigned int *done)
{
	return batch(TPT_OP_MARK, mfns, count, done);
}

/* The way back; same arguments and results as tpt_hypervisor_mark(). */
int tpt_hypervisor_release(u64 *mfns, unsigned int count, unsigned int *done)
{
	return batch(TPT_OP_RELEASE, mfns, count, done);
}
