/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * ldt N: N processes, one after another, each of which makes itself a local
 * descriptor table of one entry and loads a segment register from it.
 *
 * Xen validates the page of such a table when the processor first loads a descriptor
 * from it: so N pages become pages of segment descriptors, one for each process.
 */
#include <asm/ldt.h>
#include <err.h>
#include <stdio.h>
#include <sys/syscall.h>

#include "measure.h"

/* Entry 0 of the local table, with a user's privileges. */
#define SELECTOR (0 << 3 | 4 | 3)

static void use_descriptor(void)
{
	struct user_desc entry = {
		.limit = 0xfffff,
		.limit_in_pages = 1,
		.seg_32bit = 1,
		.useable = 1,
	};
	unsigned short loaded;

	if (syscall(SYS_modify_ldt, 1, &entry, sizeof(entry)))
		err(1, "modify_ldt");
	asm volatile("mov %1, %%gs\n\tmov %%gs, %0" : "=r"(loaded) : "r"((unsigned short)SELECTOR));
	if (loaded != SELECTOR)
		errx(1, "%%gs is %#x", loaded);
}

int main(int argc, char **argv)
{
	unsigned long count;

	if (argc != 2) {
		fprintf(stderr, "usage: ldt N\n");
		return 2;
	}
	count = number(argv[1], "N");
	for (unsigned long i = 0; i < count; i++) {
		pid_t pid = start_child();

		if (!pid) {
			use_descriptor();
			_exit(0);
		}
		wait_child(pid);
	}
	return 0;
}
