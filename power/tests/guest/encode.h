/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Instructions as words. Names are the assembler's; x encodes instructions with three
 * registers, d those with two and a displacement.
 */
#ifndef ENCODE_H
#define ENCODE_H

#include "context.h"

static inline u32 d(u32 opcode, u32 t, u32 a, u32 displacement)
{
	return opcode << 26 | t << 21 | a << 16 | (displacement & 0xffff);
}

static inline u32 x(u32 extended, u32 t, u32 a, u32 b)
{
	return 31u << 26 | t << 21 | a << 16 | b << 11 | extended << 1;
}

static inline u32 spr(u32 extended, u32 t, u32 n)
{
	return x(extended, t, n & 31, n >> 5);
}

#define LI(t, v)	d(14, t, 0, v)
#define ADDI(t, a, v)	d(14, t, a, v)
#define LIS(t, v)	d(15, t, 0, v)
#define ORI(t, s, v)	d(24, s, t, v)
#define XORI(t, s, v)	d(26, s, t, v)
#define XORIS(t, s, v)	d(27, s, t, v)
#define NOP		ORI(0, 0, 0)
#define RLWINM(t, s, sh, mb, me) \
	(d(21, s, t, 0) | (u32)(sh) << 11 | (u32)(mb) << 6 | (u32)(me) << 1)
#define LWZ(t, a, v)	d(32, t, a, v)
#define STW(t, a, v)	d(36, t, a, v)
#define STB(t, a, v)	d(38, t, a, v)
#define STH(t, a, v)	d(44, t, a, v)
#define LMW(t, a, v)	d(46, t, a, v)
#define STMW(t, a, v)	d(47, t, a, v)
#define LWARX(t, a, b)	x(20, t, a, b)
#define STWCX(t, a, b)	(x(150, t, a, b) | 1)
#define STWX(t, a, b)	x(151, t, a, b)
#define STWBRX(t, a, b)	x(662, t, a, b)
#define DCBST(a, b)	x(54, 0, a, b)
#define ICBI(a, b)	x(982, 0, a, b)
#define MFMSR(t)	x(83, t, 0, 0)
#define MTMSR(s)	x(146, s, 0, 0)
#define WRTEE(s)	x(131, s, 0, 0)
#define WRTEEI(on)	(x(163, 0, 0, 0) | ((on) ? MSR_EE : 0))
#define MFSPR(t, n)	spr(339, t, n)
#define MTSPR(n, s)	spr(467, s, n)
#define SPR_LR		8
#define SPR_CTR		9
#define SYNC		x(598, 0, 0, 0)
#define ISYNC		0x4c00012cu
#define RFI		0x4c000064u
#define TLBSX(b)	x(914, 0, 0, b)
#define B(distance)	(18u << 26 | ((u32)(distance) & 0x03fffffc))
#define BL(distance)	(B(distance) | 1)
#define BC(bo, bi, distance) \
	(16u << 26 | (u32)(bo) << 21 | (u32)(bi) << 16 | ((u32)(distance) & 0xfffc))
#define BO_FALSE	4
#define BO_TRUE		12
#define BO_COUNT	16
#define CR0_EQ		2

#endif /* ENCODE_H */
