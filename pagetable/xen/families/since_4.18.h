/* SPDX-License-Identifier: GPL-2.0-only */
/* What families of Xen from 4.18 on have in common. */

/* struct vcpu: its domain. Seen in iommu_map. */
#define XEN_VCPU_DOMAIN			0x18
/* struct vcpu: a table whose teardown was preempted. Seen in do_mmu_update. */
#define XEN_VCPU_OLD_GUEST_TABLE	0xa10

/* struct domain: 32 bits of creation options. Seen in cleanup_page_mappings. */
#define XEN_DOMAIN_OPTIONS		0x12c
/* struct domain: byte, IOMMU follows page types. See cleanup_page_mappings. */
#define XEN_DOMAIN_NEED_SYNC		0x1c1
/* struct domain: 32 bits of paging mode, 0 if none. Seen in do_mmu_update. */
#define XEN_DOMAIN_PAGING_MODE		0x408

/* count_info: Xen's own, or beyond the allocation. See cleanup_page_mappings. */
#define PGC_special			0x6000000000000000UL
