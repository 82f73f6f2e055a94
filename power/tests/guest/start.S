/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The guest's entry, its interrupt vectors, and entry to and exit from generated code.
 *
 * Invariant: the decrementer's handler changes only its fields in context.h, SRR0 and
 * SRR1, so the interrupted code cannot notice it. It checks its SRR0 and SRR1: the
 * program counter must be inside the image and not in the execute pages, and MSR[EE] set.
 */
#include "context.h"

#define SPR_SRR0	26
#define SPR_SRR1	27
#define SPR_DEAR	61
#define SPR_ESR		62
#define SPR_IVPR	63

/* The stack and the vectors. */
	.macro	prepare
	lis	%r1, stack_end@ha
	addi	%r1, %r1, stack_end@l
	li	%r0, 0
	mtspr	SPR_IVPR, %r0
	stwu	%r0, -16(%r1)
	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15
	li	%r4, VECTORS + \n * VECTOR_BYTES
	mtspr	400 + \n, %r4
	.endr
	.endm

/* An entry of TLB1: the megabyte at the effective address in @ea is that at the physical one in @pa. */
	.macro	map_megabyte entry, space, ea, pa
	lis	%r4, MAS0_TLB1 >> 16 | \entry
	mtspr	SPR_MAS0, %r4
	lis	%r4, MAS1_VALID >> 16
	ori	%r4, %r4, \space | TSIZE_1M << 8
	mtspr	SPR_MAS1, %r4
	mtspr	SPR_MAS2, \ea
	ori	%r4, \pa, MAP_READ | MAP_WRITE | MAP_EXECUTE
	mtspr	SPR_MAS3, %r4
	li	%r4, 0
	mtspr	SPR_MAS7, %r4
	isync
	tlbwe
	isync
	sync
	.endm

	.section .start, "ax"
	.globl	_start
_start:	/* r3: the device tree */
	prepare
	bl	main
	b	.

/*
 * The second processor, with the mapping that the VMM made, in which each address is the
 * physical one: see second_start() in board.h. Address 0 becomes its copy of the image;
 * the entry that it runs by is replaced from the other address space.
 */
	.globl	second_entry
	.weak	second	/* of programs for one processor */
second_entry:	/* r3: where its copy is */
	map_megabyte 1, MAS1_TS, %r3, %r3
	bl	1f
1:	mflr	%r5
	addi	%r5, %r5, 2f - 1b
	mtspr	SPR_SRR0, %r5
	mfmsr	%r7
	ori	%r6, %r7, MSR_IS | MSR_DS
	mtspr	SPR_SRR1, %r6
	rfi
2:	li	%r8, 0
	map_megabyte 0, 0, %r8, %r3
	lis	%r8, SHARED >> 16
	map_megabyte 2, 0, %r8, %r8
	lis	%r5, 3f@ha
	addi	%r5, %r5, 3f@l
	mtspr	SPR_SRR0, %r5
	mtspr	SPR_SRR1, %r7
	rfi
3:	lis	%r4, MAS0_TLB1 >> 16 | 1
	mtspr	SPR_MAS0, %r4
	li	%r4, 0
	mtspr	SPR_MAS1, %r4
	isync
	tlbwe
	isync
	sync
	prepare
	bl	second
	b	.

	.section .vectors, "ax"
	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9
	.balign	VECTOR_BYTES
	stw	%r3, TRAP_GPR + 12(0)
	li	%r3, \n
	b	trap_common
	.endr
	.balign	VECTOR_BYTES
	b	tick
	.irp	n, 11, 12, 13, 14, 15
	.balign	VECTOR_BYTES
	stw	%r3, TRAP_GPR + 12(0)
	li	%r3, \n
	b	trap_common
	.endr

trap_common:
	stw	%r0, TRAP_GPR(0)
	stw	%r1, TRAP_GPR + 4(0)
	stw	%r2, TRAP_GPR + 8(0)
	stmw	%r4, TRAP_GPR + 16(0)
	stw	%r3, TRAP_VECTOR(0)
	mfspr	%r4, SPR_SRR0
	stw	%r4, TRAP_PC(0)
	mfspr	%r4, SPR_SRR1
	stw	%r4, TRAP_MSR(0)
	mfspr	%r4, SPR_ESR
	stw	%r4, TRAP_ESR(0)
	mfspr	%r4, SPR_DEAR
	stw	%r4, TRAP_DEAR(0)
	lis	%r1, trap_stack_end@ha
	addi	%r1, %r1, trap_stack_end@l
	li	%r0, 0
	stwu	%r0, -16(%r1)
	bl	trap
	b	.

/* Nothing here touches XER, LR or CTR. */
tick:
	stmw	%r28, TICK_SAVE(0)
	mfcr	%r28
	/* This handler uses a fragment, while another one may be interrupted. */
	mfmsr	%r29
	wrtee	%r29
	mfspr	%r30, SPR_SRR0
	lis	%r29, execute_pages@ha
	addi	%r29, %r29, execute_pages@l
	cmplw	%r30, %r29
	blt	1f
	lis	%r29, execute_end@ha
	addi	%r29, %r29, execute_end@l
	cmplw	%r30, %r29
	blt	2f
	lis	%r29, image_end@ha
	addi	%r29, %r29, image_end@l
	cmplw	%r30, %r29
	bge	2f
1:	mfspr	%r31, SPR_SRR1
	andi.	%r31, %r31, MSR_EE
	bne	3f
2:	mfspr	%r31, SPR_SRR1
	stw	%r30, TICK_WRONG_PC(0)
	stw	%r31, TICK_WRONG_MSR(0)
	lwz	%r30, TICK_WRONG(0)
	addi	%r30, %r30, 1
	stw	%r30, TICK_WRONG(0)
3:	lwz	%r29, TICK_COUNT(0)
	addi	%r29, %r29, 1
	stw	%r29, TICK_COUNT(0)
	lwz	%r29, TICK_RAISED(0)
	cmpwi	%r29, 0
	beq	4f
	/* The event stays pending, but is disabled. */
	li	%r29, 0
	mtspr	SPR_TCR, %r29
	lwz	%r29, TICK_SUM(0)
	rotlwi	%r29, %r29, 5
	xor	%r29, %r29, %r30
	mfspr	%r31, SPR_SRR1
	add	%r29, %r29, %r31
	stw	%r29, TICK_SUM(0)
	b	5f
4:	lis	%r30, TSR_DIS_HIGH
	mtspr	SPR_TSR, %r30
	/* Xorshift; the next comes in 1000 to 3047 ticks. */
	lwz	%r30, TICK_NOISE(0)
	slwi	%r31, %r30, 13
	xor	%r30, %r30, %r31
	srwi	%r31, %r30, 17
	xor	%r30, %r30, %r31
	slwi	%r31, %r30, 5
	xor	%r30, %r30, %r31
	stw	%r30, TICK_NOISE(0)
	rlwinm	%r30, %r30, 0, 21, 31
	addi	%r30, %r30, 1000
	mtspr	SPR_DEC, %r30
5:	mtcr	%r28
	lmw	%r28, TICK_SAVE(0)
	rfi

	.text
	.globl	enter
enter:
	stwu	%r1, -96(%r1)
	mflr	%r0
	stw	%r0, 100(%r1)
	mfcr	%r0
	stw	%r0, 8(%r1)
	stw	%r2, 12(%r1)
	stmw	%r13, 16(%r1)
	stw	%r1, CONTEXT_STACK(0)
	wrteei	0
	lwz	%r3, CONTEXT_PC(0)
	mtspr	SPR_SRR0, %r3
	lwz	%r3, CONTEXT_MSR(0)
	mtspr	SPR_SRR1, %r3
	lwz	%r3, CONTEXT_CR(0)
	mtcr	%r3
	lwz	%r3, CONTEXT_XER(0)
	mtxer	%r3
	lwz	%r3, CONTEXT_LR(0)
	mtlr	%r3
	lwz	%r3, CONTEXT_CTR(0)
	mtctr	%r3
	lwz	%r0, CONTEXT_GPR(0)
	lmw	%r1, CONTEXT_GPR + 4(0)
	rfi

	.globl	leave
leave:
	stmw	%r0, CONTEXT_GPR(0)
	mfmsr	%r3
	wrteei	0
	stw	%r3, CONTEXT_MSR(0)
	mfcr	%r3
	stw	%r3, CONTEXT_CR(0)
	mfxer	%r3
	stw	%r3, CONTEXT_XER(0)
	mflr	%r3
	stw	%r3, CONTEXT_LR(0)
	mfctr	%r3
	stw	%r3, CONTEXT_CTR(0)
	/* SRR0 and SRR1 come first: see SPR_OF_INTERRUPTS in differ.c. */
	.set	at, CONTEXT_SPR
	.irp	n, 26, 27, 58, 59, 61, 62, 272, 273, 274, 275, 260, 261, 262, 263, \
		624, 625, 626, 627, 628, 630, 944, 48
	mfspr	%r3, \n
	stw	%r3, at(0)
	.set	at, at + 4
	.endr
	lwz	%r1, CONTEXT_STACK(0)
	lmw	%r13, 16(%r1)
	lwz	%r2, 12(%r1)
	lwz	%r0, 8(%r1)
	mtcr	%r0
	lwz	%r0, 100(%r1)
	mtlr	%r0
	addi	%r1, %r1, 96
	blr

	.section .execute, "ax"
	.globl	execute_pages, execute_end
execute_pages:
	.space	EXECUTE_PAGES * 4096
execute_end:

	.section .bss
	.balign	16
	.space	16384
stack_end:
	.space	16
	.balign	16
	.space	16384
trap_stack_end:
	.space	16
