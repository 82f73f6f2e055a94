/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Xen 4.17, in the place of "family.h" in layout.h: holes in the address space of
 * memory are left out of the frame table by masks.
 */

/* struct vcpu: its domain. Seen in iommu_map. */
#define XEN_VCPU_DOMAIN			0x10
/* struct vcpu: a table whose teardown was preempted. Seen in do_mmu_update. */
#define XEN_VCPU_OLD_GUEST_TABLE	0xb10

/* struct domain: 32 bits of creation options. Seen in cleanup_page_mappings. */
#define XEN_DOMAIN_OPTIONS		0x13c
/* struct domain: byte, IOMMU follows page types. See cleanup_page_mappings. */
#define XEN_DOMAIN_NEED_SYNC		0x1c9
/* struct domain: 32 bits of paging mode, 0 if none. Seen in do_mmu_update. */
#define XEN_DOMAIN_PAGING_MODE		0x440

/* count_info: Xen's own, or beyond the allocation. See cleanup_page_mappings. */
#define PGC_special			0x4200000000000000UL

/* count_info: number of references. Seen in get_page. */
#define PGC_count_mask			0x01ffffffffffffffUL

extern u64 pfn_hole_mask;
extern u64 pfn_pdx_bottom_mask;
extern u64 pfn_top_mask;
extern u32 pfn_pdx_hole_shift;

/* Is the number one that the frame table leaves out? */
static inline bool mfn_in_hole(u64 mfn)
{
	return mfn & pfn_hole_mask;
}

/* Is none left out? Then mfn_to_pdx() changes nothing. */
static inline bool frame_table_is_flat(void)
{
	return !pfn_hole_mask && !~pfn_pdx_bottom_mask && !pfn_top_mask;
}

/* The index of a frame in the frame table; the frame must be in no hole. */
static inline u64 mfn_to_pdx(u64 mfn)
{
	return (mfn & pfn_pdx_bottom_mask) |
	       ((mfn & pfn_top_mask) >> pfn_pdx_hole_shift);
}

/* The frame with this index, which must be valid. */
static inline u64 pdx_to_mfn(u64 pdx)
{
	return (pdx & pfn_pdx_bottom_mask) |
	       ((pdx << pfn_pdx_hole_shift) & pfn_top_mask);
}
