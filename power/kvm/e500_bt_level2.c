// SPDX-License-Identifier: GPL-2.0-only
/*
 * Copies of shadow entries of TLB0, a level 2 behind it: a miss of the shadow TLB for which
 * there is a copy is a short exit (e500_bt_short.S).
 *
 * TLB0 has four ways, and its set is chosen by the address alone. The same page of two
 * processes of a guest, and of its kernel the pages that are not in a large entry because
 * of traced code, compete for one set; a workload that goes round five of them misses every
 * time.
 *
 * Invariant: a copy is as valid as its original in this processor's TLB0 would be, were it
 * still there. A shadow PID tells vcpus, address spaces and modes apart. New PIDs are
 * allocated instead of a flush: then a copy is as unreachable as its original; of a
 * whole vcpu they are forgotten all the same (kvmppc_bt_forget_copies()), so that what the host
 * takes away does not depend on that. And KVM removes entries from TLB0: for one
 * address (kvmppc_bt_forget_entry()), for one page of the host (kvmppc_bt_forget_page()), or
 * because the processor has no more PIDs and begins anew (kvmppc_bt_pids_anew()). The latter
 * concerns all vcpus with copies for that processor: those that are not loaded find out
 * when they are. What is copied for another processor is forgotten then, too
 * (kvmppc_bt_level2_load()).
 *
 * Only the vcpu's thread, and its exits, access its copies.
 */
#include <linux/kvm_host.h>
#include <linux/slab.h>
#include <asm/kvm_ppc.h>
#include <asm/mmu.h>

#include "e500.h"
#include "e500_bt.h"

/* What e500_bt_short.S has in its masks. */
#define BT_COPIES	256

/* Where e500_bt_short.S looks for an entry: shadow PIDs are consecutive, addresses often equal. */
static struct kvmppc_bt_copy *place(struct kvm_vcpu *vcpu, u32 tag)
{
	return &vcpu->arch.bt_level2[((tag >> PAGE_SHIFT) ^ tag) % BT_COPIES];
}

/**
 * kvmppc_bt_note_entry - copy an entry that is written into TLB0
 * @vcpu: the vcpu, loaded; preemption is disabled
 * @entry: the entry; MAS1[TID] is a valid shadow PID
 */
void kvmppc_bt_note_entry(struct kvm_vcpu *vcpu, const struct kvm_book3e_206_tlb_entry *entry)
{
	u32 tag = get_tlb_eaddr(entry) | get_tlb_tid(entry);

	if (!kvmppc_bt_enabled(vcpu->kvm))
		return;
	if (!vcpu->arch.bt_level2) {
		/* Without memory all misses take the longer path. */
		vcpu->arch.bt_level2 = kcalloc(BT_COPIES, sizeof(struct kvmppc_bt_copy),
					       GFP_ATOMIC | __GFP_NOWARN);
		if (!vcpu->arch.bt_level2)
			return;
	}
	*place(vcpu, tag) = (struct kvmppc_bt_copy){
		.tag = tag, .mas2 = entry->mas2, .mas3 = entry->mas7_3,
		.mas7 = entry->mas7_3 >> 32,
	};
}

/**
 * kvmppc_bt_forget_entry - an entry is removed from TLB0
 * @vcpu: the vcpu
 * @ea: an address in its page
 * @pid: its shadow PID
 */
void kvmppc_bt_forget_entry(struct kvm_vcpu *vcpu, u32 ea, u32 pid)
{
	u32 tag = (ea & PAGE_MASK) | pid;

	if (vcpu->arch.bt_level2 && place(vcpu, tag)->tag == tag)
		place(vcpu, tag)->tag = 0;
}

/**
 * kvmppc_bt_forget_page - all entries that map a page of the host are removed from TLB0
 * @vcpu: the vcpu
 * @pfn: the page
 */
void kvmppc_bt_forget_page(struct kvm_vcpu *vcpu, kvm_pfn_t pfn)
{
	struct kvmppc_bt_copy *copy = vcpu->arch.bt_level2;
	unsigned int i;

	for (i = 0; copy && i < BT_COPIES; i++, copy++)
		if (((u64)copy->mas7 << 32 | copy->mas3) >> PAGE_SHIFT == pfn)
			copy->tag = 0;
}

/**
 * kvmppc_bt_forget_copies - forget all copies
 * @vcpu: the vcpu
 */
void kvmppc_bt_forget_copies(struct kvm_vcpu *vcpu)
{
	if (vcpu->arch.bt_level2)
		memset(vcpu->arch.bt_level2, 0, BT_COPIES * sizeof(struct kvmppc_bt_copy));
}

/* From now on all that is kept is for this processor and its PIDs. Preemption is disabled. */
static void begin_anew(struct kvm_vcpu *vcpu)
{
	kvmppc_bt_forget_copies(vcpu);
	kvmppc_bt_forget_contexts(vcpu);
	vcpu->arch.bt_cpu = smp_processor_id();
	vcpu->arch.bt_begun = kvmppc_bt_pids_begun();
}

/**
 * kvmppc_bt_pids_anew - this processor's shadow PIDs begin anew, its TLB is empty
 * @vcpu: who needed one more; preemption is disabled
 */
void kvmppc_bt_pids_anew(struct kvm_vcpu *vcpu)
{
	kvmppc_bt_begin_pids();
	begin_anew(vcpu);
}

/**
 * kvmppc_bt_level2_load - keep copies and contexts only if they are for this processor and its PIDs
 * @vcpu: being loaded; preemption is disabled
 */
void kvmppc_bt_level2_load(struct kvm_vcpu *vcpu)
{
	if (vcpu->arch.bt_cpu != smp_processor_id() ||
	    vcpu->arch.bt_begun != kvmppc_bt_pids_begun())
		begin_anew(vcpu);
}

/**
 * kvmppc_bt_free_level2 - free a vcpu's copies
 * @vcpu: the vcpu, which never runs again
 */
void kvmppc_bt_free_level2(struct kvm_vcpu *vcpu)
{
	kfree(vcpu->arch.bt_level2);
	vcpu->arch.bt_level2 = NULL;
}
