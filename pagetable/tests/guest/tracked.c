/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * tracked: what the kernel records about pages besides their contents.
 *
 *   tracked soft-dirty   every page written since clear_refs is reported
 *   tracked merged       the same after areas have been merged
 *   tracked uffd         a write to a write-protected page faults, no other does
 *   tracked dirty        fork keeps the dirty bits (smaps)
 *   tracked free         a page written after MADV_FREE is kept, others may go
 *   tracked swap         pages that went to swap and came back, across forks
 *   tracked flush        a page replaced in the middle of a system call
 */
#define _GNU_SOURCE
#include <linux/userfaultfd.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include "oracle.h"

#define PAGES 128UL
#define ROUNDS 20

/* A write that keeps the page's contents. */
static void touch(char *page)
{
	*(volatile char *)page = *(volatile char *)page;
}

static void fill(char *memory, unsigned long pages)
{
	for (unsigned long i = 0; i < pages; i++)
		fill_page(memory + i * PAGE, i + 1);
}

static void check(const char *memory, unsigned long pages, const char *what)
{
	for (unsigned long i = 0; i < pages; i++)
		check_page(memory + i * PAGE, i + 1, what, i);
}

static void clear_refs(void)
{
	write_text("/proc/self/clear_refs", "4");
}

static void expect_dirty(const char *page, unsigned long index)
{
	if (!(pagemap(page) & PM_SOFT_DIRTY))
		errx(1, "page %lu was written and is not soft-dirty", index);
}

static void soft_dirty(void)
{
	char *memory = map_private(PAGES);
	uint64_t state = 1;

	fill(memory, PAGES);
	for (unsigned int round = 0; round < ROUNDS; round++) {
		unsigned long clean = next_random(&state) % PAGES;
		char written[PAGES] = { 0 };

		if (round % 2)
			fork_once();
		clear_refs();
		if (round % 3)
			fork_once();
		for (unsigned int i = 0; i < PAGES / 2; i++) {
			unsigned long page = next_random(&state) % PAGES;

			if (page == clean)
				continue;
			touch(memory + page * PAGE);
			written[page] = 1;
		}
		for (unsigned long i = 0; i < PAGES; i++)
			if (written[i])
				expect_dirty(memory + i * PAGE, i);
		if (pagemap(memory + clean * PAGE) & PM_SOFT_DIRTY)
			errx(1, "a page that was not written is soft-dirty");
	}
	check(memory, PAGES, "soft-dirty");
}

static char *align_up(char *memory, size_t to)
{
	return memory + (-(uintptr_t)memory & (to - 1));
}

/*
 * Four areas side by side: written; written, but read-only; written; new. The
 * kernel merges the last with the third, whose pages all count as soft-dirty from
 * then on. Then the second gets the first's permissions, all four are merged, and
 * that flag of the area is lost.
 */
static void merged(void)
{
	const unsigned long run = 16;
	/* A multiple of pvmmu's blocks, too. */
	char *memory = align_up(map_private(5 * run), run * PAGE);
	char *third = memory + 2 * run * PAGE;

	munmap(memory + 3 * run * PAGE, run * PAGE);
	fill(memory, 3 * run);
	if (mprotect(memory + run * PAGE, run * PAGE, PROT_READ))
		err(1, "mprotect");
	fork_once();
	clear_refs();
	map_at(memory + 3 * run * PAGE, run * PAGE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
	touch(third);
	touch(third + PAGE);
	if (mprotect(memory + run * PAGE, run * PAGE, PROT_READ | PROT_WRITE))
		err(1, "mprotect");
	touch(third + 5 * PAGE);
	expect_dirty(third + 5 * PAGE, 5);
}

static void uffd(void)
{
	struct uffdio_api api = { .api = UFFD_API, .features = UFFD_FEATURE_SIGBUS };
	char *memory = map_private(PAGES);
	struct uffdio_register range = { .range = { (uintptr_t)memory, PAGES * PAGE },
					 .mode = UFFDIO_REGISTER_MODE_WP };
	int fd = syscall(SYS_userfaultfd, O_CLOEXEC);
	uint64_t state = 1;

	if (fd < 0 || ioctl(fd, UFFDIO_API, &api))
		err(1, "userfaultfd");
	fill(memory, PAGES);
	fork_once();
	if (ioctl(fd, UFFDIO_REGISTER, &range))
		err(1, "UFFDIO_REGISTER");
	expect_faults(SIGBUS);
	for (unsigned int round = 0; round < ROUNDS; round++) {
		char protected[PAGES];

		for (unsigned long i = 0; i < PAGES; i++) {
			struct uffdio_writeprotect wp = {
				.range = { (uintptr_t)memory + i * PAGE, PAGE },
			};

			protected[i] = next_random(&state) % 3 == 0;
			wp.mode = protected[i] ? UFFDIO_WRITEPROTECT_MODE_WP : 0;
			if (ioctl(fd, UFFDIO_WRITEPROTECT, &wp))
				err(1, "UFFDIO_WRITEPROTECT");
		}
		if (round % 2)
			fork_once();
		for (volatile unsigned long i = 0; i < PAGES; i++) {
			int fault = sigsetjmp(faulted, 1);

			if (!fault)
				touch(memory + i * PAGE);
			if (!!fault != protected[i])
				errx(1, "page %lu: %s", i, fault ? "a fault" : "no fault");
		}
	}
	check(memory, PAGES, "uffd");
}

/* A field of the area at @memory in smaps, in pages. */
static unsigned long smaps(const char *memory, const char *field)
{
	FILE *file = fopen("/proc/self/smaps", "r");
	char line[256], start[32];
	unsigned long kib = 0;
	int inside = 0;

	if (!file)
		err(1, "smaps");
	snprintf(start, sizeof(start), "%08lx-", (unsigned long)memory);
	while (fgets(line, sizeof(line), file)) {
		if (!strncmp(line, start, strlen(start)))
			inside = 1;
		else if (inside && !strncmp(line, field, strlen(field))) {
			kib = strtoul(line + strlen(field) + 1, NULL, 10);
			break;
		}
	}
	fclose(file);
	return kib * 1024 / PAGE;
}

static void expect_smaps(const char *memory, const char *field, unsigned long pages)
{
	unsigned long found = smaps(memory, field);

	if (found != pages)
		errx(1, "%s is %lu pages, not %lu", field, found, pages);
}

/* Apart from its neighbours, so that it has an area of its own. */
static char *map_apart(unsigned long pages)
{
	char *memory = map_private(pages + 2);

	if (mprotect(memory, PAGE, PROT_NONE) ||
	    mprotect(memory + (pages + 1) * PAGE, PAGE, PROT_NONE))
		err(1, "mprotect");
	return memory + PAGE;
}

static void dirty(void)
{
	char *memory = map_apart(PAGES);
	pid_t pid;

	fill(memory, PAGES);
	pid = start_child();
	if (!pid) {
		expect_smaps(memory, "Shared_Dirty", PAGES);
		_exit(0);
	}
	wait_child(pid);
	expect_smaps(memory, "Private_Dirty", PAGES);
}

static void madv_free(void)
{
	char *memory = map_apart(PAGES);
	uint64_t state = 1;

	for (unsigned int round = 0; round < ROUNDS; round++) {
		char written[PAGES];

		fill(memory, PAGES);
		if (madvise(memory, PAGES * PAGE, MADV_FREE))
			err(1, "MADV_FREE");
		/* At random: written before the fork, after it, or not at all. */
		for (unsigned long i = 0; i < PAGES; i++) {
			written[i] = next_random(&state) % 3;
			if (written[i] == 1)
				touch(memory + i * PAGE);
		}
		fork_once();
		for (unsigned long i = 0; i < PAGES; i++)
			if (written[i] == 2)
				touch(memory + i * PAGE);
		if (madvise(memory, PAGES * PAGE, MADV_PAGEOUT))
			err(1, "MADV_PAGEOUT");
		for (unsigned long i = 0; i < PAGES; i++)
			if (written[i])
				check_page(memory + i * PAGE, i + 1, "free", i);
			else if (!holds(memory + i * PAGE, 0))
				check_page(memory + i * PAGE, i + 1, "left", i);
	}
}

static void swap(void)
{
	char *memory = map_private(PAGES);
	unsigned long swapped = 0;
	uint64_t state = 1;

	fill(memory, PAGES);
	for (unsigned int round = 0; round < ROUNDS; round++) {
		pid_t pid;

		if (madvise(memory, PAGES * PAGE, MADV_PAGEOUT))
			err(1, "MADV_PAGEOUT");
		for (unsigned long i = 0; i < PAGES; i++)
			swapped += !!(pagemap(memory + i * PAGE) & PM_SWAPPED);
		for (unsigned int i = 0; i < PAGES / 2; i++)
			touch(memory + next_random(&state) % PAGES * PAGE);
		pid = start_child();
		if (!pid) {
			check(memory, PAGES, "swap, child");
			memset(memory, 0xff, PAGES * PAGE);
			_exit(0);
		}
		if (round % 2)
			wait_child(pid);
		for (unsigned int i = 0; i < PAGES / 2; i++)
			touch(memory + next_random(&state) % PAGES * PAGE);
		if (!(round % 2))
			wait_child(pid);
		check(memory, PAGES, "swap");
	}
	if (!swapped)
		errx(1, "nothing was swapped: is there swap space?");
	printf("swapped=%lu\n", swapped);
}

/*
 * One system call copies page A to B, C to A and A to D. The second step writes
 * through a pin, so the kernel breaks A's sharing and copies into the new page;
 * the third reads A by its address, and must find what the second wrote. The test
 * sees a missing flush only if the stale entry is still in the TLB, so each round
 * uses other addresses: some would collide with what the kernel touches between.
 */
static void flush(void)
{
	char *all = map_private(4 * ROUNDS);

	for (unsigned int round = 0; round < ROUNDS; round++) {
		char *memory = all + round * 4 * PAGE;
		char *a = memory, *b = a + PAGE, *c = b + PAGE, *d = c + PAGE;
		struct iovec from[] = { { a, PAGE }, { c, PAGE }, { a, PAGE } };
		struct iovec to[] = { { b, PAGE }, { a, PAGE }, { d, PAGE } };
		int door[2];
		char byte;
		pid_t pid;

		fill(memory, 4);
		if (pipe(door))
			err(1, "pipe");
		pid = start_child();
		if (!pid) {
			close(door[1]);
			_exit(read(door[0], &byte, 1) != 0);
		}
		close(door[0]);
		/* These are the process's alone again, and can be written at once. */
		touch(b);
		touch(d);
		if (process_vm_writev(getpid(), from, 3, to, 3, 0) != 3 * (ssize_t)PAGE)
			err(1, "process_vm_writev");
		check_page(b, 1, "flush", 1);
		check_page(a, 3, "flush", 0);
		check_page(d, 3, "flush", 3);
		close(door[1]);
		wait_child(pid);
	}
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(void);
	} cases[] = {
		{ "soft-dirty", soft_dirty }, { "merged", merged }, { "uffd", uffd },
		{ "dirty", dirty },	      { "free", madv_free }, { "swap", swap },
		{ "flush", flush },
	};

	for (unsigned int i = 0; argc == 2 && i < sizeof(cases) / sizeof(*cases); i++)
		if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run();
			return 0;
		}
	errx(2, "name one case: soft-dirty merged uffd dirty free swap flush");
}
