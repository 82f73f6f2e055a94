// SPDX-License-Identifier: GPL-2.0-only
/* The hypercalls to PiBooster's hypervisor half; see trapless_pagetable.h. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/errno.h>
#include <linux/minmax.h>
#include <linux/printk.h>
#include <linux/stop_machine.h>

#include <asm/xen/hypercall.h>

#include "trapless.h"

static long call(unsigned int op, void *arg)
{
	return _hypercall2(long, callback_op, op, arg);
}

/*
 * Nothing is marked: there is no hypervisor, or this domain's IOMMU does not follow page
 * types. The pool then is a cache of cleared tables, and each call reports success.
 */
static bool without;

/**
 * tpt_hypervisor_check - is the hypervisor half there, ours, and of use?
 * @bare:     there is no hypervisor, and none of the calls below is to reach one
 * @unmarked: nor are they where this domain's IOMMU does not follow page types
 *
 * Return: 0, -ENODEV without it, -EPROTO if it speaks another version,
 * -EACCES while dom0 admits no marks, -EOPNOTSUPP if this domain's IOMMU does not follow
 * page types, so that there are no flushes to save, and @unmarked is false.
 */
int tpt_hypervisor_check(bool bare, bool unmarked)
{
	struct tpt_version version = { };
	long rc;

	without = bare;
	if (bare)
		return 0;
	rc = call(TPT_OP_VERSION, &version);
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
	if (unmarked && !(version.features & TPT_FEAT_SYNC)) {
		pr_info("this domain's IOMMU does not follow page types: tables are cached, and none is marked\n");
		without = true;
		return 0;
	}
	if (version.features & TPT_FEAT_EVICTED) {
		pr_err("dom0 has taken all semi-writable pages back, and admits no new ones now\n");
		return -EACCES;
	}
	if (!(version.features & TPT_FEAT_SYNC)) {
		pr_err("this domain's IOMMU does not follow page types (dom0-iommu=strict is not set): no flushes to save; unmarked=1 caches tables nevertheless\n");
		return -EOPNOTSUPP;
	}
	return 0;
}

/* Is the hypervisor half there, and ours? */
static bool is_there(struct tpt_version *version)
{
	return !call(TPT_OP_VERSION, version) && version->abi == TPT_ABI_VERSION;
}

/**
 * tpt_hypervisor_admits - can pages be made semi-writable now?
 *
 * If not, dom0 has evicted the marks of all domains, or taken the hypervisor half
 * away, which may be back one day.
 */
bool tpt_hypervisor_admits(void)
{
	struct tpt_version version = { };

	return without || (is_there(&version) &&
			   !(version.features & TPT_FEAT_EVICTED));
}

/*
 * A page whose mark is gone is an ordinary one: dom0 may evict at any time. Without the
 * hypervisor half, or with another one in its place, nothing is marked at all, as it
 * cannot be taken away before.
 */
static bool is_released(long rc)
{
	struct tpt_version version = { };

	return rc == -ENOENT || !is_there(&version);
}

static int batch(unsigned int op, u64 *mfns, unsigned int count,
		 unsigned int *done)
{
	long rc = 0;

	*done = without ? count : 0;
	while (*done < count && !rc) {
		struct tpt_batch arg = {
			.count = min(count - *done, TPT_MAX_BATCH + 0u),
			.mfns = (unsigned long)(mfns + *done),
		};

		rc = call(op, &arg);
		*done += arg.done;
		if (rc && op == TPT_OP_RELEASE && *done < count &&
		    is_released(rc)) {
			(*done)++;
			rc = 0;
			continue;
		}
		if (!rc && !arg.done)
			rc = -EPROTO;	/* the ABI guarantees progress */
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

/**
 * tpt_hypervisor_release - give back semi-writable pages that are not in use
 * @mfns:  machine frame numbers of pages that are no page tables and cannot
 *         become one meanwhile
 * @count: how many, without limit
 * @done:  out: the first @done are no longer semi-writable, whoever released them
 *
 * Return: 0, or the error of frame @done; see struct tpt_batch.
 */
int tpt_hypervisor_release(u64 *mfns, unsigned int count, unsigned int *done)
{
	return batch(TPT_OP_RELEASE, mfns, count, done);
}

struct release {
	u64 *mfns;
	unsigned int count;
	unsigned int *done;
};

static int release_alone(void *data)
{
	struct release *r = data;

	return tpt_hypervisor_release(r->mfns, r->count, r->done);
}

/**
 * tpt_hypervisor_release_live - as tpt_hypervisor_release(), for pages that may be in use
 * @mfns:  machine frame numbers
 * @count: how many; every other CPU waits meanwhile, so a few dozen
 * @done:  out: the first @done are no longer semi-writable
 *
 * RELEASE briefly holds a writable type reference. If another CPU, in fork, pins
 * the same page during that time, the pin fails, and Linux ignores the failure.
 * So no other CPU of this domain may be in a hypercall meanwhile; a CPU that was
 * stopped before its pin runs after the reference is dropped.
 *
 * Return: 0, or the error of frame @done; see struct tpt_batch. Sleeps.
 */
int tpt_hypervisor_release_live(u64 *mfns, unsigned int count,
				unsigned int *done)
{
	struct release r = { mfns, count, done };

	return stop_machine(release_alone, &r, NULL);
}
