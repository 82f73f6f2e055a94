// SPDX-License-Identifier: GPL-2.0-only
/* /sys/kernel/trapless_pagetable; documented in docs/pagetable-abi.md. */
#include <linux/kobject.h>
#include <linux/kstrtox.h>
#include <linux/sysfs.h>

#include "trapless.h"

static struct kobject *root;

static ssize_t enabled_show(struct kobject *kobj, struct kobj_attribute *attr,
			    char *buf)
{
	return sysfs_emit(buf, "%d\n", tpt_pool_enabled());
}

static ssize_t enabled_store(struct kobject *kobj, struct kobj_attribute *attr,
			     const char *buf, size_t count)
{
	bool on;
	int rc = kstrtobool(buf, &on);

	if (!rc)
		rc = on ? tpt_pool_enable() : tpt_pool_disable();
	return rc ?: count;
}

static struct kobj_attribute enabled_attr = __ATTR_RW(enabled);

/* A consistent copy of a level's counters. */
static struct tpt_cache snapshot(struct kobject *kobj)
{
	struct tpt_cache *cache = tpt_caches, copy;

	while (cache->kobj != kobj)
		cache++;
	spin_lock_irq(&cache->lock);
	copy = *cache;
	spin_unlock_irq(&cache->lock);
	return copy;
}

#define COUNTER(_name, _value)						\
static ssize_t _name##_show(struct kobject *kobj,			\
			    struct kobj_attribute *attr, char *buf)	\
{									\
	struct tpt_cache cache = snapshot(kobj);			\
									\
	return sysfs_emit(buf, "%llu\n", (u64)(_value));		\
}									\
static struct kobj_attribute _name##_attr = __ATTR_RO(_name)

COUNTER(cached, cache.cached);
COUNTER(in_use, cache.owned - cache.cached);
COUNTER(hits, cache.hits);
COUNTER(misses, cache.misses);

static const struct attribute *const level_attrs[] = {
	&cached_attr.attr,
	&in_use_attr.attr,
	&hits_attr.attr,
	&misses_attr.attr,
	NULL
};

void tpt_sysfs_exit(void)
{
	struct tpt_cache *cache;

	for (cache = tpt_caches; cache < tpt_caches + TPT_LEVELS; cache++)
		kobject_put(cache->kobj);
	kobject_put(root);
}

int tpt_sysfs_init(void)
{
	struct tpt_cache *cache;
	int rc = -ENOMEM;

	root = kobject_create_and_add(KBUILD_MODNAME, kernel_kobj);
	if (!root)
		goto err;
	for (cache = tpt_caches; cache < tpt_caches + TPT_LEVELS; cache++) {
		cache->kobj = kobject_create_and_add(cache->name, root);
		if (!cache->kobj)
			goto err;
		rc = sysfs_create_files(cache->kobj,
					(const struct attribute **)level_attrs);
		if (rc)
			goto err;
	}
	rc = sysfs_create_file(root, &enabled_attr.attr);
	if (!rc)
		return 0;
err:
	tpt_sysfs_exit();
	return rc;
}
