/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * pattern: memory whose contents show whether they are what its owner wrote.
 *
 *   pattern run MIB        write and fork until killed
 *   pattern corrupt FILE INDEX
 *                          change one byte in every copy of page INDEX in FILE
 *
 * A page holds its index, its version and words made of both; the owner keeps
 * the version of each page separately. So a page that is lost, stale or swapped
 * with another is found, also after the domain was saved or moved. Children share
 * the pages copy-on-write, check some, overwrite some, and exit.
 *
 * On SIGUSR1 "run" checks every page and prints one line:
 *
 *   pages=N bad=N first=INDEX rounds=N forks=N wrong=N
 *
 * first is -1 if none is bad; wrong counts the children that saw wrong memory.
 * Such a child does not end the run: otherwise the effect of one corrupted page
 * would depend on which pages the next children happen to check.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PAGE 4096UL
#define WORDS (PAGE / sizeof(uint64_t))
#define ROUNDS_A_FORK 16
#define CHILD_CHECKS 16
#define CHILD_WRITES 8

/* Two different words, so that "corrupt" finds neither a child's copy nor this program's text. */
#define OWNER_MAGIC (0x7061747465726e00ULL + 1)
#define CHILD_MAGIC (0x7061747465726e00ULL + 2)

static uint64_t (*pages)[WORDS];
static uint64_t *versions;
static unsigned long count;
static volatile sig_atomic_t asked;

static void ask(int signal)
{
	(void)signal;
	asked = 1;
}

static uint64_t next_random(void)
{
	static uint64_t state = 88172645463325252ULL;

	state ^= state << 13;
	state ^= state >> 7;
	state ^= state << 17;
	return state;
}

static uint64_t word(uint64_t magic, uint64_t index, uint64_t version, uint64_t i)
{
	if (i == 0)
		return magic;
	if (i == 1)
		return index;
	if (i == 2)
		return version;
	return (magic + index * 0x9e3779b97f4a7c15ULL + version) * (2 * i + 1);
}

static void fill(uint64_t magic, unsigned long index, uint64_t version)
{
	for (unsigned long i = 0; i < WORDS; i++)
		pages[index][i] = word(magic, index, version, i);
}

static int good(uint64_t magic, unsigned long index, uint64_t version)
{
	for (unsigned long i = 0; i < WORDS; i++)
		if (pages[index][i] != word(magic, index, version, i))
			return 0;
	return 1;
}

static int child(void)
{
	int ok = 1;

	for (int i = 0; i < CHILD_CHECKS; i++) {
		unsigned long index = next_random() % count;

		ok &= good(OWNER_MAGIC, index, versions[index]);
	}
	for (int i = 0; i < CHILD_WRITES; i++) {
		unsigned long index = next_random() % count;

		fill(CHILD_MAGIC, index, (uint64_t)i);
		ok &= good(CHILD_MAGIC, index, (uint64_t)i);
	}
	return !ok;
}

/* Returns whether the child saw what it had to see. */
static int fork_once(void)
{
	int status;
	pid_t pid = fork();

	if (pid < 0)
		err(1, "fork");
	if (!pid)
		_exit(child());
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			err(1, "waitpid");
	return !status;
}

static void report(unsigned long rounds, unsigned long forks, unsigned long wrong)
{
	unsigned long bad = 0;
	long first = -1;

	for (unsigned long i = 0; i < count; i++) {
		if (good(OWNER_MAGIC, i, versions[i]))
			continue;
		if (!bad++)
			first = (long)i;
	}
	printf("pages=%lu bad=%lu first=%ld rounds=%lu forks=%lu wrong=%lu\n",
	       count, bad, first, rounds, forks, wrong);
	fflush(stdout);
}

static void run(unsigned long mib)
{
	struct sigaction action = { .sa_handler = ask };
	unsigned long forks = 0, wrong = 0;

	count = (mib << 20) / PAGE;
	pages = mmap(NULL, count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	versions = calloc(count, sizeof(*versions));
	if (pages == MAP_FAILED || !versions)
		err(1, "%lu pages", count);
	for (unsigned long i = 0; i < count; i++)
		fill(OWNER_MAGIC, i, 0);
	if (sigaction(SIGUSR1, &action, NULL))
		err(1, "sigaction");
	for (unsigned long rounds = 1;; rounds++) {
		unsigned long index = next_random() % count;

		/* Overwrite only correct pages, so that an error is not hidden. */
		if (good(OWNER_MAGIC, index, versions[index]))
			fill(OWNER_MAGIC, index, ++versions[index]);
		if (rounds % ROUNDS_A_FORK == 0) {
			wrong += !fork_once();
			forks++;
		}
		if (asked) {
			asked = 0;
			report(rounds, forks, wrong);
		}
	}
}

static void corrupt(const char *path, uint64_t index)
{
	const uint64_t header[2] = { OWNER_MAGIC, index };
	int fd = open(path, O_RDWR | O_CLOEXEC);
	struct stat status;
	unsigned long found = 0;
	char *at, *file, *end;

	if (fd < 0 || fstat(fd, &status))
		err(1, "%s", path);
	file = mmap(NULL, (size_t)status.st_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	if (file == MAP_FAILED)
		err(1, "%s", path);
	end = file + status.st_size;
	for (at = file; (at = memmem(at, (size_t)(end - at), header, sizeof(header))); at += sizeof(header)) {
		if (end - at < (long)PAGE)
			break;
		at[PAGE / 2] ^= 1;
		found++;
	}
	if (!found)
		errx(1, "%s: no page %llu", path, (unsigned long long)index);
	printf("corrupted=%lu\n", found);
}

int main(int argc, char **argv)
{
	if (argc == 3 && !strcmp(argv[1], "run"))
		run(strtoul(argv[2], NULL, 10));
	else if (argc == 4 && !strcmp(argv[1], "corrupt"))
		corrupt(argv[2], strtoull(argv[3], NULL, 10));
	else
		errx(2, "usage: pattern run MIB | pattern corrupt FILE INDEX");
	return 0;
}
