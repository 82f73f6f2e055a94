/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * dirtylogged [CASE...]: what the processor's log (EPML) must report, and that it
 * reports nothing else. Memory that is written in a known way is compared with the
 * report, page by page.
 *
 * "overrun" needs a ring of fewer than 2,000 entries that no interrupt empties,
 * "interrupts" one of 16, all others a larger one.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/utsname.h>

#define TRACKER_MECHANISM TRAPLESS_DIRTY_EPML
#include "tracker.h"

#define ROUNDS 12

static int zeros, channel[2];

/* One kind of store each, to eight or more bytes from an address. */

static void plain(char *to)
{
	*(volatile uint64_t *)to = 1;
}

static void byte(char *to)
{
	*(volatile char *)to = 1;
}

static void locked(char *to)
{
	__atomic_fetch_add((uint64_t *)to, 1, __ATOMIC_SEQ_CST);
}

static void exchanged(char *to)
{
	__atomic_exchange_n((uint64_t *)to, 2, __ATOMIC_SEQ_CST);
}

static void compared_16(char *to)
{
	uint64_t low = ((uint64_t *)to)[0], high = ((uint64_t *)to)[1];

	asm volatile("lock cmpxchg16b %0"
		     : "+m"(*(__uint128_t *)to), "+a"(low), "+d"(high)
		     : "b"(3ULL), "c"(4ULL)
		     : "memory", "cc");
}

static void repeated(char *to)
{
	unsigned long count = 64;

	asm volatile("rep stosb" : "+D"(to), "+c"(count) : "a"(7) : "memory");
}

static void moved(char *to)
{
	static const char from[64] = "moved";
	const char *source = from;
	unsigned long count = 64;

	asm volatile("rep movsb" : "+D"(to), "+S"(source), "+c"(count) : : "memory");
}

static void saved(char *to)
{
	asm volatile("fxsave %0" : "=m"(*(char(*)[512])to));
}

static void vector(char *to)
{
	asm volatile("movdqa %%xmm0, %0" : "=m"(*(char(*)[16])to));
}

static void non_temporal(char *to)
{
	asm volatile("movntdq %%xmm0, %0; movnti %2, %1; sfence"
		     : "=m"(*(char(*)[16])to), "=m"(*(uint64_t *)(to + 16))
		     : "r"(5ULL));
}

static void pushed(char *to)
{
	asm volatile("mov %%rsp, %%rbx; lea 16(%0), %%rsp; push %%rbx; mov %%rbx, %%rsp"
		     :
		     : "r"(to)
		     : "rbx", "memory");
}

static void by_read(char *to)
{
	if (read(zeros, to, 8) != 8)
		err(1, "read");
}

static void by_pipe(char *to)
{
	if (write(channel[1], "eight by", 8) != 8 || read(channel[0], to, 8) != 8)
		err(1, "pipe");
}

static void by_clock(char *to)
{
	if (syscall(SYS_clock_gettime, CLOCK_MONOTONIC, to))
		err(1, "clock_gettime");
}

static void by_uname(char *to)
{
	if (syscall(SYS_uname, to))
		err(1, "uname");
}

static void by_another_mapping(char *to)
{
	struct iovec from = { "written", 8 }, where = { to, 8 };

	if (process_vm_writev(getpid(), &from, 1, &where, 1, 0) != 8)
		err(1, "process_vm_writev");
}

static void by_proc_mem(char *to)
{
	int fd = open("/proc/self/mem", O_RDWR);

	if (fd < 0 || pwrite(fd, "written", 8, (uintptr_t)to) != 8)
		err(1, "/proc/self/mem");
	close(fd);
}

static const struct {
	const char *name;
	void (*store)(char *to);
} kinds[] = {
	{ "plain", plain },
	{ "byte", byte },
	{ "locked", locked },
	{ "exchanged", exchanged },
	{ "cmpxchg16b", compared_16 },
	{ "rep stosb", repeated },
	{ "rep movsb", moved },
	{ "fxsave", saved },
	{ "movdqa", vector },
	{ "movnt", non_temporal },
	{ "push", pushed },
	{ "read", by_read },
	{ "pipe", by_pipe },
	{ "clock_gettime", by_clock },
	{ "uname", by_uname },
	/* Not logged, but reported by the module, perhaps once more: such writes take time. */
	{ "process_vm_writev", by_another_mapping },
	{ "/proc/self/mem", by_proc_mem },
};

#define KINDS (sizeof(kinds) / sizeof(*kinds))
#define LOGGED_KINDS (KINDS - 2)

/* Every second page is written, each in another way; in the next round the others. */
static void every_kind(void)
{
	const size_t pages = 2 * KINDS;
	char *memory = small_pages(pages);
	int fd = watching(getpid(), memory, pages);

	zeros = open("/dev/zero", O_RDONLY);
	if (zeros < 0 || pipe(channel))
		err(1, "/dev/zero, pipe");
	for (unsigned int round = 0; round < ROUNDS; round++) {
		char reported[2 * KINDS] = { 0 };

		for (size_t i = 0; i < KINDS; i++)
			kinds[i].store(memory + (2 * i + round % 2) * PAGE);
		harvest(fd, memory, pages, reported);
		for (size_t i = 0; i < KINDS; i++) {
			if (!reported[2 * i + round % 2])
				errx(1, "round %u: %s is not reported", round, kinds[i].name);
			if (i < LOGGED_KINDS && reported[2 * i + !(round % 2)])
				errx(1, "round %u: beside %s, a page that nobody wrote is reported",
				     round, kinds[i].name);
		}
	}
}

static void straddling(void)
{
	char *memory = small_pages(10);
	int fd = watching(getpid(), memory, 10);

	for (unsigned int round = 0; round < ROUNDS; round++) {
		char reported[10] = { 0 }, written[10] = { 0 };
		unsigned int at = 1 + round % 3;
		char *border = memory + at * PAGE;

		*(volatile uint64_t *)(border - 1 - round % 7) = round;
		written[at - 1] = written[at] = 1;
		asm volatile("movdqu %%xmm0, %0" : "=m"(*(char(*)[16])(border + 4 * PAGE - 9)));
		written[at + 3] = written[at + 4] = 1;
		__atomic_fetch_add((uint32_t *)(memory + 8 * PAGE - 3), 1, __ATOMIC_SEQ_CST);
		written[7] = written[8] = 1;
		harvest(fd, memory, 10, reported);
		check_reported(reported, written, 10, "straddling");
	}
}

static void on_signal(int signal)
{
	(void)signal;
}

/* The kernel writes the frame, on a stack that is watched. */
static void signal_frame(void)
{
	const size_t pages = 16;
	char *memory = small_pages(pages), reported[16] = { 0 }, written[16] = { 0 };
	stack_t stack = { .ss_sp = memory, .ss_size = pages * PAGE };
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_ONSTACK };
	int fd = watching(getpid(), memory, pages);

	if (sigaltstack(&stack, NULL) || sigaction(SIGUSR1, &action, NULL))
		err(1, "sigaltstack");
	for (unsigned int round = 0; round < ROUNDS; round++) {
		raise(SIGUSR1);
		memset(reported, 0, sizeof(reported));
		harvest(fd, memory, pages, reported);
		written[pages - 1] = 1;
		check_reported(reported, written, pages, "signal");
	}
}

static void write_some(char *memory, char *written, size_t pages, uint64_t *state)
{
	for (size_t i = 0; i < pages / 4; i++) {
		size_t page = next_random(state) % pages;

		(*(volatile char *)(memory + page * PAGE))++;
		written[page] = 1;
	}
}

#define MANY 2000UL

/* Reported pages are armed again, at once and for all trackers. */
static void again_and_again(void)
{
	char *memory = small_pages(MANY);
	int first = watching(getpid(), memory, MANY), second = watching(getpid(), memory, MANY);
	char both[MANY] = { 0 };
	uint64_t state = 1;

	for (unsigned int round = 1; round <= ROUNDS; round++) {
		char reported[MANY] = { 0 }, written[MANY] = { 0 };

		write_some(memory, written, MANY, &state);
		for (size_t i = 0; i < MANY; i++)
			both[i] |= written[i];
		harvest(first, memory, MANY, reported);
		check_reported(reported, written, MANY, "first tracker");
		if (round % 3)
			continue;
		memset(reported, 0, sizeof(reported));
		harvest(second, memory, MANY, reported);
		check_reported(reported, both, MANY, "second tracker");
		memset(both, 0, sizeof(both));
	}
}

/* A page that is read before a collect is reported again if it is written again. */
static void read_between(void)
{
	char *memory = small_pages(MANY);
	int fd = watching(getpid(), memory, MANY);
	uint64_t state = 1;

	for (unsigned int round = 0; round < ROUNDS; round++) {
		char reported[MANY] = { 0 }, written[MANY] = { 0 };

		write_some(memory, written, MANY, &state);
		usleep(1000);
		read_into(fd, memory, MANY, reported);
		memset(reported, 0, sizeof(reported));
		memset(written, 0, sizeof(written));
		write_some(memory, written, MANY, &state);
		harvest(fd, memory, MANY, reported);
		for (size_t i = 0; i < MANY; i++)
			if (written[i] && !reported[i])
				errx(1, "page %zu was written after READ, and is not reported", i);
	}
}

/* Ranges that are watched, unwatched and watched again; earlier writes are not reported. */
static void watched_again(void)
{
	char *memory = small_pages(MANY);
	int fd = tracker_of(getpid());
	uint64_t state = 1;

	for (unsigned int round = 0; round < ROUNDS; round++) {
		char reported[MANY] = { 0 }, written[MANY] = { 0 };

		memset(memory, round, MANY * PAGE);
		must(watch(fd, memory, MANY), "WATCH");
		write_some(memory, written, MANY, &state);
		harvest(fd, memory, MANY, reported);
		check_reported(reported, written, MANY, "watched again");
		must(unwatch(fd, memory, MANY), "UNWATCH");
	}
}

struct shared {
	volatile unsigned int go;   /* the round that children work on */
	volatile unsigned int done; /* children that have done it */
	char written[2][MANY];
};

static struct shared *share(void)
{
	return map_at(NULL, sizeof(struct shared), MAP_SHARED | MAP_ANONYMOUS, -1);
}

/* Write the pages whose number has this remainder, a time slice for each few. */
static void child_writes(struct shared *shared, char *memory, unsigned int child)
{
	uint64_t state = child + 1;

	for (unsigned int round = 1; round <= ROUNDS; round++) {
		while (shared->go < round)
			sched_yield();
		memset(shared->written[child], 0, MANY);
		for (size_t i = 0; i < MANY / 8; i++) {
			size_t page = next_random(&state) % (MANY / 4) * 4 + child;

			(*(volatile char *)(memory + page * PAGE))++;
			shared->written[child][page] = 1;
			if (i % 16 == 0)
				sched_yield();
		}
		__atomic_fetch_add(&shared->done, 1, __ATOMIC_SEQ_CST);
	}
	while (shared->go == ROUNDS)
		sched_yield();
}

/* A child that does not outlive the case. */
static pid_t start_writer(void)
{
	pid_t pid = start_child();

	if (!pid && prctl(PR_SET_PDEATHSIG, SIGKILL))
		err(1, "PR_SET_PDEATHSIG");
	return pid;
}

static void noise(char *memory)
{
	for (;;)
		for (size_t page = 2; page < MANY; page += 2) {
			(*(volatile char *)(memory + page * PAGE))++;
			(*(volatile char *)(memory + (page + 1) * PAGE))++;
			if (page % 16 == 0)
				sched_yield();
		}
}

/* Two tracked processes and three others write at the same addresses. */
static void nobody_elses(void)
{
	char *memory = small_pages(MANY);
	struct shared *shared = share();
	pid_t tracked[2], others[3];
	int fd[2];

	for (unsigned int i = 0; i < 2; i++) {
		tracked[i] = start_writer();
		if (!tracked[i]) {
			child_writes(shared, memory, i);
			_exit(0);
		}
		fd[i] = watching(tracked[i], memory, MANY);
	}
	for (unsigned int i = 0; i < 3; i++) {
		others[i] = start_writer();
		if (!others[i])
			noise(memory);
	}
	for (unsigned int round = 1; round <= ROUNDS; round++) {
		char reported[MANY];

		shared->done = 0;
		shared->go = round;
		while (shared->done < 2)
			sched_yield();
		for (unsigned int i = 0; i < 2; i++) {
			memset(reported, 0, sizeof(reported));
			harvest(fd[i], memory, MANY, reported);
			/* Not the first time: the kernel reports the copies that fork makes. */
			for (size_t page = 0; page < MANY; page++)
				if (shared->written[i][page] && !reported[page])
					errx(1, "process %u: page %zu is not reported", i, page);
			if (round > 2)
				for (size_t page = 0; page < MANY; page++)
					if (reported[page] && page % 4 != i)
						errx(1, "process %u: page %zu is another's", i,
						     page);
		}
	}
	shared->go = ROUNDS + 1;
	for (unsigned int i = 0; i < 2; i++)
		wait_child(tracked[i]);
}

#define THREADS 4
#define SHARE (MANY / THREADS)

static struct {
	char *memory;
	volatile int stop;
	unsigned int number[THREADS];
} writers;

static void *keep_writing(void *number)
{
	unsigned int self = *(unsigned int *)number;
	uint64_t state = self + 1;

	while (!writers.stop) {
		size_t page = self * SHARE + next_random(&state) % SHARE;

		(*(volatile uint64_t *)(writers.memory + page * PAGE))++;
	}
	return NULL;
}

/*
 * Threads write while they are attached, watched and collected. A copy that is kept
 * up to date by the reports equals the memory once they have stopped.
 */
static void threads(void)
{
	char *memory = small_pages(MANY), *copy = map_private(MANY);
	pthread_t thread[THREADS];
	int fd;

	writers.memory = memory;
	for (unsigned int i = 0; i < THREADS; i++) {
		writers.number[i] = i;
		if (pthread_create(&thread[i], NULL, keep_writing, &writers.number[i]))
			errx(1, "no thread");
	}
	usleep(20000);
	fd = watching(getpid(), memory, MANY);
	memcpy(copy, memory, MANY * PAGE);
	for (unsigned int round = 0; round <= 4 * ROUNDS; round++) {
		char reported[MANY] = { 0 };

		usleep(2000);
		if (round == 4 * ROUNDS) {
			writers.stop = 1;
			for (unsigned int i = 0; i < THREADS; i++)
				pthread_join(thread[i], NULL);
		}
		harvest(fd, memory, MANY, reported);
		for (size_t i = 0; i < MANY; i++)
			if (reported[i])
				memcpy(copy + i * PAGE, memory + i * PAGE, PAGE);
	}
	for (size_t i = 0; i < MANY; i++)
		if (memcmp(copy + i * PAGE, memory + i * PAGE, PAGE))
			errx(1, "page %zu was written and not reported", i);
}

/* A child that shares the memory, and one that has a copy of it. */
static void children(void)
{
	char *memory = small_pages(MANY), reported[MANY] = { 0 };
	int fd = watching(getpid(), memory, MANY);
	pid_t pid;

	pid = vfork();
	if (!pid) {
		(*(volatile char *)(memory + 5 * PAGE))++;
		_exit(0);
	}
	wait_child(pid);
	harvest(fd, memory, MANY, reported);
	for (size_t i = 0; i < MANY; i++)
		if (reported[i] != (i == 5))
			errx(1, "page %zu after vfork", i);
	pid = start_child();
	if (!pid) {
		memset(memory, 7, MANY * PAGE);
		_exit(0);
	}
	wait_child(pid);
	memset(reported, 0, sizeof(reported));
	if (harvest(fd, memory, MANY, reported))
		errx(1, "what a child wrote to its copy is reported");
}

/* A kernel thread writes, in the name of the process (module trapless_borrow). */
static void borrowed(void)
{
	char *memory = small_pages(MANY), reported[MANY] = { 0 };
	int fd = watching(getpid(), memory, MANY);

	for (size_t page = 3; page < MANY; page += 300) {
		char address[32];

		snprintf(address, sizeof(address), "%p", memory + page * PAGE);
		write_text("/sys/module/trapless_borrow/parameters/store", address);
	}
	harvest(fd, memory, MANY, reported);
	for (size_t i = 0; i < MANY; i++)
		if (reported[i] != (i % 300 == 3))
			errx(1, "page %zu: %s", i,
			     reported[i] ? "reported, but not written" : "not reported");
}

/* The tracked process is gone: its unread pages are lost, and nothing else. */
static void after_exit(void)
{
	char *memory = small_pages(MANY), reported[MANY] = { 0 };
	struct shared *shared = share();
	pid_t pid = start_child();
	int fd;

	if (!pid) {
		while (!shared->go)
			sched_yield();
		memset(memory, 7, MANY * PAGE);
		_exit(0);
	}
	fd = watching(pid, memory, MANY);
	shared->go = 1;
	wait_child(pid);
	if (!collect(fd) || errno != ESRCH)
		errx(1, "COLLECT of a process that is gone");
	read_into(fd, memory, MANY, reported);
}

/* More than the ring holds: all is reported, with the flag OVERRUN. */
static void overrun(void)
{
	char *memory = small_pages(MANY);
	int fd = watching(getpid(), memory, MANY), zero = open("/dev/zero", O_RDONLY);
	struct trapless_dirty_collect how;
	unsigned int overruns = 0;

	for (unsigned int round = 0; round < ROUNDS; round++) {
		char reported[MANY] = { 0 };

		if (read(zero, memory, MANY * PAGE) != MANY * PAGE)
			err(1, "read");
		must(ioctl(fd, TRAPLESS_DIRTY_COLLECT, &how), "COLLECT");
		overruns += !!(how.flags & TRAPLESS_DIRTY_OVERRUN);
		read_into(fd, memory, MANY, reported);
		for (size_t i = 0; i < MANY; i++)
			if (!reported[i])
				errx(1, "page %zu was lost", i);
	}
	printf("overruns=%u\n", overruns);
	if (overruns != ROUNDS)
		errx(1, "an overrun was not reported: is the ring small?");
}

/* Many times the ring without a collect: interrupts empty it. */
static void emptied_by_interrupts(void)
{
	struct trapless_dirty_stats stats;
	char reported[MANY] = { 0 };
	char *memory = small_pages(MANY);
	int fd = watching(getpid(), memory, MANY);

	for (size_t i = 0; i < MANY; i++) {
		(*(volatile char *)(memory + i * PAGE))++;
		/* Time for the interrupt. */
		if (i % 4 == 3)
			usleep(1000);
	}
	if (harvest(fd, memory, MANY, reported) != MANY)
		errx(1, "pages are missing");
	must(ioctl(fd, TRAPLESS_DIRTY_GET_STATS, &stats), "GET_STATS");
	printf("interrupts=%llu overruns=%llu\n", stats.interrupts, stats.overruns);
	if (stats.interrupts < MANY / 32)
		errx(1, "the ring was not emptied by interrupts");
}

#define FAULTED 16384UL

/* Whether each page is there, by the kernel's own word. */
static void find_present(pid_t pid, const char *memory, char *present)
{
	static uint64_t entries[FAULTED];
	char path[64];
	int fd;

	snprintf(path, sizeof(path), "/proc/%d/pagemap", pid);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || pread(fd, entries, sizeof(entries), (uintptr_t)memory / PAGE * sizeof(*entries)) !=
			      (ssize_t)sizeof(entries))
		err(1, "%s", path);
	close(fd);
	for (size_t i = 0; i < FAULTED; i++)
		present[i] = !!(entries[i] & PM_PRESENT);
}

/*
 * Who is stopped between a page's fault and the store that took it has a page that no
 * store has reached, or a huge page of which one has. A checkpointer takes what is there
 * and clean for what it has already: so all of it is reported.
 */
static void stop_in_faults(int advice, size_t least_ahead)
{
	static char reported[FAULTED], present[FAULTED];
	volatile size_t *stored = map_at(NULL, PAGE, MAP_SHARED | MAP_ANONYMOUS, -1);
	char *memory = map_private(FAULTED);
	size_t stops = 0, ahead = 0;
	int fd, status;
	pid_t child;

	if (madvise(memory, FAULTED * PAGE, advice))
		err(1, "madvise");
	child = start_child();
	if (!child) {
		raise(SIGSTOP);
		for (; *stored < FAULTED; ++*stored)
			memory[*stored * PAGE] = 1;
		_exit(0);
	}
	if (waitpid(child, &status, WUNTRACED) != child || !WIFSTOPPED(status))
		errx(1, "the child did not stop");
	fd = watching(child, memory, FAULTED);
	for (;; stops++) {
		kill(child, SIGCONT);
		usleep(200);
		kill(child, SIGSTOP);
		if (waitpid(child, &status, WUNTRACED) != child)
			err(1, "waitpid");
		if (!WIFSTOPPED(status))
			break;
		harvest(fd, memory, FAULTED, reported);
		find_present(child, memory, present);
		for (size_t i = 0; i < FAULTED; i++) {
			if (present[i] && !reported[i])
				errx(1, "stop %zu: page %zu is there and was not reported", stops, i);
			ahead += present[i] && i == *stored + least_ahead;
		}
	}
	if (status || !ahead)
		errx(1, "wait status %#x; of %zu stops none was in a fault", (unsigned int)status, stops);
}

static void in_faults(void)
{
	stop_in_faults(MADV_NOHUGEPAGE, 0);
}

static void in_huge_faults(void)
{
	stop_in_faults(MADV_HUGEPAGE, 1);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "kinds", every_kind },
		{ "straddling", straddling },
		{ "signal", signal_frame },
		{ "again", again_and_again },
		{ "read-between", read_between },
		{ "watched-again", watched_again },
		{ "others", nobody_elses },
		{ "threads", threads },
		{ "children", children },
		{ "borrowed", borrowed },
		{ "exit", after_exit },
		{ "in-faults", in_faults },
		{ "in-huge-faults", in_huge_faults },
		{ "overrun", overrun },
		{ "interrupts", emptied_by_interrupts },
	};

	return run_cases(CASES(cases), argc, argv);
}
