/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Pseudo-random numbers, determined by the seed.
 */
#ifndef RANDOM_H
#define RANDOM_H

#include "context.h"

struct random {
	u32 state;
};

static inline u32 random_word(struct random *r)
{
	u32 x = r->state;

	/* Xorshift, for which the state must not be 0, and a product that spreads its low bits. */
	x ^= x << 13;
	x ^= x >> 17;
	x ^= x << 5;
	r->state = x;
	return (x * 0x9e3779b1u) ^ (x >> 15);
}

static inline u32 random_below(struct random *r, u32 n)
{
	return (u32)(((u64)random_word(r) * n) >> 32);
}

static inline int random_chance(struct random *r, u32 one_in)
{
	return random_below(r, one_in) == 0;
}

static inline struct random random_seeded(u32 seed, u32 index)
{
	struct random r = { (seed * 0x85ebca6bu) ^ (index * 0xc2b2ae35u) };
	int i;

	if (!r.state)
		r.state = 1;
	for (i = 0; i < 4; i++)
		random_word(&r);
	return r;
}

#endif /* RANDOM_H */
