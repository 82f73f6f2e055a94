/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The stock functions that the payload replaces, still callable: each entry
 * repeats the instructions that Xen's jump overwrote and continues behind them.
 * check_layout.py has proven that they are position-independent.
 *
 * Reached by direct calls only, so no entry needs an endbr64.
 */
#include "layout.h"

	.text

	.macro original name, symbol, prologue:vararg
	.globl	original_\name
	.hidden	original_\name
	.type	original_\name, @function
	.balign	16, 0xcc
original_\name:
	.byte	\prologue
.Lprologue_\name = . - original_\name
	jmp	"\symbol" + .Lprologue_\name
	.size	original_\name, . - original_\name
	.endm

	original iommu_legacy_map, iommu_legacy_map, XEN_PROLOGUE_iommu_legacy_map
	original iommu_legacy_unmap, iommu_legacy_unmap, XEN_PROLOGUE_iommu_legacy_unmap
	original do_callback_op, do_callback_op, XEN_PROLOGUE_do_callback_op
	original domain_kill, domain_kill, XEN_PROLOGUE_domain_kill
	original do_mmu_update, do_mmu_update, XEN_PROLOGUE_do_mmu_update
	original do_update_va_mapping, do_update_va_mapping, \
		 XEN_PROLOGUE_do_update_va_mapping
	original put_page_from_l1e, put_page_from_l1e, \
		 XEN_PROLOGUE_put_page_from_l1e
	original get_page_from_l1e, get_page_from_l1e, \
		 XEN_PROLOGUE_get_page_from_l1e
	original get_page_from_l4e, "arch/x86/mm.c#get_page_from_l4e", \
		 XEN_PROLOGUE_get_page_from_l4e
	original put_pt_page, "arch/x86/mm.c#put_pt_page", \
		 XEN_PROLOGUE_put_pt_page

	.section .note.GNU-stack, "", @progbits
