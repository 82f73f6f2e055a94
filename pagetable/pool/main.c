// SPDX-License-Identifier: GPL-2.0-only
/*
 * Load and unload of PiBooster's guest half.
 *
 * Loading checks everything before it changes anything, fills the caches
 * while nothing uses them, and then hooks the stock functions (tables.c). If a
 * later step fails, and when the module is removed, the steps are undone in
 * reverse order.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/moduleparam.h>
#include <linux/nodemask.h>
#include <linux/printk.h>

#include <asm/cpufeature.h>
#include <asm/pgtable.h>

#include <xen/xen.h>

#include "trapless.h"

static bool bare;
module_param(bare, bool, 0444);
MODULE_PARM_DESC(bare, "serve page tables where there is no Xen PV, without marks");

static bool unmarked;
module_param(unmarked, bool, 0444);
MODULE_PARM_DESC(unmarked, "serve also where the IOMMU does not follow page types, without marks");

static int check_machine(void)
{
	if (bare && xen_pv_domain()) {
		pr_err("a Xen PV guest is not served with bare=1\n");
		return -EINVAL;
	}
	if (pgtable_l5_enabled()) {
		pr_err("five levels of page tables: four are known here\n");
		return -ENODEV;
	}
	if (bare && num_online_nodes() > 1) {
		pr_err("several memory nodes: one cache would mix them\n");
		return -ENODEV;
	}
	if (bare)
		return 0;
	if (!xen_pv_domain()) {
		pr_err("not a Xen PV guest\n");
		return -ENODEV;
	}
	/* See tpt_tables_hook(). PV guests of Xen have no huge pages. */
	if (boot_cpu_has(X86_FEATURE_PSE)) {
		pr_err("this guest has huge pages, which Xen PV does not give\n");
		return -ENODEV;
	}
	return 0;
}

static int __init tpt_init(void)
{
	int rc = check_machine();

	if (!rc)
		rc = tpt_hypervisor_check(bare, unmarked);
	if (!rc)
		rc = tpt_stock_resolve();
	if (!rc)
		rc = tpt_tables_resolve();
	if (!rc)
		rc = tpt_known_check(bare);
	if (rc)
		return rc;

	tpt_cache_init(bare);
	rc = tpt_pool_init();
	if (rc)
		return rc;
	rc = tpt_sysfs_init();
	if (rc)
		goto no_sysfs;
	rc = tpt_pressure_init();
	if (rc)
		goto no_pressure;
	rc = tpt_suspend_init();
	if (rc)
		goto no_suspend;
	rc = tpt_pool_enable();
	if (rc) {
		pr_err("no page could be made semi-writable: %d\n", rc);
		goto not_hooked;
	}
	rc = tpt_tables_hook(bare);
	if (!rc)
		return 0;
not_hooked:
	tpt_suspend_exit();
no_suspend:
	tpt_pressure_exit();
no_pressure:
	tpt_sysfs_exit();
no_sysfs:
	tpt_pool_exit();
	return rc;
}

static void __exit tpt_exit(void)
{
	tpt_suspend_exit();
	tpt_pressure_exit();
	tpt_sysfs_exit();
	tpt_tables_unhook();
	tpt_pool_exit();
}

module_init(tpt_init);
module_exit(tpt_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("PiBooster: a cache of semi-writable page tables for Xen PV");
