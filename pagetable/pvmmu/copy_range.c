// SPDX-License-Identifier: GPL-2.0-only
/*
 * copy_page_range(), by which fork copies an area: the hook that three parts share.
 * Each does its work before the stock function; one has to do more after it.
 *
 * Invariants:
 *
 *  - The hook is set while one of the parts is on. What a part began before the stock
 *    function it ends after it, also if it is turned off meanwhile.
 *  - The stock function sleeps, with our frame on the stack, which the rule in
 *    direct_hook.h does not allow for. So the tasks inside are counted, each CPU's
 *    arrivals and departures. Once the hook is gone and synchronize_rcu_tasks() has
 *    returned, every task that came in is counted; once none is left, another
 *    synchronize_rcu_tasks() waits for the last instructions, which do not sleep.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>

#include "copy_range.h"
#include "direct_hook.h"
#include "pvmmu.h"

static DEFINE_PER_CPU(long, inside);
static unsigned int parts_on;

/**
 * pvmmu_copy_range_enable - turn a part on
 * @part: the switch
 *
 * Return: as pvmmu_hook().
 */
int pvmmu_copy_range_enable(struct pvmmu_switch *part)
{
	int rc = parts_on ? 0 : pvmmu_hook(part);

	if (!rc)
		WRITE_ONCE(parts_on, parts_on | part->bit);
	return rc;
}

/**
 * pvmmu_copy_range_disable - turn a part off
 * @part: the switch
 */
void pvmmu_copy_range_disable(struct pvmmu_switch *part)
{
	WRITE_ONCE(parts_on, parts_on & ~part->bit);
	if (!parts_on)
		pvmmu_unhook(part);
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
 * pvmmu_copy_range_drain - wait until no task is inside
 *
 * The hook is gone, and synchronize_rcu_tasks() has returned since.
 */
void pvmmu_copy_range_drain(void)
{
	/* No one arrives: what is read late of one CPU has only become less. */
	while (count_inside())
		msleep(20);
	synchronize_rcu_tasks();
}

/*
 * Called by entry.S with the arguments of copy_page_range(). Both mmap_locks are held
 * for writing: no table of the parent is added or removed.
 */
copy_range_t pvmmu_copy_range;
int pvmmu_copy_range(struct vm_area_struct *dst, struct vm_area_struct *src)
{
	copy_range_t *stock = (copy_range_t *)pvmmu_hook_copy_range.body;
	unsigned int on = READ_ONCE(parts_on);
	struct fork_copies copies;
	int rc;

	this_cpu_inc(inside);
	copies.count = 0;
	if (on & PVMMU_FORK_COPY)
		pvmmu_fork_copy_begin(src, &copies);
	if (on & PVMMU_FORK)
		pvmmu_fork_protect(src, &copies);
	if (on & PVMMU_FORK_TEXT)
		pvmmu_fork_text(dst, src);
	rc = stock(dst, src);
	pvmmu_fork_copy_end(&copies);
	this_cpu_dec(inside);
	return rc;
}
