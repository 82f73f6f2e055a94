/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * moves: memory that is moved, discarded and unmapped, and who else writes it meanwhile.
 *
 *   moves pages [ROUNDS]     ranges of several page tables go from place to place
 *   moves race [ROUNDS]      ranges move while a thread writes them in the old place
 *   moves discard [ROUNDS]   a page is discarded while a thread writes it
 *   moves freed [ROUNDS]     whether memory that was unmapped is free again
 *
 * In "race" the old place stays mapped (MREMAP_DONTUNMAP), with new pages. What the
 * thread writes there once the move is over must not reach the moved pages; and a page
 * that it wrote before, after the kernel was allowed to drop it (MADV_FREE), must not be
 * dropped: the move has kept its dirty bit.
 */
#define _GNU_SOURCE
#include <pthread.h>

#include "oracle.h"

#define TABLE 512UL /* pages of a page table */
#define SPACE (4 * TABLE)
#define RUN   480UL
#define PAUSE 200 /* turns of a loop between two writes */
#define FEW   96UL
#define BIG   256UL
#define LOST_KIB 4096L

static char *pages;
static unsigned long done;
static int stop;

static void moved(void *from, unsigned long length, void *to, int flags)
{
	if (mremap(from, length * PAGE, length * PAGE, MREMAP_MAYMOVE | MREMAP_FIXED | flags, to) ==
	    MAP_FAILED)
		err(1, "mremap");
}

static char *aligned(unsigned long length)
{
	char *memory = map_at(NULL, (length + TABLE) * PAGE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);

	return memory + (-(uintptr_t)memory & (TABLE * PAGE - 1));
}

/* Some pages are written, some only read, some neither. */
static void scatter(char *memory, uint64_t *tags, unsigned long length, uint64_t *state)
{
	for (unsigned long i = 0; i < length; i++) {
		uint64_t chance = next_random(state) % 8;

		tags[i] = chance > 2 ? next_random(state) : 0;
		if (tags[i])
			fill_page(memory + i * PAGE, tags[i]);
		else if (chance)
			check_page(memory + i * PAGE, 0, "new", i);
	}
}

static void move_pages(unsigned long rounds)
{
	char *places[] = { aligned(SPACE), aligned(SPACE) };
	static uint64_t tags[SPACE];
	uint64_t state = 1;

	for (unsigned long round = 0; round < rounds; round++) {
		unsigned long length = 1 + next_random(&state) % (SPACE - TABLE);
		/* Every third keeps its place in the table. */
		unsigned long from = next_random(&state) % TABLE;
		unsigned long to = round % 3 ? next_random(&state) % TABLE : from;
		char *source = places[0] + from * PAGE, *target = places[1] + to * PAGE;

		if (round % 2)
			length = 1 + length % FEW;
		map_at(source, length * PAGE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1);
		scatter(source, tags, length, &state);
		if (round % 4 == 1 && madvise(source, length * PAGE, MADV_PAGEOUT))
			err(1, "MADV_PAGEOUT");
		if (round % 5 == 1)
			fork_once();
		moved(source, length, target, round % 7 ? 0 : MREMAP_DONTUNMAP);
		for (unsigned long i = 0; i < length; i++) {
			check_page(target + i * PAGE, tags[i], "moved", i);
			if (!(round % 7))
				check_page(source + i * PAGE, 0, "left", i);
		}
		fill_page(target, round + 1);
		moved(target, length, source, 0);
		tags[0] = round + 1;
		for (unsigned long i = 0; i < length; i++)
			check_page(source + i * PAGE, tags[i], "moved back", i);
		munmap(source, length * PAGE);
	}
}

static volatile uint64_t *word(char *memory, unsigned long index)
{
	return (volatile uint64_t *)(memory + index * PAGE);
}

/* Write pages at random, a new number each time; few, so that a move finds clean ones. */
static void *write_on(void *unused)
{
	uint64_t state = 1;

	for (uint64_t i = 1; !__atomic_load_n(&stop, __ATOMIC_RELAXED); i++) {
		*word(pages, next_random(&state) % RUN) = i;
		for (volatile unsigned int j = 0; j < PAUSE; j++)
			;
	}
	return unused;
}

static pthread_t start_thread(void *(*run)(void *))
{
	pthread_t thread;

	if (pthread_create(&thread, NULL, run, NULL))
		errx(1, "pthread_create");
	return thread;
}

static void end_thread(pthread_t thread)
{
	__atomic_store_n(&stop, 1, __ATOMIC_RELAXED);
	pthread_join(thread, NULL);
}

#define LAST (WORDS - 1)

static void move_beside_writer(unsigned long rounds)
{
	char *other = aligned(TABLE), *memory = map_private(RUN);
	unsigned long late = 0;
	pthread_t thread;

	pages = memory;
	thread = start_thread(write_on);
	for (unsigned long round = 0; round < rounds; round++) {
		char *target = other + (round % 7 * 11) * PAGE;
		uint64_t before[RUN], after[RUN];

		for (unsigned long i = 0; i < RUN; i++)
			word(memory, i)[LAST] = round + 1;
		if (madvise(memory, RUN * PAGE, MADV_FREE))
			err(1, "MADV_FREE");
		for (unsigned long i = 0; i < RUN; i++)
			before[i] = *word(memory, i);
		moved(memory, RUN, target, MREMAP_DONTUNMAP);
		for (unsigned long i = 0; i < RUN; i++)
			after[i] = *word(target, i);
		usleep(1000);
		for (unsigned long i = 0; i < RUN; i++)
			if (*word(target, i) != after[i])
				errx(1, "race: page %lu was written by an old translation", i);
		if (madvise(target, RUN * PAGE, MADV_PAGEOUT))
			err(1, "MADV_PAGEOUT");
		for (unsigned long i = 0; i < RUN; i++) {
			if (after[i] == before[i])
				continue;
			late++;
			if (*word(target, i) != after[i] || word(target, i)[LAST] != round + 1)
				errx(1, "race: page %lu was written and dropped", i);
		}
		munmap(target, RUN * PAGE);
	}
	end_thread(thread);
	printf("written while they moved: %lu\n", late);
}

static void *count_on(void *unused)
{
	for (unsigned long i = 1; !__atomic_load_n(&stop, __ATOMIC_RELAXED); i++) {
		*word(pages, 0) = i;
		__atomic_store_n(&done, i, __ATOMIC_RELEASE);
	}
	return unused;
}

static void discard_beside_writer(unsigned long rounds)
{
	pthread_t thread;

	pages = map_private(FEW);
	thread = start_thread(count_on);
	for (unsigned long round = 0; round < rounds; round++) {
		unsigned long seen;

		for (unsigned long i = 1; i < FEW; i++)
			fill_page(pages + i * PAGE, round + i);
		if (madvise(pages, FEW * PAGE, MADV_DONTNEED))
			err(1, "MADV_DONTNEED");
		for (unsigned long i = 1; i < FEW; i++)
			check_page(pages + i * PAGE, 0, "discarded", i);
		seen = __atomic_load_n(&done, __ATOMIC_ACQUIRE);
		while (__atomic_load_n(&done, __ATOMIC_ACQUIRE) < seen + 2)
			usleep(100);
		if (*word(pages, 0) < seen)
			errx(1, "discard: the thread writes by an old translation");
	}
	end_thread(thread);
}

static void unmap_and_map(unsigned long rounds)
{
	for (unsigned long i = 0; i < rounds; i++) {
		char *memory = map_private(BIG);

		memset(memory, 1, BIG * PAGE);
		if (i % 2 && madvise(memory, BIG * PAGE / 2, MADV_DONTNEED))
			err(1, "MADV_DONTNEED");
		munmap(memory, BIG * PAGE);
	}
}

static void unmapped_is_free(unsigned long rounds)
{
	long before, after;

	unmap_and_map(8);
	before = free_kib();
	unmap_and_map(rounds);
	sleep(1);
	after = free_kib();
	if (before - after > LOST_KIB)
		errx(1, "%ld KiB are lost", before - after);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*run)(unsigned long rounds);
		unsigned long rounds;
	} cases[] = {
		{ "pages", move_pages, 60 },
		{ "race", move_beside_writer, 25 },
		{ "discard", discard_beside_writer, 60 },
		{ "freed", unmapped_is_free, 100 },
	};

	for (unsigned int i = 0; argc >= 2 && argc <= 3 && i < sizeof(cases) / sizeof(*cases); i++)
		if (!strcmp(argv[1], cases[i].name)) {
			cases[i].run(argc == 3 ? number(argv[2], "ROUNDS") : cases[i].rounds);
			return 0;
		}
	errx(2, "name one case: pages race discard freed");
}
