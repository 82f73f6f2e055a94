/* SPDX-License-Identifier: GPL-2.0-only */
/* What the fix is stacked on, and the hypervisor below; see pagetable/xen/notes.S. */
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
