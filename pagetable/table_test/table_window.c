// SPDX-License-Identifier: GPL-2.0-only
/*
 * Addresses of the kernel whose entries are ours to change: 32 slots of a table
 * that processors walk. Between rounds all of them are empty.
 */
#include <linux/vmalloc.h>

#include "table_test.h"

static void *window;

int tt_window_init(void)
{
	struct page *pages[TT_WINDOW];
	unsigned int slot;

	for (slot = 0; slot < TT_WINDOW; slot++)
		pages[slot] = tt_pages[slot % TT_DATA].page;
	window = vmap(pages, TT_WINDOW, VM_MAP, PAGE_KERNEL);
	if (!window)
		return -ENOMEM;
	return tt_window_close();
}

unsigned long tt_window_address(unsigned int slot)
{
	return (unsigned long)window + slot * PAGE_SIZE;
}

/* Readable, and written to cause a trap. */
u64 *tt_window_entry(unsigned int slot)
{
	unsigned int level;

	return (u64 *)lookup_address(tt_window_address(slot), &level);
}

int tt_window_close(void)
{
	unsigned int slot;
	int rc = 0;

	for (slot = 0; slot < TT_WINDOW; slot++)
		rc = HYPERVISOR_update_va_mapping(tt_window_address(slot),
						  __pte_ma(0), UVMF_INVLPG) ?: rc;
	return rc;
}

void tt_window_exit(void)
{
	vunmap(window);
}
