/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * filemap: mapped files, read page by page in random order.
 *
 *   filemap read [ROUNDS]   contents, SIGBUS behind the end, counters
 *   filemap race [ROUNDS]   the same while the file is truncated, punched and extended
 *
 * Page i of the file is filled from tag i + 1. The number of pages that are
 * mapped is read from /proc/self/pagemap and compared with the process's own
 * counters in /proc/self/status, which lag by a batch: before Linux 6.2 of events of
 * each thread, which are waited for; since then of pages on each CPU, which are allowed.
 *
 * A reader must never see another page's bytes. Once a part of the file is
 * truncated or punched out, no process may still have an entry for it.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/utsname.h>

#include "oracle.h"

#define PAGES 512UL
#define READERS 2
#define BATCH 32UL /* pages a CPU of a machine with up to 16: percpu_counter_batch */
#define EVENTS 65 /* faults after which a thread adds its counts to the process's: TASK_RSS_EVENTS_THRESH */

static char *shared;
static int fd, stop;

static unsigned long mapped(const char *memory, unsigned long first, unsigned long pages)
{
	static uint64_t entries[PAGES];
	int map = open("/proc/self/pagemap", O_RDONLY);
	unsigned long present = 0;

	if (map < 0 || pread(map, entries, pages * 8, ((uintptr_t)memory / PAGE + first) * 8) !=
			       (ssize_t)pages * 8)
		err(1, "pagemap");
	close(map);
	for (unsigned long i = 0; i < pages; i++)
		present += !!(entries[i] & PM_PRESENT);
	return present;
}

/* The kernel's count of file and shared memory pages of the process. */
static long counted(void)
{
	FILE *file;
	char line[128], *memory = map_private(EVENTS);
	long kib = 0, value;

	memset(memory, 1, EVENTS * PAGE);
	munmap(memory, EVENTS * PAGE);
	file = fopen("/proc/self/status", "r");
	if (!file)
		err(1, "status");
	while (fgets(line, sizeof(line), file))
		if (sscanf(line, "RssFile: %ld", &value) == 1 ||
		    sscanf(line, "RssShmem: %ld", &value) == 1)
			kib += value;
	fclose(file);
	return kib * 1024 / (long)PAGE;
}

/* How wrong the difference of two counts may be. */
static long error_of_counts(void)
{
	unsigned int major, minor;
	struct utsname kernel;

	if (uname(&kernel) || sscanf(kernel.release, "%u.%u", &major, &minor) != 2)
		err(1, "uname");
	if (major < 6 || (major == 6 && minor < 2))
		return 0;
	return 2 * BATCH * sysconf(_SC_NPROCESSORS_CONF);
}

static void expect_counted(long base, long pages)
{
	long found = counted() - base;

	if (labs(found - pages) > error_of_counts())
		errx(1, "%ld pages are counted, and %ld mapped", found, pages);
}

static void write_file(unsigned long first, unsigned long pages)
{
	char content[PAGE];

	for (unsigned long i = first; i < first + pages; i++) {
		fill_page(content, i + 1);
		if (pwrite(fd, content, PAGE, i * PAGE) != (ssize_t)PAGE)
			err(1, "write");
	}
}

static void make_file(void)
{
	char path[] = "/tmp/filemap-XXXXXX";

	fd = mkstemp(path);
	if (fd < 0)
		err(1, "%s", path);
	unlink(path);
	write_file(0, PAGES);
}

static char *map_file(int flags)
{
	char *memory = mmap(NULL, PAGES * PAGE, PROT_READ, flags, fd, 0);

	if (memory == MAP_FAILED)
		err(1, "mmap");
	return memory;
}

static void read_all(int flags, uint64_t *state)
{
	long base = counted();
	char *memory = map_file(flags);

	for (unsigned long i = 0; i < PAGES / 4; i++) {
		unsigned long page = next_random(state) % PAGES;

		check_page(memory + page * PAGE, page + 1, "file", page);
	}
	expect_counted(base, mapped(memory, 0, PAGES));
	for (unsigned long i = 0; i < PAGES; i++)
		check_page(memory + i * PAGE, i + 1, "file", i);
	if (mapped(memory, 0, PAGES) != PAGES)
		errx(1, "a page that was read is not mapped");
	expect_counted(base, PAGES);
	munmap(memory, PAGES * PAGE);
	expect_counted(base, 0);
}

static void expect_end(int flags, unsigned long pages)
{
	char *memory = map_file(flags);

	for (volatile unsigned long i = pages > 8 ? pages - 8 : 0; i < pages + 8 && i < PAGES; i++) {
		int fault = sigsetjmp(faulted, 1);

		if (!fault)
			check_page(memory + i * PAGE, i + 1, "end", i);
		if (!!fault != (i >= pages))
			errx(1, "page %lu of %lu: %s", i, pages, fault ? "SIGBUS" : "no SIGBUS");
	}
	munmap(memory, PAGES * PAGE);
}

static void read_rounds(unsigned long rounds)
{
	uint64_t state = 1;

	for (unsigned long i = 0; i < rounds; i++) {
		unsigned long end = next_random(&state) % PAGES;

		read_all(i % 2 ? MAP_SHARED : MAP_PRIVATE, &state);
		if (ftruncate(fd, end * PAGE))
			err(1, "ftruncate");
		expect_end(i % 2 ? MAP_SHARED : MAP_PRIVATE, end);
		write_file(end, PAGES - end);
	}
}

static void *read_on(void *seed)
{
	static __thread uint64_t state; /* outlives a fault */

	state = (uintptr_t)seed;
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		volatile unsigned long page = next_random(&state) % PAGES;
		volatile uint64_t *first = (volatile uint64_t *)(shared + page * PAGE);
		volatile uint64_t found;

		if (sigsetjmp(faulted, 1))
			continue;
		found = *first;
		if (found && found != page_word(page + 1, 0))
			errx(1, "page %lu holds %#llx of another", page, (unsigned long long)found);
	}
	return NULL;
}

static void expect_gone(unsigned long first, unsigned long pages)
{
	unsigned long left = mapped(shared, first, pages);

	if (left)
		errx(1, "%lu pages from %lu on are gone from the file and still mapped", left, first);
}

static void race(unsigned long rounds)
{
	pthread_t readers[READERS];
	uint64_t state = 7;

	shared = map_file(MAP_SHARED);
	for (uintptr_t i = 0; i < READERS; i++)
		if (pthread_create(&readers[i], NULL, read_on, (void *)(i + 1)))
			err(1, "pthread_create");
	for (unsigned long i = 0; i < rounds; i++) {
		unsigned long first = next_random(&state) % PAGES;

		if (i % 2) {
			if (ftruncate(fd, first * PAGE))
				err(1, "ftruncate");
			expect_gone(first, PAGES - first);
			write_file(first, PAGES - first);
			continue;
		}
		/* A read brings a hole's page back as zeros, so only contents are checked. */
		if (fallocate(fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, first * PAGE,
			      (PAGES - first) * PAGE))
			err(1, "fallocate");
		write_file(first, PAGES - first);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	for (unsigned int i = 0; i < READERS; i++)
		pthread_join(readers[i], NULL);
	for (unsigned long i = 0; i < PAGES; i++)
		check_page(shared + i * PAGE, i + 1, "after the race", i);
}

int main(int argc, char **argv)
{
	unsigned long rounds = argc == 3 ? number(argv[2], "ROUNDS") : 8;

	make_file();
	expect_faults(SIGBUS);
	if (argc >= 2 && !strcmp(argv[1], "read"))
		read_rounds(rounds);
	else if (argc >= 2 && !strcmp(argv[1], "race"))
		race(rounds);
	else
		errx(2, "name one case: read race");
	return 0;
}
