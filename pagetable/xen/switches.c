// SPDX-License-Identifier: GPL-2.0-only
/*
 * The parts of the payload that the hardware domain turns on and off.
 *
 * Invariant: any value of a switch is correct at any moment and on any CPU. Each
 * part reads its switch at each use, stock Xen and the part can alternate on one
 * table, and a part keeps no state. So a switch is a plain byte, changed without
 * a lock and without waiting for other CPUs.
 *
 * They start as 0 and are turned on once the payload is applied, on every CPU.
 * A part that check_layout.py has not proven for this build of Xen is not linked
 * into the payload (parts.h, which it writes), and its switch stays 0.
 */
#include "switches.h"
#include "frame_table.h"
#include "l1_bits.h"
#include "livepatch.h"
#include "parts.h"
#include "../abi/trapless_pagetable.h"

u8 zero_runs_enabled;
u8 l1_update_enabled;
u8 table_refs_enabled;
u8 ranges_enabled;

static const struct {
	u8 *enabled;
	u32 bit;
} switches[] = {
	{ &zero_runs_enabled, TPT_SWITCH_ZERO_RUNS },
	{ &l1_update_enabled, TPT_SWITCH_L1_UPDATE },
	{ &table_refs_enabled, TPT_SWITCH_TABLE_REFS },
	{ &ranges_enabled, TPT_SWITCH_RANGES },
};

#define SWITCHES	(sizeof(switches) / sizeof(*switches))

/* Return: the TPT_SWITCH_ bits of the parts that the payload was built with. */
u32 switches_present(void)
{
	return PAYLOAD_PARTS;
}

/* Return: the TPT_SWITCH_ bits of the parts in force. */
u32 switches_get(void)
{
	u32 on = 0;
	u32 i;

	for (i = 0; i < SWITCHES; i++)
		on |= *switches[i].enabled ? switches[i].bit : 0;
	return on;
}

/**
 * switches_set - put exactly these parts in force
 * @on: TPT_SWITCH_ bits
 *
 * Return: 0, or with nothing changed -EINVAL for a bit that is none, and
 * -EOPNOTSUPP for one of a part that the payload was built without.
 */
long switches_set(u32 on)
{
	u32 i;

	if (on & ~TPT_SWITCH_ALL)
		return -EINVAL;
	if (on & ~PAYLOAD_PARTS)
		return -EOPNOTSUPP;
	for (i = 0; i < SWITCHES; i++)
		__atomic_store_n(switches[i].enabled, !!(on & switches[i].bit),
				 __ATOMIC_RELAXED);
	return 0;
}

static void all_on(struct payload *payload)
{
	frame_table_init();
	l1_bits_init();
	switches_set(PAYLOAD_PARTS);
}

LIVEPATCH_POSTAPPLY_HOOK(all_on);
