// SPDX-License-Identifier: GPL-2.0-only
/*
 * Load and unload of trapless_pvmmu, and its switches.
 *
 * Invariants:
 *
 *  - Loading resolves and checks everything before it changes anything, and
 *    either brings in every part or none; but a part whose stock functions are
 *    not known (known.c) is left out, and cannot be turned on.
 *  - pvmmu_lock is held while a part changes. A part that is off leaves nothing
 *    changed in the kernel, but tasks may still be inside our code: only
 *    unloading has to wait for those, and does.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kernel.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/printk.h>
#include <linux/rcupdate.h>

#include <asm/cpufeature.h>
#include <asm/pgtable.h>

#include <xen/features.h>
#include <xen/xen.h>

#include "trapless_pagetable.h"
#include "multicall.h"
#include "pvmmu.h"
#include "series_mmu.h"
#include "table.h"

static DEFINE_MUTEX(pvmmu_lock);

#define HOOKS(...)	((struct direct_hook *const []){ __VA_ARGS__, NULL })
#define HOOKED(_name, ...) \
	{ .name = _name, .enable = pvmmu_hook, .disable = pvmmu_unhook, \
	  .hooks = HOOKS(__VA_ARGS__) }
#define IN_FORK(_name, _bit) \
	{ .name = _name, .enable = pvmmu_copy_range_enable, \
	  .disable = pvmmu_copy_range_disable, \
	  .hooks = HOOKS(&pvmmu_hook_copy_range), .bit = _bit }

struct pvmmu_switch pvmmu_switches[] = {
	HOOKED("walk", &pvmmu_hook_pgd_walk),
	HOOKED("pin", &pvmmu_hook_pgd_pin, &pvmmu_hook_pgd_unpin),
	{ .name = "kernel_half", .enable = pvmmu_kernel_half_enable,
	  .disable = pvmmu_kernel_half_disable,
	  .hooks = HOOKS(&pvmmu_hook_alloc_pmd) },
	HOOKED("exit_mmap", &pvmmu_hook_exit_mmap),
	/* The last begins what the others end: see context_switch.c. */
	HOOKED("context_switch", &pvmmu_hook_load_sp0, &pvmmu_hook_load_gs_index,
	       &pvmmu_hook_write_msr, &pvmmu_hook_end_switch),
	HOOKED("set_pte", &pvmmu_hook_set_pte),
	HOOKED("fault_around", &pvmmu_hook_map_pages),
	IN_FORK("fork", PVMMU_FORK),
	IN_FORK("fork_copy", PVMMU_FORK_COPY),
	IN_FORK("fork_hints", PVMMU_FORK_HINTS),
	IN_FORK("fork_text", PVMMU_FORK_TEXT),
	IN_FORK("fork_entries", PVMMU_FORK_ENTRIES),
	HOOKED("clear_flush", &pvmmu_hook_clear_flush),
	HOOKED("reuse_around", &pvmmu_hook_set_access_flags),
	HOOKED("mremap", &pvmmu_hook_move_tables),
	HOOKED("zap", &pvmmu_hook_unmap_range),
	{ .name = "thunks", .enable = pvmmu_thunks_enable,
	  .disable = pvmmu_thunks_disable },
	{ .name = "xen_zero_runs", .xen = TPT_SWITCH_ZERO_RUNS },
	{ .name = "xen_l1_update", .xen = TPT_SWITCH_L1_UPDATE },
	{ .name = "xen_table_refs", .xen = TPT_SWITCH_TABLE_REFS },
	{ .name = "xen_ranges", .xen = TPT_SWITCH_RANGES },
};

const unsigned int pvmmu_switch_count = ARRAY_SIZE(pvmmu_switches);

/**
 * pvmmu_switch_get - is a part on?
 * @part: the part
 *
 * Return: 1, 0, or -ENODEV for a part of a payload that is not there.
 */
int pvmmu_switch_get(struct pvmmu_switch *part)
{
	return part->xen ? pvmmu_hypervisor_get(part->xen) :
			   READ_ONCE(part->on);
}

/**
 * pvmmu_switch_set - turn a part on or off
 * @part: the part
 * @on:   the new state; it may be the present one
 *
 * Return: 0, or the error of turning it on or off; -EOPNOTSUPP if it is left out.
 */
int pvmmu_switch_set(struct pvmmu_switch *part, bool on)
{
	int rc = 0;

	mutex_lock(&pvmmu_lock);
	if (part->xen)
		rc = pvmmu_hypervisor_set(part->xen, on);
	else if (on && part->unknown)
		rc = -EOPNOTSUPP;
	else if (on && !part->on)
		rc = part->enable(part);
	else if (!on && part->on)
		part->disable(part);
	if (!rc)
		WRITE_ONCE(part->on, on);
	mutex_unlock(&pvmmu_lock);
	return rc;
}

static void all_off(void)
{
	unsigned int i;

	for (i = pvmmu_switch_count; i--;)
		if (!pvmmu_switches[i].xen)
			pvmmu_switch_set(&pvmmu_switches[i], false);
	/* See hooks.c and thunks.c: no task is inside our code after this, */
	synchronize_rcu_tasks();
	/* but for those that sleep there. */
	pvmmu_drain();
}

static int all_on(void)
{
	unsigned int i;

	for (i = 0; i < pvmmu_switch_count; i++) {
		struct pvmmu_switch *part = &pvmmu_switches[i];
		int rc = part->xen || part->unknown ? 0 : pvmmu_switch_set(part, true);

		if (rc) {
			pr_err("%s cannot be turned on: %d\n", part->name,
			       rc);
			all_off();
			return rc;
		}
	}
	return 0;
}

static int __init pvmmu_init(void)
{
	int rc;

	if (!xen_pv_domain() || xen_feature(XENFEAT_auto_translated_physmap)) {
		pr_err("not a Xen PV guest\n");
		return -ENODEV;
	}
	if (boot_cpu_has(X86_FEATURE_PSE) || pgtable_l5_enabled() ||
	    sme_me_mask || physical_mask != BIT_ULL(52) - 1) {
		pr_err("this guest's page tables are not what Xen PV gives: four levels, small pages, no memory encryption\n");
		return -ENODEV;
	}
	if (series_has_shadow_stacks()) {
		pr_err("this guest has shadow stacks, which the parts do not know\n");
		return -ENODEV;
	}
	rc = pvmmu_hooks_resolve();
	if (!rc)
		rc = pvmmu_multicall_resolve();
	if (!rc)
		rc = pvmmu_pin_resolve();
	if (!rc)
		rc = pvmmu_kernel_half_resolve();
	if (!rc)
		rc = pvmmu_exit_mmap_resolve();
	if (!rc)
		rc = pvmmu_clear_flush_resolve();
	if (!rc)
		rc = pvmmu_fork_resolve();
	if (!rc)
		rc = pvmmu_fork_copy_resolve();
	if (!rc)
		rc = pvmmu_fork_text_resolve();
	if (!rc)
		rc = pvmmu_fork_entries_resolve();
	if (!rc)
		rc = pvmmu_fault_around_resolve();
	if (!rc)
		rc = pvmmu_reuse_around_resolve();
	if (!rc)
		rc = pvmmu_table_resolve();
	if (!rc)
		rc = pvmmu_mremap_resolve();
	if (!rc)
		rc = pvmmu_zap_resolve();
	if (!rc)
		rc = pvmmu_thunks_resolve();
	if (!rc)
		rc = pvmmu_known_check();
	if (rc)
		return rc;
	rc = all_on();
	if (rc)
		return rc;
	rc = pvmmu_sysfs_init();
	if (rc)
		all_off();
	return rc;
}

static void __exit pvmmu_exit(void)
{
	pvmmu_sysfs_exit();
	all_off();
}

module_init(pvmmu_init);
module_exit(pvmmu_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Fewer traps and hypercalls in Xen PV's memory management");
