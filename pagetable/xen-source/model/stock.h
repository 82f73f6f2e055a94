/* SPDX-License-Identifier: GPL-2.0-only */
/* The model's stock functions, with Xen's types; model.c sees plain numbers. */
#ifndef STOCK_H
#define STOCK_H

#include "stubs.h"

int original_iommu_legacy_map(struct domain *d, dfn_t dfn, mfn_t mfn,
			      unsigned long page_count, unsigned int flags);
int original_iommu_legacy_unmap(struct domain *d, dfn_t dfn,
				unsigned long page_count);

#endif /* STOCK_H */
