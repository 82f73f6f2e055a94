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

static int call(unsigned int op, u32 *switches)
{
	/* Stock Xen refuses the hypercall's number; the error depends on its version. */
	return _hypercall2(long, xenoprof_op, op, switches) ? -ENODEV : 0;
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
	int rc = call(TPT_OP_GET_SWITCHES, &on);

	return rc ?: !!(on & bit);
}

/**
 * pvmmu_hypervisor_set - turn a part of the payload on or off
 * @bit: TPT_SWITCH_ bit of the part
 * @on:  which
 *
 * The caller serialises the calls.
 *
 * Return: 0, or -ENODEV if there is no payload of our version.
 */
int pvmmu_hypervisor_set(u32 bit, bool on)
{
	u32 switches;
	int rc = call(TPT_OP_GET_SWITCHES, &switches);

	if (rc)
		return rc;
	switches = on ? switches | bit : switches & ~bit;
	return call(TPT_OP_SET_SWITCHES, &switches);
}
