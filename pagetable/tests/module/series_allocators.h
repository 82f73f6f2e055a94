/* SPDX-License-Identifier: GPL-2.0-only */
/* The kernel's allocators, and where a module's code is, where its series differ. */
#ifndef TRAPLESS_SERIES_ALLOCATORS_H
#define TRAPLESS_SERIES_ALLOCATORS_H

#include <linux/module.h>

#include "series.h"

/* Each is a name, and the register with the flags. */
#if SERIES_IS(6, 1)

#define SERIES_ALLOCATORS(_)			\
	_("__alloc_pages", di),			\
	_("__kmalloc", si),			\
	_("__kmalloc_node", si),		\
	_("__kmalloc_node_track_caller", si),	\
	_("kmalloc_trace", si),			\
	_("kmalloc_node_trace", si),		\
	_("kmem_cache_alloc", si),		\
	_("kmem_cache_alloc_lru", dx),		\
	_("kmem_cache_alloc_node", si),		\
	_("__vmalloc_node_range", r8)

static inline unsigned long series_module_core(const struct module *module)
{
	return (unsigned long)module->core_layout.base;
}

static inline unsigned long series_module_init(const struct module *module)
{
	return (unsigned long)module->init_layout.base;
}

#elif SERIES_IS(6, 12)

#ifdef CONFIG_SLAB_BUCKETS
#define SERIES_BEHIND_BUCKETS	dx
#else
#define SERIES_BEHIND_BUCKETS	si
#endif

#define SERIES_ALLOCATORS(_)			\
	_("__alloc_pages_noprof", di),		\
	_("__kmalloc_noprof", si),		\
	_("__kmalloc_node_noprof", SERIES_BEHIND_BUCKETS), \
	_("__kmalloc_node_track_caller_noprof", SERIES_BEHIND_BUCKETS), \
	_("__kmalloc_cache_noprof", si),	\
	_("__kmalloc_cache_node_noprof", si),	\
	_("kmem_cache_alloc_noprof", si),	\
	_("kmem_cache_alloc_lru_noprof", dx),	\
	_("kmem_cache_alloc_node_noprof", si),	\
	_("__vmalloc_node_range_noprof", r8)

static inline unsigned long series_module_core(const struct module *module)
{
	return (unsigned long)module->mem[MOD_TEXT].base;
}

static inline unsigned long series_module_init(const struct module *module)
{
	return (unsigned long)module->mem[MOD_INIT_TEXT].base;
}

#endif

#endif /* TRAPLESS_SERIES_ALLOCATORS_H */
