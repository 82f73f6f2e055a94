/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How a hooked function reaches ours. A direct call of ftrace arrives with the
 * arguments in their registers and two return addresses on the stack: first the
 * one into the stock function, behind the hook, then its caller's.
 *
 *   replace  ours runs in place of stock: the first return address is dropped
 *   before   ours runs, then stock
 *   unless   ours runs; stock does only if ours returned false
 */
#include <linux/linkage.h>
#include <asm/nospec-branch.h>
#include <asm/unwind_hints.h>

	.macro replace name
SYM_FUNC_START(pvmmu_entry_\name)
	addq	$8, %rsp
	UNWIND_HINT_FUNC
	jmp	pvmmu_\name
SYM_FUNC_END(pvmmu_entry_\name)
	.endm

	replace	pgd_walk
	replace	map_pages
	replace	clear_flush
	replace	set_access_flags

SYM_FUNC_START(pvmmu_entry_copy_range)		/* before */
	pushq	%rdi
	pushq	%rsi
	call	pvmmu_copy_range
	popq	%rsi
	popq	%rdi
	RET
SYM_FUNC_END(pvmmu_entry_copy_range)

SYM_FUNC_START(pvmmu_entry_set_pte)		/* unless */
	pushq	%rdi
	pushq	%rsi
	call	pvmmu_set_pte
	popq	%rsi
	popq	%rdi
	testb	%al, %al
	jz	1f
	addq	$8, %rsp
	UNWIND_HINT_FUNC
1:	RET
SYM_FUNC_END(pvmmu_entry_set_pte)
