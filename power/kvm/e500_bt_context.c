// SPDX-License-Identifier: GPL-2.0-only
/*
 * The shadow PIDs of the address spaces that a guest has used last, so that its change to
 * one of them, a write of PID, is a short exit (e500_bt_short.S).
 *
 * Invariant: what is known of a guest's PID are the shadow PIDs that kvmppc_e500_get_sid()
 * would return for it, in address space 0, on the processor where the vcpu is loaded. They
 * are forgotten when KVM gives the guest's PID others, instead of a flush
 * (kvmppc_bt_forget_context(), kvmppc_bt_forget_contexts()), and like copies of entries when
 * the vcpu is loaded elsewhere or the processor's shadow PIDs begin anew (e500_bt_level2.c). The
 * same holds for those of the guest's PID 0 in bt_pids, which are valid in each of its
 * processes. A shadow PID of 0 is none: the host's own.
 *
 * Only the vcpu's thread, and its exits, access them.
 */
#include <linux/kvm_host.h>
#include <linux/percpu.h>
#include <linux/string.h>

#include <asm/kvm_ppc.h>

#include "e500.h"
#include "e500_bt.h"

/* What e500_bt_short.S has in its masks, and where it finds the value that is written. */
static_assert(BT_CONTEXTS == 16 && sizeof(struct kvmppc_bt_contexts) == 3 * BT_CONTEXTS * 4);
static_assert(BT_PID_OFFSET == 0x808);

static DEFINE_PER_CPU(u32, pids_begun);

/**
 * kvmppc_bt_pids_begun - how often this processor's shadow PIDs have begun anew
 *
 * Preemption is disabled. All that were valid at one number are, until it changes.
 */
u32 kvmppc_bt_pids_begun(void)
{
	return __this_cpu_read(pids_begun);
}

/**
 * kvmppc_bt_begin_pids - all of this processor's shadow PIDs are invalid
 *
 * Preemption is disabled. Only the caller's vcpu is loaded here; the others compare
 * kvmppc_bt_pids_begun() when they are (kvmppc_bt_level2_load()).
 */
void kvmppc_bt_begin_pids(void)
{
	__this_cpu_inc(pids_begun);
}

/* Both shadow PIDs of the guest's supervisor, and of its user, for a PID of the guest's. */
static void get_sids(struct kvm_vcpu *vcpu, u32 pid, u32 *supervisor, u32 *user)
{
	*supervisor = kvmppc_e500_get_sid(to_e500(vcpu), 0, pid, 0, 1);
	*user = kvmppc_e500_get_sid(to_e500(vcpu), 0, pid, 1, 1);
}

static void learn(struct kvm_vcpu *vcpu)
{
	struct kvmppc_bt_contexts *contexts = &vcpu->arch.bt_contexts;
	u32 pid = get_cur_pid(vcpu), at = pid % BT_CONTEXTS;
	u32 (*pids)[2] = vcpu->arch.bt_pids;

	if (contexts->pid[at] != pid || !contexts->shadow[0][at]) {
		contexts->pid[at] = pid;
		get_sids(vcpu, pid, &contexts->shadow[0][at], &contexts->shadow[1][at]);
	}
	pids[0][0] = contexts->shadow[0][at];
	pids[1][0] = contexts->shadow[1][at];
	if (!pids[0][1])
		get_sids(vcpu, 0, &pids[0][1], &pids[1][1]);
	vcpu->arch.bt_pid = vcpu->arch.pid;
}

/**
 * kvmppc_bt_learn_pids - know both pairs of shadow PIDs of the address space that a guest is in
 * @vcpu: the vcpu; preemption is disabled
 *
 * Allocating one may invalidate all, also those found before, if this processor's begin anew.
 * Then all were forgotten, and those found since are valid.
 */
void kvmppc_bt_learn_pids(struct kvm_vcpu *vcpu)
{
	u32 begun;

	do {
		begun = kvmppc_bt_pids_begun();
		learn(vcpu);
	} while (begun != kvmppc_bt_pids_begun());
	vcpu->arch.bt_pids_known = true;
}

/**
 * kvmppc_bt_forget_context - a guest's PID is about to have other shadow PIDs
 * @vcpu: the vcpu
 * @pid: the guest's PID
 */
void kvmppc_bt_forget_context(struct kvm_vcpu *vcpu, u32 pid)
{
	struct kvmppc_bt_contexts *contexts = &vcpu->arch.bt_contexts;

	if (contexts->pid[pid % BT_CONTEXTS] == pid)
		contexts->shadow[0][pid % BT_CONTEXTS] = 0;
	if (pid == 0)
		vcpu->arch.bt_pids[0][1] = 0;
}

/**
 * kvmppc_bt_forget_contexts - all of a guest's PIDs are about to have other shadow PIDs
 * @vcpu: the vcpu
 */
void kvmppc_bt_forget_contexts(struct kvm_vcpu *vcpu)
{
	memset(vcpu->arch.bt_contexts.shadow[0], 0, sizeof(vcpu->arch.bt_contexts.shadow[0]));
	vcpu->arch.bt_pids[0][1] = 0;
}
