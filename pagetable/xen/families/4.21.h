/* SPDX-License-Identifier: GPL-2.0-only */
/* Xen 4.21, in the place of "family.h" in layout.h. */

#include "since_4.18.h"

/* count_info: number of references, without shadow paging. Seen in get_page. */
#define PGC_count_mask			0x03ffffffffffffffUL

#include "pdx_offsets.h"
