/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What kvmppc_bt_settle() asks about the guest, for a program whose addresses are the
 * guest's. This guest always runs fragments; the ones that do not are in ../guest/hostile.c.
 */
#ifndef SETTLE_H
#define SETTLE_H

#include "e500_bt.h"

static inline bool runs_fragments(struct kvm_vcpu *vcpu)
{
	(void)vcpu;
	return true;
}

static inline bool holds_fragment(struct kvm_vcpu *vcpu, const struct bt_site *site)
{
	u32 ea = site->area->ea + site->slot * BT_SLOT_BYTES;

	(void)vcpu;
	return !memcmp((void *)(uintptr_t)ea, site->insn, site->n * 4);
}

#endif
