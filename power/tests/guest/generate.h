/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A random sequence of instructions.
 *
 * Invariant: entered at any of its entries with its registers, it ends at leave
 * after a bounded number of instructions, and its final state depends only on its
 * initial state: not on when interrupts come, nor on what they do to SRR0, SRR1 and
 * reservations.
 */
#ifndef GENERATE_H
#define GENERATE_H

#include "random.h"

#define MAX_WORDS	512
#define MAX_ENTRIES	256
/* The words of data around each base register, which points to the middle. */
#define DATA_WORDS	256

struct sequence {
	struct random random;
	/* Interrupts come at any time, so the code must not rely on SRR0 and SRR1. */
	int noisy;
	/* The code raises interrupts: they come at once, or when MSR[EE] is set. */
	int raising;
	/* Loads of other memory between lwarx and stwcx. */
	int between;
	/* More fragments than one execute page has room for. */
	int dense;
	u32 code, near, far;	/* addresses */
	u32 words[MAX_WORDS];
	u32 n;
	u16 entries[MAX_ENTRIES];
	u32 n_entries;
	u32 gpr[32];
	/* The registers that only hold addresses, and an index. */
	u8 base_code, base_near, base_far, index;
	/* And one that holds the value of TCR that raises an interrupt. */
	u8 raise;
};

/* Fill in words, entries and registers for the given addresses. */
void generate(struct sequence *s);

#endif /* GENERATE_H */
