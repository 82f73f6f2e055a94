/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * dirtykeep [CASE...]: what harvesting dirty bits must not cost. The kernel itself
 * decides by them what to write back, and so do other trackers of the same
 * process: a bit that is taken must reach all who need it.
 *
 * The cases of swap need swap space that is no RAM disk: the kernel's swap cache
 * is what would lose data.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/ptrace.h>

#include "tracker.h"

#define PAGES 64UL
#define TRACKERS 3
#define ROUNDS 200
#define PATIENCE 1000 /* of 10 ms: reclaim skips a page that somebody holds just now */
#define DISK "/dev/sda"
#define KSM "/sys/kernel/mm/ksm/"

static void check_all(const char *memory, const uint64_t *tags, const char *what)
{
	for (size_t i = 0; i < PAGES; i++)
		check_page(memory + i * PAGE, tags[i], what, i);
}

static size_t absent(const char *memory)
{
	size_t count = 0;

	for (size_t i = 0; i < PAGES; i++)
		count += !(pagemap(memory + i * PAGE) & PM_PRESENT);
	return count;
}

static void page_out(char *memory)
{
	for (unsigned int i = 0; i < PATIENCE; i++) {
		if (madvise(memory, PAGES * PAGE, MADV_PAGEOUT))
			err(1, "MADV_PAGEOUT");
		if (absent(memory) == PAGES)
			return;
		usleep(10000);
	}
	errx(1, "only %zu of %lu pages went to swap", absent(memory), PAGES);
}

static void read_all(const char *memory)
{
	for (size_t i = 0; i < PAGES; i++)
		(void)*(volatile const char *)(memory + i * PAGE);
}

static void fill_all(char *memory, uint64_t *tags, uint64_t tag)
{
	for (size_t i = 0; i < PAGES; i++) {
		tags[i] = tag + i;
		fill_page(memory + i * PAGE, tags[i]);
	}
}

/*
 * Pages that came back from swap, and are still in the swap cache, are written:
 * only the dirty bit says that the copy on disk is old. COLLECT takes the bit, or
 * WATCH does.
 */
static void through_swap(char *memory, int by_watch)
{
	char reported[PAGES] = { 0 };
	uint64_t tags[PAGES];
	int fd = tracker_of(getpid());

	if (!by_watch)
		must(watch(fd, memory, PAGES), "WATCH");
	for (uint64_t round = 1; round <= 3; round++) {
		fill_all(memory, tags, round * 1000);
		page_out(memory);
		read_all(memory);
		fill_all(memory, tags, round * 1000 + 500);
		if (by_watch) {
			must(unwatch(fd, memory, PAGES), "UNWATCH");
			must(watch(fd, memory, PAGES), "WATCH");
		} else if (harvest(fd, memory, PAGES, reported) != PAGES) {
			errx(1, "COLLECT does not report what was written");
		}
		page_out(memory);
		check_all(memory, tags, by_watch ? "after WATCH and swap" : "after COLLECT and swap");
	}
}

static char *anonymous(void)
{
	return small_pages(PAGES);
}

static char *shared(void)
{
	int fd = memfd_create("shared", 0);

	if (fd < 0 || ftruncate(fd, PAGES * PAGE))
		err(1, "memfd");
	return map_at(NULL, PAGES * PAGE, MAP_SHARED, fd);
}

static void swap_after_collect(void)
{
	through_swap(anonymous(), 0);
}

static void swap_after_watch(void)
{
	through_swap(anonymous(), 1);
}

static void shared_swap(void)
{
	through_swap(shared(), 0);
}

/* Pages given up by MADV_FREE and written again are kept by their dirty bit alone. */
static void lazy_free(void)
{
	char *memory = anonymous(), reported[PAGES] = { 0 };
	uint64_t tags[PAGES];
	int fd = watching(getpid(), memory, PAGES);

	for (uint64_t round = 1; round <= 3; round++) {
		fill_all(memory, tags, round * 1000);
		if (madvise(memory, PAGES * PAGE, MADV_FREE))
			err(1, "MADV_FREE");
		fill_all(memory, tags, round * 1000 + 500);
		harvest(fd, memory, PAGES, reported);
		page_out(memory);
		check_all(memory, tags, "after MADV_FREE, COLLECT and reclaim");
	}
}

/* Each tracker has a copy, updated from its own reports only. */
struct copy {
	int fd;
	char pages[PAGES][PAGE];
};

static void update(struct copy *copy, const char *memory)
{
	char reported[PAGES] = { 0 };

	harvest(copy->fd, memory, PAGES, reported);
	for (size_t i = 0; i < PAGES; i++)
		if (reported[i])
			memcpy(copy->pages[i], memory + i * PAGE, PAGE);
}

static void start(struct copy *copy, const char *memory)
{
	copy->fd = watching(getpid(), memory, PAGES);
	memcpy(copy->pages, memory, sizeof(copy->pages));
}

static void compare(struct copy *copy, const char *memory, const char *whose)
{
	update(copy, memory);
	for (size_t i = 0; i < PAGES; i++)
		if (memcmp(copy->pages[i], memory + i * PAGE, PAGE))
			errx(1, "%s did not get page %zu", whose, i);
}

/* The second begins while there is news for the first; the first collects; then both. */
static void two_trackers(void)
{
	static struct copy one, other;
	char *memory = small_pages(PAGES);

	start(&one, memory);
	memory[PAGE]++;
	start(&other, memory);
	compare(&one, memory, "who was there first");
	memory[2 * PAGE]++;
	must(collect(one.fd), "COLLECT");
	memory[3 * PAGE]++;
	compare(&other, memory, "who collected second");
	compare(&one, memory, "who collected first");
	memory[4 * PAGE]++;
	must(unwatch(other.fd, memory, PAGES), "UNWATCH");
	compare(&one, memory, "who goes on watching");
	memory[5 * PAGE]++;
	must(watch(other.fd, memory, PAGES), "WATCH");
	close(other.fd);
	compare(&one, memory, "who is left");
}

/* Trackers come, collect, watch other parts and go at random. */
static void many_trackers(void)
{
	static struct copy copies[TRACKERS];
	char *memory = small_pages(PAGES);
	uint64_t state = 11;

	for (size_t i = 0; i < TRACKERS; i++)
		start(&copies[i], memory);
	for (unsigned int round = 0; round < ROUNDS; round++) {
		struct copy *copy = &copies[next_random(&state) % TRACKERS];

		for (unsigned int i = next_random(&state) % 8; i; i--)
			memory[next_random(&state) % PAGES * PAGE + round % PAGE]++;
		switch (next_random(&state) % 4) {
		case 0:
			close(copy->fd);
			start(copy, memory);
			break;
		case 1:
			must(collect(copy->fd), "COLLECT");
			break;
		case 2:
			update(copy, memory);
			break;
		default:
			compare(copy, memory, "one of many");
		}
	}
	for (size_t i = 0; i < TRACKERS; i++)
		compare(&copies[i], memory, "one of many, at the end");
}

static volatile int stop;

static void *write_on(void *memory)
{
	for (uint64_t state = 5; !stop; ) {
		size_t page = next_random(&state) % PAGES;

		((volatile uint64_t *)((char *)memory + page * PAGE))[next_random(&state) % WORDS]++;
	}
	return NULL;
}

/* A program writes on while all of its trackers collect, each in a thread. */
struct racer {
	struct copy copy;
	const char *memory;
};

static void *race(void *data)
{
	struct racer *racer = data;

	while (!stop)
		update(&racer->copy, racer->memory);
	return NULL;
}

static void racing_trackers(void)
{
	static struct racer racers[TRACKERS];
	pthread_t threads[TRACKERS], writer;
	char *memory = small_pages(PAGES);

	for (size_t i = 0; i < TRACKERS; i++) {
		start(&racers[i].copy, memory);
		racers[i].memory = memory;
	}
	if (pthread_create(&writer, NULL, write_on, memory))
		errx(1, "pthread_create");
	for (size_t i = 0; i < TRACKERS; i++)
		if (pthread_create(&threads[i], NULL, race, &racers[i]))
			errx(1, "pthread_create");
	sleep(2);
	stop = 1;
	pthread_join(writer, NULL);
	for (size_t i = 0; i < TRACKERS; i++)
		pthread_join(threads[i], NULL);
	for (size_t i = 0; i < TRACKERS; i++)
		compare(&racers[i].copy, memory, "one of those that raced");
}

/* A page of another process is written through its tracer. */
static void ptrace_poke(void)
{
	char *memory = small_pages(PAGES), reported[PAGES] = { 0 }, written[PAGES] = { [7] = 1 };
	pid_t pid = start_child();
	int fd;

	if (!pid) {
		if (ptrace(PTRACE_TRACEME, 0, NULL, NULL))
			err(1, "PTRACE_TRACEME");
		raise(SIGSTOP);
		_exit(0);
	}
	if (waitpid(pid, NULL, WUNTRACED) != pid)
		err(1, "waitpid");
	/* Its own page first, or the write is only a copy of its parent's. */
	if (ptrace(PTRACE_POKEDATA, pid, memory + 7 * PAGE, 5))
		err(1, "PTRACE_POKEDATA");
	fd = watching(pid, memory, PAGES);
	for (long value = 6; value < 9; value++) {
		if (ptrace(PTRACE_POKEDATA, pid, memory + 7 * PAGE, value))
			err(1, "PTRACE_POKEDATA");
		memset(reported, 0, sizeof(reported));
		harvest(fd, memory, PAGES, reported);
		check_reported(reported, written, PAGES, "PTRACE_POKEDATA");
	}
	if (ptrace(PTRACE_CONT, pid, NULL, NULL))
		err(1, "PTRACE_CONT");
	wait_child(pid);
}

/* A device writes into the pages, and none of the process's instructions does. */
static void direct_io(void)
{
	char *memory = small_pages(PAGES), reported[PAGES], written[PAGES] = { [20] = 1, [21] = 1 };
	int fd = watching(getpid(), memory, PAGES), disk = open(DISK, O_RDONLY | O_DIRECT);

	if (disk < 0)
		err(1, DISK);
	for (int round = 0; round < 3; round++) {
		if (pread(disk, memory + 20 * PAGE, 2 * PAGE, 0) != 2 * PAGE)
			err(1, "reading " DISK);
		memset(reported, 0, sizeof(reported));
		harvest(fd, memory, PAGES, reported);
		check_reported(reported, written, PAGES, "direct I/O");
	}
}

static unsigned long merged(void)
{
	FILE *file = fopen(KSM "pages_sharing", "r");
	unsigned long pages;

	if (!file || fscanf(file, "%lu", &pages) != 1)
		err(1, KSM);
	fclose(file);
	return pages;
}

/* Pages are merged, which is no write, and parted, which is one. */
static void ksm(void)
{
	static struct copy copy;
	char *memory = small_pages(PAGES);

	start(&copy, memory);
	if (madvise(memory, PAGES * PAGE, MADV_MERGEABLE))
		err(1, "MADV_MERGEABLE");
	write_text(KSM "sleep_millisecs", "5");
	write_text(KSM "pages_to_scan", "1000");
	for (int round = 0; round < 3; round++) {
		memset(memory, round + 2, PAGES * PAGE);
		write_text(KSM "run", "1");
		for (unsigned int i = 0; merged() < PAGES - 1; i++) {
			if (i == PATIENCE)
				errx(1, "ksm has merged %lu pages", merged());
			compare(&copy, memory, "while pages are merged");
			usleep(10000);
		}
		write_text(KSM "run", "0");
		compare(&copy, memory, "when pages are merged");
		for (size_t i = 0; i < PAGES; i += 3)
			memory[i * PAGE]++;
		compare(&copy, memory, "when merged pages are written");
	}
	write_text(KSM "run", "2");
	compare(&copy, memory, "when pages are merged no more");
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "swap-after-collect", swap_after_collect },
		{ "swap-after-watch", swap_after_watch },
		{ "shared-swap", shared_swap },
		{ "lazy-free", lazy_free },
		{ "two-trackers", two_trackers },
		{ "many-trackers", many_trackers },
		{ "racing-trackers", racing_trackers },
		{ "ptrace-poke", ptrace_poke },
		{ "direct-io", direct_io },
		{ "ksm", ksm },
	};

	return run_cases(CASES(cases), argc, argv);
}
