// SPDX-License-Identifier: GPL-2.0-only
/*
 * The stock functions that this module hooks. direct_hook.h documents the mechanism
 * and the rules for the hooks.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "direct_hook.h"
#include "pvmmu.h"

struct direct_hook pvmmu_hook_pgd_walk = {
	.symbol = "__xen_pgd_walk", .entry = pvmmu_entry_pgd_walk,
};

struct direct_hook pvmmu_hook_pgd_pin = {
	.symbol = "__xen_pgd_pin", .entry = pvmmu_entry_pgd_pin,
};

struct direct_hook pvmmu_hook_pgd_unpin = {
	.symbol = "__xen_pgd_unpin", .entry = pvmmu_entry_pgd_unpin,
};

struct direct_hook pvmmu_hook_alloc_pmd = {
	.symbol = "xen_alloc_pmd", .entry = pvmmu_entry_alloc_pmd,
};

struct direct_hook pvmmu_hook_exit_mmap = {
	.symbol = "xen_exit_mmap", .entry = pvmmu_entry_exit_mmap,
};

struct direct_hook pvmmu_hook_end_switch = {
	.symbol = "xen_end_context_switch", .entry = pvmmu_entry_end_switch,
};

struct direct_hook pvmmu_hook_write_msr = {
	.symbol = "xen_write_msr", .entry = pvmmu_entry_write_msr,
};

struct direct_hook pvmmu_hook_load_gs_index = {
	.symbol = "xen_load_gs_index", .entry = pvmmu_entry_load_gs_index,
};

struct direct_hook pvmmu_hook_load_sp0 = {
	.symbol = "xen_load_sp0", .entry = pvmmu_entry_load_sp0,
};

struct direct_hook pvmmu_hook_set_pte = {
	.symbol = "xen_set_pte", .entry = pvmmu_entry_set_pte,
};

struct direct_hook pvmmu_hook_map_pages = {
	.symbol = "filemap_map_pages", .entry = pvmmu_entry_map_pages,
};

struct direct_hook pvmmu_hook_copy_range = {
	.symbol = "copy_page_range", .entry = pvmmu_entry_copy_range,
};

struct direct_hook pvmmu_hook_clear_flush = {
	.symbol = "ptep_clear_flush", .entry = pvmmu_entry_clear_flush,
};

struct direct_hook pvmmu_hook_set_access_flags = {
	.symbol = "ptep_set_access_flags",
	.entry = pvmmu_entry_set_access_flags,
};

struct direct_hook pvmmu_hook_move_tables = {
	.symbol = "move_page_tables", .entry = pvmmu_entry_move_tables,
};

struct direct_hook pvmmu_hook_unmap_range = {
	.symbol = "unmap_page_range", .entry = pvmmu_entry_unmap_range,
};

/**
 * pvmmu_hooks_resolve - find every function that is hooked
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_hooks_resolve(void)
{
	struct direct_hook *const hooks[] = {
		&pvmmu_hook_pgd_walk, &pvmmu_hook_pgd_pin,
		&pvmmu_hook_pgd_unpin, &pvmmu_hook_alloc_pmd,
		&pvmmu_hook_exit_mmap, &pvmmu_hook_end_switch,
		&pvmmu_hook_write_msr, &pvmmu_hook_load_gs_index,
		&pvmmu_hook_load_sp0, &pvmmu_hook_set_pte,
		&pvmmu_hook_map_pages, &pvmmu_hook_copy_range,
		&pvmmu_hook_clear_flush, &pvmmu_hook_set_access_flags,
		&pvmmu_hook_move_tables, &pvmmu_hook_unmap_range,
	};

	return direct_hook_resolve(hooks, ARRAY_SIZE(hooks));
}

/**
 * pvmmu_hook - hook the stock functions of a part, in the order of its list
 * @part: the switch whose hooks they are
 *
 * Return: as direct_hook_in(), with nothing hooked after an error.
 */
int pvmmu_hook(struct pvmmu_switch *part)
{
	struct direct_hook *const *hook;
	int rc = 0;

	for (hook = part->hooks; *hook; hook++) {
		rc = direct_hook_in(*hook);
		if (rc)
			break;
	}
	while (rc && hook-- > part->hooks)
		direct_hook_out(*hook);
	return rc;
}

/**
 * pvmmu_unhook - remove the hooks of a part, in the other order
 * @part: the switch whose hooks they are
 */
void pvmmu_unhook(struct pvmmu_switch *part)
{
	struct direct_hook *const *hook = part->hooks;

	while (*hook)
		hook++;
	while (hook-- > part->hooks)
		direct_hook_out(*hook);
}
