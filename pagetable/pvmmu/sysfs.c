// SPDX-License-Identifier: GPL-2.0-only
/* /sys/kernel/trapless_pvmmu; documented in docs/pagetable-abi.md. */
#include <linux/kobject.h>
#include <linux/kstrtox.h>
#include <linux/slab.h>
#include <linux/sysfs.h>

#include <xen/xen.h>

#include "pvmmu.h"

static struct kobject *root;
static struct kobj_attribute *attrs;

static struct pvmmu_switch *switch_of(struct kobj_attribute *attr)
{
	return &pvmmu_switches[attr - attrs];
}

static ssize_t show(struct kobject *kobj, struct kobj_attribute *attr,
		    char *buf)
{
	int on = pvmmu_switch_get(switch_of(attr));

	return on < 0 ? on : sysfs_emit(buf, "%d\n", on);
}

static ssize_t store(struct kobject *kobj, struct kobj_attribute *attr,
		     const char *buf, size_t count)
{
	bool on;
	int rc = kstrtobool(buf, &on);

	if (!rc)
		rc = pvmmu_switch_set(switch_of(attr), on);
	return rc ?: count;
}

/* A line a part: what is left out of this kernel, and why. */
static ssize_t left_out_show(struct kobject *kobj, struct kobj_attribute *attr,
			     char *buf)
{
	unsigned int i;
	int at = 0;

	for (i = 0; i < pvmmu_switch_count; i++) {
		const struct pvmmu_switch *part = &pvmmu_switches[i];

		if (part->unknown)
			at += sysfs_emit_at(buf, at,
					    "%s: %s (%016llx) is not as in any kernel that is known\n",
					    part->name, part->unknown,
					    part->found);
	}
	return at;
}

static struct kobj_attribute left_out_attr = __ATTR_RO(left_out);

void pvmmu_sysfs_exit(void)
{
	kobject_put(root);
	kfree(attrs);
}

int pvmmu_sysfs_init(void)
{
	unsigned int i;
	int rc = -ENOMEM;

	attrs = kcalloc(pvmmu_switch_count, sizeof(*attrs), GFP_KERNEL);
	root = kobject_create_and_add(KBUILD_MODNAME, kernel_kobj);
	if (!attrs || !root)
		goto err;
	rc = sysfs_create_file(root, &left_out_attr.attr);
	if (rc)
		goto err;
	for (i = 0; i < pvmmu_switch_count; i++) {
		struct kobj_attribute *attr = &attrs[i];

		/* The switches are for the hardware domain only. */
		if (pvmmu_switches[i].xen && !xen_initial_domain())
			continue;
		sysfs_attr_init(&attr->attr);
		attr->attr.name = pvmmu_switches[i].name;
		attr->attr.mode = 0644;
		attr->show = show;
		attr->store = store;
		rc = sysfs_create_file(root, &attr->attr);
		if (rc)
			goto err;
	}
	return 0;
err:
	pvmmu_sysfs_exit();
	return rc;
}
