/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Zero runs: makes Xen's eight loops over the entries of a page table (validation and
 * devalidation of each level) skip zero entries, 32 or eight at a time.
 * In a build of Xen for which a loop is not proven, that loop is not patched;
 * "xen-livepatch list" shows which ones a loaded payload patches.
 *
 * Xen's livepatch jump replaces the head of a loop, where the index refers to the
 * next entry and that entry has not been processed yet. From there:
 *
 *  - An entry that is not zero is left to Xen: the loop continues as without us.
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
 *  - With zero_runs_enabled at 0 nothing is skipped.
 *
 * Where the loops are and which register is what differs from build to build:
 * zero_run_sites.h has one zero_run for each loop, and find_zero_runs.py, which
 * writes it, has proven every argument in the installed hypervisor.
 * docs/zero-runs.md says why no check of Xen's is lost.
 *
 * Reached by Xen's direct jump, left by direct jumps: no endbr64, no stack.
 */
#include "livepatch.h"

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
	jne	.Lstock_\name
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
