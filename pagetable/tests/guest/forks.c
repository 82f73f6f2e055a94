/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * forks: address spaces that are made and given up, and what is in them.
 *
 *   forks tables [TABLES]   a page in each of many page tables, in a parent and its children
 *   forks race [FORKS]      forks while a file that the process has mapped is truncated
 *   forks text [FORKS]      the same, by code that lies in this file
 *   forks torn [FORKS]      forks while a thread writes the page of the stack
 *   forks again [FORKS]     children that write the same pages after each fork
 *   forks freed [FORKS]     whether the memory of processes that forked is free again
 *
 * To the hypervisor the tables of a child become page tables at once, in chunks, and
 * ordinary pages at once again: "tables" has more of them than fit into one chunk, or
 * into any number that ends evenly. In "race" another CPU clears entries of the child's
 * tables meanwhile, which it finds by way of the file. In "text" the kernel may copy the
 * child's entries of the file although nothing was written there.
 *
 * In "again" the kernel may copy pages in fork that it copied after earlier ones. What
 * either process writes must not reach the other.
 *
 * A child has the memory of one moment. In "torn" a thread counts in two places of a
 * page, always first in the lower one: no child may find the other ahead.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/syscall.h>

#include "oracle.h"

#define SPAN	   (2UL << 20) /* memory that one page table maps */
#define FILE_PAGES 512UL
#define CODE_PAGE  8UL
#define LOST_KIB   6144L /* what the kernel's own lists may hold more than before */
#define NEW_PAGES  72UL /* enough that fork_entries serves the area */
#define AGAIN	   20UL
#define BESIDE	   17UL /* tables beside those of the file */

static int fd, stop;

static char *map_tables(unsigned long tables)
{
	return map_at(NULL, tables * SPAN, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
}

/* One page a table, not always at the same place in it. */
static char *page_of(char *memory, unsigned long table)
{
	return memory + table * SPAN + table * 37 % (SPAN / PAGE) * PAGE;
}

static void fill(char *memory, unsigned long tables, uint64_t tag)
{
	for (unsigned long i = 0; i < tables; i++)
		fill_page(page_of(memory, i), tag + i);
}

static void check(char *memory, unsigned long tables, uint64_t tag, const char *what)
{
	for (unsigned long i = 0; i < tables; i++)
		check_page(page_of(memory, i), tag + i, what, i);
}

static void fork_tables(unsigned long tables)
{
	char *memory = map_tables(tables);
	pid_t pid;

	fill(memory, tables, 1);
	pid = start_child();
	if (!pid) {
		check(memory, tables, 1, "child");
		fill(memory, tables, 100001);
		pid = start_child();
		if (!pid) {
			check(memory, tables, 100001, "grandchild");
			_exit(0);
		}
		/* The grandchild may not have read it yet. */
		fill(memory, tables, 200001);
		wait_child(pid);
		check(memory, tables, 200001, "child after its own");
		_exit(0);
	}
	for (unsigned long i = 0; i < tables; i += 2)
		fill_page(page_of(memory, i), 300001 + i);
	wait_child(pid);
	for (unsigned long i = 0; i < tables; i++)
		check_page(page_of(memory, i), (i % 2 ? 1 : 300001) + i, "parent", i);
	munmap(memory, tables * SPAN);
}

static void write_file(void)
{
	char content[PAGE];

	for (unsigned long i = 0; i < FILE_PAGES; i++) {
		fill_page(content, i + 1);
		if (pwrite(fd, content, PAGE, i * PAGE) != (ssize_t)PAGE)
			err(1, "write");
	}
}

static void *truncate_on(void *unused)
{
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		write_file();
		usleep(1000);
		if (ftruncate(fd, 0))
			err(1, "ftruncate");
	}
	return unused;
}

/* As far as the file goes: a page holds its own bytes, or none yet. */
static void read_through(char *file)
{
	for (volatile unsigned long i = 1; i < FILE_PAGES; i++) {
		volatile uint64_t *first = (volatile uint64_t *)(file + i * PAGE);
		volatile uint64_t found;

		if (sigsetjmp(faulted, 1))
			return;
		found = *first;
		if (found && found != page_word(i + 1, 0))
			errx(1, "page %lu holds %#llx of another", i, (unsigned long long)found);
	}
}

/* A fork copies the entries of an area in which a page was written. */
static void write_one(char *file)
{
	if (!sigsetjmp(faulted, 1))
		*(volatile char *)file = 1;
}

static void race(unsigned long forks)
{
	char *memory = map_tables(BESIDE), path[] = "/tmp/forks-XXXXXX", *file;
	pthread_t thread;

	fd = mkstemp(path);
	if (fd < 0)
		err(1, "%s", path);
	unlink(path);
	write_file();
	file = map_at(NULL, FILE_PAGES * PAGE, MAP_PRIVATE, fd);
	fill(memory, BESIDE, 1);
	if (pthread_create(&thread, NULL, truncate_on, NULL))
		err(1, "pthread_create");
	for (unsigned long i = 0; i < forks; i++) {
		pid_t pid;

		write_one(file);
		read_through(file);
		pid = start_child();
		if (!pid) {
			check(memory, BESIDE, 1, "child");
			read_through(file);
			_exit(0);
		}
		wait_child(pid);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
}

/* fork(), in the first bytes of a page. */
static const unsigned char fork_code[] = {
	0xb8, SYS_fork, 0, 0, 0, /* mov $SYS_fork, %eax */
	0x0f, 0x05,		 /* syscall */
	0xc3,			 /* ret */
};

static void write_code(void)
{
	if (pwrite(fd, fork_code, sizeof(fork_code), CODE_PAGE * PAGE) != sizeof(fork_code))
		err(1, "write");
}

/* The code's page stays, what follows it comes and goes. */
static void *truncate_behind(void *unused)
{
	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		char content[PAGE];

		for (unsigned long i = CODE_PAGE + 1; i < 2 * CODE_PAGE; i++) {
			fill_page(content, i + 1);
			if (pwrite(fd, content, PAGE, i * PAGE) != (ssize_t)PAGE)
				err(1, "write");
		}
		usleep(500);
		if (ftruncate(fd, (CODE_PAGE + 1) * PAGE))
			err(1, "ftruncate");
	}
	return unused;
}

static void read_behind(const char *text)
{
	for (volatile unsigned long i = CODE_PAGE + 1; i < 2 * CODE_PAGE; i++) {
		const volatile uint64_t *first = (const volatile uint64_t *)(text + i * PAGE);
		volatile uint64_t found;

		if (sigsetjmp(faulted, 1))
			return;
		found = *first;
		if (found && found != page_word(i + 1, 0))
			errx(1, "page %lu holds %#llx of another", i, (unsigned long long)found);
	}
}

static void fork_in_text(unsigned long forks)
{
	char path[] = "/tmp/forks-XXXXXX", *text;
	pthread_t thread;

	fd = mkstemp(path);
	if (fd < 0)
		err(1, "%s", path);
	unlink(path);
	write_file();
	write_code();
	text = mmap(NULL, 2 * CODE_PAGE * PAGE, PROT_READ | PROT_EXEC, MAP_PRIVATE, fd, 0);
	if (text == MAP_FAILED)
		err(1, "mmap");
	if (pthread_create(&thread, NULL, truncate_behind, NULL))
		err(1, "pthread_create");
	for (unsigned long i = 0; i < forks; i++) {
		pid_t pid;

		read_behind(text);
		pid = ((pid_t (*)(void))(uintptr_t)(text + CODE_PAGE * PAGE))();
		if (pid < 0)
			errx(1, "fork");
		if (!pid) {
			read_behind(text);
			_exit(0);
		}
		wait_child(pid);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
}

#define LOW  0
#define HIGH (WORDS - 1)

static void *count_on(void *page)
{
	volatile uint64_t *words = page;

	while (!__atomic_load_n(&stop, __ATOMIC_RELAXED)) {
		words[LOW]++;
		words[HIGH]++;
	}
	return NULL;
}

/* fork() with the stack pointer in the middle of a page that is no stack. */
static pid_t fork_on(char *page)
{
	pid_t pid;

	__asm__ volatile("mov %%rsp, %%rbx\n\t"
			 "mov %1, %%rsp\n\t"
			 "syscall\n\t"
			 "mov %%rbx, %%rsp"
			 : "=a"(pid)
			 : "r"(page + PAGE / 2), "a"(SYS_fork)
			 : "rbx", "rcx", "r11", "memory");
	return pid;
}

static void fork_torn(unsigned long forks)
{
	char *page = map_private(1);
	volatile uint64_t *words = (volatile uint64_t *)page;
	pthread_t thread;

	if (pthread_create(&thread, NULL, count_on, page))
		err(1, "pthread_create");
	for (unsigned long i = 0; i < forks; i++) {
		pid_t pid = fork_on(page);

		if (pid < 0)
			errx(1, "fork");
		if (!pid) {
			if (words[HIGH] > words[LOW])
				errx(1, "torn: %llu behind %llu", (unsigned long long)words[HIGH],
				     (unsigned long long)words[LOW]);
			_exit(0);
		}
		wait_child(pid);
	}
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
}

static void check_all(char *memory, const uint64_t *tags, const char *what)
{
	for (unsigned long i = 0; i < AGAIN; i++)
		check_page(memory + i * PAGE, tags[i], what, i);
}

/* Writes some pages, in turns of which each is as often as not the one before. */
static void write_some(char *memory, uint64_t *tags, unsigned long turn, uint64_t tag)
{
	for (unsigned long i = turn / 5 % 3 * 6; i < turn / 5 % 3 * 6 + 8; i++) {
		tags[i] = tag + i;
		fill_page(memory + i * PAGE, tags[i]);
	}
}

static void fork_again(unsigned long forks)
{
	char *memory = map_private(AGAIN);
	uint64_t tags[AGAIN] = { 0 };

	write_some(memory, tags, 0, 1);
	for (unsigned long i = 1; i <= forks; i++) {
		pid_t pid = start_child();

		if (!pid) {
			check_all(memory, tags, "child");
			write_some(memory, tags, i, i * 1000);
			pid = i % 4 ? 0 : start_child();
			if (!pid)
				check_all(memory, tags, i % 4 ? "child" : "grandchild");
			else
				wait_child(pid);
			_exit(0);
		}
		if (i % 3 == 0)
			write_some(memory, tags, i + 5, i * 1000 + 500);
		wait_child(pid);
		check_all(memory, tags, "parent");
		if (i % 7 == 0)
			write_some(memory, tags, i, i * 1000 + 700);
	}
}

static void fork_and_end(unsigned long forks)
{
	for (unsigned long i = 0; i < forks; i++) {
		pid_t pid = start_child();

		if (!pid) {
			/* As others follow, the kernel's list of new pages lets go of these. */
			memset(map_private(NEW_PAGES), 1, NEW_PAGES * PAGE);
			fork_once();
			_exit(0);
		}
		wait_child(pid);
	}
}

static void fork_freed(unsigned long forks)
{
	long before, after;

	fork_and_end(forks / 10 + 1);
	before = free_kib();
	fork_and_end(forks);
	sleep(1);
	after = free_kib();
	if (before - after > LOST_KIB)
		errx(1, "%ld KiB are lost", before - after);
}

int main(int argc, char **argv)
{
	static const unsigned long sizes[] = { 1, 14, 15, 16, 17, 18, 19, 20, 35, 40, 100 };

	expect_faults(SIGBUS);
	if (argc == 3 && !strcmp(argv[1], "tables"))
		fork_tables(number(argv[2], "TABLES"));
	else if (argc == 2 && !strcmp(argv[1], "tables"))
		for (unsigned int i = 0; i < sizeof(sizes) / sizeof(*sizes); i++)
			fork_tables(sizes[i]);
	else if (argc >= 2 && !strcmp(argv[1], "race"))
		race(argc == 3 ? number(argv[2], "FORKS") : 40);
	else if (argc >= 2 && !strcmp(argv[1], "text"))
		fork_in_text(argc == 3 ? number(argv[2], "FORKS") : 200);
	else if (argc >= 2 && !strcmp(argv[1], "torn"))
		fork_torn(argc == 3 ? number(argv[2], "FORKS") : 300);
	else if (argc >= 2 && !strcmp(argv[1], "again"))
		fork_again(argc == 3 ? number(argv[2], "FORKS") : 100);
	else if (argc >= 2 && !strcmp(argv[1], "freed"))
		fork_freed(argc == 3 ? number(argv[2], "FORKS") : 700);
	else
		errx(2, "name one case: tables race text torn again freed");
	return 0;
}
