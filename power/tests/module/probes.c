// SPDX-License-Identifier: GPL-2.0-only
/*
 * Probes on privileged instructions and beside them, in this module's code and in
 * the kernel's, after they have run often enough for a host to have translated them.
 *
 * Invariant: a probe finds the instruction that the guest wrote, is hit each time,
 * does not change what the code computes, and restores the instruction. Otherwise
 * loading the module fails.
 *
 * Only instructions that Linux emulates after a probe are probed; mfmsr is the only
 * privileged one. Any other it single-steps in a copy, and KVM on e500v2 does not support
 * guests that single-step themselves, translated or not.
 */
#include <linux/init.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/wait.h>
#include <asm/reg.h>

#include "function.h"

#define ROUNDS	4
#define CALLS	32

#define MFMSR		0x7c0000a6
#define MFMSR_MASK	0xfc1fffff

/*
 * 2 * (value + 1), through a register that only a privileged instruction reaches.
 * Between its write and its read there is no place for a probe: an exception uses it.
 */
FUNCTION(probed,
	 "addi 3,3,1\n\t"
	 "mfmsr 4\n\t"
	 "mr 6,4\n\t"
	 "wrteei 0\n\t"
	 MTSPR(SPRN_SPRG0, 3)
	 MFSPR(5, SPRN_SPRG0)
	 "wrtee 6\n\t"
	 "add 3,5,5");

static bool stale;
module_param(stale, bool, 0444);
MODULE_PARM_DESC(stale, "Do not arm the probes: a negative control");

static unsigned int hits;
module_param(hits, uint, 0444);
static unsigned int expected_hits;
module_param(expected_hits, uint, 0444);

static int hit(struct kprobe *probe, struct pt_regs *regs)
{
	hits++;
	return 0;
}

static bool call_own(unsigned int i)
{
	return probed(i) == 2 * (i + 1);
}

static bool call_kernel(unsigned int i)
{
	DECLARE_WAIT_QUEUE_HEAD_ONSTACK(queue);
	DEFINE_WAIT(entry);
	bool there;

	add_wait_queue(&queue, &entry);
	there = !list_empty(&queue.head);
	remove_wait_queue(&queue, &entry);
	return there && list_empty(&queue.head);
}

static int call(bool (*function)(unsigned int i), const char *when)
{
	unsigned int i;

	for (i = 0; i < CALLS; i++)
		if (!function(i)) {
			pr_err("wrong values %s\n", when);
			return -EINVAL;
		}
	return 0;
}

/* Probe the word at @at, which @function executes once. */
static int probe_word(u32 *at, u32 original, bool (*function)(unsigned int i))
{
	struct kprobe probe = { .addr = (kprobe_opcode_t *)at, .pre_handler = hit };
	unsigned int before = hits;
	int r;

	r = call(function, "before it");
	if (r)
		return r;
	if (stale)
		probe.flags = KPROBE_FLAG_DISABLED;
	r = register_kprobe(&probe);
	if (r) {
		pr_err("none at %pS: %d\n", at, r);
		return r;
	}
	if (probe.opcode != original) {
		pr_err("at %pS it found %#x, not %#x\n", at, probe.opcode, original);
		r = -EINVAL;
	}
	if (!r)
		r = call(function, "under it");
	unregister_kprobe(&probe);
	expected_hits += CALLS;
	if (!r && hits - before != CALLS) {
		pr_err("%u hits of %u at %pS\n", hits - before, CALLS, at);
		r = -EINVAL;
	}
	if (!r)
		r = call(function, "after it");
	if (!r && READ_ONCE(*at) != original) {
		pr_err("%pS is %#x, was %#x\n", at, READ_ONCE(*at), original);
		r = -EINVAL;
	}
	return r;
}

/* The one mfmsr of a function that disables interrupts at its beginning. */
static u32 *find_mfmsr(void *function)
{
	u32 *word = function;
	unsigned int i;

	for (i = 0; i < 32; i++)
		if ((READ_ONCE(word[i]) & MFMSR_MASK) == MFMSR)
			return word + i;
	return NULL;
}

static int __init probes_init(void)
{
	u32 *own = (u32 *)probed, *kernel = find_mfmsr(add_wait_queue);
	unsigned int round;
	int r = 0;

	if (!kernel)
		return -ENOENT;
	for (round = 0; round < ROUNDS && !r; round++) {
		/* addi, mfmsr and mr; then mfmsr and what stands before it */
		r = probe_word(own, 0x38630001, call_own);
		if (!r)
			r = probe_word(own + 1, MFMSR | 4 << 21, call_own);
		if (!r)
			r = probe_word(own + 2, 0x7c862378, call_own);
		if (!r)
			r = probe_word(own + 7, 0x7c652a14, call_own);
		if (!r)
			r = probe_word(kernel, READ_ONCE(*kernel), call_kernel);
		if (!r)
			r = probe_word(kernel - 1, READ_ONCE(*(kernel - 1)), call_kernel);
	}
	return r;
}
module_init(probes_init);

static void __exit probes_exit(void)
{
}
module_exit(probes_exit);

MODULE_DESCRIPTION("Test of in-place translation: probes on translated instructions");
MODULE_LICENSE("GPL");
