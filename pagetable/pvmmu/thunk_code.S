/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * pte_val() and its kin for Xen PV: from machine frame to guest frame and back.
 * thunks.c makes pv_ops' own thunks jump here. The calling convention is theirs:
 * the argument in rdi, the result in rax, every other register kept.
 *
 * Each does what xen_pte_val() or xen_make_pte() does for an entry that is not
 * present, or whose frame is one of the domain's own in both tables. All other
 * cases go to the stock function: frames of other domains, of devices, beyond a
 * table's end, or in a hole of Xen's table (where the read faults).
 *
 * A PV guest has no memory encryption, so a frame is always bits 12 to 51.
 */
#include <linux/linkage.h>
#include <asm/asm.h>
#include <asm/nospec-branch.h>
#include <asm/unwind_hints.h>

#define PRESENT		1
#define NOT_OWN_BITS	62			/* foreign, identity, invalid: above */

	/* rcx and rdx are saved already, in this order */
	.macro stock function
	pushq	%rsi
	pushq	%rdi
	pushq	%r8
	pushq	%r9
	pushq	%r10
	pushq	%r11
	movq	\function(%rip), %rax
	CALL_NOSPEC rax
	popq	%r11
	popq	%r10
	popq	%r9
	popq	%r8
	popq	%rdi
	popq	%rsi
	popq	%rdx
	popq	%rcx
	RET
	.endm

	/* rax: rdi with its frame, which is in \old, replaced by the one in rcx */
	.macro combine old
	subq	\old, %rcx
	shlq	$12, %rcx
	leaq	(%rdi, %rcx), %rax
	popq	%rdx
	popq	%rcx
	RET
	.endm

	/* \frame: the frame of rdi */
	.macro frame_of frame
	movq	%rdi, \frame
	shlq	$12, \frame
	shrq	$24, \frame
	.endm

SYM_FUNC_START(pvmmu_val)
	testb	$PRESENT, %dil
	jz	2f
	pushq	%rcx
	pushq	%rdx
	frame_of %rax
	cmpq	machine_to_phys_nr(%rip), %rax
	jae	3f
	movq	machine_to_phys_mapping(%rip), %rcx
1:	movq	(%rcx, %rax, 8), %rcx
	_ASM_EXTABLE(1b, 3f)
	cmpq	xen_p2m_size(%rip), %rcx
	jae	3f
	movq	xen_p2m_addr(%rip), %rdx
	cmpq	(%rdx, %rcx, 8), %rax
	jne	3f
	combine	%rax
2:	movq	%rdi, %rax
	RET
3:	stock	pvmmu_stock_val
SYM_FUNC_END(pvmmu_val)

SYM_FUNC_START(pvmmu_make)
	testb	$PRESENT, %dil
	jz	2f
	pushq	%rcx
	pushq	%rdx
	frame_of %rax
	cmpq	xen_p2m_size(%rip), %rax
	jae	3f
	movq	xen_p2m_addr(%rip), %rdx
	movq	(%rdx, %rax, 8), %rcx
	movq	%rcx, %rdx
	shrq	$NOT_OWN_BITS, %rdx
	jnz	3f
	combine	%rax
2:	movq	%rdi, %rax
	RET
3:	stock	pvmmu_stock_make
SYM_FUNC_END(pvmmu_make)
