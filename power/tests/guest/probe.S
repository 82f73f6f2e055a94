/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The code that hostile.c runs until it is translated. Copies of it run elsewhere, so it
 * is position-independent.
 *
 * Invariant: called with n in r3 and MSR[EE] off it leaves MSR as it was and returns
 * n + (n + 1) + MSR at five points, at two of which EE is on.
 */
	.section .rodata, "a"
	.globl	probe_code, probe_end
probe_code:
	mtspr	272, %r3
	addi	%r4, %r3, 1
	mtspr	273, %r4
	mfmsr	%r5
	wrteei	1
	mfmsr	%r6
	wrteei	0
	mfmsr	%r7
	wrtee	%r6
	mfmsr	%r8
	mtmsr	%r5
	mfmsr	%r9
	mfspr	%r3, 272
	mfspr	%r10, 273
	add	%r3, %r3, %r10
	add	%r3, %r3, %r5
	add	%r3, %r3, %r6
	add	%r3, %r3, %r7
	add	%r3, %r3, %r8
	add	%r3, %r3, %r9
	blr
probe_end:
