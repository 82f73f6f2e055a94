/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Zero runs: makes Xen's eight loops over the entries of a page table (validation and
 * devalidation of each level) skip zero entries, 32 or eight at a time. In the two loops
 * of the lowest level the other entries have runs too, of which plain_runs.c takes care.
 * In a build of Xen for which a loop is not proven, that loop is not patched;
 * "xen-livepatch list" shows which ones a loaded payload patches.
 *
 * Xen's livepatch jump replaces the head of a loop, where the index refers to the
 * next entry and that entry has not been processed yet. From there:
 *
 *  - An entry that is not zero is left to Xen: the loop continues as without us. On the
 *    lowest level plain_runs.c is asked first, and the loop continues behind the entries
 *    that it has done. It is C: what it may change of the registers is kept on the stack.
 *  - A zero entry is skipped by producing the state that an iteration for it leaves:
 *    index and pointer advanced, partial_flags clear. Nothing is written to
 *    memory, and no register that the loop still needs is changed.
 *  - The last entry of every group is left to Xen, zero or not. A group ends with
 *    the table, and in a loop that checks for preemption also every 64 entries. So
 *    the end of the loop and the preemption check stay Xen's own code, which
 *    finds an exact index.
 *  - Eight entries are read at once only where they are one cache line, 32 only
 *    where they are four of the same 64: never from beyond the table or its
 *    group. No address depends on an entry's contents.
 *  - With zero_runs_enabled at 0 nothing is skipped, and plain_runs.c is not asked, nor with
 *    l1_update_enabled at 0, nor in a build without that part.
 *
 * Where the loops are and which register is what differs from build to build:
 * zero_run_sites.h has one zero_run for each loop, and find_zero_runs.py, which
 * writes it, has proven every argument in the installed hypervisor.
 * docs/zero-runs.md says why no check of Xen's is lost.
 *
 * Reached by Xen's direct jump, left by direct jumps: no endbr64.
 */
#include "livepatch.h"
#include "parts.h"

#define L1_UPDATE	0x2	/* TPT_SWITCH_L1_UPDATE, whose header is C */

/*
 * The slots of a cache line beyond the one that the entry operand names, and of
 * the three lines that follow it.
 */
#define NEXT_LINES	8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, \
			20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
#define OTHER_SLOTS	1, 2, 3, 4, 5, 6, 7

	/* Advance by @count entries; backwards if negative. */
	.macro go count, step, index, pointer
	.ifnb \index
	add	$((\count) * (\step)), \index
	.endif
	.ifnb \pointer
	add	$((\count) * (\step) * 8), \pointer
	.endif
	.endm

	/* Set the zero flag where a group of @slots begins: the next is its first. */
	.macro test_first slots, step, key, unit, scratch
	.if \step > 0
	test	$((\slots - 1) * \unit), \key
	.else
	lea	\unit(\key), \scratch
	test	$((\slots - 1) * \unit), \scratch
	.endif
	.endm

	/* \index += \low, if \count is \wide. */
	.macro add_low wide, low, index, count
	.ifc	\count, \wide
	add	\low, \index
	.endif
	.endm

	/* \index += \count, a register that a call may change; \index may name 32 bits. */
	.macro advance index, count
	.set	.Lis_wide, 0
	.irp	wide, %rax, %rbx, %rcx, %rdx, %rsi, %rdi, %rbp, %r8, %r9, %r10, \
		%r11, %r12, %r13, %r14, %r15
	.ifc	\index, \wide
	.set	.Lis_wide, 1
	.endif
	.endr
	.if	.Lis_wide
	add	\count, \index
	.else
	add_low	%rax, %eax, \index, \count
	add_low	%rcx, %ecx, \index, \count
	add_low	%rdx, %edx, \index, \count
	add_low	%rsi, %esi, \index, \count
	add_low	%rdi, %edi, \index, \count
	add_low	%r8, %r8d, \index, \count
	add_low	%r9, %r9d, \index, \count
	add_low	%r10, %r10d, \index, \count
	add_low	%r11, %r11d, \index, \count
	.endif
	.endm

	/* What a called function may change, but for \scratch. */
	.macro keep operation, scratch, registers:vararg
	.irp	register, \registers
	.ifnc	\register, \scratch
	\operation \register
	.endif
	.endr
	.endm

	/*
	 * An entry that is not zero, where \run takes care of some: it is given the entry's
	 * address, and returns how many it has done. They lie upwards, and a round of Xen's
	 * for each would leave nothing but index and pointer.
	 */
	.macro plain_run name, run, entry, step, index, pointer, clear, scratch
	.if	\step != 1
	.error	"runs lie upwards"
	.endif
	.ifnb	\clear
	.error	"a run clears no register"
	.endif
	cmpb	$0, l1_update_enabled(%rip)
	je	.Lstock_\name
	keep	push, \scratch, %rax, %rcx, %rdx, %rsi, %rdi, %r8, %r9, %r10, %r11
	lea	\entry, %rdi
	call	\run
	mov	%eax, %eax
	mov	%rax, \scratch
	keep	pop, \scratch, %r11, %r10, %r9, %r8, %rdi, %rsi, %rdx, %rcx, %rax
	test	\scratch, \scratch
	jz	.Lstock_\name
	.ifnb	\index
	advance	\index, \scratch
	.endif
	.ifnb	\pointer
	lea	(\pointer, \scratch, 8), \pointer
	.endif
	jmp	.Lnext_\name
	.endm

	/*
	 * One loop:
	 * @name:     its name here
	 * @function: the function of Xen that it is in
	 * @offset:   of its head in the function
	 * @size:     how many bytes Xen's jump overwrites: whole instructions
	 * @bytes:    these bytes, which are position-independent
	 * @entry:    memory operand: the next entry
	 * @step:     1 or -1: upwards or downwards
	 * @index:    register that holds the entry's index, if any
	 * @pointer:  register that points to the entry, if any
	 * @key:      register with the entry's slot, times @unit, in its low bits
	 * @unit:     1 or 8
	 * @clear:    register that a zero entry leaves 0 (partial_flags), if any
	 * @group:    slots in a group, the last of which is left to Xen
	 * @scratch:  register whose value is not needed; nor are the flags
	 */
	.macro zero_run name, function, offset, size, bytes, entry, step, \
		index, pointer, key, unit, clear, group, scratch
	.text
	.balign	16, 0xcc
	.type	zero_run_\name, @function
zero_run_\name:
	cmpb	$0, zero_runs_enabled(%rip)
	je	.Lstock_\name
.Lnext_\name:
	cmpq	$0, \entry
	jne	.Lplain_\name
	test_first 8, \step, \key, \unit, \scratch
	jz	.Lline_\name
.Lone_\name:
	go	1, \step, \index, \pointer
	test_first \group, \step, \key, \unit, \scratch
	jz	.Llast_\name
	.ifnb \clear
	xor	\clear, \clear
	.endif
	jmp	.Lnext_\name

.Lline_\name:
	test_first 32, \step, \key, \unit, \scratch
	jnz	.Lone_line_\name
	mov	\entry, \scratch
	.irp	slot, OTHER_SLOTS, NEXT_LINES
	or	8 * \slot * \step\entry, \scratch
	.endr
	jnz	.Lone_line_\name
	.ifnb \clear
	xor	\clear, \clear
	.endif
	go	32, \step, \index, \pointer
	test_first \group, \step, \key, \unit, \scratch
	jnz	.Lline_\name
	jmp	.Llast_\name

.Lone_line_\name:
	mov	\entry, \scratch
	.irp	slot, OTHER_SLOTS
	or	8 * \slot * \step\entry, \scratch
	.endr
	jnz	.Lmixed_\name
	.ifnb \clear
	xor	\clear, \clear
	.endif
	go	8, \step, \index, \pointer
	test_first \group, \step, \key, \unit, \scratch
	jnz	.Lline_\name
.Llast_\name:
	go	-1, \step, \index, \pointer
	jmp	.Lstock_\name

.Lmixed_\name:
	cmpq	$0, \entry
	je	.Lone_\name
.Lplain_\name:
#if PAYLOAD_PARTS & L1_UPDATE
	.ifc	\name, promote_l1
	plain_run \name, plain_run_take, "\entry", \step, \index, \pointer, \clear, \scratch
	.endif
	.ifc	\name, demote_l1
	plain_run \name, plain_run_drop, "\entry", \step, \index, \pointer, \clear, \scratch
	.endif
#endif
.Lstock_\name:
	.byte	\bytes
	jmp	"\function" + \offset + \size
	.size	zero_run_\name, . - zero_run_\name

	.section .rodata.str1.1, "aMS", @progbits, 1
.Lname_\name:
	.asciz	"\name"

	/* Shown by "xen-livepatch list": which loops this payload has. */
	.section .modinfo, "a", @progbits
	.asciz	"zero_run=\name"

	/* struct livepatch_func */
	.section .livepatch.funcs, "aw", @progbits
	.balign	8
	.quad	.Lname_\name, zero_run_\name, "\function" + \offset
	.long	LIVEPATCH_JUMP_SIZE, \size
	.byte	LIVEPATCH_PAYLOAD_VERSION
	.zero	LIVEPATCH_PAD
	.byte	1 | \size << 1	/* enabled, len */
	.byte	\bytes
	.zero	LIVEPATCH_MAX_EXPECT - \size
	.endm

#include "zero_run_sites.h"

	.section .note.GNU-stack, "", @progbits
