/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * dirtyfuzz SEED CALLS [UID]: random calls of trapless_dirty's device, in random
 * order, with random arguments and those at the edge, over several open files.
 *
 * Those who are tracked map, unmap, move, write, fork, execute and die at random
 * meanwhile, and are replaced. A model says what each file watches: a range that
 * overlaps is refused with EEXIST, what READ reports is watched, and each error is
 * one that the header names. A second thread makes calls on the same files without
 * a model, only to be in the way.
 *
 * As a user other than root it also tries processes that are not its own: none of
 * these may be tracked.
 *
 * One record at the end, how often each command was taken and refused:
 *
 *   fuzzed calls=N COMMAND=TAKEN/REFUSED...
 */
#define _GNU_SOURCE
#include <grp.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/prctl.h>
#include <sys/uio.h>

#include "tracker.h"

#define FILES 6
#define TARGETS 3
#define ARENA 0x300000000000UL
#define ARENA_PAGES 1536UL
#define COMMANDS 7

struct file {
	int fd;
	bool attached;
	bool watched[ARENA_PAGES];
	bool elsewhere; /* something outside of the arena is or was watched */
};

static struct file files[FILES];
static pid_t targets[TARGETS], stranger;
static uint64_t state;
static unsigned long taken[COMMANDS], refusals[COMMANDS];
static volatile int shared_fds[FILES];
static volatile int over_now;
static char *edge; /* a page, then one that cannot be touched */

static const char *const names[COMMANDS] = { "info", "attach", "watch", "unwatch",
					     "collect", "read", "stats" };

static uint64_t below(uint64_t limit)
{
	return next_random(&state) % limit;
}

/* What those who are tracked do. */

static void *anywhere(size_t *bytes)
{
	size_t first = below(ARENA_PAGES), pages = 1 + below(ARENA_PAGES - first);

	if (below(3))
		pages = 1 + pages % 16;
	if (first + pages > ARENA_PAGES)
		pages = ARENA_PAGES - first;
	*bytes = pages * PAGE;
	return (char *)ARENA + first * PAGE;
}

static void one_operation(void)
{
	static const int advice[] = { MADV_DONTNEED, MADV_FREE, MADV_HUGEPAGE, MADV_NOHUGEPAGE,
				      MADV_PAGEOUT, MADV_COLD, MADV_MERGEABLE, MADV_REMOVE,
				      MADV_DONTFORK, MADV_DOFORK };
	static const int protections[] = { PROT_NONE, PROT_READ, PROT_READ | PROT_WRITE };
	size_t bytes, other_bytes;
	char *at = anywhere(&bytes), *other = anywhere(&other_bytes);
	int sharing = below(3) ? MAP_PRIVATE : MAP_SHARED;
	struct iovec from = { at, bytes }, to = { other, bytes };
	pid_t pid;

	switch (below(24)) {
	case 0 ... 5:
		mmap(at, bytes, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
		break;
	case 6:
		munmap(at, bytes);
		break;
	case 7:
		mremap(at, bytes, other_bytes, MREMAP_MAYMOVE | MREMAP_FIXED, other);
		break;
	case 8:
		mprotect(at, bytes, protections[below(3)]);
		break;
	case 9 ... 11:
		madvise(at, bytes, advice[below(sizeof(advice) / sizeof(*advice))]);
		break;
	case 12:
		process_vm_writev(getpid(), &from, 1, &to, 1, 0);
		break;
	case 13:
		if (below(8))
			break;
		pid = fork();
		if (!pid) {
			for (unsigned int i = below(20); i; i--)
				one_operation();
			_exit(0);
		}
		if (pid > 0)
			waitpid(pid, NULL, 0);
		break;
	default:
		/* The kernel writes, who stops at what cannot be written, and does not kill. */
		for (size_t i = 0; i < bytes; i += PAGE) {
			struct iovec word = { &state, sizeof(state) }, place = { at + i, 8 };

			process_vm_readv(getpid(), &place, 1, &word, 1, 0);
		}
	}
}

/* Stores, as far as there is something to store to. */
static void store_somewhere(void)
{
	size_t bytes;
	volatile char *at = anywhere(&bytes);

	if (sigsetjmp(faulted, 1))
		return;
	for (size_t i = 0; i < bytes; i += PAGE)
		at[i]++;
}

static int target(uint64_t seed)
{
	char text[32];

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	state = seed | 1;
	expect_faults(SIGSEGV);
	expect_faults(SIGBUS);
	for (;;) {
		for (unsigned int i = 20 + below(200); i; i--) {
			one_operation();
			store_somewhere();
		}
		switch (below(8)) {
		case 0:
			_exit(0);
		case 1:
			snprintf(text, sizeof(text), "%llu",
				 (unsigned long long)next_random(&state));
			execl("/proc/self/exe", "dirtyfuzz", "--target", text, NULL);
			_exit(1);
		default:
			usleep(below(3) * 1000);
		}
	}
}

static pid_t spawn(void)
{
	uint64_t seed = next_random(&state);
	pid_t pid = start_child();

	if (!pid)
		_exit(target(seed));
	return pid;
}

static void replace_the_dead(void)
{
	pid_t pid;

	while ((pid = waitpid(-1, NULL, WNOHANG)) > 0)
		for (size_t i = 0; i < TARGETS; i++)
			if (targets[i] == pid)
				targets[i] = spawn();
}

/* Calls. */

static void complain(const struct file *file, const char *what)
{
	errx(1, "file %zu: %s (%s)", (size_t)(file - files), what, strerrorname_np(errno));
}

/* The reasons end with 0. Signals and a lack of memory are never a surprise. */
static void expect(const struct file *file, unsigned int command, int done, const int *reasons)
{
	if (done >= 0) {
		taken[command]++;
		return;
	}
	refusals[command]++;
	while (*reasons && *reasons != errno)
		reasons++;
	if (!*reasons && errno != EINTR && errno != ENOMEM)
		complain(file, names[command]);
}

#define REASONS(...) ((const int[]){ __VA_ARGS__, 0 })

static void reopen(struct file *file)
{
	if (file->fd >= 0)
		close(file->fd);
	memset(file, 0, sizeof(*file));
	file->fd = open_device();
	shared_fds[file - files] = file->fd;
}

static pid_t somebody(void)
{
	static const pid_t nobody[] = { 0, -1, 2, 4194303, -2147483647 - 1, 2147483647 };

	switch (below(8)) {
	case 0:
		return nobody[below(sizeof(nobody) / sizeof(*nobody))];
	case 1:
		return stranger;
	case 2:
		return getpid();
	default:
		return targets[below(TARGETS)];
	}
}

static void do_attach(struct file *file)
{
	struct trapless_dirty_attach whom = { .pid = somebody() };
	int done;

	if (!below(8))
		whom.mechanism = (unsigned int)(below(2) ? below(4) : next_random(&state));
	done = ioctl(file->fd, TRAPLESS_DIRTY_ATTACH, &whom);
	expect(file, 1, done, REASONS(EBUSY, ESRCH, EPERM, EACCES, EINVAL, EOPNOTSUPP));
	if (done)
		return;
	if (file->attached)
		complain(file, "attached twice");
	if (getuid() && whom.pid == stranger)
		complain(file, "attached to a process of root's");
	file->attached = true;
}

static struct trapless_dirty_range some_range(bool *in_arena)
{
	static const uint64_t edges[] = { 0, 1, PAGE, PAGE - 1, ARENA - PAGE, ARENA,
					  ARENA + ARENA_PAGES * PAGE, 1UL << 46, 1UL << 47,
					  (1UL << 47) - PAGE, 1UL << 63, -PAGE, -1UL,
					  0xffff888000000000, 0xffffffff81000000 };
	struct trapless_dirty_range range;
	size_t bytes;

	*in_arena = below(10);
	range.start = (uintptr_t)anywhere(&bytes);
	range.end = range.start + bytes;
	if (!*in_arena) {
		range.start = edges[below(sizeof(edges) / sizeof(*edges))];
		range.end = below(2) ? range.start + (below(64) << 12) :
				       edges[below(sizeof(edges) / sizeof(*edges))];
	}
	return range;
}

static bool overlaps(const struct file *file, const struct trapless_dirty_range *range)
{
	for (uint64_t at = range->start; at < range->end; at += PAGE)
		if (file->watched[(at - ARENA) / PAGE])
			return true;
	return false;
}

static void set(struct file *file, const struct trapless_dirty_range *range, bool to)
{
	size_t first = (range->start - ARENA) / PAGE, pages = (range->end - range->start) / PAGE;

	memset(file->watched + first, to, pages);
}

static void do_watch(struct file *file)
{
	bool in_arena, twice;
	struct trapless_dirty_range range = some_range(&in_arena);
	int done = ioctl(file->fd, TRAPLESS_DIRTY_WATCH, &range);

	expect(file, 2, done, REASONS(EEXIST, EINVAL, ESRCH, ENOTCONN, EOPNOTSUPP));
	if (!in_arena) {
		/* What it may cover from now on is out of the model. */
		file->elsewhere |= !done;
		return;
	}
	twice = overlaps(file, &range);
	if (!done && twice)
		complain(file, "watches twice");
	if (done && errno == EEXIST && !twice && !file->elsewhere)
		complain(file, "has not watched this");
	if (done && errno == EINVAL)
		complain(file, "a good range is refused");
	if (!done)
		set(file, &range, true);
}

static void do_unwatch(struct file *file)
{
	bool in_arena;
	struct trapless_dirty_range range = some_range(&in_arena);
	int done = ioctl(file->fd, TRAPLESS_DIRTY_UNWATCH, &range);

	expect(file, 3, done, REASONS(EINVAL, ENOTCONN));
	if (done)
		return;
	if (!in_arena) {
		if (range.start < ARENA)
			range.start = ARENA;
		if (range.end > ARENA + ARENA_PAGES * PAGE)
			range.end = ARENA + ARENA_PAGES * PAGE;
	}
	if (range.start < range.end)
		set(file, &range, false);
}

static void do_read(struct file *file)
{
	static struct trapless_dirty_range ranges[64];
	static void *const bad[] = { NULL, (void *)1, (void *)-PAGE, (void *)(1UL << 63),
				     (void *)((1UL << 47) - PAGE) };
	struct trapless_dirty_read what = { .ranges = (uintptr_t)ranges,
					    .capacity = 1 + below(64) };
	int done;
	bool mine = true;

	switch (below(8)) {
	case 0:
		what.ranges = (uintptr_t)bad[below(sizeof(bad) / sizeof(*bad))];
		what.capacity = (unsigned int)next_random(&state);
		mine = false;
		break;
	case 1:
		what.ranges = (uintptr_t)(edge + PAGE - below(5 * 16));
		mine = false;
		break;
	case 2:
		what.capacity = 0;
	}
	done = ioctl(file->fd, TRAPLESS_DIRTY_READ, &what);
	expect(file, 5, done, REASONS(EFAULT, EINVAL, ENOTCONN));
	if (!done && !what.capacity)
		complain(file, "has reported to an array without room");
	if (done || !mine)
		return;
	if (what.count > what.capacity)
		complain(file, "has reported more than there is room for");
	for (unsigned int i = 0; i < what.count; i++) {
		if (ranges[i].start % PAGE || ranges[i].end % PAGE ||
		    ranges[i].start >= ranges[i].end || ranges[i].end > 1UL << 47 ||
		    (i && ranges[i].start <= ranges[i - 1].end))
			complain(file, "reports ranges that are empty or unaligned");
		if (file->elsewhere)
			continue;
		for (uint64_t at = ranges[i].start; at < ranges[i].end; at += PAGE)
			if (at < ARENA || at >= ARENA + ARENA_PAGES * PAGE ||
			    !file->watched[(at - ARENA) / PAGE])
				complain(file, "reports what is not watched");
	}
}

static void one_call(void)
{
	struct file *file = &files[below(FILES)];
	union {
		struct trapless_dirty_info info;
		struct trapless_dirty_stats stats;
		struct trapless_dirty_collect collect;
	} *out = (void *)edge;

	if (!below(16))
		out = (void *)(edge + PAGE - below(16));
	switch (below(32)) {
	case 0:
		reopen(file);
		break;
	case 1:
		expect(file, 0, ioctl(file->fd, TRAPLESS_DIRTY_GET_INFO, out), REASONS(EFAULT));
		break;
	case 2:
		expect(file, 6, ioctl(file->fd, TRAPLESS_DIRTY_GET_STATS, out),
		       REASONS(EFAULT, ENOTCONN));
		break;
	case 3:
		if (ioctl(file->fd, (unsigned long)next_random(&state), below(2) ? edge : NULL) >= 0)
			complain(file, "an unknown command was taken");
		break;
	case 4 ... 6:
		do_attach(file);
		break;
	case 7 ... 12:
		do_watch(file);
		break;
	case 13 ... 15:
		do_unwatch(file);
		break;
	case 16 ... 23:
		expect(file, 4, ioctl(file->fd, TRAPLESS_DIRTY_COLLECT, out),
		       REASONS(EFAULT, ESRCH, ENOTCONN));
		break;
	default:
		do_read(file);
	}
}

/* Calls that change nothing the model knows. */
static void *in_the_way(void *nothing)
{
	struct trapless_dirty_range range = { ARENA + 1, ARENA };
	struct trapless_dirty_collect how;

	for (size_t i = 0; !over_now; i++) {
		int fd = shared_fds[i % FILES];

		ioctl(fd, TRAPLESS_DIRTY_COLLECT, &how);
		ioctl(fd, TRAPLESS_DIRTY_WATCH, &range);
		take(fd, (void *)-PAGE, 4);
		usleep(100);
	}
	return nothing;
}

int main(int argc, char **argv)
{
	unsigned long calls;
	pthread_t thread;

	if (argc == 3 && !strcmp(argv[1], "--target"))
		return target(strtoull(argv[2], NULL, 10));
	if (argc != 3 && argc != 4)
		errx(2, "usage: dirtyfuzz SEED CALLS [UID]");
	state = number(argv[1], "SEED") * 0x9e3779b97f4a7c15ULL;
	calls = number(argv[2], "CALLS");
	stranger = getppid();
	if (argc == 4) {
		uid_t uid = (uid_t)number(argv[3], "UID");

		if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid) ||
		    prctl(PR_SET_DUMPABLE, 1))
			err(1, "cannot become %u", uid);
	}
	edge = map_private(2);
	if (mprotect(edge + PAGE, PAGE, PROT_NONE))
		err(1, "mprotect");
	for (size_t i = 0; i < TARGETS; i++)
		targets[i] = spawn();
	for (size_t i = 0; i < FILES; i++) {
		files[i].fd = -1;
		reopen(&files[i]);
	}
	if (pthread_create(&thread, NULL, in_the_way, NULL))
		errx(1, "pthread_create");
	for (unsigned long i = 0; i < calls; i++) {
		one_call();
		if (i % 64 == 0)
			replace_the_dead();
	}
	over_now = 1;
	pthread_join(thread, NULL);
	printf("fuzzed calls=%lu", calls);
	for (size_t i = 0; i < COMMANDS; i++)
		printf(" %s=%lu/%lu", names[i], taken[i], refusals[i]);
	putchar('\n');
	return 0;
}
