// SPDX-License-Identifier: GPL-2.0-only
/*
 * Finds out when a processor begins and ends to run threads of a tracked memory.
 *
 * A processor runs a thread of a memory from the context switch to it, or from
 * kthread_use_mm() by a kernel thread, until the next switch to another memory or
 * none, or kthread_unuse_mm(). Other changes of a task's mm need no callback: exec
 * leads to an mm that nobody tracks yet, exit to one that the task does not write
 * to; the next switch updates the record.
 *
 * Invariant: a processor makes no store to a tracked memory by its addresses before
 * in() was called on it, for each user that has announced the memory by
 * tpd_switch_now().
 *
 * Each processor records the tag of the memory that it runs, not a pointer, so the
 * record is safe after the memory is gone. Another memory can have the tag by then:
 * in() and out() may be called once too often, and users must tolerate that.
 *
 * Once there was a user the tracepoint stays registered: registering rewrites code
 * that all processors run, and while nothing is tracked it costs two loads per switch.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kprobes.h>
#include <linux/percpu.h>
#include <linux/rculist.h>
#include <linux/sched.h>
#include <linux/smp.h>
#include <linux/tracepoint.h>

#include "tracking.h"

/* Tag of the memory that a processor runs, or 0. Changed by itself, interrupts off. */
static DEFINE_PER_CPU(unsigned int, running);

/* Changed under the mutex, followed under RCU. */
static LIST_HEAD(users);
static DEFINE_MUTEX(users_lock);

/* From now on this processor runs threads of this mm. Interrupts are off. */
static void run(struct mm_struct *mm)
{
	struct tpd_memory *next = tpd_memory_of(mm), *last;
	unsigned int tag = __this_cpu_read(running);
	struct tpd_switch *user;

	if (likely(!next && !tag))
		return;
	last = tag ? tpd_memory_by_tag(tag) : NULL;
	__this_cpu_write(running, next ? next->tag : 0);
	list_for_each_entry_rcu(user, &users, node) {
		if (last && last != next)
			user->out(last);
		if (next)
			user->in(next);
	}
}

static void on_switch(void *data, bool preempt, struct task_struct *prev,
		      struct task_struct *next, unsigned int prev_state)
{
	run(next->mm);
}

/* In kthread_use_mm() and kthread_unuse_mm(), after the task has its new mm. */
static int on_borrow(struct kprobe *probe, struct pt_regs *regs)
{
	unsigned long flags;

	local_irq_save(flags);
	run(current->mm);
	local_irq_restore(flags);
	return 0;
}

static struct kprobe borrow = {
	.symbol_name = "membarrier_update_current_mm",
	.pre_handler = on_borrow,
};

static struct tracepoint *tracepoint;

static int hook(void)
{
	int err;

	tracepoint = tpd_tracepoint("sched_switch");
	if (!tracepoint)
		return -ENOENT;
	err = register_kprobe(&borrow);
	if (err) {
		pr_err("switch: cannot probe %s: %d\n", borrow.symbol_name, err);
		return err;
	}
	err = tracepoint_probe_register(tracepoint, on_switch, NULL);
	if (err)
		unregister_kprobe(&borrow);
	return err;
}

static void unhook(void)
{
	tracepoint_probe_unregister(tracepoint, on_switch, NULL);
	unregister_kprobe(&borrow);
	tracepoint_synchronize_unregister();
	/* Reset it for the next registration. */
	borrow.addr = NULL;
	borrow.flags = 0;
}

/**
 * tpd_switch_register - have a user's in() and out() called for all tracked memories
 * @user: must stay valid until it is unregistered
 *
 * Return: 0, or an error, after printing it, if this kernel lacks what is needed.
 */
int tpd_switch_register(struct tpd_switch *user)
{
	int err = 0;

	mutex_lock(&users_lock);
	if (list_empty(&users))
		err = hook();
	if (!err)
		list_add_tail_rcu(&user->node, &users);
	mutex_unlock(&users_lock);
	return err;
}

/**
 * tpd_switch_unregister - undo tpd_switch_register()
 * @user: the user; when this returns, none of its callbacks runs or will run
 */
void tpd_switch_unregister(struct tpd_switch *user)
{
	mutex_lock(&users_lock);
	list_del_rcu(&user->node);
	if (list_empty(&users))
		unhook();
	mutex_unlock(&users_lock);
	synchronize_rcu();
}

struct announcement {
	struct tpd_switch *user;
	struct tpd_memory *memory;
	bool in;
};

static void announce_here(void *data)
{
	const struct announcement *what = data;
	struct tpd_memory *memory = what->memory;
	bool runs = current->mm == memory->mm;

	if (what->in && runs) {
		__this_cpu_write(running, memory->tag);
		what->user->in(memory);
	}
	/* Compare the tag, too: an exiting thread has dropped its mm already. */
	if (!what->in && (runs || __this_cpu_read(running) == memory->tag))
		what->user->out(memory);
}

/**
 * tpd_switch_now - call a user's in() or out() on each processor that runs a memory
 * @user:   the user
 * @memory: a tracked memory
 * @in:     which of the two
 *
 * May sleep. Processors that begin to run the memory later call in() by themselves.
 */
void tpd_switch_now(struct tpd_switch *user, struct tpd_memory *memory, bool in)
{
	struct announcement what = { user, memory, in };

	on_each_cpu(announce_here, &what, true);
}
