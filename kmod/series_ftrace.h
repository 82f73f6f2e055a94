/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * ftrace's direct calls, where the series of Linux differ: one address is led to one
 * function (a hook), or several to the same (a set).
 */
#ifndef TRAPLESS_SERIES_FTRACE_H
#define TRAPLESS_SERIES_FTRACE_H

#include <linux/ftrace.h>

#include "series.h"

/*
 * So that kernel.ftrace_enabled cannot turn a set off, nor single hooks where they are sets:
 * the kernel then refuses to write it. Registering forgets the flag, so it is set afterwards.
 */
static inline void series_hooks_stay(struct ftrace_ops *set)
{
	set->flags |= FTRACE_OPS_FL_PERMANENT;
}

#if SERIES_IS(6, 1)

/* What one hook needs beside its address. */
struct series_hook {
};

static inline int series_hook_in(struct series_hook *hook, unsigned long ip,
				 unsigned long entry)
{
	return register_ftrace_direct(ip, entry);
}

static inline int series_hook_out(struct series_hook *hook, unsigned long ip,
				  unsigned long entry)
{
	return unregister_ftrace_direct(ip, entry);
}

static inline int series_hooks_in(struct ftrace_ops *set, unsigned long entry)
{
	int rc = register_ftrace_direct_multi(set, entry);

	if (!rc)
		series_hooks_stay(set);
	return rc;
}

static inline int series_hooks_out(struct ftrace_ops *set, unsigned long entry)
{
	return unregister_ftrace_direct_multi(set, entry);
}

/* Forget the addresses of a set that is not registered. */
static inline void series_hooks_forget(struct ftrace_ops *set)
{
	ftrace_free_filter(set);
}

#elif SERIES_IS(6, 12)

struct series_hook {
	struct ftrace_ops ops;
};

/*
 * ftrace_free_filter() leaves pointers to what it has freed: with them the next
 * registration would free it again.
 */
static inline void series_hooks_forget(struct ftrace_ops *set)
{
	ftrace_free_filter(set);
	*set = (struct ftrace_ops){ };
}

static inline int series_hooks_in(struct ftrace_ops *set, unsigned long entry)
{
	int rc = register_ftrace_direct(set, entry);

	if (!rc)
		series_hooks_stay(set);
	return rc;
}

static inline int series_hooks_out(struct ftrace_ops *set, unsigned long entry)
{
	return unregister_ftrace_direct(set, entry, false);
}

static inline int series_hook_in(struct series_hook *hook, unsigned long ip,
				 unsigned long entry)
{
	int rc = ftrace_set_filter_ip(&hook->ops, ip, 0, 0);

	if (!rc)
		rc = series_hooks_in(&hook->ops, entry);
	if (rc)
		series_hooks_forget(&hook->ops);
	return rc;
}

static inline int series_hook_out(struct series_hook *hook, unsigned long ip,
				  unsigned long entry)
{
	int rc = series_hooks_out(&hook->ops, entry);

	if (!rc)
		series_hooks_forget(&hook->ops);
	return rc;
}

#endif

#endif /* TRAPLESS_SERIES_FTRACE_H */
