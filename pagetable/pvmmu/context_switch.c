// SPDX-License-Identifier: GPL-2.0-only
/*
 * A context switch asks Xen for five things: the base pointers of the tables, which
 * xen_end_context_switch() issues, and then, one hypercall each, the base of FS, that
 * of GS (twice, on a processor that does not clear it with the selector) and the stack
 * of the kernel. Here the last four are queued behind the first and issued with them;
 * the calls that follow find that they are done.
 *
 * Invariants:
 *
 *  - They are advanced, never postponed: CR3, current and the state of the TLB change
 *    where stock changes them, so an NMI sees what it sees on stock. The values of the
 *    task that runs on have been saved before (save_fsgs()). The kernel uses neither
 *    FS nor the user's GS, and Xen uses the stack at an entry from user mode only.
 *  - What is left out is a call with the very value that was issued, on the same CPU,
 *    in the same switch: interrupts are off from xen_end_context_switch() to
 *    xen_load_sp0(), which ends it. No NMI writes these registers.
 *  - Only if all selectors of both tasks are zero: then no instruction between loads
 *    one, and a base that was issued stays. If the base of FS is zero, the kernel
 *    loads it without a hypercall, and nothing is done here.
 *  - The hook that begins this is set last and removed first, and ftrace waits for every
 *    CPU with interrupts on as it changes one: none is between them then.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/percpu.h>
#include <linux/sched.h>
#include <linux/sched/task_stack.h>

#include <asm/cpufeature.h>
#include <asm/msr-index.h>
#include <asm/processor.h>
#include <asm/segment.h>

#include <xen/interface/xen.h>

#include "multicall.h"
#include "pvmmu.h"

/**
 * struct advanced - what has been issued early in this switch
 * @fs_base: the base of FS, if @has_fs
 * @gs_base: the base of the user's GS, if @has_gs; if 0, by its selector
 * @stack:   the kernel's stack; 0 outside of a switch
 */
struct advanced {
	unsigned long fs_base, gs_base, stack;
	bool has_fs, has_gs;
};

static DEFINE_PER_CPU(struct advanced, advanced);

/* Has either of two tasks a selector that is not zero? */
static bool has_selector(const struct thread_struct *prev,
			 const struct thread_struct *next)
{
	unsigned short ds, es;

	savesegment(ds, ds);
	savesegment(es, es);
	return ds | es | next->ds | next->es | prev->fsindex | prev->gsindex |
	       next->fsindex | next->gsindex;
}

static void queue_base(unsigned int which, unsigned long base)
{
	multicall_call(__HYPERVISOR_set_segment_base, which, base, 0);
}

/*
 * Called by entry.S before xen_end_context_switch(), with its argument and with
 * interrupts off. The calls that follow are those of x86_fsgsbase_load(), if they
 * are hypercalls.
 */
void pvmmu_end_switch(struct task_struct *task);
void pvmmu_end_switch(struct task_struct *task)
{
	const struct thread_struct *next = &task->thread;
	struct advanced *now = this_cpu_ptr(&advanced);
	bool is_by_instruction = boot_cpu_has(X86_FEATURE_FSGSBASE);

	if (has_selector(&current->thread, next))
		return;
	now->fs_base = next->fsbase;
	now->has_fs = !is_by_instruction && next->fsbase;
	if (now->has_fs)
		queue_base(SEGBASE_FS, next->fsbase);
	now->gs_base = next->gsbase;
	now->has_gs = is_by_instruction || next->gsbase ||
		      boot_cpu_has_bug(X86_BUG_NULL_SEG);
	/* Xen clears the base with the selector on any processor. */
	if (now->has_gs)
		queue_base(is_by_instruction || next->gsbase ? SEGBASE_GS_USER :
			   SEGBASE_GS_USER_SEL, next->gsbase);
	now->stack = task_top_of_stack(task);
	multicall_call(__HYPERVISOR_stack_switch, __KERNEL_DS, now->stack, 0);
}

/*
 * Called by entry.S with the arguments of xen_write_msr(). Return: whether the base
 * is what it shall be.
 */
long pvmmu_write_msr(unsigned int msr, unsigned int low, unsigned int high);
long pvmmu_write_msr(unsigned int msr, unsigned int low, unsigned int high)
{
	const struct advanced *now = this_cpu_ptr(&advanced);
	unsigned long base = (unsigned long)high << 32 | low;

	if (!now->stack)
		return false;
	if (msr == MSR_FS_BASE)
		return now->has_fs && now->fs_base == base;
	if (msr == MSR_KERNEL_GS_BASE)
		return now->has_gs && now->gs_base == base;
	return false;
}

/*
 * Called by entry.S with the argument of xen_load_gs_index(), which may load another
 * selector before the zero, to clear the base. Return: whether both are done.
 */
long pvmmu_load_gs_index(unsigned int selector);
long pvmmu_load_gs_index(unsigned int selector)
{
	const struct advanced *now = this_cpu_ptr(&advanced);

	return now->stack && now->has_gs && !now->gs_base &&
	       (!selector || selector == __USER_DS);
}

/*
 * Called by entry.S with the argument of xen_load_sp0(), the last of a switch. Return:
 * whether it is done.
 */
long pvmmu_load_sp0(unsigned long stack);
long pvmmu_load_sp0(unsigned long stack)
{
	struct advanced *now = this_cpu_ptr(&advanced);
	bool is_done = now->stack && now->stack == stack;

	now->stack = 0;
	if (is_done)
		this_cpu_write(cpu_tss_rw.x86_tss.sp0, stack);
	return is_done;
}
