/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Exits that only change the guest between its user and its supervisor mode: a
 * system call, and rfi. Two of them are a system call's whole cost, so they are
 * handled where they arrive, before any register of the host's is restored.
 *
 * Invariant: an exit handled here has the same effect as by e500_bt_fast.c, which sets
 * vcpu->arch.bt_short when the state is simple enough. e500_bt_fast.c clears it at every
 * exit that it handles; it is set only while the shadow PIDs in bt_pids are valid
 * and the guest's address space is 0. Conditions that may change without an exit are
 * checked again here: pending exceptions, requests, a signal, rescheduling. If a check
 * fails, nothing has been changed yet, and the exit takes the normal path.
 *
 * The other steps of lightweight_exit undo effects of host code that has run, and none
 * has. Debug events of the host cannot occur: MSR[DE] takes the normal path. SPRG4 to 7
 * are as the guest's last mtspr left them; a guest that writes them in the shared page
 * sees it after its next longer exit.
 *
 * No register but r3 to r9, CTR and cr0 is touched, and all are the guest's again at
 * the end. Loads and stores are of the vcpu and its shared page, which the host's
 * TLB1 always maps, whatever PID is.
 */
#include <linux/linkage.h>
#include <linux/threads.h>
#include <asm/asm-offsets.h>
#include <asm/kvm_asm.h>
#include <asm/page.h>
#include <asm/ppc_asm.h>
#include <asm/reg.h>
#include <asm/thread_info.h>

#define GUEST_GPR(n)	(VCPU_GPRS + (n * 4))
/* The low word of a field of 64 bits. */
#define LOW		4

#define INST_RFI_HI	0x4c00
#define INST_RFI_LO	0x0064

/* The MSR bits that an exception keeps; with MSR[DE] it is not handled here. */
#define KEPT		(MSR_CE | MSR_ME)
/* Bits that are kept in the shared page only, and the mode. */
#define HARMLESS	(MSR_CE | MSR_EE | MSR_ME | MSR_RI | MSR_PR)
#define OTHERS_HI	(~HARMLESS >> 16 & 0xffff)
#define OTHERS_LO	(~HARMLESS & 0xffff)

#define MUST_LEAVE	(_TIF_SIGPENDING | _TIF_NEED_RESCHED | _TIF_NOTIFY_SIGNAL)

/* Increment a counter of 64 bits, without the carry bit, which is in the guest's XER. */
.macro COUNT offset
	lwz	r6, \offset + LOW(r4)
	addi	r6, r6, 1
	stw	r6, \offset + LOW(r4)
	cmpwi	r6, 0
	bne	1f
	lwz	r6, \offset(r4)
	addi	r6, r6, 1
	stw	r6, \offset(r4)
1:
.endm

/*
 * From the handlers in booke_interrupts.S:
 *  r3: guest's PC
 *  r4: vcpu, where the guest's r3 to r6 and CTR are
 *  r5: exit number
 */
SYM_FUNC_START(kvmppc_bt_short_exit)
	stw	r7, GUEST_GPR(7)(r4)
	stw	r8, GUEST_GPR(8)(r4)
	stw	r9, GUEST_GPR(9)(r4)
	mfcr	r8

	lwz	r6, VCPU_BT_SHORT(r4)
	cmpwi	r6, 0
	beq	.Llong
	lwz	r6, VCPU_PENDING_EXCEPTIONS(r4)
	lwz	r7, VCPU_REQUESTS(r4)
	lwz	r9, VCPU_REQUESTS + LOW(r4)
	or	r6, r6, r7
	or.	r6, r6, r9
	bne	.Llong
	mfspr	r6, SPRN_SPRG_THREAD
	lwz	r6, THREAD_TO_TI_FLAGS(r6)
	andi.	r6, r6, MUST_LEAVE
	bne	.Llong

	lwz	r6, VCPU_SHARED(r4)
	lwz	r7, VCPU_SHARED_MSR + LOW(r6)
	andi.	r9, r7, MSR_PR
	bne	.Luser

	/* Supervisor: a hypercall takes the long way, rfi is done here. */
	cmpwi	r5, BOOKE_INTERRUPT_PROGRAM
	bne	.Llong
	/* Like kvmppc_resume_host: the instruction is in the guest's memory. */
	mfmsr	r5
	ori	r9, r5, MSR_DS
	mtmsr	r9
	isync
	lwz	r9, 0(r3)
	mtmsr	r5
	isync
	li	r5, BOOKE_INTERRUPT_PROGRAM
	xoris	r9, r9, INST_RFI_HI
	cmplwi	r9, INST_RFI_LO
	bne	.Llong

	lwz	r5, VCPU_SHARED_SRR1 + LOW(r6)
	xor	r9, r5, r7
	andis.	r7, r9, OTHERS_HI
	bne	.Llong_program
	andi.	r7, r9, OTHERS_LO
	bne	.Llong_program
	lwz	r3, VCPU_SHARED_SRR0 + LOW(r6)
	stw	r5, VCPU_SHARED_MSR + LOW(r6)
	/* MSR[PR], the index: times the size of a pair. */
	rlwinm	r9, r5, 32 - (MSR_PR_LG - 3), 28, 28
	COUNT	VCPU_STAT_EMULATED
	b	.Lenter

.Luser:
	cmpwi	r5, BOOKE_INTERRUPT_SYSCALL
	bne	.Llong
	lis	r5, KEPT@h
	ori	r5, r5, KEPT@l
	and	r5, r5, r7
	xor	r9, r5, r7
	andis.	r6, r9, OTHERS_HI
	bne	.Llong_syscall
	andi.	r6, r9, OTHERS_LO
	bne	.Llong_syscall
	lwz	r6, VCPU_SHARED(r4)
	stw	r3, VCPU_SHARED_SRR0 + LOW(r6)
	stw	r7, VCPU_SHARED_SRR1 + LOW(r6)
	stw	r5, VCPU_SHARED_MSR + LOW(r6)
	lwz	r3, VCPU_IVPR(r4)
	lwz	r7, VCPU_IVOR_SYSCALL(r4)
	or	r3, r3, r7
	li	r9, 0
	COUNT	VCPU_STAT_SYSCALL

.Lenter:
	add	r9, r9, r4
	lwz	r5, VCPU_BT_PIDS(r9)
	lwz	r7, VCPU_BT_PIDS + 4(r9)
	stw	r5, VCPU_SHADOW_PID(r4)
	stw	r7, VCPU_SHADOW_PID1(r4)
	mtspr	SPRN_PID, r5
	mtspr	SPRN_PID1, r7
	mtspr	SPRN_SRR0, r3
	/* SRR1 is what the guest's real MSR was, and will be. */
	lwz	r6, VCPU_CTR(r4)
	mtctr	r6
	mtcrf	0x80, r8
	lwz	r9, GUEST_GPR(9)(r4)
	lwz	r8, GUEST_GPR(8)(r4)
	lwz	r7, GUEST_GPR(7)(r4)
	lwz	r6, GUEST_GPR(6)(r4)
	lwz	r5, GUEST_GPR(5)(r4)
	lwz	r3, GUEST_GPR(3)(r4)
	lwz	r4, GUEST_GPR(4)(r4)
	/* Synchronises the context, PID included. */
	rfi

.Llong_program:
	li	r5, BOOKE_INTERRUPT_PROGRAM
	b	.Llong
.Llong_syscall:
	li	r5, BOOKE_INTERRUPT_SYSCALL
.Llong:
	mtcrf	0x80, r8
	lwz	r9, GUEST_GPR(9)(r4)
	lwz	r8, GUEST_GPR(8)(r4)
	lwz	r7, GUEST_GPR(7)(r4)
	b	kvmppc_resume_host
SYM_FUNC_END(kvmppc_bt_short_exit)
