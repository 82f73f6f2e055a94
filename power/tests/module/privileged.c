// SPDX-License-Identifier: GPL-2.0-only
/*
 * A module whose code is privileged instructions, each of a kind that a host may
 * translate. It runs them when it is loaded and when 1 is written to its parameter
 * "again", and fails if one of them does something else than its register says.
 *
 * Invariant: privileged_other.c is this module with another instruction at each
 * tested place, and otherwise equal: after one is unloaded and the other loaded in its
 * place, any instruction of the first that is still executed gives a wrong value.
 *
 * The functions are called with interrupts off: Linux uses most of these registers in
 * its handlers, so no interrupt may come between a write and its read.
 */
#include <linux/init.h>
#include <linux/irqflags.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/vmalloc.h>
#include <asm/reg.h>

#include "function.h"

#ifdef TRAPLESS_OTHER
#define PICK(one, other)	other
#else
#define PICK(one, other)	one
#endif


/* Both have values, the first one @value: which one is read? */
#define READ_ONE(name, a, b) FUNCTION(name, \
	MFSPR(7, a) MFSPR(8, b) \
	"not 4,3\n\t" \
	MTSPR(a, 3) MTSPR(b, 4) \
	MFSPR(3, PICK(a, b)) \
	MTSPR(a, 7) MTSPR(b, 8))

/* Both are zero: which one is written? The second one counts twice. */
#define WRITE_ONE(name, a, b) FUNCTION(name, \
	MFSPR(7, a) MFSPR(8, b) \
	"li 4,0\n\t" \
	MTSPR(a, 4) MTSPR(b, 4) \
	MTSPR(PICK(a, b), 3) \
	MFSPR(5, a) MFSPR(6, b) \
	"add 3,5,6\n\tadd 3,3,6\n\t" \
	MTSPR(a, 7) MTSPR(b, 8))

READ_ONE(read_sprg0, SPRN_SPRG0, SPRN_SPRG1);
READ_ONE(read_sprg2, SPRN_SPRG2, SPRN_SPRG3);
READ_ONE(read_srr0, SPRN_SRR0, SPRN_SRR1);
READ_ONE(read_dear, SPRN_DEAR, SPRN_ESR);
READ_ONE(read_mas0, SPRN_MAS0, SPRN_MAS1);
READ_ONE(read_mas2, SPRN_MAS2, SPRN_MAS3);
READ_ONE(read_mas4, SPRN_MAS4, SPRN_MAS6);
WRITE_ONE(write_sprg0, SPRN_SPRG0, SPRN_SPRG1);
WRITE_ONE(write_sprg2, SPRN_SPRG2, SPRN_SPRG3);
WRITE_ONE(write_srr0, SPRN_SRR0, SPRN_SRR1);
WRITE_ONE(write_dear, SPRN_DEAR, SPRN_ESR);
WRITE_ONE(write_mas0, SPRN_MAS0, SPRN_MAS1);
WRITE_ONE(write_mas2, SPRN_MAS2, SPRN_MAS3);
WRITE_ONE(write_mas4, SPRN_MAS4, SPRN_MAS6);

/* A privileged instruction where the other module has an unprivileged one. */
FUNCTION(plain_there, MTSPR(SPRN_SPRG0, 3) PICK(MFSPR(3, SPRN_SPRG0), "li 3,77"));
FUNCTION(plain_here, MTSPR(SPRN_SPRG0, 3) PICK("li 3,77", MFSPR(3, SPRN_SPRG0)));

/* MSR[EE] after an instruction; 4 has it set, 5 not. */
#define ENABLE(name, one, other) FUNCTION(name, \
	"mfmsr 5\n\t" \
	"ori 4,5,0x8000\n\t" \
	PICK(one, other) "\n\t" \
	"mfmsr 3\n\t" \
	"wrtee 5\n\t" \
	"rlwinm 3,3,17,31,31")

ENABLE(write_ee_now, "wrteei 1", "wrteei 0");
ENABLE(write_ee, "wrtee 4", "wrtee 5");
ENABLE(write_msr, "mtmsr 4", "mtmsr 5");

enum result { READS, WRITES, PLAIN_THERE, PLAIN_HERE, ENABLES };

static const struct {
	const char *name;
	u32 (*function)(u32 value);
	enum result result;
} functions[] = {
	{ "read_sprg0", read_sprg0, READS },
	{ "read_sprg2", read_sprg2, READS },
	{ "read_srr0", read_srr0, READS },
	{ "read_dear", read_dear, READS },
	{ "read_mas0", read_mas0, READS },
	{ "read_mas2", read_mas2, READS },
	{ "read_mas4", read_mas4, READS },
	{ "write_sprg0", write_sprg0, WRITES },
	{ "write_sprg2", write_sprg2, WRITES },
	{ "write_srr0", write_srr0, WRITES },
	{ "write_dear", write_dear, WRITES },
	{ "write_mas0", write_mas0, WRITES },
	{ "write_mas2", write_mas2, WRITES },
	{ "write_mas4", write_mas4, WRITES },
	{ "plain_there", plain_there, PLAIN_THERE },
	{ "plain_here", plain_here, PLAIN_HERE },
	{ "write_ee_now", write_ee_now, ENABLES },
	{ "write_ee", write_ee, ENABLES },
	{ "write_msr", write_msr, ENABLES },
};

static bool stale;
module_param(stale, bool, 0444);
MODULE_PARM_DESC(stale, "Expect the other module's values: a negative control");

static u32 expected(enum result result, u32 value)
{
	bool one = PICK(true, false) != stale;

	switch (result) {
	case READS:
		return one ? value : ~value;
	case WRITES:
		return one ? value : 2 * value;
	case PLAIN_THERE:
		return one ? value : 77;
	case PLAIN_HERE:
		return one ? 77 : value;
	default:
		return one;
	}
}

/* More rounds than a host needs to translate it. */
static unsigned int rounds = 8;
module_param(rounds, uint, 0444);

static unsigned int calls;
module_param(calls, uint, 0444);

/* The code's virtual address, and each function's guest-physical page. */
static unsigned int address;
module_param(address, uint, 0444);
static unsigned int pages[ARRAY_SIZE(functions)];
module_param_array(pages, uint, NULL, 0444);

static int run_all(void)
{
	unsigned int round, i;
	u32 value = 1;

	for (round = 0; round < rounds; round++) {
		value = value * 1664525 + 1013904223;
		for (i = 0; i < ARRAY_SIZE(functions); i++) {
			unsigned long flags;
			u32 got;

			local_irq_save(flags);
			got = functions[i].function(value);
			local_irq_restore(flags);
			calls++;
			if (got != expected(functions[i].result, value)) {
				pr_err("%s, round %u: %#x of %#x\n", functions[i].name, round, got,
				       value);
				return -EINVAL;
			}
		}
	}
	return 0;
}

static int set_again(const char *text, const struct kernel_param *param)
{
	return run_all();
}

static const struct kernel_param_ops again_ops = { .set = set_again };
module_param_cb(again, &again_ops, NULL, 0200);

static int __init privileged_init(void)
{
	unsigned int i;

	address = (unsigned long)read_sprg0;
	for (i = 0; i < ARRAY_SIZE(functions); i++)
		pages[i] = vmalloc_to_pfn(functions[i].function);
	return run_all();
}
module_init(privileged_init);

static void __exit privileged_exit(void)
{
}
module_exit(privileged_exit);

MODULE_DESCRIPTION("Test of in-place translation: privileged instructions in a module");
MODULE_LICENSE("GPL");
