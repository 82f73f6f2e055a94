// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Reads the kernel's own text as data: a guest must see what it wrote there, not the
 * host's patches.
 *
 * Invariant: the sum covers every byte between the kernel's _stext and _etext, read by
 * the kernel from its own mapping, except for the execute pages that the driver has
 * given to the host, whose contents are the host's.
 */
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "workload.h"

#define EXECUTE_PAGES	"trapless_bt_execute"
#define EXECUTE_BYTES	0x10000u
#define FNV_OFFSET	0xcbf29ce484222325ull
#define FNV_PRIME	0x100000001b3ull

uint32_t kernel_symbol(const char *wanted)
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

/* Sum of the kernel's text, either its own part or the execute pages. */
static uint64_t sum_of(bool given_away, uint32_t *bytes)
{
	uint32_t from = kernel_symbol("_stext"), to = kernel_symbol("_etext");
	uint32_t given = kernel_symbol(EXECUTE_PAGES);
	int memory = checked(open("/dev/mem", O_RDONLY));
	uint64_t sum = FNV_OFFSET;
	unsigned char page[4096];

	if (from < KERNEL_BASE || to <= from || !given)
		die("kallsyms has no symbol for the kernel's text");
	*bytes = 0;
	for (uint32_t at = from; at < to;) {
		size_t wanted = to - at < sizeof(page) ? to - at : sizeof(page);
		ssize_t got = checked(pread(memory, page, wanted, at - KERNEL_BASE));

		if (!got)
			die("/dev/mem ends inside the kernel's text");
		for (ssize_t i = 0; i < got; i++)
			if ((at + i - given < EXECUTE_BYTES) == given_away) {
				sum = (sum ^ page[i]) * FNV_PRIME;
				++*bytes;
			}
		at += got;
	}
	close(memory);
	return sum;
}

/* Prints "text SUM BYTES" and "given SUM BYTES", and how long it took. */
static void run_textsum(const char *name, unsigned int count)
{
	uint64_t started = ticks(), text, given;
	uint32_t text_bytes, given_bytes;

	text = sum_of(false, &text_bytes);
	given = sum_of(true, &given_bytes);
	report(name, ticks() - started, count);
	printf("text %016llx %u\n", (unsigned long long)text, (unsigned int)text_bytes);
	printf("given %016llx %u\n", (unsigned long long)given, (unsigned int)given_bytes);
}

const struct workload text_workloads[] = {
	{ "textsum", run_textsum, 1, 1 },
	{ }
};
