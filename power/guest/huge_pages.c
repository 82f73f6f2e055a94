// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Huge pages, for which the kernel replaces entries of TLB1 in turn: it must not
 * replace an entry that is not for huge pages.
 *
 * Invariant: each page is read back, through the entry that it has then, after all
 * other pages had an entry.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "workload.h"

/* The smallest size on e500, and twice the pages needed: replacement begins at the last entry. */
#define HUGE_BYTES	(4u << 20)
#define PAGES		"4"

static void run_huge_pages(const char *name, unsigned int count)
{
	int wanted = checked(open("/proc/sys/vm/nr_hugepages", O_WRONLY));
	unsigned int pages = atoi(PAGES);
	volatile uint32_t *memory;
	uint64_t started;

	checked(write(wanted, PAGES, strlen(PAGES)));
	close(wanted);
	memory = mmap(NULL, pages * HUGE_BYTES, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
	if (memory == MAP_FAILED)
		die("mmap of huge pages");
	started = ticks();
	for (unsigned int round = 0; round < count; round++) {
		for (unsigned int page = 0; page < pages; page++)
			memory[page * (HUGE_BYTES / 4)] = round ^ page;
		for (unsigned int page = 0; page < pages; page++)
			if (memory[page * (HUGE_BYTES / 4)] != (round ^ page))
				die("a huge page is wrong");
	}
	report(name, ticks() - started, count);
}

const struct workload huge_page_workloads[] = {
	{ "huge_pages", run_huge_pages, 4, 64 },
	{ }
};
