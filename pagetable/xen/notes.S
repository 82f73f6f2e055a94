/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Which hypervisor the payload is for: livepatch.depends names what the payload is
 * stacked on, livepatch.xen_depends the hypervisor below all payloads. Ours must
 * be the first payload, so both are the build-id of Xen itself, 20 bytes given
 * as -DXEN_BUILD_ID=0x..,0x..
 *
 * .trapless.left_out is for the tool, and is not loaded: a line "part: why" for
 * each part that this payload was built without.
 */
#define NT_GNU_BUILD_ID	3

	.macro build_id_note section
	.section \section, "a", @note
	.balign	4
	.long	2f - 1f, 4f - 3f, NT_GNU_BUILD_ID
1:	.asciz	"GNU"
2:	.balign	4
3:	.byte	XEN_BUILD_ID
4:	.balign	4
	.endm

	build_id_note .livepatch.depends
	build_id_note .livepatch.xen_depends

	.section .trapless.left_out, "", @progbits
	.incbin	"left-out"

	.section .note.GNU-stack, "", @progbits
