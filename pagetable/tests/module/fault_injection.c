// SPDX-License-Identifier: GPL-2.0-only
/*
 * Lets allocations of trapless_pagetable fail, one after another: at every site
 * from which the module asks for memory, directly or through the kernel.
 *
 *   task      prefix of the names of the tasks concerned; empty: none, disarmed
 *   fail      the allocation to fail, from 1; 0 only counts
 *   fresh     fail the first allocation that is a site's first or second and
 *             has never failed before
 *   persist   fail every later one, too
 *   seen      allocations counted since `task` was written
 *   failed    how many of them were made to fail
 *   sites     different places of the module that asked for memory
 *   unfailed  those of them that never saw a failure, one a line; a write
 *             forgets all sites
 *   marked    frames that the hypervisor holds semi-writable now
 *
 * Invariant: an allocation counts if it is made by such a task with a function
 * of trapless_pagetable on its stack, and a failing one never reaches the
 * allocator: the caller gets NULL as from a kernel without memory. Allocations
 * with __GFP_NOFAIL are neither counted nor failed.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/gfp.h>
#include <linux/kprobes.h>
#include <linux/module.h>
#include <linux/sched.h>
#include <linux/stacktrace.h>
#include <linux/string.h>

#include "call.h"
#include "series_allocators.h"

#define VICTIM	"trapless_pagetable"
#define DEPTH	48
#define SITES	256
/* In a loop's second turn the failure finds the first turn's allocation. */
#define TURNS	2

static char task[TASK_COMM_LEN];
static unsigned int fail, seen, failed;
static bool fresh, persist;
module_param(fresh, bool, 0644);
module_param(fail, uint, 0644);
module_param(persist, bool, 0644);
module_param(seen, uint, 0444);
module_param(failed, uint, 0444);

static DEFINE_SPINLOCK(lock);
static struct module *victim;
static struct site {
	const char *allocator;
	unsigned long offset;
	unsigned int turn;	/* since `task` was written */
	unsigned int failed;	/* the last turn that ever failed */
} sites[SITES];
static unsigned int known;

/* The function that runs instead of an allocator that is to fail. */
static notrace void *no_memory(void)
{
	return NULL;
}

/* Offset in the victim of the innermost of its functions on the stack, or 0. */
static unsigned long caller(void)
{
	unsigned long stack[DEPTH];
	unsigned int i, depth;

	depth = stack_trace_save(stack, DEPTH, 0);
	for (i = 0; i < depth; i++) {
		if (within_module_core(stack[i], victim))
			return stack[i] - series_module_core(victim);
		if (within_module_init(stack[i], victim))
			return stack[i] + SZ_1G - series_module_init(victim);
	}
	return 0;
}

static struct site *site_of(const char *allocator, unsigned long offset)
{
	unsigned int i;

	for (i = 0; i < known; i++)
		if (sites[i].offset == offset &&
		    sites[i].allocator == allocator)
			return &sites[i];
	if (known == SITES)
		return NULL;
	sites[known] = (struct site){ allocator, offset };
	return &sites[known++];
}

static bool is_armed(void)
{
	return task[0] && in_task() &&
	       !strncmp(current->comm, task, strlen(task));
}

static bool is_to_fail(const struct site *site)
{
	if (failed)
		return persist;
	if (fresh)
		return site->turn <= TURNS && site->turn > site->failed;
	return seen == fail;
}

/* Return: whether this allocation is to fail. */
static bool counts(const char *allocator, gfp_t gfp)
{
	unsigned long offset, flags;
	struct site *site;
	bool hit = false;

	if (!is_armed() || !READ_ONCE(victim) || (gfp & __GFP_NOFAIL))
		return false;
	offset = caller();
	if (!offset)
		return false;
	spin_lock_irqsave(&lock, flags);
	seen++;
	site = site_of(allocator, offset);
	if (site) {
		site->turn++;
		hit = is_to_fail(site);
	}
	if (hit) {
		failed++;
		site->failed = max(site->failed, site->turn);
	}
	spin_unlock_irqrestore(&lock, flags);
	return hit;
}

/* An allocator, and which of its arguments are the flags. */
struct allocator {
	struct kprobe probe;
	size_t gfp;
};

static int on_allocation(struct kprobe *probe, struct pt_regs *regs)
{
	struct allocator *a = container_of(probe, struct allocator, probe);
	gfp_t gfp = (__force gfp_t)*(unsigned long *)((char *)regs + a->gfp);

	if (!counts(probe->symbol_name, gfp))
		return 0;
	instruction_pointer_set(regs, (unsigned long)no_memory);
	return 1;
}

/* Tells kprobes that the handler above changes the instruction pointer. */
static void after_allocation(struct kprobe *probe, struct pt_regs *regs,
			     unsigned long flags)
{
}

#define ALLOCATOR(_name, _argument) {				\
	.probe = {						\
		.symbol_name = _name,				\
		.pre_handler = on_allocation,			\
		.post_handler = after_allocation,		\
	},							\
	.gfp = offsetof(struct pt_regs, _argument),		\
}

static struct allocator allocators[] = { SERIES_ALLOCATORS(ALLOCATOR) };

static int on_module(struct notifier_block *self, unsigned long state,
		     void *data)
{
	struct module *module = data;

	if (strcmp(module->name, VICTIM))
		return NOTIFY_DONE;
	/* busybox retries a failed load, and that one would get all its memory. */
	if (state == MODULE_STATE_COMING && is_armed() && failed)
		return notifier_from_errno(-EAGAIN);
	WRITE_ONCE(victim, state == MODULE_STATE_GOING ? NULL : module);
	return NOTIFY_DONE;
}

static struct notifier_block modules = { .notifier_call = on_module };

static int task_set(const char *val, const struct kernel_param *kp)
{
	unsigned long flags;
	char name[TASK_COMM_LEN];
	unsigned int i;

	if (strscpy(name, val, sizeof(name)) < 0)
		return -EINVAL;
	strim(name);
	spin_lock_irqsave(&lock, flags);
	strscpy(task, name, sizeof(task));
	seen = 0;
	failed = 0;
	for (i = 0; i < known; i++)
		sites[i].turn = 0;
	spin_unlock_irqrestore(&lock, flags);
	return 0;
}

static const struct kernel_param_ops task_ops = { .set = task_set };
module_param_cb(task, &task_ops, NULL, 0200);

static int unfailed_set(const char *val, const struct kernel_param *kp)
{
	unsigned long flags;

	spin_lock_irqsave(&lock, flags);
	known = 0;
	spin_unlock_irqrestore(&lock, flags);
	return 0;
}

/* One a line: the allocator and where in the module, "init+" or "core+". */
static int unfailed_get(char *buf, const struct kernel_param *kp)
{
	unsigned long flags;
	unsigned int i;
	int at = 0;

	spin_lock_irqsave(&lock, flags);
	for (i = 0; i < known; i++)
		if (!sites[i].failed)
			at += scnprintf(buf + at, PAGE_SIZE - at, "%s %s+0x%lx\n",
					sites[i].allocator,
					sites[i].offset < SZ_1G ? "core" : "init",
					sites[i].offset % SZ_1G);
	spin_unlock_irqrestore(&lock, flags);
	return at;
}

static const struct kernel_param_ops unfailed_ops = {
	.set = unfailed_set, .get = unfailed_get,
};
module_param_cb(unfailed, &unfailed_ops, NULL, 0600);
module_param_named(sites, known, uint, 0444);

static int marked_get(char *buf, const struct kernel_param *kp)
{
	struct tpt_stats stats;
	long rc = tpt_call(TPT_OP_STATS, &stats);

	return rc ?: sysfs_emit(buf, "%llu\n", (u64)stats.semi_writable);
}

static const struct kernel_param_ops marked_ops = { .get = marked_get };
module_param_cb(marked, &marked_ops, NULL, 0444);

static int __init fault_injection_init(void)
{
	unsigned int i;
	int rc;

	for (i = 0; i < ARRAY_SIZE(allocators); i++) {
		rc = register_kprobe(&allocators[i].probe);
		if (rc) {
			pr_err("%s: %d\n", allocators[i].probe.symbol_name, rc);
			goto err;
		}
	}
	rc = register_module_notifier(&modules);
	if (!rc)
		return 0;
err:
	while (i--)
		unregister_kprobe(&allocators[i].probe);
	return rc;
}

static void __exit fault_injection_exit(void)
{
	unsigned int i;

	unregister_module_notifier(&modules);
	for (i = 0; i < ARRAY_SIZE(allocators); i++)
		unregister_kprobe(&allocators[i].probe);
}

module_init(fault_injection_init);
module_exit(fault_injection_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("trapless test: the guest module without memory");
