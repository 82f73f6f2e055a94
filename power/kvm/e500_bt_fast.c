// SPDX-License-Identifier: GPL-2.0-only
/*
 * A fast path for exits that only change the guest's mode: a system call of its user, a
 * TLB miss that the guest's kernel must handle, and the return from either; and for
 * misses in the shadow TLB only, which are more frequent when entries are split. These
 * exits remain when everything else is translated, because no unprivileged instruction
 * changes the mode or the TLB.
 *
 * Invariant: an exit handled here has the same effect as by the slow path through
 * kvmppc_handle_exit() and kvmppc_core_prepare_to_enter(), and that path would have
 * nothing else to do: no exception, no request and no signal is pending, and no
 * rescheduling is needed. Work that arrives after these checks comes with an interrupt.
 * Interrupts are off from the exit to the next entry, so it stays pending and causes the
 * next exit at once. So does another vcpu's request to stop, which waits for that exit: until
 * then nothing that is read here changes ("Locking" in e500_bt.h). Nothing here may sleep or
 * wait for a lock, whose holder may be waiting for this CPU to handle an interrupt. If mmu_lock
 * is taken, nothing is mapped, and the guest misses again after such an interrupt. Time
 * accounting treats all of this as guest time.
 */
#include <linux/kvm_host.h>
#include <linux/sched/signal.h>
#include <asm/disassemble.h>
#include <asm/kvm_ppc.h>

#include "booke.h"
#include "e500.h"
#include "e500_bt.h"

#define INST_RFI	0x4c000064
#define XOP_TLBSX	914
#define XOP_TLBWE	978

static bool nothing_waits(struct kvm_vcpu *vcpu)
{
	return !vcpu->arch.pending_exceptions && !kvm_request_pending(vcpu) &&
	       !need_resched() && !signal_pending(current) && !vcpu->guest_debug;
}

/* Let the guest go on with the PIDs of the mode that it is in. */
static void use_pids(struct kvm_vcpu *vcpu)
{
	if (!vcpu->arch.bt_pids_known)
		kvmppc_bt_learn_pids(vcpu);
	kvmppc_bt_use_pids(vcpu);
}

/*
 * kvmppc_set_msr() for the most frequent changes: of bits of which there is no other
 * copy, and of the mode, which selects the shadow PIDs.
 */
static void set_msr(struct kvm_vcpu *vcpu, u32 msr)
{
	u32 changed = vcpu->arch.shared->msr ^ msr;

	if ((changed & ~BT_HARMLESS_MSR) || (msr & (MSR_IS | MSR_DS))) {
		kvmppc_set_msr(vcpu, msr);
		return;
	}
	vcpu->arch.shared->msr = msr;
	if (changed & MSR_PR)
		use_pids(vcpu);
}

/* Like kvmppc_booke_irqprio_deliver() for exceptions that cannot be masked. */
static void deliver(struct kvm_vcpu *vcpu, unsigned int priority)
{
	u32 msr = vcpu->arch.shared->msr;

	kvmppc_set_srr0(vcpu, kvmppc_get_pc(vcpu));
	kvmppc_set_srr1(vcpu, msr);
	kvmppc_set_pc(vcpu, vcpu->arch.ivpr | vcpu->arch.ivor[priority]);
	set_msr(vcpu, msr & (MSR_CE | MSR_ME | MSR_DE));
}

/* In supervisor mode it is a hypercall or an error: leave it to the slow path. */
static bool system_call(struct kvm_vcpu *vcpu)
{
	if (!(vcpu->arch.shared->msr & MSR_PR))
		return false;
	deliver(vcpu, BOOKE_IRQPRIO_SYSCALL);
	vcpu->stat.syscall_exits++;
	return true;
}

/* MSR[WE] leaves the guest; MSR[DS] needs kvmppc_bt_msr_changed(), which may sleep. */
static bool return_from_interrupt(struct kvm_vcpu *vcpu)
{
	u32 msr = vcpu->arch.shared->srr1;

	if (msr & (MSR_WE | MSR_DS))
		return false;
	kvmppc_set_pc(vcpu, vcpu->arch.shared->srr0);
	set_msr(vcpu, msr);
	return true;
}

/*
 * Instructions that only change the guest's TLB or select an entry of it. If an entry's
 * page cannot be looked up here, it is not mapped in advance, but at the next miss.
 */
static bool is_tlb_instruction(u32 inst)
{
	if (get_op(inst) != 31)
		return false;
	switch (get_xop(inst)) {
	case XOP_TLBWE:
	case XOP_TLBSX:
		return true;
	case OP_31_XOP_MTSPR:
		return get_sprn(inst) == SPRN_PID || get_sprn(inst) == SPRN_MMUCSR0;
	}
	return false;
}

/* Clearing a TLB0 that is larger than the processor's takes too long with interrupts off. */
static bool takes_long(struct kvm_vcpu *vcpu, u32 inst)
{
	return get_xop(inst) == OP_31_XOP_MTSPR && get_sprn(inst) == SPRN_MMUCSR0 &&
	       to_e500(vcpu)->gtlb_params[0].entries > E500V2_TLB0_SIZE;
}

/* Whether a flush of TLB1 would invalidate an entry. */
static bool flushes_tlb1(struct kvm_vcpu *vcpu)
{
	const struct kvm_book3e_206_tlb_entry *entry = get_entry(to_e500(vcpu), 1, 0);
	unsigned int i;

	for (i = 0; i < to_e500(vcpu)->gtlb_params[1].entries; i++, entry++)
		if (get_tlb_v(entry) && !get_tlb_iprot(entry))
			return true;
	return false;
}

/* Sites may depend on what TLB1 maps. Undoing them accesses memory and may sleep. */
static bool changes_tlb1(struct kvm_vcpu *vcpu, u32 inst)
{
	if (get_xop(inst) == XOP_TLBWE)
		return get_tlb_tlbsel(vcpu) == 1;
	return get_xop(inst) == OP_31_XOP_MTSPR && get_sprn(inst) == SPRN_MMUCSR0 &&
	       (kvmppc_get_gpr(vcpu, get_rs(inst)) & MMUCSR0_TLB1FI) && flushes_tlb1(vcpu);
}

static bool is_write_of_pid(u32 inst)
{
	return get_op(inst) == 31 && get_xop(inst) == OP_31_XOP_MTSPR &&
	       get_sprn(inst) == SPRN_PID;
}

/* Its exits are counted, and it is translated, on the slow path only. */
static bool shall_become_site(struct kvm_vcpu *vcpu, u32 inst)
{
	const struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	u32 pc = kvmppc_get_pc(vcpu);

	return is_write_of_pid(inst) && bt->nareas && !kvmppc_bt_in_fragments(bt, pc) &&
	       kvmppc_bt_may_become_site(bt, pc, inst);
}

static bool tlb_instruction(struct kvm_vcpu *vcpu, u32 inst)
{
	struct kvmppc_ops *ops = vcpu->kvm->arch.kvm_ops;
	int advance = 1;

	if (takes_long(vcpu, inst) || changes_tlb1(vcpu, inst) || shall_become_site(vcpu, inst))
		return false;
	if (get_xop(inst) == OP_31_XOP_MTSPR) {
		if (ops->emulate_mtspr(vcpu, get_sprn(inst), kvmppc_get_gpr(vcpu, get_rs(inst))))
			return false;
		/* The guest's kernel has changed to another process, and will return to it. */
		if (!vcpu->arch.bt_pids_known && !(vcpu->arch.shared->msr & (MSR_IS | MSR_DS)))
			use_pids(vcpu);
	} else if (ops->emulate_op(vcpu, inst, &advance)) {
		return false;
	}
	kvmppc_set_pc(vcpu, kvmppc_get_pc(vcpu) + 4);
	return true;
}

/* All other instructions need the slow path. */
static bool privileged_instruction(struct kvm_vcpu *vcpu)
{
	u32 inst = vcpu->arch.last_inst;
	bool done = false;

	if (vcpu->arch.shared->msr & MSR_PR)
		return false;
	if (inst == INST_RFI)
		done = return_from_interrupt(vcpu);
	else if (is_tlb_instruction(inst))
		done = tlb_instruction(vcpu, inst);
	vcpu->stat.emulated_inst_exits += done;
	return done;
}

/*
 * The guest's TLB entry for an address, as kvmppc_mmu_itlb_index() and
 * kvmppc_mmu_dtlb_index() find it. Of the kernel's few large ones it is usually the same.
 */
static int tlb_index(struct kvm_vcpu *vcpu, u32 ea, bool fetch)
{
	unsigned int as = !!(vcpu->arch.shared->msr & (fetch ? MSR_IS : MSR_DS));
	struct kvmppc_vcpu_e500 *vcpu_e500 = to_e500(vcpu);
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	struct kvm_book3e_206_tlb_entry *entry;
	int index, esel = READ_ONCE(bt->esel);

	/* Another vcpu may have found it, whose TLB is another. */
	if (esel < vcpu_e500->gtlb_params[1].entries) {
		entry = get_entry(vcpu_e500, 1, esel);
		if (get_tlb_v(entry) && !get_tlb_tid(entry) && get_tlb_ts(entry) == as &&
		    ea >= get_tlb_eaddr(entry) && ea <= get_tlb_end(entry))
			return index_of(1, esel);
	}
	index = fetch ? kvmppc_mmu_itlb_index(vcpu, ea) : kvmppc_mmu_dtlb_index(vcpu, ea);
	if (index >= 0 && tlbsel_of(index) == 1)
		WRITE_ONCE(bt->esel, esel_of(index));
	return index;
}

/*
 * The guest has a mapping that is no longer in the shadow TLB. If its host page is
 * known (the small page's reference is valid, or the huge page was found before), the
 * host's page tables, whose walk could sleep, need not be walked.
 */
static bool shadow_miss(struct kvm_vcpu *vcpu, u32 ea, int index)
{
	struct kvmppc_vcpu_e500 *vcpu_e500 = to_e500(vcpu);
	gpa_t gpa = kvmppc_mmu_xlate(vcpu, index, ea);
	struct kvm *kvm = vcpu->kvm;
	bool known;
	int idx;

	idx = srcu_read_lock(&kvm->srcu);
	known = (tlbsel_of(index) == 0 &&
		 (vcpu_e500->gtlb_priv[0][esel_of(index)].ref.flags & E500_TLB_VALID)) ||
		kvmppc_bt_knows_block(kvm, gpa >> PAGE_SHIFT);
	/* An access to what is no longer memory is emulated by the VMM. */
	known = known && kvm_is_visible_gfn(kvm, gpa >> PAGE_SHIFT);
	if (known)
		kvmppc_mmu_map(vcpu, ea, gpa, index);
	srcu_read_unlock(&kvm->srcu, idx);
	return known;
}

/* The data page is mapped although no TLB entry of the guest maps it. */
static bool data_tlb_miss(struct kvm_vcpu *vcpu)
{
	u32 ea = vcpu->arch.fault_dear;
	int index;

	if (!(vcpu->arch.shared->msr & MSR_PR) && (ea & PAGE_MASK) == vcpu->arch.magic_page_ea)
		return false;
	index = tlb_index(vcpu, ea, false);
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
	int index = tlb_index(vcpu, pc, true);

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

static bool simple_exit(struct kvm_vcpu *vcpu, unsigned int exit_nr)
{
	switch (exit_nr) {
	case BOOKE_INTERRUPT_SYSCALL:
		return system_call(vcpu);
	case BOOKE_INTERRUPT_PROGRAM:
		return privileged_instruction(vcpu);
	case BOOKE_INTERRUPT_DTLB_MISS:
		return data_tlb_miss(vcpu);
	case BOOKE_INTERRUPT_ITLB_MISS:
		return instruction_tlb_miss(vcpu);
	}
	return false;
}

/* A fragment has the guest's own instruction for it: its effect is the same there. */
static bool writes_pid(struct kvm_vcpu *vcpu, unsigned int exit_nr)
{
	return exit_nr == BOOKE_INTERRUPT_PROGRAM && is_write_of_pid(vcpu->arch.last_inst);
}

/*
 * Whether the guest is one whose exits may be handled here, and is not in a fragment from
 * which it must be moved.
 */
static bool may_be_fast(struct kvm_vcpu *vcpu, unsigned int exit_nr)
{
	const struct kvmppc_bt *bt = vcpu->kvm->arch.bt;

	if (!bt->nareas)
		return bt->mode == BT_MODE_EXITS;
	return vcpu->arch.magic_page_ea == bt->data &&
	       ((vcpu->arch.shared->msr & MSR_PR) ||
		!kvmppc_bt_in_fragments(bt, kvmppc_get_pc(vcpu)) || writes_pid(vcpu, exit_nr));
}

/**
 * kvmppc_bt_fast_exit - handle a simple exit completely
 * @vcpu: just out of the guest, interrupts still off
 * @exit_nr: why, as BOOKE_INTERRUPT_*
 *
 * The following exits may be handled even earlier, in e500_bt_short.S, until one
 * arrives here again.
 *
 * Returns false if nothing was done, or true if the guest is to be entered.
 */
bool kvmppc_bt_fast_exit(struct kvm_vcpu *vcpu, unsigned int exit_nr)
{
	if (!vcpu->kvm->arch.bt)
		return false;
	kvmppc_bt_find_mode(vcpu);
	if (!may_be_fast(vcpu, exit_nr) || !nothing_waits(vcpu) || !simple_exit(vcpu, exit_nr)) {
		kvmppc_bt_end_short_exits(vcpu);
		return false;
	}
	kvmppc_bt_begin_short_exits(vcpu);
	return true;
}
