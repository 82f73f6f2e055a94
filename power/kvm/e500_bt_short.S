/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Exits that are handled where they arrive, before any register of the host's is
 * restored, because little has to be done: those that only change the guest between its
 * user and its supervisor mode, a system call and rfi, of which every system call has
 * both; a miss of the shadow TLB for which there is a copy of an entry
 * (e500_bt_level2.c); and a translated write of PID whose shadow PIDs are known
 * (e500_bt_context.c).
 *
 * e500_bt_shorten.c copies this code behind KVM's exception handlers, and has the
 * handlers of these interrupts begin with a branch to it. So nothing here may depend on
 * where it is: branches stay inside of the copy, or go through CTR.
 *
 * Invariant: an exit handled here has the same effect as by e500_bt_fast.c, but for a
 * guest that has itself written bits into the MSR in its shared page which it must not
 * write there. If a comparison fails, nothing has been changed yet, and the exit takes
 * the normal path.
 *
 * For all but misses, e500_bt_shorten.c sets vcpu->arch.bt_short to the guest's
 * shared page, and with it bt_msr and bt_syscall, when the state is simple enough. At all
 * other times bt_short is the address of kvmppc_bt_nobody, whose MSR no guest has, so
 * that the comparisons below fail. The shadow PIDs in bt_pids and bt_contexts are valid
 * whenever bt_short is the guest's, and bt_pid is the guest's PID then, of which vcpu->arch.pid
 * learns at the next longer exit.
 *
 * What may begin to wait without an exit of this vcpu (an exception, a request, a signal,
 * rescheduling) comes with an interrupt, as it must for a guest that does not exit at
 * all. Nothing waited when bt_short was set; while something does, a miss changes nothing
 * that it waits for. So nothing is asked here.
 *
 * The other steps of lightweight_exit undo effects of host code that has run, and none
 * has. Debug events that occur here are the guest's, and KVM's debug handler clears them.
 * SPRG4 to 7 are as the guest's last mtspr left them; a guest that writes them in the
 * shared page sees it after its next longer exit.
 *
 * No register but r3 to r7 and cr0 is touched, and all are the guest's again at the end.
 * Loads and stores are of the vcpu, its shared page (or kvmppc_bt_nobody) and its copies,
 * and of the thread, all of which the host's TLB1 always maps, whatever PID is; but for
 * the guest's instructions (GET_INST).
 */
#include <linux/linkage.h>
#include <asm/asm-offsets.h>
#include <asm/kvm_asm.h>
#include <asm/mmu.h>
#include <asm/page.h>
#include <asm/ppc_asm.h>
#include <asm/reg.h>

#define GUEST_GPR(n)	(VCPU_GPRS + (n * 4))
/* The low word of a field of 64 bits. */
#define LOW		4

#define INST_RFI_HI	0x4c00
#define INST_RFI_LO	0x0064
/* mtspr PID, r0 */
#define INST_MTPID_HI	0x7c10
#define INST_MTPID_LO	0x0ba6

/* As in e500_bt.h, and e500_bt_context.c compares: bits of an address in a slot, of a context. */
#define BT_SLOT_LG	6
#define BT_CONTEXTS_LG	4
#define BT_PID_OFFSET	0x808
#define BT_CONTEXT_SHADOW(mode)	(VCPU_BT_CONTEXTS + (((mode) + 1) << (BT_CONTEXTS_LG + 2)))

/* Bits that are kept in the shared page only, and the mode. */
#define HARMLESS	(MSR_CE | MSR_EE | MSR_ME | MSR_RI | MSR_PR)
#define OTHERS_HI	(~HARMLESS >> 16 & 0xffff)
#define OTHERS_LO	(~HARMLESS & 0xffff)

/* What a copied entry's MAS1 is, but for the shadow PID. */
#define LEVEL2_MAS1	(MAS1_VALID | MAS1_TS | MAS1_TSIZE(BOOK3E_PAGESZ_4K))

/* bt_pids and bt_msr have one of each; bt_short_exits has two more. */
#define SUPERVISOR	0
#define USER		1
#define DATA_MISS	2
#define FETCH_MISS	3
#define BT_MSR(mode)	(VCPU_BT_MSR + (mode) * 4)
#define BT_PID(mode)	(VCPU_BT_PIDS + (mode) * 8)
#define BT_PID1(mode)	(BT_PID(mode) + 4)
#define BT_EXITS(kind)	(VCPU_BT_SHORT_EXITS + (kind) * 4)

/* Get the vcpu into r4, and free r3, r5 and r6; r3 keeps the guest's CR. */
.macro BEGIN
	mtspr	SPRN_SPRG_WSCRATCH0, r4
	mfspr	r4, SPRN_SPRG_THREAD
	lwz	r4, THREAD_KVM_VCPU(r4)
	stw	r3, GUEST_GPR(3)(r4)
	stw	r5, GUEST_GPR(5)(r4)
	stw	r6, GUEST_GPR(6)(r4)
	mfcr	r3
.endm

/* Get the MSR of the guest, or kvmppc_bt_nobody's, into r5. */
.macro GET_MSR
	lwz	r6, VCPU_BT_SHORT(r4)
	lwz	r5, VCPU_SHARED_MSR + LOW(r6)
.endm

/*
 * The guest's instruction, or another of its page, into r5. Like kvmppc_resume_host: it is in
 * the guest's address space, where an entry of the TLB has just been used for it.
 */
.macro GET_INST offset
	mfspr	r5, SPRN_SRR0
	mfmsr	r6
	ori	r6, r6, MSR_DS
	mtmsr	r6
	isync
	lwz	r5, \offset(r5)
	xori	r6, r6, MSR_DS
	mtmsr	r6
	isync
.endm

/* Whether the guest's instruction is rfi, into cr0; r5 is what it differs in. */
.macro IS_RFI
	GET_INST 0
	xoris	r5, r5, INST_RFI_HI
	cmplwi	r5, INST_RFI_LO
.endm

/* Count an exit, for e500_bt_shorten.c to add to the statistics. */
.macro COUNT kind
	lwz	r6, BT_EXITS(\kind)(r4)
	addi	r6, r6, 1
	stw	r6, BT_EXITS(\kind)(r4)
.endm

/*
 * Go on in the guest: SRR0 says where, and SRR1 is what the guest's real MSR was, and
 * will be. rfi synchronises the context, PID included.
 */
.macro RESUME
	mtcrf	0x80, r3
	lwz	r6, GUEST_GPR(6)(r4)
	lwz	r5, GUEST_GPR(5)(r4)
	lwz	r3, GUEST_GPR(3)(r4)
	mfspr	r4, SPRN_SPRG_RSCRATCH0
	rfi
.endm

/* Go on in the guest in a mode. */
.macro RESUME_IN mode
	lwz	r6, BT_PID(\mode)(r4)
	lwz	r5, BT_PID1(\mode)(r4)
	mtspr	SPRN_PID, r6
	mtspr	SPRN_PID1, r5
	RESUME
.endm

/*
 * Find the copy of the entry that maps the page of an address in r7, as kvmppc_bt_note_entry()
 * has put it there; its address in r6, cr0 says whether there is one. In r7 is the page and the
 * PID then: of the guest's process, or for the last quarter of the addresses, Linux' kernel's,
 * of all processes. A copy for the other PID is not found, which is right, but takes longer.
 */
.macro FIND_COPY
	rlwinm	r5, r7, 2, 30, 31
	cmplwi	r5, 3
	mfspr	r5, SPRN_PID
	bne	3f
	mfspr	r5, SPRN_PID1
3:	rlwimi	r7, r5, 0, 20, 31
	rotlwi	r5, r7, 12
	xor	r5, r5, r7
	rlwinm	r5, r5, 24, 20, 27
	lwzux	r5, r6, r5
	cmplw	r5, r7
.endm

/* The MAS registers are as a miss has set them: MAS0 names TLB0 and a victim in it. */
.macro REFILL address kind exit
	BEGIN
	lwz	r6, VCPU_BT_LEVEL2(r4)
	cmplwi	r6, 0
	beq	1f
	stw	r7, GUEST_GPR(7)(r4)
	mfspr	r7, \address
	FIND_COPY
	beq	2f
	lwz	r7, GUEST_GPR(7)(r4)
1:	li	r5, \exit
	b	.Llong

2:	lis	r5, LEVEL2_MAS1@h
	ori	r5, r5, LEVEL2_MAS1@l
	rlwimi	r5, r7, 16, 8, 15
	mtspr	SPRN_MAS1, r5
	lwz	r5, BT_COPY_MAS2(r6)
	mtspr	SPRN_MAS2, r5
	lwz	r5, BT_COPY_MAS3(r6)
	mtspr	SPRN_MAS3, r5
	lwz	r5, BT_COPY_MAS7(r6)
	mtspr	SPRN_MAS7, r5
	isync
	tlbwe
	COUNT	\kind
	lwz	r7, GUEST_GPR(7)(r4)
	RESUME
.endm

SYM_FUNC_START(kvmppc_bt_short_start)
SYM_FUNC_END(kvmppc_bt_short_start)

SYM_FUNC_START(kvmppc_bt_short_data_miss)
	REFILL	SPRN_DEAR, DATA_MISS, BOOKE_INTERRUPT_DTLB_MISS
SYM_FUNC_END(kvmppc_bt_short_data_miss)

SYM_FUNC_START(kvmppc_bt_short_fetch_miss)
	REFILL	SPRN_SRR0, FETCH_MISS, BOOKE_INTERRUPT_ITLB_MISS
SYM_FUNC_END(kvmppc_bt_short_fetch_miss)

SYM_FUNC_START(kvmppc_bt_short_syscall)
	BEGIN
	GET_MSR
	lwz	r6, BT_MSR(USER)(r4)
	cmplw	r5, r6
	bne	.Llong_syscall
	lwz	r6, VCPU_SHARED(r4)
	stw	r5, VCPU_SHARED_SRR1 + LOW(r6)
	lwz	r5, BT_MSR(SUPERVISOR)(r4)
	stw	r5, VCPU_SHARED_MSR + LOW(r6)
	mfspr	r5, SPRN_SRR0
	stw	r5, VCPU_SHARED_SRR0 + LOW(r6)
	lwz	r5, VCPU_BT_SYSCALL(r4)
	mtspr	SPRN_SRR0, r5
	COUNT	USER
	RESUME_IN SUPERVISOR
.Llong_syscall:
	li	r5, BOOKE_INTERRUPT_SYSCALL
	b	.Llong
SYM_FUNC_END(kvmppc_bt_short_syscall)

/*
 * The return to the user with the MSR that it had, from where nothing but a system call has
 * changed the MSR, has the fewest steps.
 */
SYM_FUNC_START(kvmppc_bt_short_program)
	BEGIN
	GET_MSR
	lwz	r6, BT_MSR(SUPERVISOR)(r4)
	cmplw	r5, r6
	bne	.Lother_msr
	IS_RFI
	bne	.Lnot_rfi
	lwz	r6, VCPU_SHARED(r4)
	lwz	r5, VCPU_SHARED_SRR1 + LOW(r6)
	lwz	r6, BT_MSR(USER)(r4)
	cmplw	r5, r6
	bne	.Lrfi
	lwz	r6, VCPU_SHARED(r4)
	stw	r5, VCPU_SHARED_MSR + LOW(r6)
	lwz	r5, VCPU_SHARED_SRR0 + LOW(r6)
	mtspr	SPRN_SRR0, r5
	COUNT	SUPERVISOR
	RESUME_IN USER

	/* kvmppc_bt_nobody has MSR[PR], too. */
.Lother_msr:
	andi.	r6, r5, MSR_PR
	bne	.Llong_program
	IS_RFI
	bne	.Lnot_rfi

	/* To either mode, as long as no other bit of the MSR changes. */
.Lrfi:
	lwz	r6, VCPU_SHARED(r4)
	lwz	r5, VCPU_SHARED_MSR + LOW(r6)
	lwz	r6, VCPU_SHARED_SRR1 + LOW(r6)
	xor	r5, r5, r6
	andis.	r6, r5, OTHERS_HI
	bne	.Llong_program
	andi.	r6, r5, OTHERS_LO
	bne	.Llong_program
	lwz	r6, VCPU_SHARED(r4)
	lwz	r5, VCPU_SHARED_SRR1 + LOW(r6)
	stw	r5, VCPU_SHARED_MSR + LOW(r6)
	lwz	r6, VCPU_SHARED_SRR0 + LOW(r6)
	mtspr	SPRN_SRR0, r6
	COUNT	SUPERVISOR
	/* MSR[PR], the index: times the size of a pair. */
	rlwinm	r5, r5, 32 - (MSR_PR_LG - 3), 28, 28
	add	r5, r5, r4
	lwz	r6, BT_PID(0)(r5)
	lwz	r5, BT_PID1(0)(r5)
	mtspr	SPRN_PID, r6
	mtspr	SPRN_PID1, r5
	RESUME

	/*
	 * A write of PID, in a fragment (write_pid() in e500_bt_translate.c): the second
	 * instruction of its slot, after the one that has put the value into the data page.
	 */
.Lnot_rfi:
	rlwinm	r6, r5, 0, 11, 5
	xoris	r6, r6, INST_MTPID_HI ^ INST_RFI_HI
	cmplwi	r6, INST_MTPID_LO
	bne	.Llong_program
	mfspr	r6, SPRN_SRR0
	rlwinm	r6, r6, 0, 32 - BT_SLOT_LG, 31
	cmplwi	r6, 4
	bne	.Llong_program
	lwz	r6, VCPU_BT_HANDOVER(r4)
	cmplwi	r6, 0
	beq	.Llong_program
	stw	r7, GUEST_GPR(7)(r4)
	xoris	r7, r5, INST_RFI_HI
	GET_INST -4
	xor	r5, r5, r7
	lwz	r6, VCPU_BT_HANDOVER(r4)
	cmplw	r5, r6
	bne	.Llong_pid
	lwz	r6, VCPU_SHARED(r4)
	lwz	r5, BT_PID_OFFSET(r6)
	/* Which of the contexts: times the size of a word. */
	rlwinm	r6, r5, 2, 30 - BT_CONTEXTS_LG, 29
	add	r6, r6, r4
	lwz	r7, VCPU_BT_CONTEXTS(r6)
	cmplw	r7, r5
	bne	.Llong_pid
	lwz	r7, BT_CONTEXT_SHADOW(SUPERVISOR)(r6)
	cmplwi	r7, 0
	beq	.Llong_pid
	stw	r5, VCPU_BT_PID(r4)
	stw	r7, BT_PID(SUPERVISOR)(r4)
	mtspr	SPRN_PID, r7
	lwz	r7, BT_CONTEXT_SHADOW(USER)(r6)
	stw	r7, BT_PID(USER)(r4)
	mfspr	r5, SPRN_SRR0
	addi	r5, r5, 4
	mtspr	SPRN_SRR0, r5
	COUNT	SUPERVISOR
	lwz	r7, GUEST_GPR(7)(r4)
	RESUME

.Llong_pid:
	lwz	r7, GUEST_GPR(7)(r4)
.Llong_program:
	li	r5, BOOKE_INTERRUPT_PROGRAM
	/* What the handler would have done, whose first instruction came here. */
.Llong:
	mtcrf	0x80, r3
	mfspr	r3, SPRN_SPRG_RSCRATCH0
	stw	r3, GUEST_GPR(4)(r4)
	mfctr	r3
	stw	r3, VCPU_CTR(r4)
	lis	r6, kvmppc_resume_host@h
	ori	r6, r6, kvmppc_resume_host@l
	mtctr	r6
	mfspr	r3, SPRN_SRR0
	bctr
SYM_FUNC_END(kvmppc_bt_short_program)

SYM_FUNC_START(kvmppc_bt_short_end)
SYM_FUNC_END(kvmppc_bt_short_end)
