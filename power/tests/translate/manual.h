/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the manual says that an instruction does: the other opinion, which shares
 * nothing with the translator but the data page's layout.
 */
#ifndef MANUAL_H
#define MANUAL_H

#include "machine.h"

enum operation { MFSPR, MTSPR, MFMSR, MTMSR, WRTEE, WRTEEI, LWZ, LBZ, LHZ, LHA };

/*
 * An instruction as the disassembler read it: @reg, and @value an SPR or E. For a load
 * @base, and @value the other register if it is @indexed, or a displacement.
 */
struct instruction {
	u32 word;
	enum operation operation;
	unsigned int reg;
	unsigned int value;
	unsigned int base;
	bool indexed;
};

/* How a translation ends, if the data page is all that it may look at. */
enum ending {
	DONE,		/* it has the effect, and no more is to be done */
	EXIT_BEFORE,	/* it has no effect: the host emulates it */
	EXIT_AFTER,	/* it has the effect, and the host gives the guest an interrupt */
};

struct kvm_vcpu_arch_shared;

enum ending manual(const struct instruction *instruction, struct machine *machine,
		   struct kvm_vcpu_arch_shared *page);

/* A load: where it reads, and what becomes of the bytes that are there. */
u32 manual_address(const struct instruction *instruction, const struct machine *machine);
void manual_load(const struct instruction *instruction, struct machine *machine, const u8 *bytes);

#endif
