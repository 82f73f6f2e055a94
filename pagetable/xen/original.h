/* SPDX-License-Identifier: GPL-2.0-only */
/* The stock functions behind the ones this payload replaces; see original.S. */
#ifndef TRAPLESS_XEN_ORIGINAL_H
#define TRAPLESS_XEN_ORIGINAL_H

#include "layout.h"

int original_iommu_legacy_map(struct domain *d, u64 dfn, u64 mfn,
			      unsigned long page_count, u32 flags);
int original_iommu_legacy_unmap(struct domain *d, u64 dfn,
				unsigned long page_count);
long original_do_callback_op(int op, void *arg);
int original_domain_kill(struct domain *d);
long original_do_mmu_update(const void *updates, u32 count, u32 *done,
			    u32 foreigndom);
long original_do_update_va_mapping(u64 va, u64 value, u64 flags);
void original_put_page_from_l1e(u64 l1e, struct domain *d);
int original_get_page_from_l1e(u64 l1e, struct domain *d,
			       struct domain *page_owner);
int original_get_page_from_l4e(u64 l4e, u64 l4mfn, struct domain *d, u32 flags);
int original_put_pt_page(struct page_info *page, struct page_info *table,
			 u32 flags);

#endif /* TRAPLESS_XEN_ORIGINAL_H */
