/* SPDX-License-Identifier: GPL-2.0-only */
/* Of Xen's domain only what the patches add; the model's comes behind it. */
#ifndef STUBS_XEN_SCHED_H
#define STUBS_XEN_SCHED_H

#include "stubs.h"

#include <asm/pv/semi-writable.h>

struct domain {
    struct { struct { struct semi_writable_domain semi_writable; } pv; } arch;
};

struct vcpu { struct domain *domain; };
struct domain *current_domain(void);
#define current (&(struct vcpu){ current_domain() })

extern struct domain *hardware_domain;
#define is_hardware_domain(d) ((d) == hardware_domain)
bool domain_is_pv(const struct domain *d);
#define is_pv_domain(d) domain_is_pv(d)

#endif /* STUBS_XEN_SCHED_H */
