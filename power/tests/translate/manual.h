/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The effect of instructions according to the manual: an independent implementation,
 * which shares only the data page's layout with the translator.
 */
#ifndef MANUAL_H
#define MANUAL_H

#include "machine.h"

#define MANUAL_PID	48

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

/* How a translation ends, as far as the data page decides it. */
enum ending {
	DONE,		/* it has the effect, and the guest continues */
	EXIT_BEFORE,	/* it has no effect: the host emulates it */
	EXIT_AFTER,	/* it has the effect, and the host gives the guest an interrupt */
};

struct kvm_vcpu_arch_shared;

enum ending manual(const struct instruction *instruction, struct machine *machine,
		   struct kvm_vcpu_arch_shared *page);

/* A load: its address, and the register value that the bytes there become. */
u32 manual_address(const struct instruction *instruction, const struct machine *machine);
void manual_load(const struct instruction *instruction, struct machine *machine, const u8 *bytes);

#endif
