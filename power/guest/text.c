// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The kernel's own text, read as data: a guest must see what it wrote there, whatever
 * its host has put in the place.
 *
 * Invariant: every byte between the kernel's _stext and _etext is in the sum, read by
 * the kernel from its own mapping.
 */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "workload.h"

#define KERNEL_BASE	0xc0000000u
#define FNV_OFFSET	0xcbf29ce484222325ull
#define FNV_PRIME	0x100000001b3ull

/* Zero if there is no such symbol. */
static uint32_t address(const char *wanted)
{
	FILE *symbols = fopen("/proc/kallsyms", "r");
	char line[256], name[128];
	unsigned int at;
	uint32_t found = 0;

	while (symbols && fgets(line, sizeof(line), symbols)) {
		if (sscanf(line, "%x %*c %127s", &at, name) == 2 && !strcmp(name, wanted)) {
			found = at;
			break;
		}
	}
	if (symbols)
		fclose(symbols);
	return found;
}

/* Prints "text SUM BYTES", and how long it took. */
static void run_textsum(const char *name, unsigned int count)
{
	uint32_t from = address("_stext"), to = address("_etext");
	int memory = checked(open("/dev/mem", O_RDONLY));
	uint64_t started = ticks(), spent;
	uint64_t sum = FNV_OFFSET;
	unsigned char page[4096];

	if (from < KERNEL_BASE || to <= from)
		die("kallsyms does not tell where the kernel's text is");
	for (uint32_t at = from; at < to;) {
		size_t wanted = to - at < sizeof(page) ? to - at : sizeof(page);
		ssize_t got = checked(pread(memory, page, wanted, at - KERNEL_BASE));

		if (!got)
			die("/dev/mem ends inside the kernel's text");
		for (ssize_t i = 0; i < got; i++)
			sum = (sum ^ page[i]) * FNV_PRIME;
		at += got;
	}
	spent = ticks() - started;
	printf("text %016llx %u\n", (unsigned long long)sum, (unsigned int)(to - from));
	report(name, spent, count);
}

const struct workload text_workloads[] = {
	{ "textsum", run_textsum, 1, 1 },
	{ }
};
