/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Shared by the programs that check memory: pages with known contents, random
 * numbers, /proc/self/pagemap, expected faults.
 *
 * A page is filled from a tag, and each of its words depends on the tag and on
 * its place, so a page that is lost, stale, mixed or another's is found. Tag 0
 * is a page of zeros. Any error ends the program with a message.
 */
#ifndef ORACLE_H
#define ORACLE_H

#ifndef _GNU_SOURCE
#error "define _GNU_SOURCE first"
#endif

#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "measure.h"

#define WORDS (PAGE / sizeof(uint64_t))

#define PM_PRESENT (1ULL << 63)
#define PM_SWAPPED (1ULL << 62)
#define PM_SOFT_DIRTY (1ULL << 55)

/* Marsaglia's xorshift; the state is never zero. */
static inline uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static inline uint64_t page_word(uint64_t tag, unsigned long i)
{
	return tag ? (tag + i) * 0x9e3779b97f4a7c15ULL : 0;
}

static inline void fill_page(void *page, uint64_t tag)
{
	for (unsigned long i = 0; i < WORDS; i++)
		((volatile uint64_t *)page)[i] = page_word(tag, i);
}

static inline int holds(const void *page, uint64_t tag)
{
	for (unsigned long i = 0; i < WORDS; i++)
		if (((const volatile uint64_t *)page)[i] != page_word(tag, i))
			return 0;
	return 1;
}

static inline void check_page(const void *page, uint64_t tag, const char *what, unsigned long index)
{
	if (!holds(page, tag))
		errx(1, "%s: page %lu does not hold %#llx, its first word is %#llx", what, index,
		     (unsigned long long)tag, *(const unsigned long long *)page);
}

static inline void *map_at(void *where, size_t size, int flags, int fd)
{
	void *memory = mmap(where, size, PROT_READ | PROT_WRITE, flags, fd, 0);

	if (memory == MAP_FAILED)
		err(1, "mmap");
	return memory;
}

static inline char *map_private(unsigned long pages)
{
	return map_at(NULL, pages * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
}

static inline uint64_t pagemap(const void *page)
{
	int fd = open("/proc/self/pagemap", O_RDONLY);
	uint64_t entry;

	if (fd < 0 || pread(fd, &entry, sizeof(entry), (uintptr_t)page / PAGE * sizeof(entry)) !=
			      sizeof(entry))
		err(1, "/proc/self/pagemap");
	close(fd);
	return entry;
}

static inline void write_text(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY);

	if (fd < 0 || write(fd, text, strlen(text)) < 0)
		err(1, "%s", path);
	close(fd);
}

/* What the kernel says is free. */
static inline long free_kib(void)
{
	FILE *file = fopen("/proc/meminfo", "r");
	char line[128];
	long kib = -1;

	while (file && fgets(line, sizeof(line), file))
		if (sscanf(line, "MemFree: %ld", &kib) == 1)
			break;
	if (kib < 0)
		err(1, "/proc/meminfo");
	fclose(file);
	return kib;
}

/* Fork a child that exits: then every page is write-protected, with one owner. */
static inline void fork_once(void)
{
	pid_t pid = start_child();

	if (!pid)
		_exit(0);
	wait_child(pid);
}

static __thread sigjmp_buf faulted;

static inline void on_fault(int signal)
{
	siglongjmp(faulted, signal);
}

static inline void expect_faults(int signal)
{
	struct sigaction action = { .sa_handler = on_fault, .sa_flags = SA_NODEFER };

	if (sigaction(signal, &action, NULL))
		err(1, "sigaction");
}

#endif /* ORACLE_H */
