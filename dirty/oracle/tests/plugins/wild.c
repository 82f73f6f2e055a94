// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A plug-in that breaks the rule that DIRTY_WILD names, for tests of what is said of
 * it. What it reports besides is everything, so that nothing else is wrong.
 */
#define _GNU_SOURCE
#include "../../include/dirty_conformance.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uintptr_t first;
static size_t whole;

static int is(const char *name)
{
	const char *chosen = getenv("DIRTY_WILD");

	return chosen && !strcmp(chosen, name);
}

__attribute__((constructor)) static void load(void)
{
	if (is("load-abort"))
		abort();
}

static int open_tracker(pid_t pid, void **tracker)
{
	(void)pid;
	*tracker = NULL;
	if (is("not-here"))
		return -ENOTSUP;
	return is("open-fails") ? -EIO : 0;
}

static int watch(void *tracker, uintptr_t start, size_t length)
{
	(void)tracker;
	first = start;
	whole = length;
	return 0;
}

static int unwatch(void *tracker, uintptr_t start, size_t length)
{
	(void)tracker;
	(void)start;
	(void)length;
	return 0;
}

static uint64_t random_word(void)
{
	return (uint64_t)random() << 33 ^ (uint64_t)random() << 11 ^ random();
}

/* Any number, numbers near the range, and whole pages. */
static void report_random(dirty_conformance_report report, void *context)
{
	const char *seed = getenv("DIRTY_SEED");

	srandom(seed ? atoi(seed) : 0);
	for (int i = 0; i < 1000; i++) {
		uintptr_t start = random() % 2 ? first + random() % (2 * whole) : random_word();
		size_t length = random() % 2 ? random() % whole : random_word();
		uint32_t flags = random() % 3 ? (uint64_t)random() % 8 : random_word();

		if (random() % 2) {
			start &= -4096UL;
			length &= -4096UL;
		}
		report(context, start, length, flags);
	}
}

static int collect(void *tracker, dirty_conformance_report report, void *context)
{
	static volatile char *volatile nowhere;

	(void)tracker;
	if (is("crash"))
		*nowhere = 0;
	if (is("exit"))
		exit(0);
	if (is("hang"))
		for (;;)
			pause();
	if (is("input-error"))
		return -EIO;
	if (is("silent"))
		return 0;
	if (is("talks"))
		puts("{\"done\": \"ok 1 - I am good\"}");
	if (is("outside"))
		report(context, first + whole, whole, 0);
	if (is("everywhere"))
		report(context, 4096, 0x7fffffff0000, DIRTY_CONFORMANCE_ZERO);
	if (is("unaligned"))
		report(context, first + 1, whole, 0);
	if (is("overflow"))
		report(context, first, -4096UL, 0);
	if (is("flags"))
		report(context, first, whole, 64);
	if (is("random"))
		report_random(report, context);
	do {
		report(context, first, whole, 0); /* endless does not look at what is returned */
	} while (is("endless"));
	return is("zeros") ? report(context, first, whole, DIRTY_CONFORMANCE_ZERO) : 0;
}

static void close_tracker(void *tracker)
{
	(void)tracker;
}

static const char *last_error(void *tracker)
{
	(void)tracker;
	return is("input-error") || is("open-fails") ? "so it shall be" : NULL;
}

const struct dirty_conformance_plugin *dirty_conformance_plugin(void)
{
	static struct dirty_conformance_plugin plugin;

	if (is("null"))
		return NULL;
	plugin = (struct dirty_conformance_plugin) {
		.version = is("version") ? 7 : DIRTY_CONFORMANCE_VERSION,
		.features = is("features") ? 1u << 30 : 0,
		.name = "wild",
		.limits = is("limits") ? "swap gravity" : is("declared") ? "one-writer" : NULL,
		.open = open_tracker,
		.watch = watch,
		.unwatch = unwatch,
		.collect = is("no-collect") ? NULL : collect,
		.close = close_tracker,
		.error = last_error,
	};
	return &plugin;
}
