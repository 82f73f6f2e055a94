/* SPDX-License-Identifier: GPL-2.0-only */
/* The stock functions behind the ones this payload replaces; see original.S. */
#ifndef TRAPLESS_XEN_ORIGINAL_H
#define TRAPLESS_XEN_ORIGINAL_H

#include "layout.h"

int original_iommu_legacy_map(struct domain *d, u64 dfn, u64 mfn,
			      unsigned long page_count, u32 flags);
int original_iommu_legacy_unmap(struct domain *d, u64 dfn,
				unsigned long page_count);
long original_do_xenoprof_op(int op, void *arg);

#endif /* TRAPLESS_XEN_ORIGINAL_H */
