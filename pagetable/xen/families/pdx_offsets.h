/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The frame table from Xen 4.21 on: memory is some regions, and tables have for each how
 * much the index of a frame is less than its number. If nothing is left out, all
 * differences are 0 and one region has everything.
 */

/* Entries of each of the tables, less one. Seen in __mfn_valid. */
#define XEN_PDX_TABLE_MASK		0x3f

extern u64 pfn_bases[];			/* first frame of a region */
extern u64 pfn_pdx_lookup[];		/* by frame: less for the index */
extern u64 pdx_pfn_lookup[];		/* by index: more for the frame */
extern u64 pdx_region_size;		/* frames */
extern u32 pfn_index_shift;
extern u32 pdx_index_shift;

/* Is the number one that the frame table leaves out? */
static inline bool mfn_in_hole(u64 mfn)
{
	u64 base = pfn_bases[(mfn >> pfn_index_shift) & XEN_PDX_TABLE_MASK];

	return mfn < base || mfn >= base + pdx_region_size;
}

/* Is none left out? Then mfn_to_pdx() changes nothing. */
static inline bool frame_table_is_flat(void)
{
	return !~pdx_region_size;
}

/* The index of a frame in the frame table; the frame must be in no hole. */
static inline u64 mfn_to_pdx(u64 mfn)
{
	return mfn - pfn_pdx_lookup[(mfn >> pfn_index_shift) & XEN_PDX_TABLE_MASK];
}

/* The frame with this index, which must be valid. */
static inline u64 pdx_to_mfn(u64 pdx)
{
	return pdx + pdx_pfn_lookup[(pdx >> pdx_index_shift) & XEN_PDX_TABLE_MASK];
}
