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

/**
 * pvmmu_hooks_resolve - find every function that is hooked
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_hooks_resolve(void)
{
	struct direct_hook *const hooks[] = {
		&pvmmu_hook_pgd_walk, &pvmmu_hook_set_pte,
		&pvmmu_hook_map_pages, &pvmmu_hook_copy_range,
		&pvmmu_hook_clear_flush, &pvmmu_hook_set_access_flags,
	};

	return direct_hook_resolve(hooks, ARRAY_SIZE(hooks));
}

/**
 * pvmmu_hook - hook a stock function
 * @part: the switch whose hook it is
 *
 * Return: as direct_hook_in().
 */
int pvmmu_hook(struct pvmmu_switch *part)
{
	return direct_hook_in(part->hook);
}

/**
 * pvmmu_unhook - remove the hook of a stock function
 * @part: the switch whose hook it is
 */
void pvmmu_unhook(struct pvmmu_switch *part)
{
	direct_hook_out(part->hook);
}
