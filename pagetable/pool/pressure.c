// SPDX-License-Identifier: GPL-2.0-only
/*
 * A shrinker: gives cached tables back when the kernel runs short of memory
 * (PiBooster, section 3.5.2, where the memory management daemon requests it).
 *
 * Invariant: reclaim never waits for the pool, which may itself be waiting for
 * memory. It only tries the pool's lock, and a shrink allocates nothing.
 */
#include <linux/mm.h>
#include <linux/shrinker.h>

#include "series_shrinker.h"
#include "trapless.h"

static unsigned long count_objects(struct shrinker *shrinker,
				   struct shrink_control *control)
{
	enum tpt_level level;
	unsigned long sum = 0;

	for (level = 0; level < TPT_LEVELS; level++)
		sum += (unsigned long)tpt_pool_spare(level)
		       << tpt_caches[level].order;
	return sum ?: SHRINK_EMPTY;
}

static unsigned long scan_objects(struct shrinker *shrinker,
				  struct shrink_control *control)
{
	int pages = tpt_pool_try_shrink(control->nr_to_scan);

	return pages > 0 ? pages : SHRINK_STOP;
}

static struct shrinker *shrinker;

/* Return: 0, or -ENOMEM. */
int tpt_pressure_init(void)
{
	const struct shrinker methods = {
		.count_objects = count_objects,
		.scan_objects = scan_objects,
		.seeks = DEFAULT_SEEKS,
	};

	shrinker = series_shrinker_add(&methods);
	return shrinker ? 0 : -ENOMEM;
}

void tpt_pressure_exit(void)
{
	series_shrinker_remove(shrinker);
}
