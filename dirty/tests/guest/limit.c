/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * dirtylimit [CASE...]: memory that is not like other memory, and more of it than
 * there is.
 *
 * What cannot be watched is refused, or reported as written every time. The memory of
 * a tracker is charged to the caller's cgroup: at its limit a call fails, no process
 * is killed, and the machine has as much free memory as before.
 */
#define _GNU_SOURCE
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "tracker.h"

#define GIB (1UL << 30)
#define TIB (1UL << 40)
#define HUGE (2UL << 20)
#define HUGE_PAGES (HUGE / PAGE)
#define CGROUP "/tmp/cgroup"
#define GROUP CGROUP "/trackers"
#define LIMIT_MIB 48
#define FILES 900
/* Of ranges: some thousands are short of it in the middle of small allocations. */
#define PIECES_GROUP CGROUP "/pieces"
#define PIECES_LIMIT (512UL << 10)
#define PIECES 60000UL
#define SPARSE 256UL /* GiB, of each of which one page is touched */

static unsigned long meminfo(const char *name)
{
	FILE *file = fopen("/proc/meminfo", "r");
	char line[128];
	unsigned long kib = 0;

	if (!file)
		err(1, "meminfo");
	while (fgets(line, sizeof(line), file))
		if (!strncmp(line, name, strlen(name)) && line[strlen(name)] == ':')
			kib = strtoul(line + strlen(name) + 1, NULL, 10);
	fclose(file);
	if (!kib)
		errx(1, "meminfo has no %s", name);
	return kib;
}

static char *reserved(size_t bytes)
{
	char *memory = map_at(NULL, bytes, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);

	if (madvise(memory, bytes, MADV_NOHUGEPAGE))
		err(1, "MADV_NOHUGEPAGE");
	return memory;
}

static char *huge(int sharing)
{
	write_text("/proc/sys/vm/nr_hugepages", "8");
	return map_at(NULL, 3 * HUGE, sharing | MAP_ANONYMOUS | MAP_HUGETLB, -1);
}

static void hugetlb(void)
{
	char *memory = huge(MAP_PRIVATE);
	char *reported = calloc(3, HUGE_PAGES);
	int fd;

	memset(memory, 1, 3 * HUGE);
	fd = watching(getpid(), memory, 3 * HUGE_PAGES);
	for (int round = 0; round < 3; round++) {
		for (size_t written = 0; written < 3; written++) {
			memset(reported, 0, 3 * HUGE_PAGES);
			memory[written * HUGE + 5 * PAGE]++;
			harvest(fd, memory, 3 * HUGE_PAGES, reported);
			if (!reported[written * HUGE_PAGES + 5])
				errx(1, "huge page %zu was written and is not reported", written);
		}
		/* A copy is made of what is written after a fork. */
		fork_once();
	}
}

/* Its tables may be other processes' as well: their writes would be ours. */
static void shared_hugetlb(void)
{
	char *memory = huge(MAP_SHARED);
	int fd = tracker_of(getpid());

	memset(memory, 1, HUGE);
	refused(watch(fd, memory, HUGE_PAGES), EOPNOTSUPP, 0, "WATCH of shared hugetlb memory");
	must(watch(fd, memory + 3 * HUGE, 1), "WATCH behind it");
}

/* Text mode's screen: memory of a device, which no page stands for. */
static void *screen(void *where, int flags)
{
	int fd = open("/dev/mem", O_RDWR);
	void *memory;

	if (fd < 0)
		err(1, "/dev/mem");
	memory = mmap(where, 4 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | flags, fd, 0xb8000);
	if (memory == MAP_FAILED)
		err(1, "/dev/mem");
	return memory;
}

static void device_memory(void)
{
	char *memory = small_pages(12), reported[12];
	int fd = tracker_of(getpid());

	screen(memory + 4 * PAGE, MAP_FIXED);
	refused(watch(fd, memory + 4 * PAGE, 4), EOPNOTSUPP, 0, "WATCH of a device");
	refused(watch(fd, memory, 12), EOPNOTSUPP, 0, "WATCH of a device among others");
	refused(watch(fd, memory + 7 * PAGE, 1), EOPNOTSUPP, 0, "WATCH of a part of a device");
	/* Nothing was left behind by these. */
	must(watch(fd, memory, 4), "WATCH before it");
	must(watch(fd, memory + 8 * PAGE, 4), "WATCH behind it");
	memset(reported, 0, sizeof(reported));
	memory[2 * PAGE]++;
	if (harvest(fd, memory, 12, reported) != 1 || !reported[2])
		errx(1, "WATCHes that were refused have left something");

	/* It is mapped where memory is watched already: all of it is reported, every time. */
	screen(memory, MAP_FIXED);
	for (int round = 0; round < 3; round++) {
		memset(reported, 0, sizeof(reported));
		harvest(fd, memory, 12, reported);
		if (!reported[0] || !reported[1] || !reported[2] || !reported[3])
			errx(1, "device memory is not reported as written");
	}
}

/* Mappings that nobody can write to, which every process has: no write can be missed. */
static void whole_address_space(void)
{
	struct trapless_dirty_range all = { PAGE, (1UL << 47) - PAGE }, ranges[512];
	char *memory = small_pages(2);
	int fd = tracker_of(getpid()), count;

	if (ioctl(fd, TRAPLESS_DIRTY_WATCH, &all)) {
		if (errno != EOPNOTSUPP)
			err(1, "WATCH of everything");
		must(watch(fd, memory, 2), "WATCH after that was refused");
	}
	memory[PAGE]++;
	must(collect(fd), "COLLECT");
	while ((count = take(fd, ranges, 512)) > 0)
		for (int i = 0; i < count; i++)
			if (ranges[i].start <= (uintptr_t)memory + PAGE &&
			    ranges[i].end >= (uintptr_t)memory + 2 * PAGE)
				return;
	errx(1, "a page that was written is not reported");
}

static void terabytes(void)
{
	unsigned long before = meminfo("MemFree");
	char *memory = reserved(64 * TIB);
	struct trapless_dirty_range range;
	int fd = watching(getpid(), memory, 64 * TIB / PAGE);

	for (size_t at = 0; at < 64; at += 7) {
		char *page = memory + at * TIB + 12345 * PAGE;

		*page = 1;
		must(collect(fd), "COLLECT");
		if (take(fd, &range, 1) != 1 || range.start > (uintptr_t)page ||
		    range.end <= (uintptr_t)page)
			errx(1, "the page in terabyte %zu is not reported", at);
		while (take(fd, &range, 1) == 1)
			;
	}
	if (before - meminfo("MemFree") > 16 << 10 && before > meminfo("MemFree"))
		errx(1, "watching took %lu KiB", before - meminfo("MemFree"));
}

/* The process lists of the group and of all others, opened while there is memory. */
static int inside, outside;

static int process_list(const char *path)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);

	if (fd < 0)
		err(1, "%s", path);
	return fd;
}

static void move_to(int list)
{
	if (write(list, "0", 1) != 1)
		err(1, "moving to another cgroup");
}

static void enter_cgroup(const char *group, size_t limit)
{
	char text[32], path[128];

	mkdir(CGROUP, 0755);
	if (mount("none", CGROUP, "cgroup2", 0, NULL) && errno != EBUSY)
		err(1, "cgroup2");
	write_text(CGROUP "/cgroup.subtree_control", "+memory");
	mkdir(group, 0755);
	snprintf(text, sizeof(text), "%zu", limit);
	snprintf(path, sizeof(path), "%s/memory.max", group);
	write_text(path, text);
	outside = process_list(CGROUP "/cgroup.procs");
	snprintf(path, sizeof(path), "%s/cgroup.procs", group);
	inside = process_list(path);
	move_to(inside);
}

static void many_files(void)
{
	struct rlimit limit = { 2 * FILES, 2 * FILES };

	if (setrlimit(RLIMIT_NOFILE, &limit))
		err(1, "RLIMIT_NOFILE");
}

/*
 * From outside: a member of a group at its limit is killed for reading /proc, which
 * is the kernel's doing. Whole slabs, which are not charged, the CPUs' hoards and
 * tables may be as much again; what is found by FILES / 3 files is 300 MiB.
 */
static void check_memory(unsigned long before)
{
	unsigned long now;

	move_to(outside);
	now = meminfo("MemFree");
	move_to(inside);
	if (before > now && (before - now) / 1024 > 2 * LIMIT_MIB)
		errx(1, "a cgroup with %u MiB took %lu MiB", LIMIT_MIB, (before - now) / 1024);
}

/* The same range by one file after another, until one gets no memory. */
static void watched_in_a_cgroup(void)
{
	unsigned long before = meminfo("MemFree");
	char *memory = reserved(64 * TIB), reported[4] = { 0 }, written[4] = { [1] = 1 };
	int fds[FILES], count = 0;

	many_files();
	enter_cgroup(GROUP, (size_t)LIMIT_MIB << 20);
	do {
		if (count == FILES)
			errx(1, "%d files watch 64 TiB, and nothing was refused", count);
		fds[count] = tracker_of(getpid());
	} while (!watch(fds[count++], memory, 64 * TIB / PAGE));
	if (errno != ENOMEM)
		err(1, "file %d: WATCH", count);
	check_memory(before);
	/* Others give memory back, and who was refused works. */
	for (int i = 0; i < count - 1; i++)
		close(fds[i]);
	must(watch(fds[count - 1], memory, 4), "WATCH by who was refused");
	memory[PAGE]++;
	harvest(fds[count - 1], memory, 4, reported);
	check_reported(reported, written, 4, "after memory was short");
}

/*
 * Ranges of a page, each of which takes less than a slab: where the last of them is
 * refused the group has nothing left at all.
 */
static void pieces_in_a_cgroup(void)
{
	char *memory, reported[4] = { 0 }, written[4] = { [2] = 1 };
	size_t count = 0;
	int fd;

	/* Its own memory is there to stay: only what the module takes is charged. */
	if (mlockall(MCL_CURRENT))
		err(1, "mlockall");
	memory = reserved(2 * PIECES * PAGE);
	memory[0] = memory[2 * PAGE] = 1;
	fd = tracker_of(getpid());
	enter_cgroup(PIECES_GROUP, PIECES_LIMIT);
	do {
		if (count == PIECES)
			errx(1, "%zu ranges are watched, and nothing was refused", count);
	} while (!watch(fd, memory + 2 * count++ * PAGE, 1));
	move_to(outside);
	if (errno != ENOMEM)
		err(1, "range %zu: WATCH", count);
	printf("pieces=%zu\n", count);
	/* What was watched before still is. */
	memory[2 * PAGE]++;
	harvest(fd, memory, 4, reported);
	check_reported(reported, written, 4, "after memory was short");
}

/* Who tracks the parent is short of memory; the parent is not. */
static void find_in_a_cgroup(const char *memory, int from, int to)
{
	static struct trapless_dirty_range ranges[2 * SPARSE];
	static int fds[FILES / 3];
	unsigned long before = meminfo("MemFree");
	char byte = 0;

	many_files();
	/* Its own memory is there to stay, and only the parent's is looked at. */
	if (munmap((void *)memory, SPARSE * GIB) || mlockall(MCL_CURRENT | MCL_FUTURE))
		err(1, "mlockall");
	enter_cgroup(GROUP, (size_t)LIMIT_MIB << 20);
	for (int i = 0; i < FILES / 3; i++)
		fds[i] = watching(getppid(), memory, SPARSE * GIB / PAGE);
	if (write(to, &byte, 1) != 1 || read(from, &byte, 1) != 1)
		err(1, "pipe");
	for (int i = 0; i < FILES / 3; i++)
		must(collect(fds[i]), "COLLECT");
	check_memory(before);
	for (int i = 0; i < FILES / 3; i++) {
		size_t at = 0;
		int count = take(fds[i], ranges, 2 * SPARSE);

		must(count, "READ");
		for (int k = 0; k < count; k++)
			while (at < SPARSE && (uintptr_t)memory + at * GIB >= ranges[k].start &&
			       (uintptr_t)memory + at * GIB < ranges[k].end)
				at++;
		if (at < SPARSE)
			errx(1, "file %d did not get gibibyte %zu", i, at);
	}
}

/* What is found takes memory, too; where there is none all is found. */
static void found_in_a_cgroup(void)
{
	char *memory = reserved(SPARSE * GIB), byte;
	int there[2], back[2];
	pid_t pid;

	if (pipe(there) || pipe(back))
		err(1, "pipe");
	pid = start_child();
	if (!pid) {
		find_in_a_cgroup(memory, there[0], back[1]);
		exit(0);
	}
	close(back[1]);
	if (read(back[0], &byte, 1) == 1)
		for (size_t at = 0; at < SPARSE; at++)
			memory[at * GIB] = 1;
	if (write(there[1], &byte, 1) != 1)
		err(1, "pipe");
	wait_child(pid);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "hugetlb", hugetlb },
		{ "shared-hugetlb", shared_hugetlb },
		{ "device-memory", device_memory },
		{ "whole-address-space", whole_address_space },
		{ "terabytes", terabytes },
		{ "watched-in-a-cgroup", watched_in_a_cgroup },
		{ "pieces-in-a-cgroup", pieces_in_a_cgroup },
		{ "found-in-a-cgroup", found_in_a_cgroup },
	};

	return run_cases(CASES(cases), argc, argv);
}
