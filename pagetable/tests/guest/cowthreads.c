/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * cowthreads: threads that write and read memory while their process forks.
 *
 *   cowthreads [FORKS]
 *
 * One thread writes ever higher numbers into all pages, in order, and publishes
 * the last one; the other must never read a lower number than the published one,
 * as it would from a stale page. A child must find in every page a number that
 * was written before the fork, and the same one ever after.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "oracle.h"

#define PAGES 256UL

static char *memory;
static uint64_t said; /* every page holds this number or a higher one */
static int stop;

static uint64_t *slot(unsigned long page)
{
	return (uint64_t *)(memory + page * PAGE);
}

static uint64_t load(const uint64_t *from)
{
	return __atomic_load_n(from, __ATOMIC_SEQ_CST);
}

static void *write_on(void *unused)
{
	for (uint64_t n = 1; !__atomic_load_n(&stop, __ATOMIC_RELAXED); n++) {
		for (unsigned long i = 0; i < PAGES; i++) {
			if (load(slot(i)) != n - 1)
				errx(1, "writer: page %lu has lost %llu", i,
				     (unsigned long long)n - 1);
			__atomic_store_n(slot(i), n, __ATOMIC_SEQ_CST);
		}
		__atomic_store_n(&said, n, __ATOMIC_SEQ_CST);
	}
	return unused;
}

static void *read_on(void *unused)
{
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		for (unsigned long i = 0; i < PAGES; i++) {
			uint64_t least = load(&said), found = load(slot(i));

			if (found < least)
				errx(1, "reader: page %lu is stale: %llu, not %llu", i,
				     (unsigned long long)found, (unsigned long long)least);
		}
		usleep(500); /* so that its CPU takes up other work */
	}
	return unused;
}

static void child(void)
{
	static uint64_t first[PAGES];

	for (unsigned long i = 0; i < PAGES; i++) {
		first[i] = load(slot(i));
		if (i && (first[i] > first[0] || first[i] + 1 < first[0]))
			errx(1, "child: page %lu is from another time", i);
	}
	usleep(2000);
	for (unsigned long i = 0; i < PAGES; i++)
		if (load(slot(i)) != first[i])
			errx(1, "child: page %lu has changed", i);
	memset(memory, 0xff, PAGES * PAGE);
	_exit(0);
}

int main(int argc, char **argv)
{
	unsigned long forks = argc > 1 ? number(argv[1], "FORKS") : 50;
	pthread_t writer, reader;

	memory = map_private(PAGES);
	memset(memory, 0, PAGES * PAGE);
	if (pthread_create(&writer, NULL, write_on, NULL) ||
	    pthread_create(&reader, NULL, read_on, NULL))
		err(1, "pthread_create");
	for (unsigned long i = 0; i < forks; i++) {
		pid_t pid = start_child();

		if (!pid)
			child();
		wait_child(pid);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(writer, NULL);
	pthread_join(reader, NULL);
	printf("said=%llu\n", (unsigned long long)said);
	return 0;
}
