// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Writes and reads back all available memory, which includes what the kernel has freed
 * at the end of its boot.
 *
 * Invariant: each word holds what was written there last, both through the process's
 * mapping and through the kernel's mapping of the same pages.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include "workload.h"

#define PAGE		4096u
#define WORDS		(PAGE / sizeof(uint32_t))
/* Stays free, so that the OOM killer does not run. */
#define LEFT_FREE	(3u << 20)
/* Marks a page as ours; the next word is its number. */
#define MARK		0x5eed0001u

static uint32_t word(unsigned int round, uint32_t page, uint32_t i)
{
	return i == 0 ? MARK : i == 1 ? page : (page * WORDS + i) * 2654435761u + round;
}

static bool holds(const uint32_t *memory, unsigned int round, uint32_t page)
{
	for (uint32_t i = 0; i < WORDS; i++)
		if (memory[i] != word(round, page, i))
			return false;
	return true;
}

/* Return how many pages of the kernel's freed memory are ours; each must hold what it should. */
static unsigned int freed_pages(unsigned int round, uint32_t pages)
{
	uint32_t from = kernel_symbol("__init_begin"), to = kernel_symbol("__init_end");
	int physical = checked(open("/dev/mem", O_RDONLY));
	uint32_t memory[WORDS];
	unsigned int found = 0;

	if (from < KERNEL_BASE || to <= from)
		die("kallsyms has no symbol for what the kernel frees");
	for (uint32_t at = from; at < to; at += PAGE) {
		if (checked(pread(physical, memory, PAGE, at - KERNEL_BASE)) != PAGE)
			die("/dev/mem ends early");
		if (memory[0] != MARK || memory[1] >= pages)
			continue;
		if (!holds(memory, round, memory[1]))
			die("a page that the kernel has freed is wrong");
		found++;
	}
	close(physical);
	return found;
}

/* Prints "freed PAGES": how many of them the kernel had freed. */
static void run_memory(const char *name, unsigned int count)
{
	uint64_t started = ticks();
	struct sysinfo info;
	unsigned int freed = 0;
	uint32_t pages;
	uint32_t *memory;

	checked(sysinfo(&info));
	if (info.freeram * info.mem_unit < 2 * LEFT_FREE)
		die("there is no memory");
	pages = (info.freeram * info.mem_unit - LEFT_FREE) / PAGE;
	memory = mmap(NULL, (size_t)pages * PAGE, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap");
	for (unsigned int round = 0; round < count; round++) {
		for (uint32_t page = 0; page < pages; page++)
			for (uint32_t i = 0; i < WORDS; i++)
				memory[page * WORDS + i] = word(round, page, i);
		for (uint32_t page = 0; page < pages; page++)
			if (!holds(memory + page * WORDS, round, page))
				die("a page is wrong");
		freed = freed_pages(round, pages);
	}
	report(name, ticks() - started, count);
	printf("freed %u\n", freed);
}

const struct workload memory_workloads[] = {
	{ "memory", run_memory, 1, 4 },
	{ }
};
