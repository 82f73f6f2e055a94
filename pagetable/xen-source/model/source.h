/* SPDX-License-Identifier: GPL-2.0-only */
/* Between source.c, which sees Xen's names, and model.c, which sees the model's. */
#ifndef SOURCE_H
#define SOURCE_H

#include <stdbool.h>

/* What the model's struct domain keeps free for ours, at its beginning. */
#define SOURCE_DOMAIN_BYTES	64

struct domain;

struct source_domain {
	unsigned int next, serving;
	unsigned long marked, held, scanned;
	unsigned int *waiting;
};

int source_map(struct domain *d, unsigned long dfn, unsigned long mfn,
	       unsigned long count, unsigned int flags);
int source_unmap(struct domain *d, unsigned long dfn, unsigned long count);
bool source_serves(unsigned int op);
long source_op(unsigned int op, void *arg);
int source_relinquish(struct domain *d);
bool source_has_map(void);
void source_forget_map(void);
bool source_holds(unsigned long mfn);
bool source_marked(const struct domain *d, unsigned long mfn);
struct source_domain source_of(struct domain *d);
unsigned int *source_waiting(struct domain *d);

#endif /* SOURCE_H */
