// SPDX-License-Identifier: GPL-2.0-only
/*
 * Code that is generated at run time, executed until a host has translated it, and
 * generated again at the same place, as a JIT compiler does.
 *
 * Invariant: the code executed is the code written last. Otherwise loading the module
 * fails.
 */
#include <linux/init.h>
#include <linux/irqflags.h>
#include <linux/module.h>
#include <asm/cacheflush.h>
#include <asm/ppc-opcode.h>
#include <asm/reg.h>

#include "function.h"

#define ROUNDS	4
#define CALLS	16

static const u16 registers[] = {
	SPRN_SPRG0, SPRN_SPRG1, SPRN_SPRG2, SPRN_SRR0, SPRN_SRR1, SPRN_DEAR, SPRN_ESR,
	SPRN_MAS0, SPRN_MAS1, SPRN_MAS2, SPRN_MAS3, SPRN_MAS6,
};

/* Room for the code. */
FUNCTION(generated, ".space 64");

static bool stale;
module_param(stale, bool, 0444);
MODULE_PARM_DESC(stale, "Do not generate it again: a negative control");

static unsigned int calls;
module_param(calls, uint, 0444);

/* One register is set to the value and another one to its complement; one is read. */
static void make(u16 set, u16 other, u16 get)
{
	u32 *to = (u32 *)generated;

	*to++ = PPC_RAW_NOR(4, 3, 3);
	*to++ = PPC_RAW_MTSPR(set, 3);
	*to++ = PPC_RAW_MTSPR(other, 4);
	*to++ = PPC_RAW_MFSPR(3, get);
	*to++ = PPC_RAW_BLR();
	flush_icache_range((unsigned long)generated, (unsigned long)to);
}

static int run(u32 wanted)
{
	unsigned int i;

	for (i = 0; i < CALLS; i++) {
		unsigned long flags;
		u32 value = calls++ * 0x9e3779b1, got;

		local_irq_save(flags);
		got = generated(value);
		local_irq_restore(flags);
		if (got != (value ^ wanted)) {
			pr_err("call %u: %#x of %#x\n", calls, got, value);
			return -EINVAL;
		}
	}
	return 0;
}

static int __init generated_init(void)
{
	unsigned int round, count = ARRAY_SIZE(registers);
	int r = 0;

	for (round = 0; round < ROUNDS * count && !r; round++) {
		u16 set = registers[round % count];
		u16 other = registers[(round + 1 + round / count) % count];

		if (set == other)
			continue;
		make(set, other, set);
		r = run(0);
		if (!r) {
			if (!stale)
				make(set, other, other);
			r = run(~0u);
		}
	}
	return r;
}
module_init(generated_init);

static void __exit generated_exit(void)
{
}
module_exit(generated_exit);

MODULE_DESCRIPTION("Test of in-place translation: code made at run time");
MODULE_LICENSE("GPL");
