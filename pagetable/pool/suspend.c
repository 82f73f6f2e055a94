// SPDX-License-Identifier: GPL-2.0-only
/*
 * While the domain is saved or suspended the pool is empty: a restored domain has
 * other frames, none of which is marked.
 *
 * Invariant: between freeze and thaw no page is owned. If one cannot be given
 * back, the save is refused. A pool that the operator had turned off stays off.
 *
 * A platform device without hardware gets the module the suspend callbacks of a
 * driver; Xen's save calls them too (drivers/xen/manage.c).
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/platform_device.h>
#include <linux/pm.h>
#include <linux/printk.h>

#include "trapless.h"

static struct platform_device *device;
static bool was_enabled;

static int drain(struct device *dev)
{
	int rc;

	/* Not every failed save is followed by a thaw: keep an earlier true. */
	was_enabled |= tpt_pool_wanted();
	rc = tpt_pool_disable();
	/* After an error there is no thaw: enable the pool again here. */
	if (rc && was_enabled)
		tpt_pool_enable();
	return rc;
}

static int refill(struct device *dev)
{
	int rc = was_enabled ? tpt_pool_enable() : 0;

	was_enabled = false;
	if (rc)
		pr_warn("pool stays disabled after resume: %d\n", rc);
	return 0;
}

static const struct dev_pm_ops operations = {
	SET_SYSTEM_SLEEP_PM_OPS(drain, refill)
};

static struct platform_driver driver = {
	.driver = {
		.name = KBUILD_MODNAME,
		.pm = &operations,
		/* With the driver unbound a save would not drain the pool. */
		.suppress_bind_attrs = true,
	},
};

/* Return: 0, or the error of registering driver or device. */
int tpt_suspend_init(void)
{
	int rc = platform_driver_register(&driver);

	if (rc)
		return rc;
	device = platform_device_register_simple(KBUILD_MODNAME,
						 PLATFORM_DEVID_NONE, NULL, 0);
	if (!IS_ERR(device) && device->dev.driver)
		return 0;
	rc = IS_ERR(device) ? PTR_ERR(device) : -ENODEV;
	if (!IS_ERR(device))
		platform_device_unregister(device);
	platform_driver_unregister(&driver);
	return rc;
}

void tpt_suspend_exit(void)
{
	platform_device_unregister(device);
	platform_driver_unregister(&driver);
}
