// SPDX-License-Identifier: GPL-2.0-only
/*
 * The switches of the hypervisor's payload, if it is loaded and this is the hardware
 * domain. Their state is Xen's: this module shows them and sets them on request, and
 * neither loading nor unloading changes them.
 */
#include <linux/errno.h>

#include <asm/xen/hypercall.h>

#include "trapless_pagetable.h"
#include "pvmmu.h"

static long call(unsigned int op, void *argument)
{
	return _hypercall2(long, callback_op, op, argument);
}

/* Return: 0, or -ENODEV: stock Xen refuses the number; the error depends on its version. */
static int get(u32 *on)
{
	return call(TPT_OP_GET_SWITCHES, on) ? -ENODEV : 0;
}

/* Return: 0, or -EOPNOTSUPP if the payload was built without the part. */
static int demand_present(u32 bit)
{
	struct tpt_version version;

	if (call(TPT_OP_VERSION, &version))
		return -ENODEV;
	return version.parts & bit ? 0 : -EOPNOTSUPP;
}

/**
 * pvmmu_hypervisor_get - is a part of the payload on?
 * @bit: TPT_SWITCH_ bit of the part
 *
 * Return: 1, 0, or -ENODEV if there is no payload of our version.
 */
int pvmmu_hypervisor_get(u32 bit)
{
	u32 on;
	int rc = get(&on);

	return rc ?: !!(on & bit);
}

/**
 * pvmmu_hypervisor_set - turn a part of the payload on or off
 * @bit: TPT_SWITCH_ bit of the part
 * @on:  which
 *
 * The caller serialises the calls.
 *
 * Return: 0, -ENODEV if there is no payload of our version, or -EOPNOTSUPP if it
 * was built without the part.
 */
int pvmmu_hypervisor_set(u32 bit, bool on)
{
	u32 switches;
	int rc = demand_present(bit);

	if (!rc)
		rc = get(&switches);
	if (rc)
		return rc;
	switches = on ? switches | bit : switches & ~bit;
	return call(TPT_OP_SET_SWITCHES, &switches) ? -ENODEV : 0;
}
