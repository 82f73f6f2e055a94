/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the manual says that an instruction does: the other opinion, which shares
 * nothing with the translator but the data page's layout.
 */
#ifndef MANUAL_H
#define MANUAL_H

#include "machine.h"

enum operation { MFSPR, MTSPR, MFMSR, MTMSR, WRTEE, WRTEEI };

/* An instruction as the disassembler read it: @reg, and @value an SPR or E. */
struct instruction {
	u32 word;
	enum operation operation;
	unsigned int reg;
	unsigned int value;
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

#endif
