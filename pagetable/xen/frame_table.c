// SPDX-License-Identifier: GPL-2.0-only
/* Whether this machine's frame table leaves out any frame: see frame_table.h. */
#include "frame_table.h"

u8 frame_is_pdx;

/* Called before the first page is looked at. Xen decides it at boot, once. */
void frame_table_init(void)
{
	frame_is_pdx = frame_table_is_flat();
}
