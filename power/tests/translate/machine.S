/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Enters and leaves the machine: from the first instruction at SITE on all registers
 * have the values at MACHINE, and all are stored there in the end.
 */
#include "machine.h"

	.text
	.globl	machine_enter
machine_enter:
	mfcr	0
	stw	0, MACHINE + OWN_CR(0)
	mflr	0
	stw	0, MACHINE + OWN_LR(0)
	.irp	n, 1, 2, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
	stw	\n, MACHINE + OWN_GPR + 4 * \n(0)
	.endr
	lwz	0, MACHINE + MACHINE_CR(0)
	mtcr	0
	lwz	0, MACHINE + MACHINE_XER(0)
	mtxer	0
	lwz	0, MACHINE + MACHINE_LR(0)
	mtlr	0
	lwz	0, MACHINE + MACHINE_CTR(0)
	mtctr	0
	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, \
		23, 24, 25, 26, 27, 28, 29, 30, 31
	lwz	\n, MACHINE + 4 * \n(0)
	.endr
	ba	SITE

	.globl	machine_leave
machine_leave:
	.irp	n, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, \
		23, 24, 25, 26, 27, 28, 29, 30, 31
	stw	\n, MACHINE + 4 * \n(0)
	.endr
	mfcr	0
	stw	0, MACHINE + MACHINE_CR(0)
	mfxer	0
	stw	0, MACHINE + MACHINE_XER(0)
	mflr	0
	stw	0, MACHINE + MACHINE_LR(0)
	mfctr	0
	stw	0, MACHINE + MACHINE_CTR(0)
	.irp	n, 1, 2, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30, 31
	lwz	\n, MACHINE + OWN_GPR + 4 * \n(0)
	.endr
	lwz	0, MACHINE + OWN_LR(0)
	mtlr	0
	lwz	0, MACHINE + OWN_CR(0)
	mtcr	0
	blr

	.section .note.GNU-stack, "", @progbits
