/* SPDX-License-Identifier: GPL-2.0-only */
/* The function, and what it is stacked on; see pagetable/xen/original.S and notes.S. */
#include "layout.h"

	.text
	.globl	vendor_do_mmu_update
	.hidden	vendor_do_mmu_update
	.type	vendor_do_mmu_update, @function
vendor_do_mmu_update:
	.byte	XEN_PROLOGUE_do_mmu_update
.Lprologue = . - vendor_do_mmu_update
	jmp	do_mmu_update + .Lprologue
	.size	vendor_do_mmu_update, . - vendor_do_mmu_update

	.macro build_id_note section, id:vararg
	.section \section, "a", @note
	.balign	4
	.long	2f - 1f, 4f - 3f, 3
1:	.asciz	"GNU"
2:	.balign	4
3:	.byte	\id
4:	.balign	4
	.endm

	build_id_note .livepatch.depends, BELOW
	build_id_note .livepatch.xen_depends, XEN_BUILD_ID

	.section .note.GNU-stack, "", @progbits
