/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Streams of random numbers, another one for each seed.
 *
 * prandom_seed_state() takes 32 bits of a seed together and ignores the lowest, and below 128 up
 * to seven: seeds 1 and 2 make the same stream, and so do 2n and 2n + 1. So it is given a hash of
 * ours, which differs in a higher bit for any seeds that are close.
 */
#ifndef TRAPLESS_TEST_STREAM_H
#define TRAPLESS_TEST_STREAM_H

#include <linux/hash.h>
#include <linux/prandom.h>

static inline void stream_begin(struct rnd_state *stream, u64 seed)
{
	prandom_seed_state(stream, (u64)hash_64(seed, 31) << 33);
}

#endif /* TRAPLESS_TEST_STREAM_H */
