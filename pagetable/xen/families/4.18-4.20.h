/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Xen 4.18 to 4.20, in the place of "family.h" in layout.h: the frame table has an
 * entry for each frame, holes in the address space of memory included.
 */

#include "since_4.18.h"

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
