/* SPDX-License-Identifier: GPL-2.0-only */
#ifndef TRAPLESS_XEN_RANGES_H
#define TRAPLESS_XEN_RANGES_H

#include "layout.h"

long ranges_call(struct domain *d, u32 op, const void *arg);

#endif /* TRAPLESS_XEN_RANGES_H */
