/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Intervals that a program times and the lab's plugins watch: on the clock and between
 * two markers (profiled.h), each with a name; while it warms up that is "warm-up".
 *
 * They are printed together, after what is measured, in the order in which they ended:
 *
 *   profiled ns=NANOSECONDS
 *   of NAME
 */
#ifndef INTERVAL_H
#define INTERVAL_H

#include <stdbool.h>
#include <stdio.h>

#include "measure.h"
#include "profiled.h"

/* No more than a program needs: more memory that it writes is more that a fork copies. */
#ifndef INTERVALS_MAX
#define INTERVALS_MAX 256
#endif

static struct {
	const char *name;
	uint64_t ns;
} intervals[INTERVALS_MAX];
static size_t interval_count;
static bool interval_warm_up;

static inline uint64_t interval_start(void)
{
	uint64_t begun = now_ns();

	profiled_start();
	return begun;
}

/* Returns how long it took. */
static inline uint64_t interval_stop(uint64_t begun, const char *name)
{
	uint64_t spent;

	profiled_stop();
	spent = now_ns() - begun;
	if (interval_count == INTERVALS_MAX)
		errx(1, "more than %d intervals", INTERVALS_MAX);
	intervals[interval_count].name = interval_warm_up ? "warm-up" : name;
	intervals[interval_count++].ns = spent;
	return spent;
}

static inline void intervals_print(void)
{
	for (size_t i = 0; i < interval_count; i++)
		printf("profiled ns=%llu\nof %s\n", (unsigned long long)intervals[i].ns,
		       intervals[i].name);
	interval_count = 0;
}

#endif /* INTERVAL_H */
