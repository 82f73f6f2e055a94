/* SPDX-License-Identifier: GPL-2.0-only */
/* Ways into the payload's statics; see payload_under_test.c. */
#ifndef TRAPLESS_UNDER_TEST_H
#define TRAPLESS_UNDER_TEST_H

#include "evict.h"
#include "marks.h"
#include "semi_writable.h"

/* What the ranges' calls answer here: they are tested on the real hypervisor. */
#define FAKE_PROTECT	1001
#define FAKE_MOVE	1002

int payload_map(struct domain *d, u64 dfn, u64 mfn, unsigned long count,
		u32 flags);
int payload_unmap(struct domain *d, u64 dfn, unsigned long count);
long payload_callback(int op, void *arg);
int payload_domain_kill(struct domain *d);
bool payload_has_map(void);
bool payload_holds(u64 mfn);
struct domain_marks payload_marks_of(const struct domain *d);
int payload_try_revert(void);
int payload_revert_action(void);

#endif /* TRAPLESS_UNDER_TEST_H */
