/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The stock functions that the payload replaces, still callable: each entry
 * repeats the instructions that Xen's jump overwrote and continues behind them.
 * check_layout.py has proven that they mean the same here as there.
 *
 * Reached by direct calls only, so no entry needs an endbr64.
 */
#include "layout.h"

	.text

	.macro original name, prologue:vararg
	.globl	original_\name
	.hidden	original_\name
	.type	original_\name, @function
	.balign	16, 0xcc
original_\name:
	.byte	\prologue
.Lprologue_\name = . - original_\name
	jmp	\name + .Lprologue_\name
	.size	original_\name, . - original_\name
	.endm

	original iommu_legacy_map, XEN_PROLOGUE_iommu_legacy_map
	original iommu_legacy_unmap, XEN_PROLOGUE_iommu_legacy_unmap
	original do_xenoprof_op, XEN_PROLOGUE_do_xenoprof_op

	.section .note.GNU-stack, "", @progbits
