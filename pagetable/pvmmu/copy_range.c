// SPDX-License-Identifier: GPL-2.0-only
/*
 * copy_page_range(), by which fork copies an area: the hook that five parts share.
 * Each does its work before the stock function; one has to do more after it, and one
 * calls it for what it has left.
 *
 * Invariants:
 *
 *  - The hook is set while one of the parts is on. What a part began before the stock
 *    function it ends after it, also if it is turned off meanwhile.
 *  - The stock function sleeps: see inside.c.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>

#include "copy_range.h"
#include "direct_hook.h"
#include "pvmmu.h"

static unsigned int parts_on;

/**
 * pvmmu_copy_range_enable - turn a part on
 * @part: the switch
 *
 * Return: as pvmmu_hook().
 */
int pvmmu_copy_range_enable(struct pvmmu_switch *part)
{
	int rc = parts_on ? 0 : pvmmu_hook(part);

	if (!rc)
		WRITE_ONCE(parts_on, parts_on | part->bit);
	return rc;
}

/**
 * pvmmu_copy_range_disable - turn a part off
 * @part: the switch
 */
void pvmmu_copy_range_disable(struct pvmmu_switch *part)
{
	WRITE_ONCE(parts_on, parts_on & ~part->bit);
	if (!parts_on)
		pvmmu_unhook(part);
}

/**
 * pvmmu_copy_range_is_on - is a part on?
 * @bit: PVMMU_ bit
 *
 * Return: whether it is.
 */
bool pvmmu_copy_range_is_on(unsigned int bit)
{
	return READ_ONCE(parts_on) & bit;
}

/*
 * Called by entry.S with the arguments of copy_page_range(). Both mmap_locks are held
 * for writing: no table of the parent is added or removed.
 */
copy_range_t pvmmu_copy_range;
int pvmmu_copy_range(struct vm_area_struct *dst, struct vm_area_struct *src)
{
	copy_range_t *stock = (copy_range_t *)pvmmu_hook_copy_range.body;
	unsigned int on = READ_ONCE(parts_on);
	struct fork_copies copies;
	int rc;

	pvmmu_enter();
	copies.count = 0;
	if (on & (PVMMU_FORK_COPY | PVMMU_FORK_HINTS))
		pvmmu_fork_copy_begin(src, on, &copies);
	if (on & PVMMU_FORK)
		pvmmu_fork_protect(src, &copies);
	if (on & PVMMU_FORK_TEXT)
		pvmmu_fork_text(dst, src);
	/* Only what is protected is copied there. */
	if ((on & PVMMU_FORK) && (on & PVMMU_FORK_ENTRIES))
		rc = pvmmu_fork_entries(dst, src, stock);
	else
		rc = stock(dst, src);
	pvmmu_fork_copy_end(&copies);
	pvmmu_leave();
	return rc;
}
