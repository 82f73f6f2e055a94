/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The entry code of a hook. A direct call of ftrace
 * arrives with the arguments in their registers and two return addresses on the
 * stack: first the one into the stock function, behind the hook, then its
 * caller's.
 *
 *   direct_replace  ours runs in place of stock: the first return address is
 *                   dropped
 *   direct_before   ours runs, then stock
 *   direct_unless   ours runs, and stock does only if ours returned 0; what ours
 *                   returned otherwise is returned to the caller
 *
 * A stock function that runs after ours has at most six arguments in registers; what
 * it has on the stack stays there, for ours returns with the stack as it was.
 */
#include <linux/linkage.h>
#include <asm/nospec-branch.h>
#include <asm/unwind_hints.h>

	.macro direct_replace entry, function
SYM_FUNC_START(\entry)
	addq	$8, %rsp
	UNWIND_HINT_FUNC
	jmp	\function
SYM_FUNC_END(\entry)
	.endm

	.macro direct_save_arguments arguments
	pushq	%rdi
	.if \arguments > 1
	pushq	%rsi
	.endif
	.if \arguments > 2
	pushq	%rdx
	.endif
	.if \arguments > 3
	pushq	%rcx
	.endif
	.if \arguments > 4
	pushq	%r8
	.endif
	.if \arguments > 5
	pushq	%r9
	.endif
	.endm

	.macro direct_restore_arguments arguments
	.if \arguments > 5
	popq	%r9
	.endif
	.if \arguments > 4
	popq	%r8
	.endif
	.if \arguments > 3
	popq	%rcx
	.endif
	.if \arguments > 2
	popq	%rdx
	.endif
	.if \arguments > 1
	popq	%rsi
	.endif
	popq	%rdi
	.endm

	.macro direct_before entry, function, arguments
SYM_FUNC_START(\entry)
	direct_save_arguments \arguments
	call	\function
	direct_restore_arguments \arguments
	RET
SYM_FUNC_END(\entry)
	.endm

	/* With zero=1 the caller gets 0 (success) if ours returned true. */
	.macro direct_unless entry, function, arguments, zero=0
SYM_FUNC_START(\entry)
	direct_save_arguments \arguments
	call	\function
	direct_restore_arguments \arguments
	testq	%rax, %rax
	jz	1f
	addq	$8, %rsp
	UNWIND_HINT_FUNC
	.if \zero
	xorl	%eax, %eax
	.endif
1:	RET
SYM_FUNC_END(\entry)
	.endm

