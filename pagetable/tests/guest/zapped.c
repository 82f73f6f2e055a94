/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * zapped: pages of a private file mapping that were written and swapped, and then
 * dropped.
 *
 *   zapped plain    dropped with nobody interested: the file's own content is back
 *   zapped marked   dropped while userfaultfd protects them: each leaves a marker
 *
 * The kernel clears such an entry without reading it and may write a marker in its
 * place. Under Xen PV both are queued, and stock Linux reads the entry in between.
 */
#define _GNU_SOURCE
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>

#include "oracle.h"

#define PAGES 128UL
#define PM_UFFD_WP (1ULL << 57)

static char *map_written(void)
{
	char path[] = "/tmp/zapped-XXXXXX", content[PAGE];
	int fd = mkstemp(path);
	char *memory;

	if (fd < 0)
		err(1, "%s", path);
	unlink(path);
	for (unsigned long i = 0; i < PAGES; i++) {
		fill_page(content, i + 1);
		if (write(fd, content, PAGE) != (ssize_t)PAGE)
			err(1, "write");
	}
	memory = map_at(NULL, PAGES * PAGE, MAP_PRIVATE, fd);
	for (unsigned long i = 0; i < PAGES; i++)
		fill_page(memory + i * PAGE, PAGES + i + 1);
	return memory;
}

static void protect(const char *memory)
{
	struct uffdio_api api = {
		.api = UFFD_API,
		.features = UFFD_FEATURE_PAGEFAULT_FLAG_WP | UFFD_FEATURE_WP_HUGETLBFS_SHMEM,
	};
	struct uffdio_register range = { .range = { (uintptr_t)memory, PAGES * PAGE },
					 .mode = UFFDIO_REGISTER_MODE_WP };
	struct uffdio_writeprotect wp = { .range = range.range,
					  .mode = UFFDIO_WRITEPROTECT_MODE_WP };
	/* Stays open: it is what protects them. */
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);

	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &range) ||
	    ioctl(fd, UFFDIO_WRITEPROTECT, &wp))
		err(1, "userfaultfd");
}

static unsigned long with(const char *memory, uint64_t bit)
{
	unsigned long found = 0;

	for (unsigned long i = 0; i < PAGES; i++)
		found += !!(pagemap(memory + i * PAGE) & bit);
	return found;
}

int main(int argc, char **argv)
{
	int marked = argc == 2 && !strcmp(argv[1], "marked");
	char *memory;

	if (!marked && (argc != 2 || strcmp(argv[1], "plain")))
		errx(2, "name one case: plain marked");
	memory = map_written();
	if (marked)
		protect(memory);
	if (madvise(memory, PAGES * PAGE, MADV_PAGEOUT))
		err(1, "MADV_PAGEOUT");
	if (!with(memory, PM_SWAPPED))
		errx(1, "no page is swapped");
	printf("swapped=%lu\n", with(memory, PM_SWAPPED));
	if (madvise(memory, PAGES * PAGE, MADV_DONTNEED))
		err(1, "MADV_DONTNEED");
	if (marked && with(memory, PM_UFFD_WP) != PAGES)
		errx(1, "%lu pages have a marker, not %lu", with(memory, PM_UFFD_WP), PAGES);
	if (with(memory, PM_PRESENT))
		errx(1, "a page is left");
	for (unsigned long i = 0; i < PAGES; i++)
		check_page(memory + i * PAGE, i + 1, "zapped", i);
	return 0;
}
