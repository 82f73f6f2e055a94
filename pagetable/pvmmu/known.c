// SPDX-License-Identifier: GPL-2.0-only
/*
 * The stock functions that the parts of this module repeat or stand before, in the
 * forms that were compared with ours. A part is left out of a kernel in which one
 * of its functions has another form: Debian's fixes change them too.
 *
 * A form gets here after its source was read beside ours and the part's tests have
 * run on it. /sys/kernel/trapless_pvmmu/left_out shows the digest that is missing.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kernel.h>
#include <linux/sysfs.h>

#include "known_functions.h"
#include "pvmmu.h"

static const struct known_function known[] = {
	{ "walk", "__xen_pgd_walk", 0xf4c1243e794b6280 },
	{ "set_pte", "xen_set_pte", 0xd300640eb6eb6896 },
	{ "fault_around", "filemap_map_pages", 0x0059ab4298734c8a },
	{ "fault_around", "do_set_pte", 0x6e8aa91fc3f7263c },
	{ "fault_around", "do_set_pmd", 0x567c04c1b81d9d43 },
	{ "fault_around", "next_uptodate_page", 0x59068f90fe0aea6b },
	{ "fault_around", "page_add_file_rmap", 0x9bc4ad827f769727 },
	{ "fault_around", "pmd_install", 0x3271865e9fb8a761 },
	{ "fork", "copy_page_range", 0xe2b2829c31970386 },
	{ "clear_flush", "ptep_clear_flush", 0x426bf036de0bd87d },
	{ "reuse_around", "ptep_set_access_flags", 0x5e5553fcd2f6c10c },
	{ "reuse_around", "do_wp_page", 0xcaff7a157baed6db },
	{ "reuse_around", "page_move_anon_rmap", 0x6136b00bff8bf677 },
};

static void leave_out(const struct known_function *entry, u64 found)
{
	unsigned int i;

	pr_warn("%s is left out: %s (%016llx) is not as in any kernel that is known\n",
		entry->part, entry->symbol, found);
	for (i = 0; i < pvmmu_switch_count; i++) {
		struct pvmmu_switch *part = &pvmmu_switches[i];

		if (strcmp(part->name, entry->part) || part->unknown)
			continue;
		part->unknown = entry->symbol;
		part->found = found;
	}
}

/**
 * pvmmu_known_check - leave out the parts whose stock functions are not known
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_known_check(void)
{
	return known_functions_check(known, ARRAY_SIZE(known), leave_out);
}
