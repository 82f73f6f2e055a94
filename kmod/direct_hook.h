/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Hooks on stock functions, by ftrace's direct calls, the mechanism under BPF
 * trampolines: the five bytes that every traceable function begins with become
 * a call to our entry code. The kernel's own ftrace keeps them consistent, and
 * refuses a function that someone else has taken that way.
 *
 * Each function that a hook calls has to ensure:
 *
 *  - It can run while the stock function runs on another CPU: neither keeps
 *    state that the other does not.
 *  - It does not sleep voluntarily. So once a hook is removed and
 *    synchronize_rcu_tasks() has returned, no task is inside it.
 *
 * Include it after pr_fmt() and use it in one file of a module.
 */
#ifndef TRAPLESS_DIRECT_HOOK_H
#define TRAPLESS_DIRECT_HOOK_H

#include <linux/sched.h>
#include <asm/text-patching.h>

#include "series_ftrace.h"
#include "stock_symbols.h"

/* Without it a cond_resched() of ours would count as giving up the CPU. */
#ifndef CONFIG_TASKS_RCU
#error "unloading relies on CONFIG_TASKS_RCU, which Debian's kernel has"
#endif

/* An endbr64, which functions of later kernels begin with. */
#define ENDBR_SIZE	4

/**
 * struct direct_hook - a hook on a stock function
 * @symbol: the stock function
 * @entry:  the code it calls first, made with direct_hook_entry.S
 * @ip:     where it is led away, once resolved: at its address, or behind an endbr64
 * @body:   its address behind the hook, for calling the stock function
 * @series: what ftrace needs of it
 */
struct direct_hook {
	const char *symbol;
	void (*entry)(void);
	unsigned long ip;
	unsigned long body;
	struct series_hook series;
};

/**
 * direct_hook_resolve - find functions that are to be hooked
 * @hooks: the hooks, @symbol and @entry set
 * @count: how many
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
static inline int direct_hook_resolve(struct direct_hook *const *hooks,
				      unsigned int count)
{
	unsigned long (*location)(unsigned long ip);
	const struct stock_symbol symbol = { "ftrace_location", &location };
	int rc = stock_symbols_resolve(&symbol, 1);
	unsigned int i;

	for (i = 0; !rc && i < count; i++) {
		struct direct_hook *hook = hooks[i];
		const struct stock_symbol function = { hook->symbol,
						       &hook->ip };
		unsigned long place;

		rc = stock_symbols_resolve(&function, 1);
		if (rc)
			break;
		/* ftrace can redirect only such a function. */
		place = location(hook->ip);
		if (place != hook->ip && place != hook->ip + ENDBR_SIZE) {
			pr_err("unknown kernel: %s does not begin with a call to fentry\n",
			       hook->symbol);
			rc = -ENOENT;
		}
		hook->ip = place;
		hook->body = hook->ip + MCOUNT_INSN_SIZE;
	}
	return rc;
}

/*
 * The kernel has lost control of its text (ftrace found a fault and is disabled
 * until the next boot): it continues to call our code, which must therefore stay.
 */
static inline void direct_hook_stranded(void)
{
	pr_emerg("ftrace is disabled and cannot let go of this module: it stays until the next boot\n");
	for (;;)
		schedule_timeout_idle(MAX_SCHEDULE_TIMEOUT);
}

/**
 * direct_hook_out - remove a hook
 * @hook: set by direct_hook_in()
 */
static inline void direct_hook_out(struct direct_hook *hook)
{
	if (series_hook_out(&hook->series, hook->ip, (unsigned long)hook->entry))
		direct_hook_stranded();
}

/**
 * direct_hook_is_live - see whether a hook that ftrace has accepted is in the text
 * @ip: where it leads away
 *
 * While kernel.ftrace_enabled is 0 ftrace accepts hooks and leaves the text as it is. Once a
 * hook is live it stays so (series_hooks_stay()).
 *
 * Return: whether it is.
 */
static inline bool direct_hook_is_live(unsigned long ip)
{
	bool live = READ_ONCE(*(const u8 *)ip) == CALL_INSN_OPCODE;

	if (!live)
		pr_err("no function can be hooked while kernel.ftrace_enabled is 0\n");
	return live;
}

/**
 * direct_hook_in - hook a stock function
 * @hook: resolved
 *
 * Return: 0, or why ftrace refused, with nothing changed; -EBUSY if another
 * user of direct calls, such as a BPF program, holds the function, or if
 * kernel.ftrace_enabled is 0.
 */
static inline int direct_hook_in(struct direct_hook *hook)
{
	int rc = series_hook_in(&hook->series, hook->ip,
				(unsigned long)hook->entry);

	if (!rc && !direct_hook_is_live(hook->ip)) {
		direct_hook_out(hook);
		rc = -EBUSY;
	}
	return rc;
}

#endif /* TRAPLESS_DIRECT_HOOK_H */
