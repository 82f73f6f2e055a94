// SPDX-License-Identifier: GPL-2.0-only
/*
 * Stock functions led to ours by ftrace's direct calls, the mechanism under BPF
 * trampolines: the five bytes that every traceable function begins with become
 * a call to entry.S. The kernel's own ftrace keeps them consistent, and refuses
 * a function that someone else has taken that way.
 *
 * Invariants:
 *
 *  - Each of our functions can run beside the stock one on another CPU: there
 *    is no state that only one of the two keeps.
 *  - None of them sleeps of its own accord. So once a hook is out and
 *    synchronize_rcu_tasks() has returned, no task is inside one.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/ftrace.h>

#include "stock_symbols.h"
#include "pvmmu.h"

/* Without it a cond_resched() of ours would count as giving up the CPU. */
#ifndef CONFIG_TASKS_RCU
#error "unloading relies on CONFIG_TASKS_RCU, which Debian's kernel has"
#endif

struct pvmmu_hook pvmmu_hook_pgd_walk = {
	.symbol = "__xen_pgd_walk", .entry = pvmmu_entry_pgd_walk,
};

struct pvmmu_hook pvmmu_hook_set_pte = {
	.symbol = "xen_set_pte", .entry = pvmmu_entry_set_pte,
};

struct pvmmu_hook pvmmu_hook_map_pages = {
	.symbol = "filemap_map_pages", .entry = pvmmu_entry_map_pages,
};

struct pvmmu_hook pvmmu_hook_copy_range = {
	.symbol = "copy_page_range", .entry = pvmmu_entry_copy_range,
};

struct pvmmu_hook pvmmu_hook_clear_flush = {
	.symbol = "ptep_clear_flush", .entry = pvmmu_entry_clear_flush,
};

struct pvmmu_hook pvmmu_hook_set_access_flags = {
	.symbol = "ptep_set_access_flags",
	.entry = pvmmu_entry_set_access_flags,
};

/**
 * pvmmu_hooks_resolve - find every function that is hooked
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_hooks_resolve(void)
{
	struct pvmmu_hook *const hooks[] = {
		&pvmmu_hook_pgd_walk, &pvmmu_hook_set_pte,
		&pvmmu_hook_map_pages, &pvmmu_hook_copy_range,
		&pvmmu_hook_clear_flush, &pvmmu_hook_set_access_flags,
	};
	unsigned long (*ftrace_location)(unsigned long ip);
	const struct stock_symbol symbol = { "ftrace_location",
					     &ftrace_location };
	int rc = stock_symbols_resolve(&symbol, 1);
	unsigned int i;

	for (i = 0; !rc && i < ARRAY_SIZE(hooks); i++) {
		struct pvmmu_hook *hook = hooks[i];
		const struct stock_symbol function = { hook->symbol,
						       &hook->ip };

		rc = stock_symbols_resolve(&function, 1);
		if (rc)
			break;
		/* Only then are the five bytes ours to lead away. */
		if (ftrace_location(hook->ip) != hook->ip) {
			pr_err("unknown kernel: %s does not begin with a call to fentry\n",
			       hook->symbol);
			rc = -ENOENT;
		}
		hook->body = hook->ip + MCOUNT_INSN_SIZE;
	}
	return rc;
}

/**
 * pvmmu_hook - lead a stock function to ours
 * @part: the switch whose hook it is
 *
 * Return: 0, or why ftrace refused, with nothing changed; -EBUSY if another
 * user of direct calls, such as a BPF program, holds the function.
 */
int pvmmu_hook(struct pvmmu_switch *part)
{
	struct pvmmu_hook *hook = part->hook;

	return register_ftrace_direct(hook->ip, (unsigned long)hook->entry);
}

/**
 * pvmmu_unhook - lead a stock function back to itself
 * @part: the switch whose hook it is
 */
void pvmmu_unhook(struct pvmmu_switch *part)
{
	struct pvmmu_hook *hook = part->hook;

	WARN_ON(unregister_ftrace_direct(hook->ip,
					 (unsigned long)hook->entry));
}
