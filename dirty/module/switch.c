// SPDX-License-Identifier: GPL-2.0-only
/*
 * When threads of tracked memories come to run on a processor, and when they go.
 *
 * A processor runs a thread of a memory from the context switch to it, or from
 * kthread_use_mm() by a kernel thread, until the next switch to another memory or
 * none, or kthread_unuse_mm(). What else changes a task's mm leads to one that
 * nobody tracks yet (exec) or to none that it writes to (exit); the next switch
 * notes it.
 *
 * Invariant: no store to a tracked memory by its addresses happens before in()
 * was called on that processor for each user to whom tpd_switch_now() had
 * announced it.
 *
 * Whom a processor runs is kept by its tag, which is good after the memory is
 * gone. A tag can then be another memory's; so in() and out() may be called once
 * more than need be, and users know by themselves what they have done.
 *
 * Once there is a user the tracepoint stays in place: setting it rewrites code
 * under all processors, and while nobody is tracked it costs a switch two loads.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kprobes.h>
#include <linux/percpu.h>
#include <linux/rculist.h>
#include <linux/sched.h>
#include <linux/smp.h>
#include <linux/tracepoint.h>

#include "tracking.h"

/* Tag of the memory that a processor runs, or 0; changed there, with interrupts off. */
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

static void look_at(struct tracepoint *candidate, void *data)
{
	if (!strcmp(candidate->name, "sched_switch"))
		tracepoint = candidate;
}

static int hook(void)
{
	int err;

	for_each_kernel_tracepoint(look_at, NULL);
	if (!tracepoint) {
		pr_err("switch: this kernel has no tracepoint sched_switch\n");
		return -ENOENT;
	}
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
	/* To be used again: a kprobe is registered as it was written. */
	borrow.addr = NULL;
	borrow.flags = 0;
}

/**
 * tpd_switch_register - have a user's in() and out() called for all tracked memories
 * @user: stays in place until it is unregistered
 *
 * Return: 0, or an error, which was printed, if this kernel cannot say.
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
 * tpd_switch_unregister - the opposite; afterwards nothing of the user is called
 * @user: the user
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
	/* By its tag, too: a thread that exits gives its mm away first. */
	if (!what->in && (runs || __this_cpu_read(running) == memory->tag))
		what->user->out(memory);
}

/**
 * tpd_switch_now - call a user's in() or out() on each processor that runs a memory
 * @user:   the user
 * @memory: a tracked memory
 * @in:     which of the two
 *
 * May sleep. For those that come to run it later in() is called by itself.
 */
void tpd_switch_now(struct tpd_switch *user, struct tpd_memory *memory, bool in)
{
	struct announcement what = { user, memory, in };

	on_each_cpu(announce_here, &what, true);
}
