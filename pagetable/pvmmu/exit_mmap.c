// SPDX-License-Identifier: GPL-2.0-only
/*
 * xen_exit_mmap(): before the tables of a dying address space are unpinned, every CPU
 * leaves it. Stock makes a hypercall for this CPU to leave, and one for the unpin;
 * here both are one, and the other CPUs leave first.
 *
 * Invariants:
 *
 *  - No CPU runs on the tables when they are unpinned. The others have left when
 *    smp_call_function_many() returns, and none comes back: the address space has no
 *    user any more, and this task, which still borrows it, is not preempted. This CPU
 *    leaves by the operations that are queued first, before those of the unpin.
 *  - Interrupts are off from where Linux believes that this CPU has left until it has:
 *    the queue cannot be issued between by an interrupt, nor anything be queued.
 *  - What stock writes when a CPU leaves is written by the stock function (leave_mm()).
 *    It does not issue the queue, as in a context switch, whose mode is set meanwhile.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpumask.h>
#include <linux/irqflags.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/pgtable.h>
#include <linux/smp.h>
#include <linux/spinlock.h>

#include <asm/xen/page.h>

#include "direct_hook.h"
#include "multicall.h"
#include "pvmmu.h"
#include "series_lazy.h"

static unsigned long __percpu *stock_current_cr3;
static smp_call_func_t stock_drop_mm_ref;
static void (*stock_pgd_unpin)(struct mm_struct *mm, pgd_t *pgd);
static series_leave_mm_t *stock_leave_mm;
static series_lazy_mode_t __percpu *stock_lazy_mode;

/**
 * pvmmu_exit_mmap_resolve - find what is needed here
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_exit_mmap_resolve(void)
{
	const struct stock_symbol symbols[] = {
		{ "xen_current_cr3", &stock_current_cr3 },
		{ "drop_mm_ref_this_cpu", &stock_drop_mm_ref },
		{ "__xen_pgd_unpin", &stock_pgd_unpin },
		{ "leave_mm", &stock_leave_mm },
		{ SERIES_LAZY_MODE_SYMBOL, &stock_lazy_mode },
	};

	return stock_symbols_resolve(symbols, ARRAY_SIZE(symbols));
}

static bool is_on(unsigned int cpu, const struct mm_struct *mm)
{
	return *per_cpu_ptr(stock_current_cr3, cpu) == __pa(mm->pgd);
}

/* As xen_drop_mm_ref(), for all CPUs but this. */
static void leave_elsewhere(struct mm_struct *mm)
{
	cpumask_var_t mask;
	unsigned int cpu;

	if (!alloc_cpumask_var(&mask, GFP_ATOMIC)) {
		for_each_online_cpu(cpu)
			if (cpu != smp_processor_id() && is_on(cpu, mm))
				smp_call_function_single(cpu, stock_drop_mm_ref,
							 mm, true);
		return;
	}
	cpumask_clear(mask);
	for_each_online_cpu(cpu)
		if (is_on(cpu, mm))
			cpumask_set_cpu(cpu, mask);
	smp_call_function_many(mask, stock_drop_mm_ref, mm, true);
	free_cpumask_var(mask);
}

/* Queue the operations by which this CPU leaves. */
static void leave_here(void)
{
	*this_cpu_ptr(stock_lazy_mode) = SERIES_LAZY_CPU;
	series_leave_mm(stock_leave_mm);
	*this_cpu_ptr(stock_lazy_mode) = SERIES_LAZY_NONE;
}

/* Called by entry.S with the argument of xen_exit_mmap(). */
void pvmmu_exit_mmap(struct mm_struct *mm);
void pvmmu_exit_mmap(struct mm_struct *mm)
{
	void (*stock)(struct mm_struct *mm) = (void *)pvmmu_hook_exit_mmap.body;
	unsigned long flags;

	preempt_disable();
	if (*this_cpu_ptr(stock_lazy_mode) != SERIES_LAZY_NONE) {
		preempt_enable();
		stock(mm);
		return;
	}
	leave_elsewhere(mm);
	spin_lock(&mm->page_table_lock);
	local_irq_save(flags);
	if (is_on(smp_processor_id(), mm))
		leave_here();
	/* It may not be pinned where execve() fails. */
	if (PagePinned(virt_to_page(mm->pgd)))
		stock_pgd_unpin(mm, mm->pgd);
	else
		multicall_flush();
	local_irq_restore(flags);
	spin_unlock(&mm->page_table_lock);
	preempt_enable();
}
