// SPDX-License-Identifier: GPL-2.0-only
/*
 * Jump labels flipped again and again, in this module's code and in the kernel's
 * allocators, with privileged instructions around them that a host translates.
 *
 * Invariant: immediately after each flip the code takes the branch that the key selects.
 * In the end the kernel's key has its initial value. Otherwise loading the module fails.
 */
#include <linux/init.h>
#include <linux/irqflags.h>
#include <linux/jump_label.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/slab.h>

#define OWN_FLIPS	64
#define KERNEL_FLIPS	16
#define CALLS		8
#define BYTES		512

static DEFINE_STATIC_KEY_FALSE(own);

static bool stale;
module_param(stale, bool, 0444);
MODULE_PARM_DESC(stale, "Flip nothing: a negative control");

static unsigned int flips;
module_param(flips, uint, 0444);

static noinline bool taken(void)
{
	unsigned long flags;
	bool result = false;

	local_irq_save(flags);
	if (static_branch_unlikely(&own))
		result = true;
	local_irq_restore(flags);
	return result;
}

static int flip_own(bool on)
{
	unsigned int i;

	if (on && !stale)
		static_branch_enable(&own);
	else
		static_branch_disable(&own);
	flips++;
	for (i = 0; i < CALLS; i++)
		if (taken() != on) {
			pr_err("flip %u of the module's key is not seen\n", flips);
			return -EINVAL;
		}
	return 0;
}

/* The allocator returns zeroed memory while its key is on, else what was freed last. */
static int allocates_zeroes(bool *zeroes)
{
	u8 *memory = kmalloc(BYTES, GFP_KERNEL);

	if (!memory)
		return -ENOMEM;
	memset(memory, 0xa5, BYTES);
	kfree(memory);
	memory = kmalloc(BYTES, GFP_KERNEL);
	if (!memory)
		return -ENOMEM;
	*zeroes = !memory[BYTES - 1];
	kfree(memory);
	return 0;
}

static int flip_kernel(bool on)
{
	unsigned int i;
	int r = 0;

	if (on)
		static_branch_enable(&init_on_alloc);
	else
		static_branch_disable(&init_on_alloc);
	flips++;
	for (i = 0; i < CALLS && !r; i++) {
		bool zeroes;

		r = allocates_zeroes(&zeroes);
		if (!r && zeroes != on) {
			pr_err("flip %u of the allocator's key is not seen\n", flips);
			r = -EINVAL;
		}
	}
	return r;
}

static int __init labels_init(void)
{
	unsigned int i;
	int r = 0;

	for (i = 1; i <= OWN_FLIPS && !r; i++)
		r = flip_own(i & 1);
	for (i = 1; i <= KERNEL_FLIPS && !r; i++)
		r = flip_kernel(i & 1);
	if (r)
		static_branch_disable(&init_on_alloc);
	return r;
}
module_init(labels_init);

static void __exit labels_exit(void)
{
}
module_exit(labels_exit);

MODULE_DESCRIPTION("Test of in-place translation: jump labels beside translated instructions");
MODULE_LICENSE("GPL");
