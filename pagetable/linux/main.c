// SPDX-License-Identifier: GPL-2.0-only
/*
 * Load and unload of PiBooster's guest half.
 *
 * Loading checks everything before it changes anything, fills the caches
 * while nothing uses them, and then lets the kernel's livepatch core put
 * tables.c in front of the stock functions. Unloading is the livepatch core's
 * too: writing 0 to /sys/kernel/livepatch/trapless_pagetable/enabled takes
 * tables.c out again, and until every task has left it the module cannot be
 * removed. By the time tpt_exit() runs, nobody calls us.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/printk.h>

#include <asm/cpufeature.h>

#include <xen/xen.h>

#include "trapless.h"

static int __init tpt_init(void)
{
	int rc;

	if (!xen_pv_domain()) {
		pr_err("not a Xen PV guest\n");
		return -ENODEV;
	}
	/*
	 * Where huge pages exist, huge_pmd_unshare() takes a second reference
	 * to a page table for a second user. PV guests of Xen have none.
	 */
	if (boot_cpu_has(X86_FEATURE_PSE)) {
		pr_err("this guest has huge pages, which Xen PV does not give\n");
		return -ENODEV;
	}
	rc = tpt_hypervisor_check();
	if (rc)
		return rc;
	rc = tpt_stock_resolve();
	if (rc)
		return rc;

	tpt_cache_init();
	rc = tpt_sysfs_init();
	if (rc)
		return rc;
	rc = tpt_pool_enable();
	if (rc) {
		pr_err("no page could be made semi-writable: %d\n", rc);
		goto err;
	}
	rc = tpt_tables_patch();
	if (rc) {
		pr_err("unknown kernel: the livepatch core refused: %d\n", rc);
		goto err;
	}
	return 0;
err:
	tpt_sysfs_exit();
	tpt_pool_exit();
	return rc;
}

static void __exit tpt_exit(void)
{
	tpt_sysfs_exit();
	tpt_pool_exit();
}

module_init(tpt_init);
module_exit(tpt_exit);
MODULE_LICENSE("GPL");
MODULE_INFO(livepatch, "Y");
MODULE_DESCRIPTION("PiBooster: a cache of semi-writable page tables for Xen PV");
