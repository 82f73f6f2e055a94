/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Shared by the workloads: whose memory they use, their input, their result.
 *
 * One source makes two programs: with COLLECTED all memory is the Boehm collector's,
 * otherwise malloc's. Input comes from a fixed generator, and the result is a checksum
 * of all that was computed: so every run of a workload with one size prints the same
 * checksum, and a collector that frees what is in use prints another or crashes.
 */
#ifndef MEMORY_H
#define MEMORY_H

#include <err.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#ifdef COLLECTED
#include <gc.h>
#endif

/* Zeroed memory that may have pointers in it. */
static inline void *get_node(size_t size)
{
#ifdef COLLECTED
	void *memory = GC_MALLOC(size);
#else
	void *memory = calloc(1, size);
#endif
	if (!memory)
		errx(1, "no memory");
	return memory;
}

/* Memory without pointers, of any content. */
static inline void *get_data(size_t size)
{
#ifdef COLLECTED
	void *memory = GC_MALLOC_ATOMIC(size);
#else
	void *memory = malloc(size);
#endif
	if (!memory)
		errx(1, "no memory");
	return memory;
}

/* A collector finds out by itself. */
static inline void let_go(void *memory)
{
#ifdef COLLECTED
	(void)memory;
#else
	free(memory);
#endif
}

static uint64_t generator;

/* SplitMix64. */
static inline uint64_t next_random(void)
{
	uint64_t z = generator += 0x9e3779b97f4a7c15;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
	z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
	return z ^ (z >> 31);
}

/* A checksum in which the order matters. */
static inline uint64_t mix(uint64_t sum, uint64_t value)
{
	return (sum ^ value) * 0x100000001b3 + 1;
}

static inline uint64_t workload_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline size_t workload_number(const char *text)
{
	char *end;
	unsigned long value = strtoul(text, &end, 10);

	if (*end || end == text || *text == '-' || !value || value > 1000000000)
		errx(2, "\"%s\" is not a number from 1 to 1000000000", text);
	return value;
}

static inline void workload_begin(void)
{
#ifdef COLLECTED
	GC_INIT();
#endif
}

/* The record of a run: "done NAME sum=HEX ns=N", and a collector's own words. */
static inline void workload_end(const char *name, uint64_t sum, uint64_t ns)
{
	printf("done %s sum=%016llx ns=%llu\n", name, (unsigned long long)sum,
	       (unsigned long long)ns);
#ifdef COLLECTED
	printf("collector incremental=%d collections=%lu heap_kib=%zu\n", GC_is_incremental_mode(),
	       (unsigned long)GC_get_gc_no(), GC_get_heap_size() / 1024);
#endif
}

#endif /* MEMORY_H */
