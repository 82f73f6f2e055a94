// SPDX-License-Identifier: GPL-2.0-only
/*
 * When exits may be short, that is, handled by e500_bt_short.S; and how they get there.
 *
 * Invariant: bt_short is the guest's shared page only while everything holds that short
 * changes of the mode rely on: the shadow PIDs in bt_pids are valid, and of address space
 * 0, in which the guest is; bt_msr[1] is an MSR in which nothing is special, the one that
 * the guest had when it was last in user mode and seen; and bt_syscall is where its
 * system calls go. Each of these changes in an exit that is not short only, or while the
 * vcpu is loaded, which kvmppc_bt_forget_pids() is told of. That the guest's MSR is
 * bt_msr[1] is compared each time.
 */
#include <linux/cache.h>
#include <linux/kvm_host.h>
#include <asm/cacheflush.h>
#include <asm/kvm_ppc.h>
#include <asm/ppc-opcode.h>

#include "booke.h"
#include "e500.h"
#include "e500_bt.h"

/* The MSR that short exits find while they are not allowed. */
const struct kvm_vcpu_arch_shared kvmppc_bt_nobody = { .msr = ~0U };

/* Where the copy of e500_bt_short.S is, from the start of KVM's exception handlers; 0: nowhere. */
static unsigned long copy __ro_after_init;

/**
 * kvmppc_bt_use_pids - let the guest go on with the PIDs of the mode that it is in
 * @vcpu: the vcpu, whose bt_pids are known
 */
void kvmppc_bt_use_pids(struct kvm_vcpu *vcpu)
{
	const u32 *pids = vcpu->arch.bt_pids[!!(vcpu->arch.shared->msr & MSR_PR)];

	vcpu->arch.shadow_pid = pids[0];
	vcpu->arch.shadow_pid1 = pids[1];
}

/**
 * kvmppc_bt_find_mode - in which mode and which address space the guest is, before anything asks
 * @vcpu: just out of the guest
 */
void kvmppc_bt_find_mode(struct kvm_vcpu *vcpu)
{
	if (vcpu->arch.bt_short != vcpu->arch.shared)
		return;
	kvmppc_bt_use_pids(vcpu);
	vcpu->arch.pid = vcpu->arch.bt_pid;
	to_e500(vcpu)->pid[0] = vcpu->arch.bt_pid;
}

/**
 * kvmppc_bt_end_short_exits - let no mode change be short for now
 * @vcpu: out of the guest, by an exit after which anything may change
 *
 * The statistics have all short exits then.
 */
void kvmppc_bt_end_short_exits(struct kvm_vcpu *vcpu)
{
	u32 *exits = vcpu->arch.bt_short_exits;

	vcpu->arch.bt_short = &kvmppc_bt_nobody;
	if (!(exits[0] | exits[1] | exits[2] | exits[3]))
		return;
	vcpu->stat.emulated_inst_exits += exits[0];
	vcpu->stat.syscall_exits += exits[1];
	vcpu->stat.dtlb_virt_miss_exits += exits[2];
	vcpu->stat.itlb_virt_miss_exits += exits[3];
	memset(exits, 0, sizeof(vcpu->arch.bt_short_exits));
}

/**
 * kvmppc_bt_begin_short_exits - let mode changes be short if nothing is special
 * @vcpu: about to go on in the guest; nothing waits to be done
 *
 * Which MSR the guest has in user mode is known from its last return to there.
 */
void kvmppc_bt_begin_short_exits(struct kvm_vcpu *vcpu)
{
	const struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	u32 msr = vcpu->arch.shared->msr;
	u32 *msrs = vcpu->arch.bt_msr;

	if ((msr & MSR_PR) && msr != msrs[1] && !(msr & ~BT_HARMLESS_MSR)) {
		msrs[1] = msr;
		msrs[0] = msr & (MSR_CE | MSR_ME);
	}
	if (vcpu->arch.bt_short == vcpu->arch.shared || !vcpu->arch.bt_pids_known ||
	    !msrs[1] || (msr & (MSR_IS | MSR_DS | MSR_DE)))
		return;
	vcpu->arch.bt_handover = bt->nareas ? kvmppc_bt_handover(bt->data) : 0;
	vcpu->arch.bt_syscall = vcpu->arch.ivpr | vcpu->arch.ivor[BOOKE_IRQPRIO_SYSCALL];
	vcpu->arch.bt_short = vcpu->arch.shared;
}

/**
 * kvmppc_bt_copy_short_exits - put e500_bt_short.S where a handler can branch to it
 *
 * KVM's exception handlers are copied already. If there is no room behind them, no exit is
 * short.
 */
void __init kvmppc_bt_copy_short_exits(void)
{
	unsigned long start = (unsigned long)kvmppc_bt_short_start;
	unsigned long end = (unsigned long)kvmppc_bt_short_end;
	unsigned long offset = ALIGN_DOWN(VCPU_SIZE_BYTES - (end - start), L1_CACHE_BYTES);

	if (kvmppc_booke_copy_handler(offset, start, end))
		return;
	flush_icache_range(kvmppc_booke_handlers + offset, kvmppc_booke_handlers + VCPU_SIZE_BYTES);
	copy = offset;
}

/**
 * kvmppc_bt_use_short_exits - have the handlers branch to the copy
 *
 * For the first VM that may need it, so that a host without such a VM runs what it always
 * did. Other processors may be in a guest: their next exit executes either word. To do
 * it again changes nothing.
 */
void kvmppc_bt_use_short_exits(void)
{
	const struct {
		unsigned long vector;
		void (*to)(void);
	} handlers[] = {
		{ mfspr(SPRN_IVOR6), kvmppc_bt_short_program },
		{ mfspr(SPRN_IVOR8), kvmppc_bt_short_syscall },
		{ mfspr(SPRN_IVOR13), kvmppc_bt_short_data_miss },
		{ mfspr(SPRN_IVOR14), kvmppc_bt_short_fetch_miss },
	};
	unsigned int i;

	for (i = 0; copy && i < ARRAY_SIZE(handlers); i++) {
		unsigned long from = kvmppc_booke_handlers + handlers[i].vector;
		unsigned long to = kvmppc_booke_handlers + copy +
				   ((unsigned long)handlers[i].to -
				    (unsigned long)kvmppc_bt_short_start);

		WRITE_ONCE(*(u32 *)from, PPC_RAW_BRANCH(to - from));
		flush_icache_range(from, from + sizeof(u32));
	}
}
