// SPDX-License-Identifier: GPL-2.0-only
/*
 * /sys/kernel/trapless_pagetable; documented in docs/pagetable-abi.md.
 *
 * Invariant: one value a file, and a write is either understood as a whole or
 * refused with nothing changed.
 */
#include <linux/ctype.h>
#include <linux/kobject.h>
#include <linux/kstrtox.h>
#include <linux/math64.h>
#include <linux/mutex.h>
#include <linux/string.h>
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

/* "N" or "N%", nothing else. */
static int parse_amount(const char *buf, unsigned int *number, bool *percent)
{
	char text[16];
	size_t length;

	if (strscpy(text, buf, sizeof(text)) < 0)
		return -EINVAL;
	strim(text);
	length = strlen(text);
	*percent = length && text[length - 1] == '%';
	if (*percent)
		text[length - 1] = '\0';
	if (!isdigit(text[0]) || kstrtouint(text, 10, number))
		return -EINVAL;
	return *percent && *number > 100 ? -EINVAL : 0;
}

static ssize_t shrink_store(struct kobject *kobj, struct kobj_attribute *attr,
			    const char *buf, size_t count)
{
	unsigned int counts[TPT_LEVELS], number, left, all = 0;
	enum tpt_level level;
	bool percent;
	int rc = parse_amount(buf, &number, &percent);

	if (rc)
		return rc;
	for (level = 0; level < TPT_LEVELS; level++)
		all += tpt_cache_cached(&tpt_caches[level]);
	if (percent)
		number = DIV_ROUND_UP_ULL((u64)all * number, 100);
	/* Each level's share, rounded up until the number is reached. */
	number = min(number, all);
	left = number;
	for (level = 0; level < TPT_LEVELS; level++) {
		u64 part = (u64)number * tpt_cache_cached(&tpt_caches[level]);

		counts[level] = min_t(u64, left,
				      DIV_ROUND_UP_ULL(part, max(all, 1U)));
		left -= counts[level];
	}
	rc = tpt_pool_shrink(counts);
	return rc ?: count;
}

static struct kobj_attribute shrink_attr = __ATTR_WO(shrink);

static ssize_t shrunk_show(struct kobject *kobj, struct kobj_attribute *attr,
			   char *buf)
{
	return sysfs_emit(buf, "%llu\n", tpt_pool_shrunk());
}

static struct kobj_attribute shrunk_attr = __ATTR_RO(shrunk);

/* Changes one field of the policy. */
static DEFINE_MUTEX(policy_writers);

static const char *const policies[] = {
	[TPT_POLICY_NONE] = "none",
	[TPT_POLICY_NUMBER] = "number",
	[TPT_POLICY_PROPORTION] = "proportion",
	[TPT_POLICY_BOTH] = "both",
	[TPT_POLICY_ADAPTIVE] = "adaptive",
};

static ssize_t policy_show(struct kobject *kobj, struct kobj_attribute *attr,
			   char *buf)
{
	return sysfs_emit(buf, "%s\n", policies[tpt_pool_policy().kind]);
}

static ssize_t policy_store(struct kobject *kobj, struct kobj_attribute *attr,
			    const char *buf, size_t count)
{
	int kind = sysfs_match_string(policies, buf);
	struct tpt_policy policy;

	if (kind < 0)
		return kind;
	mutex_lock(&policy_writers);
	policy = tpt_pool_policy();
	policy.kind = kind;
	tpt_pool_set_policy(policy);
	mutex_unlock(&policy_writers);
	return count;
}

static struct kobj_attribute policy_attr = __ATTR_RW(policy);

#define LIMIT(_name)							\
static ssize_t limit_##_name##_show(struct kobject *kobj,		\
				    struct kobj_attribute *attr,	\
				    char *buf)				\
{									\
	return sysfs_emit(buf, "%u\n", tpt_pool_policy()._name);	\
}									\
static ssize_t limit_##_name##_store(struct kobject *kobj,		\
				     struct kobj_attribute *attr,	\
				     const char *buf, size_t count)	\
{									\
	struct tpt_policy policy;					\
	unsigned int value;						\
									\
	if (kstrtouint(buf, 10, &value))				\
		return -EINVAL;						\
	mutex_lock(&policy_writers);					\
	policy = tpt_pool_policy();					\
	policy._name = value;						\
	tpt_pool_set_policy(policy);					\
	mutex_unlock(&policy_writers);					\
	return count;							\
}									\
static struct kobj_attribute limit_##_name##_attr =			\
	__ATTR_RW(limit_##_name)

LIMIT(number);
LIMIT(percent);

static ssize_t left_out_show(struct kobject *kobj, struct kobj_attribute *attr,
			     char *buf)
{
	return tpt_left_out_show(buf);
}

static struct kobj_attribute left_out_attr = __ATTR_RO(left_out);

static const struct attribute *const root_attrs[] = {
	&enabled_attr.attr,
	&shrink_attr.attr,
	&shrunk_attr.attr,
	&policy_attr.attr,
	&left_out_attr.attr,
	&limit_number_attr.attr,
	&limit_percent_attr.attr,
	NULL
};

static enum tpt_level level_of(struct kobject *kobj)
{
	enum tpt_level level = 0;

	while (tpt_caches[level].kobj != kobj)
		level++;
	return level;
}

struct counters {
	u64 cached, in_use, hits, misses, refused;
};

/* The counts change while they are read: no sum of them is exact. */
static struct counters snapshot(enum tpt_level level)
{
	struct tpt_cache *cache = &tpt_caches[level];
	unsigned int cached = tpt_cache_cached(cache);
	unsigned int owned = READ_ONCE(cache->owned);

	return (struct counters) {
		.cached = cached,
		.in_use = owned > cached ? owned - cached : 0,
		.hits = READ_ONCE(cache->hits),
		.misses = tpt_cache_misses(level),
		.refused = READ_ONCE(cache->refused),
	};
}

#define COUNTER(_name, _value)						\
static ssize_t _name##_show(struct kobject *kobj,			\
			    struct kobj_attribute *attr, char *buf)	\
{									\
	struct counters now = snapshot(level_of(kobj));			\
									\
	return sysfs_emit(buf, "%llu\n", (u64)(_value));		\
}

COUNTER(cached, now.cached);
COUNTER(in_use, now.in_use);
COUNTER(hits, now.hits);
COUNTER(misses, now.misses);
COUNTER(worst_case, now.misses + now.refused);

static ssize_t cached_store(struct kobject *kobj, struct kobj_attribute *attr,
			    const char *buf, size_t count)
{
	unsigned int counts[TPT_LEVELS] = { }, wanted, cached;
	enum tpt_level level = level_of(kobj);
	int rc;

	if (kstrtouint(buf, 10, &wanted))
		return -EINVAL;
	cached = tpt_cache_cached(&tpt_caches[level]);
	counts[level] = cached > wanted ? cached - wanted : 0;
	rc = tpt_pool_shrink(counts);
	return rc ?: count;
}

static struct kobj_attribute cached_attr = __ATTR_RW(cached);
static struct kobj_attribute in_use_attr = __ATTR_RO(in_use);
static struct kobj_attribute hits_attr = __ATTR_RO(hits);
static struct kobj_attribute misses_attr = __ATTR_RO(misses);
static struct kobj_attribute worst_case_attr = __ATTR_RO(worst_case);

static const struct attribute *const level_attrs[] = {
	&cached_attr.attr,
	&in_use_attr.attr,
	&hits_attr.attr,
	&misses_attr.attr,
	&worst_case_attr.attr,
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
		rc = cache->kobj ?
			sysfs_create_files(cache->kobj,
					   (const struct attribute **)level_attrs) :
			-ENOMEM;
		if (rc)
			goto err;
	}
	rc = sysfs_create_files(root, (const struct attribute **)root_attrs);
	if (!rc)
		return 0;
err:
	tpt_sysfs_exit();
	return rc;
}
