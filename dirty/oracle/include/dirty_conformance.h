/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * What dirty-conformance(1) asks of a tracker of dirty pages that it shall judge.
 *
 * A plug-in is a shared object with one function,
 *
 *	const struct dirty_conformance_plugin *dirty_conformance_plugin(void);
 *
 * which returns a table that stays as it is. Each case of dirty-conformance loads the
 * plug-in into a process of its own and uses it as a checkpointer would:
 *
 *	open, watch, copy everything; then over and over: collect, copy what was reported
 *
 * and compares its copy with the memory. What differs was missed.
 *
 * The promise that is judged: a page whose content changed after watch() returned,
 * or since the last collect(), is reported by this collect or, if the change races
 * with it, by the next. It does not matter who changed it: a store, a system call,
 * another process, the kernel that takes memory back. To report too much is no
 * mistake; it is counted.
 *
 * Functions return 0, or a negative errno; error() then has words for it.
 * All calls come from one thread, also while others of the process write memory.
 */
#ifndef DIRTY_CONFORMANCE_H
#define DIRTY_CONFORMANCE_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DIRTY_CONFORMANCE_VERSION 1

/* What may be said of a reported range; none of them: its pages are to be copied. */
#define DIRTY_CONFORMANCE_ZERO	1u /* reads as zeros: nothing to copy, even if something is there by now */
#define DIRTY_CONFORMANCE_GONE	2u /* not mapped any more: nothing to copy */
#define DIRTY_CONFORMANCE_DOUBT	4u /* may not have been written; not counted as over-reported */

/* Features of a tracker. */
/*
 * It reports memory that was unmapped (GONE), and new mappings as a whole. Without it
 * the judge looks at /proc/PID/maps itself, as the users of such a tracker must, and
 * takes pages of new mappings that were not reported for zeros.
 */
#define DIRTY_CONFORMANCE_REPORTS_GONE 1u

/*
 * Hand over a range: whole pages, all of them watched, in any order, in as many calls
 * as you like. If it returns something else than 0, report no more: it is too much.
 */
typedef int (*dirty_conformance_report)(void *context, uintptr_t start, size_t length, uint32_t flags);

struct dirty_conformance_plugin {
	uint32_t version; /* DIRTY_CONFORMANCE_VERSION */
	uint32_t features;
	const char *name;

	/*
	 * Cases that your documentation says your tracker does not do, by name, with
	 * spaces between them; or NULL. They are run all the same: what was missed
	 * is shown, and is not held against it.
	 */
	const char *limits;

	/*
	 * Track a process: this one, if pid is getpid(). -ENOTSUP means that the tracker
	 * is not made for that, or does not work on this kernel: cases are skipped then.
	 * A process can be opened more than once; -EBUSY refuses the second time.
	 */
	int (*open)(pid_t pid, void **tracker);

	/*
	 * From now on, until unwatch. A range is whole pages, and may be far larger
	 * than what is mapped in it now or ever. It overlaps no other that is watched.
	 * -ENOTSUP and -EBUSY refuse: the case is skipped.
	 */
	int (*watch)(void *tracker, uintptr_t start, size_t length);
	/* A part of what is watched; it need not be a range that was given to watch. */
	int (*unwatch)(void *tracker, uintptr_t start, size_t length);

	/*
	 * Report what was written since the last time, and begin anew. If the process has
	 * ended or called execve since, fail, or report all that is watched as GONE.
	 */
	int (*collect)(void *tracker, dirty_conformance_report report, void *context);

	/* The process goes on, untracked. */
	void (*close)(void *tracker);

	/* Words for the last failure; of open(), if tracker is NULL. Or NULL. */
	const char *(*error)(void *tracker);
};

const struct dirty_conformance_plugin *dirty_conformance_plugin(void);

#ifdef __cplusplus
}
#endif

#endif
