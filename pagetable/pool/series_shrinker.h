/* SPDX-License-Identifier: GPL-2.0-only */
/* How a shrinker is made known to the kernel, where its series differ. */
#ifndef TRAPLESS_SERIES_SHRINKER_H
#define TRAPLESS_SERIES_SHRINKER_H

#include <linux/shrinker.h>

#include "series.h"

#if SERIES_IS(6, 1)

/* Return: a shrinker with the methods of @methods, or NULL. One at a time. */
static inline struct shrinker *
series_shrinker_add(const struct shrinker *methods)
{
	static struct shrinker shrinker;

	shrinker = *methods;
	return register_shrinker(&shrinker, KBUILD_MODNAME) ? NULL : &shrinker;
}

static inline void series_shrinker_remove(struct shrinker *shrinker)
{
	unregister_shrinker(shrinker);
}

#elif SERIES_IS(6, 12)

static inline struct shrinker *
series_shrinker_add(const struct shrinker *methods)
{
	struct shrinker *shrinker = shrinker_alloc(0, KBUILD_MODNAME);

	if (!shrinker)
		return NULL;
	shrinker->count_objects = methods->count_objects;
	shrinker->scan_objects = methods->scan_objects;
	shrinker_register(shrinker);
	return shrinker;
}

static inline void series_shrinker_remove(struct shrinker *shrinker)
{
	shrinker_free(shrinker);
}

#endif

#endif /* TRAPLESS_SERIES_SHRINKER_H */
