// SPDX-License-Identifier: GPL-2.0-only
/*
 * Interrupts in the middle of calls, and a count of them.
 *
 * A timer is started before each call, close enough to fall into a long one.
 * Xen then leaves the call, and the interrupted guest is at the instruction that
 * will enter it again, with Xen's own mark in the count of requests. The count
 * relies on this state, not on counters of Xen or the payload.
 */
#include <linux/delay.h>
#include <linux/hrtimer.h>
#include <linux/module.h>

#include <asm/irq_regs.h>

#include "table_test.h"

static bool preempt;
module_param(preempt, bool, 0644);
MODULE_PARM_DESC(preempt, "interrupt the calls");

static unsigned int continuations;
module_param(continuations, uint, 0444);
MODULE_PARM_DESC(continuations, "calls seen left in the middle");

#define MMU_UPDATE_PREEMPTED	(1U << 31)
#define SOONEST_NS		100000	/* the kernel's least delay on Xen */

static struct hrtimer timer;
static struct rnd_state pause;

static enum hrtimer_restart tick(struct hrtimer *t)
{
	const struct pt_regs *regs = get_irq_regs();

	/* Only a continued batch has this bit there, and these numbers. */
	if (regs && regs->si & MMU_UPDATE_PREEMPTED && regs->si >> 32 == 0 &&
	    (regs->ax == __HYPERVISOR_mmuext_op ||
	     regs->ax == __HYPERVISOR_mmu_update))
		continuations++;
	return HRTIMER_NORESTART;
}

void tt_preempt_begin(void)
{
	prandom_seed_state(&pause, 1);
	hrtimer_init(&timer, CLOCK_MONOTONIC, HRTIMER_MODE_REL_HARD);
	timer.function = tick;
}

/* The time of the interrupt does not depend on the seed. */
void tt_preempt_call(void)
{
	if (!preempt)
		return;
	hrtimer_start(&timer, ns_to_ktime(SOONEST_NS), HRTIMER_MODE_REL_HARD);
	ndelay(prandom_u32_state(&pause) % SOONEST_NS);
}

void tt_preempt_end(void)
{
	hrtimer_cancel(&timer);
}
