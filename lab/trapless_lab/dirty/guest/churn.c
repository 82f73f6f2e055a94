/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * dirtychurn FILE PAGES NAP [writes] [small] [SEED]: a tree of four processes of two
 * threads, whose memory changes in every way that a checkpointer must notice: written,
 * mapped, unmapped, moved, grown, shrunk, discarded, protected; anonymous and of a file,
 * private and shared, in huge pages; processes fork and end. FILE is made, and is what
 * they map. Each mapping has at most PAGES pages, but for those of huge pages; between
 * two changes a process sleeps for NAP ms. With "writes" all pages are there from the
 * beginning, and only their contents change. With "small" no mapping is of huge pages:
 * for a guest in which each page's first write costs an exit.
 *
 * It runs until it is killed, takes no input, and knows nothing of its witness
 * (memory.c), which looks from outside.
 */
#define _GNU_SOURCE
#include <err.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL
#define HUGE_PAGE (512 * PAGE)
#define SLOTS 24
#define CHILDREN 3
#define FILE_PAGES 64UL
#define WRITES 4

enum kind { ANON, SHARED, HUGE, PRIVATE_FILE, SHARED_FILE, KINDS };

struct slot {
	char *at;
	size_t pages;
	enum kind kind;
};

static struct slot slots[SLOTS];
static uint64_t seed = 0x9e3779b97f4a7c15;
static size_t most;
static unsigned long nap_ms;
static int file;
static int only_writes;
static int small;

static uint64_t any(uint64_t below)
{
	seed ^= seed << 13;
	seed ^= seed >> 7;
	seed ^= seed << 17;
	return seed % below;
}

static void nap(unsigned int times)
{
	unsigned long ms = times * nap_ms;
	struct timespec left = { ms / 1000, ms % 1000 * 1000000 };

	while (nanosleep(&left, &left))
		;
}

static void write_page(struct slot *slot)
{
	uint64_t *word = (uint64_t *)(slot->at + any(slot->pages) * PAGE);

	word[any(PAGE / sizeof(*word))] = any(UINT64_MAX);
}

static void map(struct slot *slot, enum kind kind)
{
	int flags = kind == SHARED || kind == SHARED_FILE ? MAP_SHARED : MAP_PRIVATE;
	int is_file = kind == PRIVATE_FILE || kind == SHARED_FILE;
	size_t limit = is_file ? FILE_PAGES : most;

	slot->kind = kind;
	slot->pages = 1 + any(limit);
	if (kind == HUGE && !small)
		slot->pages = HUGE_PAGE / PAGE * (1 + any(2));
	slot->at = mmap(NULL, slot->pages * PAGE, PROT_READ | PROT_WRITE,
			flags | (is_file ? 0 : MAP_ANONYMOUS), is_file ? file : -1, 0);
	if (slot->at == MAP_FAILED)
		err(1, "mmap");
	/* Where the kernel has no huge pages they are pages like others. */
	if (kind == HUGE)
		madvise(slot->at, slot->pages * PAGE, MADV_HUGEPAGE);
	for (size_t page = 0; page < slot->pages; page += only_writes ? 1 : 1 + any(2))
		slot->at[page * PAGE] = 1 + any(255);
}

static void replace(struct slot *slot)
{
	if (munmap(slot->at, slot->pages * PAGE))
		err(1, "munmap");
	map(slot, any(KINDS));
}

static void resize(struct slot *slot)
{
	size_t pages = 1 + any(most);
	char *at;

	if (slot->kind != ANON)
		return;
	at = mremap(slot->at, slot->pages * PAGE, pages * PAGE, MREMAP_MAYMOVE);
	if (at == MAP_FAILED)
		err(1, "mremap");
	slot->at = at;
	slot->pages = pages;
}

static void discard(struct slot *slot)
{
	size_t first = any(slot->pages);

	if (madvise(slot->at + first * PAGE, (1 + any(slot->pages - first)) * PAGE, MADV_DONTNEED))
		err(1, "MADV_DONTNEED");
}

static void protect(struct slot *slot)
{
	if (mprotect(slot->at, slot->pages * PAGE, PROT_READ) ||
	    mprotect(slot->at, slot->pages * PAGE, PROT_READ | PROT_WRITE))
		err(1, "mprotect");
}

static void churn(unsigned int rounds);

static void fork_one(void)
{
	pid_t pid = fork();

	if (pid < 0)
		err(1, "fork");
	if (pid)
		return;
	seed += 2 * getpid();
	churn(50 + any(200));
	_exit(0);
}

/* Returns after so many rounds; 0: never. */
static void churn(unsigned int rounds)
{
	for (unsigned int round = 1; !rounds || round != rounds; round++) {
		struct slot *slot = &slots[any(SLOTS)];

		switch (only_writes ? UINT64_MAX : any(120)) {
		case 0:
		case 1:
			replace(slot);
			break;
		case 2:
			resize(slot);
			break;
		case 3:
			discard(slot);
			break;
		case 4:
			protect(slot);
			break;
		case 5:
			if (!rounds)
				fork_one();
			break;
		default:
			for (int i = 0; i < WRITES; i++)
				write_page(slot);
		}
		nap(1);
	}
}

/* A thread with memory of its own, all of which it writes. */
static void *writer(void *argument)
{
	uint64_t *memory = argument;

	for (uint64_t round = 0;; round++) {
		for (size_t page = 0; page < most; page++)
			memory[page * PAGE / sizeof(*memory) + round % 512] = round;
		nap(10);
	}
	return NULL;
}

static void begin(void)
{
	pthread_t thread;
	void *memory = mmap(NULL, most * PAGE, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		err(1, "mmap");
	for (unsigned int i = 0; i < SLOTS; i++)
		map(&slots[i], i % KINDS);
	if (pthread_create(&thread, NULL, writer, memory))
		errx(1, "no thread");
	churn(0);
}

int main(int count, char **arguments)
{
	char page[PAGE], *end = NULL;
	int next = 4;

	only_writes = next < count && !strcmp(arguments[next], "writes");
	next += only_writes;
	small = next < count && !strcmp(arguments[next], "small");
	next += small;
	if (next < count)
		seed ^= strtoull(arguments[next++], &end, 10) << 8;
	if (count < 4 || next < count || (end && *end))
		errx(2, "usage: dirtychurn FILE PAGES NAP [writes] [small] [SEED]");
	most = strtoul(arguments[2], NULL, 10);
	nap_ms = strtoul(arguments[3], NULL, 10);
	file = open(arguments[1], O_CREAT | O_TRUNC | O_RDWR | O_CLOEXEC, 0600);
	if (!most || file < 0)
		err(1, "%s", arguments[1]);
	memset(page, 0x5a, sizeof(page));
	for (unsigned long i = 0; i < FILE_PAGES; i++)
		if (write(file, page, PAGE) != PAGE)
			err(1, "%s", arguments[1]);
	signal(SIGCHLD, SIG_IGN); /* nobody waits for them */
	for (int child = 0; child < CHILDREN; child++) {
		pid_t pid = fork();

		if (pid < 0)
			err(1, "fork");
		if (!pid) {
			seed += 1 + child;
			begin();
		}
	}
	begin();
	return 0;
}
