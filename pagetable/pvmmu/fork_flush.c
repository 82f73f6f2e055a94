// SPDX-License-Identifier: GPL-2.0-only
/*
 * fork protects its parent's pages, pins its child's tables and at last flushes the
 * parent's TLB. The pin has flushed this CPU's TLB already (pin.c), behind the
 * protections: then the last flush, a hypercall, is left out.
 *
 * Invariant: the flush at the end of dup_mmap() is left out only if after the last
 * entry of the parent was protected
 *
 *  - this CPU has flushed its whole TLB, and no other task has run on it since. The
 *    pin notes that, with how often its task has been switched so far: a task that
 *    has not been switched since is on the same CPU. A note that no flush has used,
 *    as the task was, is therefore void for good.
 *  - no other CPU can hold an entry of the parent: none is in its mm_cpumask(). One
 *    that switches to it later sets its bit before it loads the tables, and finds the
 *    entries protected. The mask is read after they are.
 *
 * A pin of an address space that is not a child's (exec) notes nothing.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpumask.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>

#include "direct_hook.h"
#include "fork_flush.h"
#include "pvmmu.h"
#include "series_mmu.h"

/* TLB_FLUSH_ALL, which 6.1 hides from modules. */
#define FLUSH_ALL	(-1UL)

/**
 * struct pin_note - a flush by a pin
 * @task:     whose pin it was, NULL for none
 * @start:    when that task began: another may have its place in memory later
 * @switches: how often it had been switched
 */
struct pin_note {
	const struct task_struct *task;
	u64 start;
	unsigned long switches;
};

static DEFINE_PER_CPU(struct pin_note, notes);
static bool are_noted;
static unsigned long dup_mmap_start, dup_mmap_size;

/**
 * pvmmu_fork_flush_resolve - find the code that flushes at the end of a fork
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_fork_flush_resolve(void)
{
	int (*lookup_size)(unsigned long address, unsigned long *size,
			   unsigned long *offset);
	const struct stock_symbol symbols[] = {
		{ SERIES_DUP_MMAP_SYMBOL, &dup_mmap_start },
		{ "kallsyms_lookup_size_offset", &lookup_size },
	};
	unsigned long offset;
	int rc = stock_symbols_resolve(symbols, ARRAY_SIZE(symbols));

	if (!rc && !lookup_size(dup_mmap_start, &dup_mmap_size, &offset))
		rc = -ENOENT;
	return rc;
}

static unsigned long count_switches(void)
{
	return current->nvcsw + current->nivcsw;
}

/**
 * pvmmu_fork_flush_note - note that this CPU's TLB was flushed by a pin
 * @mm: what was pinned
 *
 * Interrupts are off.
 */
void pvmmu_fork_flush_note(const struct mm_struct *mm)
{
	struct pin_note *note = this_cpu_ptr(&notes);

	if (!READ_ONCE(are_noted) || !current->mm || mm == current->mm)
		return;
	note->task = current;
	note->start = current->start_time;
	note->switches = count_switches();
}

/* Has this CPU, the only one that uses the mm, flushed? Whatever is noted is used up. */
static bool is_flushed(struct mm_struct *mm)
{
	struct pin_note *note = get_cpu_ptr(&notes);
	bool is_noted = note->task == current && note->start == current->start_time &&
			note->switches == count_switches();

	note->task = NULL;
	smp_mb(); /* the entries protected before the mask is read: see above */
	is_noted = is_noted && mm == current->mm && !series_flush_is_heard(mm) &&
		   cpumask_any_but(mm_cpumask(mm), smp_processor_id()) >= nr_cpu_ids;
	put_cpu_ptr(&notes);
	return is_noted;
}

/* Called by entry.S with the arguments of flush_tlb_mm_range(). */
flush_mm_t pvmmu_flush_mm;
void pvmmu_flush_mm(struct mm_struct *mm, unsigned long start, unsigned long end,
		    unsigned int stride_shift, bool freed_tables)
{
	flush_mm_t *stock = (flush_mm_t *)pvmmu_hook_flush_mm.body;
	unsigned long caller = (unsigned long)__builtin_return_address(0);

	if (caller - dup_mmap_start < dup_mmap_size && end == FLUSH_ALL &&
	    is_flushed(mm))
		return;
	stock(mm, start, end, stride_shift, freed_tables);
}

/**
 * pvmmu_fork_flush_enable - leave flushes out
 * @part: the switch
 *
 * Return: as pvmmu_hook().
 */
int pvmmu_fork_flush_enable(struct pvmmu_switch *part)
{
	int rc = pvmmu_hook(part);

	if (!rc)
		WRITE_ONCE(are_noted, true);
	return rc;
}

/**
 * pvmmu_fork_flush_disable - leave no flush out
 * @part: the switch
 *
 * No note stays: its task may have flushed since.
 */
void pvmmu_fork_flush_disable(struct pvmmu_switch *part)
{
	unsigned int cpu;

	WRITE_ONCE(are_noted, false);
	synchronize_rcu(); /* whoever saw true, with interrupts off, is done */
	pvmmu_unhook(part);
	for_each_possible_cpu(cpu)
		WRITE_ONCE(per_cpu_ptr(&notes, cpu)->task, NULL);
}
