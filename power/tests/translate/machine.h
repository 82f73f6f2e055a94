/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The guest's machine: its registers, and the addresses of its parts in this program.
 * They are below 32 MiB, so that an absolute branch reaches them from anywhere without
 * a register; the registers' page is below 32 KiB, so that a load or store needs no
 * register, either.
 */
#ifndef MACHINE_H
#define MACHINE_H

#define MACHINE		0x00003000	/* struct machine, and the program's own registers */
#define SITE		0x01000000	/* the instruction that is translated */
#define AREA		0x01010000	/* execute pages */
#define LOADED		0x01020000	/* what loads read */
#define LOADED_LOW	0x00005000	/* and those without a register */

/* Offsets in struct machine, for assembler. */
#define MACHINE_CR	128
#define MACHINE_XER	132
#define MACHINE_LR	136
#define MACHINE_CTR	140
#define OWN_CR		144
#define OWN_LR		148
#define OWN_GPR		152

#ifndef __ASSEMBLER__

struct machine {
	u32 gpr[32];
	u32 cr;
	u32 xer;
	u32 lr;
	u32 ctr;
};

/* Run from SITE with the registers at MACHINE until something goes to machine_leave. */
void machine_enter(void);
extern const char machine_leave[];

#endif
#endif
