// SPDX-License-Identifier: GPL-2.0-only
/*
 * The policies by which the pool gives cached tables back (PiBooster, sections
 * 3.5.2 and 6.2; the draft's section 5.2). Applied at every tick.
 *
 *   number      gives back cached tables above a number
 *   proportion  gives back cached tables above a percentage of those in use; at
 *               100 % that is the draft's num_in_pool - num_in_use
 *   both        gives back only tables above both limits
 *   adaptive    for each level the need is the most tables that were in use at
 *               one moment; it falls by 1/128 a tick, by half in 89 ticks.
 *               Tables above the need plus an eighth are given back, except
 *               those used since the last tick, and only once there are enough
 *               of them to be worth an IOTLB flush.
 *
 * Invariant: a surplus never exceeds the cached tables above the reserve, and the
 * fixed policies depend on the present state only.
 *
 * Pure functions: no kernel code, no clock, no state except the caller's.
 */
#include "policy.h"

/* Adaptive gives back at least this many tables and this share of all, or none. */
#define WORTH_A_FLUSH	16u
#define WORTH_DIVISOR	8u
/* The need is counted in fractions of a table, so that it can fall slowly. */
#define NEED_SHIFT	8
#define NEED_DECAY	128u
#define NEED_ROOM	8u

static unsigned int least(unsigned int a, unsigned int b)
{
	return a < b ? a : b;
}

static unsigned int above(unsigned int value, unsigned int limit)
{
	return value > limit ? value - limit : 0;
}

static unsigned int spare(const struct tpt_demand *level)
{
	return above(level->cached, TPT_POLICY_RESERVE);
}

/* The tables of all levels together that are above the thresholds. */
static unsigned int excess(const struct tpt_policy *policy,
			   unsigned int cached, unsigned int in_use)
{
	unsigned long long part = (unsigned long long)in_use * policy->percent;
	unsigned int by_number = above(cached, policy->number);
	unsigned int by_part = part / 100 >= cached ? 0 : cached - part / 100;

	switch (policy->kind) {
	case TPT_POLICY_NUMBER:
		return by_number;
	case TPT_POLICY_PROPORTION:
		return by_part;
	case TPT_POLICY_BOTH:
		return least(by_number, by_part);
	default:
		return 0;
	}
}

/* Each level gives back in proportion to what it can spare. */
static unsigned int fixed(const struct tpt_policy *policy,
			  const struct tpt_demand *levels, unsigned int count,
			  unsigned int *surplus)
{
	unsigned int i, cached = 0, in_use = 0, spares = 0, wanted, left;

	for (i = 0; i < count; i++) {
		cached += levels[i].cached;
		in_use += levels[i].in_use;
		spares += spare(&levels[i]);
	}
	wanted = least(excess(policy, cached, in_use), spares);
	left = wanted;
	for (i = 0; i < count; i++) {
		unsigned long long all = (unsigned long long)wanted *
					 spare(&levels[i]);

		surplus[i] = spares ? least(left, (all + spares - 1) / spares) : 0;
		left -= surplus[i];
	}
	return wanted;
}

static unsigned int adaptive(struct tpt_demand *levels, unsigned int count,
			     unsigned int *surplus)
{
	unsigned int i, cached = 0, wanted = 0;

	for (i = 0; i < count; i++) {
		struct tpt_demand *level = &levels[i];
		unsigned int most = level->in_use + level->missed +
				    above(level->cached, level->lowest);
		unsigned int kept = level->need -
				    (level->need + NEED_DECAY - 1) / NEED_DECAY;
		unsigned int need;

		level->need = most << NEED_SHIFT;
		if (level->need < kept)
			level->need = kept;
		need = (level->need + (1u << NEED_SHIFT) - 1) >> NEED_SHIFT;
		surplus[i] = least(above(level->cached + level->in_use, need +
					 need / NEED_ROOM + TPT_POLICY_RESERVE),
				   level->lowest);
		cached += level->cached;
		wanted += surplus[i];
	}
	if (wanted >= WORTH_A_FLUSH && wanted >= cached / WORTH_DIVISOR)
		return wanted;
	for (i = 0; i < count; i++)
		surplus[i] = 0;
	return 0;
}

/**
 * tpt_policy_start - the pool was filled: take its contents as the need
 * @levels: all levels, @cached set
 * @count:  how many levels
 */
void tpt_policy_start(struct tpt_demand *levels, unsigned int count)
{
	unsigned int i;

	for (i = 0; i < count; i++)
		levels[i].need = levels[i].cached << NEED_SHIFT;
}

/**
 * tpt_policy_tick - how many tables each level is to give back now
 * @policy:  the policy
 * @levels:  all levels; the policy's own fields are updated
 * @count:   how many levels
 * @surplus: out: tables to give back, one number a level
 *
 * Return: the sum of @surplus.
 */
unsigned int tpt_policy_tick(const struct tpt_policy *policy,
			     struct tpt_demand *levels, unsigned int count,
			     unsigned int *surplus)
{
	unsigned int wanted;

	/* Under fixed policies too: the need stays known for a change to adaptive. */
	wanted = adaptive(levels, count, surplus);
	if (policy->kind != TPT_POLICY_ADAPTIVE)
		wanted = fixed(policy, levels, count, surplus);
	return wanted;
}
