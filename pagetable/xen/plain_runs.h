/* SPDX-License-Identifier: GPL-2.0-only */
/* Runs of plain entries in tables that Xen validates or tears down; called by zero_runs.S. */
#ifndef TRAPLESS_XEN_PLAIN_RUNS_H
#define TRAPLESS_XEN_PLAIN_RUNS_H

#include "layout.h"

#pragma GCC visibility push(hidden)

u32 plain_run_take(u64 *entry);
u32 plain_run_drop(u64 *entry);

#pragma GCC visibility pop

#endif /* TRAPLESS_XEN_PLAIN_RUNS_H */
