/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * dirtyparts MECHANISM MIB: what one round of tracking costs, part by part and as
 * a whole, for the formulas of the OoH paper. MECHANISM is "proc" (soft-dirty),
 * "dbit", "epml" or "spml" (trapless_dirty's device).
 *
 * The process tracks itself: it writes one word of each page, finds the dirty
 * pages, and reads them, as an example of a tracker's processing. The parts are
 * timed one by one; the whole is timed in a round of its own, without other timing.
 *
 *   part tked ns=        the writes, untracked
 *   part process ns=     reading a word of each cache line of every page
 *   part clear ns=       proc: writing 4 to clear_refs, every page dirty
 *   part walk ns=        proc: reading pagemap
 *   part parse ns=       proc: finding the ranges in it
 *   part collect ns=     device: COLLECT, every page dirty
 *   part read ns=        device: READ until there is no more
 *   part drain ns=       spml, in place of collect: the call for the log, every page
 *                        dirty, and the copy of the ring
 *   part walk ns=        spml, the same: the reverse mapping
 *   part fault ns= n=    one first write under tracking beyond one without, the mean
 *                        of n
 *   whole tker ns=       finding and reading, as one
 *   whole tked_tker ns=  the writes under tracking, then that
 *   faults n=            minor faults of the whole; spml: what the hypervisor logged,
 *                        each of which is an exit where it has no PML
 *   reported n= missed n= logged n= foreign n= interrupts n=
 *                        pages reported, and pages of the memory, all of which is written,
 *                        that were not; entries of the log, those of them for
 *                        what is not watched, and its interrupts
 */
#define _GNU_SOURCE
#include <sys/resource.h>

static unsigned int mechanism;
#define TRACKER_MECHANISM mechanism
#include "tracker.h"

/* Pages whose first write is timed for the cost of one fault. */
#define SAMPLE 512UL
/* As many as KVM's ring has entries: the mean includes the exit when it is full. */
#define SPML_SAMPLE 4096UL
#define LINE 64 /* of a cache */
/* The module decides for blocks of a page table each whether an entry is foreign. */
#define BLOCK (2UL << 20)

static char *memory;
static size_t pages, sample = SAMPLE;
/* The device, or -1. */
static int device = -1, clear_refs, entries_of;
static uint64_t *entries;
static struct trapless_dirty_range *ranges;
static size_t found;

static void touch(size_t count)
{
	static uint64_t stamp;

	stamp++;
	for (size_t i = 0; i < count; i++)
		*(volatile uint64_t *)(memory + i * PAGE) = stamp;
}

static void clear(void)
{
	if (pwrite(clear_refs, "4", 1, 0) != 1)
		err(1, "clear_refs");
}

static void walk(void)
{
	size_t bytes = pages * sizeof(*entries);
	off_t from = (uintptr_t)memory / PAGE * sizeof(*entries);

	for (size_t done = 0; done < bytes;) {
		ssize_t got = pread(entries_of, (char *)entries + done, bytes - done, from + done);

		if (got <= 0)
			err(1, "pagemap");
		done += got;
	}
}

static void parse(void)
{
	found = 0;
	for (size_t i = 0; i < pages; i++) {
		uint64_t at = (uintptr_t)memory + i * PAGE;

		if (!(entries[i] & PM_SOFT_DIRTY))
			continue;
		if (found && ranges[found - 1].end == at)
			ranges[found - 1].end += PAGE;
		else
			ranges[found++] = (struct trapless_dirty_range){ at, at + PAGE };
	}
}

static void device_collect(void)
{
	must(collect(device), "COLLECT");
}

static void device_read(void)
{
	int count, room;

	found = 0;
	do {
		/* There are fewer ranges than pages, so there is always room for one more. */
		room = pages + 1 - found;
		count = take(device, ranges + found, room);
		must(count, "READ");
		found += count;
	} while (count == room);
}

static void find(void)
{
	if (device < 0) {
		walk();
		parse();
		clear();
	} else {
		device_collect();
		device_read();
	}
}

static void process(void)
{
	uint64_t sum = 0;

	for (size_t i = 0; i < found; i++)
		for (uint64_t at = ranges[i].start; at < ranges[i].end; at += LINE)
			sum += *(const volatile uint64_t *)(uintptr_t)at;
	(void)sum;
}

static uint64_t spent(void (*work)(void))
{
	uint64_t begun = now_ns();

	work();
	return now_ns() - begun;
}

static void time_part(const char *name, void (*work)(void))
{
	printf("part %s ns=%llu\n", name, (unsigned long long)spent(work));
}

static void touch_all(void)
{
	touch(pages);
}

static void touch_sample(void)
{
	touch(sample);
}

static long faults(void)
{
	struct rusage usage;

	if (getrusage(RUSAGE_SELF, &usage))
		err(1, "getrusage");
	return usage.ru_minflt;
}

static void arm(void)
{
	if (device < 0)
		clear();
	else
		must(watch(device, memory, pages), "WATCH");
}

/* A WATCH of another page drains the log; the next collect only walks. */
static void parts_of_spml(void)
{
	struct trapless_dirty_stats before, after;
	char *other = small_pages(1);
	uint64_t begun = now_ns();

	must(watch(device, other, 1), "WATCH");
	printf("part drain ns=%llu\n", (unsigned long long)(now_ns() - begun));
	must(ioctl(device, TRAPLESS_DIRTY_GET_STATS, &before), "GET_STATS");
	must(collect(device), "COLLECT");
	must(ioctl(device, TRAPLESS_DIRTY_GET_STATS, &after), "GET_STATS");
	printf("part walk ns=%llu\n", (unsigned long long)(after.walk_ns - before.walk_ns));
	time_part("read", device_read);
	must(unwatch(device, other, 1), "UNWATCH");
}

/* Every page is dirty; each part by itself. */
static void parts_of_finding(void)
{
	touch_all();
	if (mechanism == TRAPLESS_DIRTY_SPML) {
		parts_of_spml();
	} else if (device < 0) {
		time_part("walk", walk);
		time_part("parse", parse);
		time_part("clear", clear);
	} else {
		time_part("collect", device_collect);
		time_part("read", device_read);
	}
	time_part("process", process);
}

static void part_fault(uint64_t untracked)
{
	uint64_t tracked = spent(touch_sample);

	printf("part fault ns=%llu n=%lu\n",
	       (unsigned long long)(tracked > untracked ? tracked - untracked : 0), sample);
	find();
}

static void whole_round(void)
{
	struct trapless_dirty_stats before = { 0 }, after = { 0 };
	size_t reported = 0;
	long faulted = faults();
	uint64_t begun, written, end;

	if (device >= 0)
		must(ioctl(device, TRAPLESS_DIRTY_GET_STATS, &before), "GET_STATS");
	begun = now_ns();
	touch_all();
	written = now_ns();
	find();
	process();
	end = now_ns();
	faulted = faults() - faulted;
	if (device >= 0)
		must(ioctl(device, TRAPLESS_DIRTY_GET_STATS, &after), "GET_STATS");
	if (mechanism == TRAPLESS_DIRTY_SPML)
		faulted = after.logged - before.logged;
	printf("whole tker ns=%llu\nwhole tked_tker ns=%llu\nfaults n=%ld\n",
	       (unsigned long long)(end - written), (unsigned long long)(end - begun), faulted);
	for (size_t i = 0; i < found; i++)
		reported += (ranges[i].end - ranges[i].start) / PAGE;
	printf("reported n=%zu missed n=%zu logged n=%llu foreign n=%llu interrupts n=%llu\n", reported,
	       pages - reported, (unsigned long long)(after.logged - before.logged),
	       (unsigned long long)(after.foreign - before.foreign),
	       (unsigned long long)(after.interrupts - before.interrupts));
}

int main(int argc, char **argv)
{
	uint64_t untracked;

	if (argc != 3)
		errx(2, "usage: dirtyparts proc|dbit|epml|spml MIB");
	pages = number(argv[2], "MIB") * (1UL << 20) / PAGE;
	if (pages * PAGE % BLOCK)
		errx(2, "MIB must be even");
	if (!strcmp(argv[1], "dbit"))
		mechanism = TRAPLESS_DIRTY_DBIT;
	else if (!strcmp(argv[1], "epml"))
		mechanism = TRAPLESS_DIRTY_EPML;
	else if (!strcmp(argv[1], "spml"))
		mechanism = TRAPLESS_DIRTY_SPML;
	else if (strcmp(argv[1], "proc"))
		errx(2, "no mechanism is called \"%s\"", argv[1]);
	memory = small_pages(pages + BLOCK / PAGE);
	memory = (char *)(((uintptr_t)memory + BLOCK - 1) & ~(BLOCK - 1));
	entries = calloc(pages, sizeof(*entries));
	ranges = calloc(pages + 1, sizeof(*ranges));
	if (!entries || !ranges)
		err(1, "memory for %zu pages", pages);
	memset(entries, 1, pages * sizeof(*entries));
	memset(ranges, 1, (pages + 1) * sizeof(*ranges));
	if (mechanism == TRAPLESS_DIRTY_SPML)
		sample = SPML_SAMPLE;
	touch_all();
	time_part("tked", touch_all);
	untracked = spent(touch_sample);
	if (strcmp(argv[1], "proc")) {
		device = tracker_of(getpid());
	} else {
		clear_refs = open("/proc/self/clear_refs", O_WRONLY);
		entries_of = open("/proc/self/pagemap", O_RDONLY);
		if (clear_refs < 0 || entries_of < 0)
			err(1, "/proc/self");
	}
	arm();
	parts_of_finding();
	part_fault(untracked);
	whole_round();
	return 0;
}
