// SPDX-License-Identifier: GPL-2.0-only
/*
 * Exits that are only the guest changing its own mode: a system call of its user, a
 * TLB miss that its own tables must answer, and the return from either; and TLB
 * misses that are the shadow TLB's alone, of which there are more when entries are
 * split. They are what remains where all else is translated, for no instruction that
 * a guest may execute changes its real mode or its TLB.
 *
 * Invariant: what is done here is what the long way through kvmppc_handle_exit()
 * and kvmppc_core_prepare_to_enter() would do, for an exit that leaves them nothing
 * else to do: no exception is pending, nobody has a request, no signal waits and the
 * scheduler wants nothing. Whoever wants something after that was asked sends an
 * interrupt, which waits, as interrupts are off from the exit to the next entry, and
 * makes the next exit at once. So nothing here may sleep, or wait for a lock: who holds
 * it may wait for our answer to an interrupt. What finds mmu_lock taken maps nothing,
 * and the guest misses again after such an interrupt. For time accounting the guest
 * was never left.
 */
#include <linux/kvm_host.h>
#include <linux/sched/signal.h>
#include <asm/kvm_ppc.h>

#include "booke.h"
#include "e500.h"
#include "e500_bt.h"

#define INST_RFI	0x4c000064

static bool nothing_waits(struct kvm_vcpu *vcpu)
{
	return !vcpu->arch.pending_exceptions && !kvm_request_pending(vcpu) &&
	       !need_resched() && !signal_pending(current) && !vcpu->guest_debug;
}

/* As kvmppc_booke_irqprio_deliver() does for exceptions that nothing masks. */
static void deliver(struct kvm_vcpu *vcpu, unsigned int priority)
{
	u32 msr = vcpu->arch.shared->msr;

	kvmppc_set_srr0(vcpu, kvmppc_get_pc(vcpu));
	kvmppc_set_srr1(vcpu, msr);
	kvmppc_set_pc(vcpu, vcpu->arch.ivpr | vcpu->arch.ivor[priority]);
	kvmppc_set_msr(vcpu, msr & (MSR_CE | MSR_ME | MSR_DE));
}

/* In supervisor mode it is a hypercall, or a mistake. */
static bool system_call(struct kvm_vcpu *vcpu)
{
	if (!(vcpu->arch.shared->msr & MSR_PR))
		return false;
	deliver(vcpu, BOOKE_IRQPRIO_SYSCALL);
	vcpu->stat.syscall_exits++;
	return true;
}

/* To wait for an interrupt is to leave the guest. */
static bool return_from_interrupt(struct kvm_vcpu *vcpu)
{
	u32 msr = vcpu->arch.shared->srr1;

	if ((vcpu->arch.shared->msr & MSR_PR) || vcpu->arch.last_inst != INST_RFI ||
	    (msr & MSR_WE))
		return false;
	kvmppc_set_pc(vcpu, vcpu->arch.shared->srr0);
	kvmppc_set_msr(vcpu, msr);
	vcpu->stat.emulated_inst_exits++;
	return true;
}

/*
 * The guest has a mapping that the shadow TLB lost. If where it leads is known (the
 * small page's reference is valid, or the huge page has been found) nothing has to
 * be looked for in the host's tables, which could sleep.
 */
static bool shadow_miss(struct kvm_vcpu *vcpu, u32 ea, int index)
{
	struct kvmppc_vcpu_e500 *vcpu_e500 = to_e500(vcpu);
	gpa_t gpa = kvmppc_mmu_xlate(vcpu, index, ea);
	struct kvm *kvm = vcpu->kvm;
	bool known;
	int idx;

	idx = srcu_read_lock(&kvm->srcu);
	if (tlbsel_of(index) == 0)
		known = vcpu_e500->gtlb_priv[0][esel_of(index)].ref.flags & E500_TLB_VALID;
	else
		known = kvmppc_bt_block(kvm, gpa >> PAGE_SHIFT, kvm->mmu_invalidate_seq);
	known = known && kvm_is_visible_gfn(kvm, gpa >> PAGE_SHIFT);
	if (known)
		kvmppc_mmu_map(vcpu, ea, gpa, index);
	srcu_read_unlock(&kvm->srcu, idx);
	return known;
}

/* The data page is in no TLB of the guest's, and yet is there. */
static bool data_tlb_miss(struct kvm_vcpu *vcpu)
{
	u32 ea = vcpu->arch.fault_dear;
	int index;

	if (!(vcpu->arch.shared->msr & MSR_PR) && (ea & PAGE_MASK) == vcpu->arch.magic_page_ea)
		return false;
	index = kvmppc_mmu_dtlb_index(vcpu, ea);
	if (index >= 0) {
		if (!shadow_miss(vcpu, ea, index))
			return false;
		vcpu->stat.dtlb_virt_miss_exits++;
		return true;
	}
	kvmppc_mmu_dtlb_miss(vcpu);
	kvmppc_set_dar(vcpu, ea);
	kvmppc_set_esr(vcpu, vcpu->arch.fault_esr);
	deliver(vcpu, BOOKE_IRQPRIO_DTLB_MISS);
	vcpu->stat.dtlb_real_miss_exits++;
	return true;
}

static bool instruction_tlb_miss(struct kvm_vcpu *vcpu)
{
	u32 pc = kvmppc_get_pc(vcpu);
	int index = kvmppc_mmu_itlb_index(vcpu, pc);

	if (index >= 0) {
		if (!shadow_miss(vcpu, pc, index))
			return false;
		vcpu->stat.itlb_virt_miss_exits++;
		return true;
	}
	kvmppc_mmu_itlb_miss(vcpu);
	deliver(vcpu, BOOKE_IRQPRIO_ITLB_MISS);
	vcpu->stat.itlb_real_miss_exits++;
	return true;
}

/**
 * kvmppc_bt_fast_exit - handle an exit wholly, if it is a simple one
 * @vcpu: just out of the guest, interrupts still off
 * @exit_nr: why, as BOOKE_INTERRUPT_*
 *
 * Returns false if nothing was done, or true if the guest is to be entered.
 */
bool kvmppc_bt_fast_exit(struct kvm_vcpu *vcpu, unsigned int exit_nr)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;

	if (!bt || !bt->nareas || vcpu->arch.magic_page_ea != bt->data || !nothing_waits(vcpu) ||
	    (!(vcpu->arch.shared->msr & MSR_PR) &&
	     kvmppc_bt_in_fragments(bt, kvmppc_get_pc(vcpu))))
		return false;
	switch (exit_nr) {
	case BOOKE_INTERRUPT_SYSCALL:
		return system_call(vcpu);
	case BOOKE_INTERRUPT_PROGRAM:
		return return_from_interrupt(vcpu);
	case BOOKE_INTERRUPT_DTLB_MISS:
		return data_tlb_miss(vcpu);
	case BOOKE_INTERRUPT_ITLB_MISS:
		return instruction_tlb_miss(vcpu);
	}
	return false;
}
