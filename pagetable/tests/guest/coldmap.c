/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * coldmap FILE: map FILE, drop it from memory and read a byte of every 2 MiB.
 *
 * Each read needs a page table of its own and waits for the file: the kernel
 * allocates the table, finds that it must wait, frees the table in code that no
 * module can hook, and allocates another when it retries. A cache of page tables
 * has to find the tables freed that way.
 */
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#define TABLE_SPAN	(2L << 20)	/* memory that one page table maps */

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: coldmap FILE\n");
		return 2;
	}

	int fd = open(argv[1], O_RDONLY);

	if (fd < 0)
		err(1, "%s", argv[1]);

	off_t size = lseek(fd, 0, SEEK_END);

	if (size < TABLE_SPAN)
		errx(1, "%s: smaller than 2 MiB", argv[1]);
	if (posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED))
		errx(1, "%s: cannot be dropped from memory", argv[1]);

	volatile char *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);

	if (map == MAP_FAILED || madvise((void *)map, size, MADV_RANDOM))
		err(1, "%s", argv[1]);
	for (off_t at = 0; at < size; at += TABLE_SPAN)
		(void)map[at];
	return 0;
}
