/* SPDX-License-Identifier: GPL-2.0-only */
/* What a pin tells the end of a fork: see fork_flush.c. */
#ifndef PVMMU_FORK_FLUSH_H
#define PVMMU_FORK_FLUSH_H

#include <linux/types.h>

struct mm_struct;
struct pvmmu_switch;

typedef void flush_mm_t(struct mm_struct *mm, unsigned long start, unsigned long end,
			unsigned int stride_shift, bool freed_tables);

int pvmmu_fork_flush_resolve(void);
void pvmmu_fork_flush_note(const struct mm_struct *mm);
int pvmmu_fork_flush_enable(struct pvmmu_switch *part);
void pvmmu_fork_flush_disable(struct pvmmu_switch *part);

#endif /* PVMMU_FORK_FLUSH_H */
