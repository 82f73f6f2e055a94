// SPDX-License-Identifier: GPL-2.0-only
/*
 * The parts of the payload that the hardware domain turns on and off.
 *
 * Invariant: any value of a switch is right at any moment and on any CPU. Each
 * part takes the decision anew at each use, stock Xen and the part can take
 * turns on one table, and a part keeps no state. So a switch is a plain byte,
 * changed without a lock and without waiting for anyone.
 *
 * Xen refuses to apply a payload again whose initialised data has been used, so
 * the switches start as 0 and are turned on when the payload is applied.
 */
#include "features.h"
#include "l1_update.h"
#include "livepatch.h"
#include "../include/trapless_pagetable.h"

u8 zero_runs_enabled;
u8 l1_update_enabled;
u8 table_refs_enabled;

static const struct {
	u8 *enabled;
	u32 feature;
} switches[] = {
	{ &zero_runs_enabled, TPT_SWITCH_ZERO_RUNS },
	{ &l1_update_enabled, TPT_SWITCH_L1_UPDATE },
	{ &table_refs_enabled, TPT_SWITCH_TABLE_REFS },
};

#define SWITCHES	(sizeof(switches) / sizeof(*switches))

/* Return: the TPT_SWITCH_ bits of the parts in force. */
u32 features_get(void)
{
	u32 on = 0;
	u32 i;

	for (i = 0; i < SWITCHES; i++)
		on |= *switches[i].enabled ? switches[i].feature : 0;
	return on;
}

/**
 * features_set - put exactly these parts in force
 * @features: TPT_SWITCH_ bits
 *
 * Return: 0, or -EINVAL for a bit that is none, with nothing changed.
 */
long features_set(u32 features)
{
	u32 i;

	if (features & ~TPT_SWITCH_ALL)
		return -EINVAL;
	for (i = 0; i < SWITCHES; i++)
		__atomic_store_n(switches[i].enabled,
				 !!(features & switches[i].feature),
				 __ATOMIC_RELAXED);
	return 0;
}

static void all_on(struct payload *payload)
{
	l1_update_init();
	features_set(TPT_SWITCH_ALL);
}

LIVEPATCH_POSTAPPLY_HOOK(all_on);
