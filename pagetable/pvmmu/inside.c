// SPDX-License-Identifier: GPL-2.0-only
/*
 * Tasks that are inside a hook which sleeps, in the stock function or before it.
 *
 * The rule in direct_hook.h does not allow for that. So these tasks are counted, each
 * CPU's arrivals and departures. Once the hooks are gone and synchronize_rcu_tasks() has
 * returned, every task that came in is counted; once none is left, another
 * synchronize_rcu_tasks() waits for the last instructions, which do not sleep.
 */
#include <linux/delay.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>

#include "pvmmu.h"

static DEFINE_PER_CPU(long, inside);

/**
 * pvmmu_enter - a task comes into a hook in which it may sleep
 */
void pvmmu_enter(void)
{
	this_cpu_inc(inside);
}

/**
 * pvmmu_leave - it has done so, and sleeps no more
 */
void pvmmu_leave(void)
{
	this_cpu_dec(inside);
}

static long count_inside(void)
{
	unsigned int cpu;
	long count = 0;

	for_each_possible_cpu(cpu)
		count += READ_ONCE(*per_cpu_ptr(&inside, cpu));
	return count;
}

/**
 * pvmmu_drain - wait until no task is inside
 *
 * The hooks are gone, and synchronize_rcu_tasks() has returned since.
 */
void pvmmu_drain(void)
{
	/* No one arrives: what is read late of one CPU has only become less. */
	while (count_inside())
		msleep(20);
	synchronize_rcu_tasks();
}
