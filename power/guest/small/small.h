/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The whole runtime of the programs that workloads execute: their start code and
 * their system calls.
 *
 * Invariant: there are no floating-point instructions in this file or in programs that
 * include it. So there is no libc: this system's libc is built for a classic FPU, which
 * an e500v2 does not have. Its start-up saves 18 registers of that FPU, and the kernel
 * would emulate each of these instructions in what is measured as an exec.
 */
#ifndef SMALL_H
#define SMALL_H

#include <asm/unistd.h>

#define WRITE(fd, text, length)	call(__NR_write, fd, (long)(text), length, 0)
#define EXIT(status)		call(__NR_exit_group, status, 0, 0, 0)

/* The first frame: no caller to return to. */
__asm__(".globl _start\n"
	"_start:\n"
	"	mr	3, 1\n"
	"	li	0, 0\n"
	"	stwu	1, -16(1)\n"
	"	stw	0, 0(1)\n"
	"	bl	start\n");

/* The result, or the error number negated. */
static inline long call(long number, long a, long b, long c, long d)
{
	register long r0 __asm__("r0") = number;
	register long r3 __asm__("r3") = a;
	register long r4 __asm__("r4") = b;
	register long r5 __asm__("r5") = c;
	register long r6 __asm__("r6") = d;

	__asm__ __volatile__("sc\n\tbns+ 1f\n\tneg %1,%1\n1:"
			     : "+r" (r0), "+r" (r3), "+r" (r4), "+r" (r5), "+r" (r6)
			     : : "r7", "r8", "r9", "r10", "r11", "r12",
				 "cr0", "ctr", "xer", "memory");
	return r3;
}

static inline long length_of(const char *text)
{
	long length = 0;

	while (text[length])
		length++;
	return length;
}

/* @stack: argc, argv, NULL, environment. */
void start(char **stack);

#endif
