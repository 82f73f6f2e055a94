/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Shared by assembly and C: the two areas in the first 32 KiB of memory, which an
 * instruction can address without a register, and the numbers of registers and bits.
 *
 * Invariant: only enter, leave and the interrupt handlers write to these areas.
 */
#ifndef CONTEXT_H
#define CONTEXT_H

/* The state with which a piece of code is entered, and then the one that it left. */
#define CONTEXT		0x1000
#define CONTEXT_GPR	(CONTEXT + 0)
#define CONTEXT_CR	(CONTEXT + 128)
#define CONTEXT_XER	(CONTEXT + 132)
#define CONTEXT_LR	(CONTEXT + 136)
#define CONTEXT_CTR	(CONTEXT + 140)
#define CONTEXT_MSR	(CONTEXT + 144)
#define CONTEXT_PC	(CONTEXT + 148)
#define CONTEXT_SPR	(CONTEXT + 152)
#define CONTEXT_SPRS	22
#define CONTEXT_STACK	(CONTEXT + 252)

/* What the handlers save, and what they record. */
#define TRAP		0x1800
#define TRAP_GPR	(TRAP + 0)
#define TRAP_PC		(TRAP + 128)
#define TRAP_MSR	(TRAP + 132)
#define TRAP_ESR	(TRAP + 136)
#define TRAP_DEAR	(TRAP + 140)
#define TRAP_VECTOR	(TRAP + 144)
#define TICK_SAVE	(TRAP + 160)
#define TICK_COUNT	(TRAP + 192)
#define TICK_NOISE	(TRAP + 196)
#define TICK_WRONG	(TRAP + 200)
#define TICK_WRONG_PC	(TRAP + 204)
#define TICK_WRONG_MSR	(TRAP + 208)
/* Not zero: the code raises interrupts, and the interrupted addresses are summed. */
#define TICK_RAISED	(TRAP + 212)
#define TICK_SUM	(TRAP + 216)

#define VECTORS		0x2000
#define VECTOR_BYTES	16

#define EXECUTE_PAGES	16

/* The TLB's entries: registers, and what is written there. */
#define SPR_MAS0	624
#define SPR_MAS1	625
#define SPR_MAS2	626
#define SPR_MAS3	627
#define SPR_MAS7	944
#define MAS0_TLB1	0x10000000
#define MAS1_VALID	0x80000000
#define MAS1_TS		0x1000
#define TSIZE_4K	1
#define TSIZE_64K	3
#define TSIZE_1M	5
#define MAP_READ	0x01
#define MAP_WRITE	0x04
#define MAP_EXECUTE	0x10

#define SPR_DEC		22
#define SPR_TSR		336
#define SPR_TCR		340
#define TSR_DIS_HIGH	0x0800
#define TSR_DIS		0x08000000
#define TCR_DIE		0x04000000

#define MSR_EE		0x8000
#define MSR_CE		0x20000
#define MSR_FP		0x2000
#define MSR_ME		0x1000
#define MSR_IS		0x20
#define MSR_DS		0x10

/* From here on two processors have the same memory, below each has its own. */
#define SHARED		0x100000

#ifndef __ASSEMBLER__
typedef unsigned int u32;
typedef unsigned short u16;
typedef unsigned char u8;
typedef unsigned long long u64;

struct context {
	u32 gpr[32];
	u32 cr, xer, lr, ctr, msr, pc;
	u32 spr[CONTEXT_SPRS];
};

struct trap {
	u32 gpr[32];
	u32 pc, msr, esr, dear, vector;
};

#define context	((volatile struct context *)CONTEXT)
#define trapped	((volatile struct trap *)TRAP)
#define word_at(address)	(*(volatile u32 *)(address))

/* Run at context->pc with all of context's registers, until it branches to leave. */
void enter(void);
void leave(void);

/* Never entered by this guest; the host writes fragments there. */
extern char execute_pages[], execute_end[], image_end[];
/* Where the second processor's part ends, and where it begins to run. */
extern char private_end[], second_entry[];
#endif

#endif /* CONTEXT_H */
