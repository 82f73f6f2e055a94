/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Xen 4.18 to 4.20, in the place of "family.h" in layout.h: the frame table has an
 * entry for each frame, holes in the address space of memory included.
 */

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

/* count_info: number of references. Seen in get_page. */
#define PGC_count_mask			0x03ffffffffffffffUL

/* Is the number one that the frame table leaves out? */
static inline bool mfn_in_hole(u64 mfn)
{
	return false;
}

/* Is none left out? Then mfn_to_pdx() changes nothing. */
static inline bool frame_table_is_flat(void)
{
	return true;
}

/* The index of a frame in the frame table. */
static inline u64 mfn_to_pdx(u64 mfn)
{
	return mfn;
}

/* The frame with this index. */
static inline u64 pdx_to_mfn(u64 pdx)
{
	return pdx;
}
