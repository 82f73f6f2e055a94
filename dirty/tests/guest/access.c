/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * dirtyaccess [CASE...]: who may track whom with trapless_dirty, and what it says
 * to arguments that are not as its header describes.
 *
 * After each refusal the same file must work as if nothing had been asked. Run as
 * root, with the device open to all: the unprivileged ones are children.
 */
#define _GNU_SOURCE
#include <grp.h>
#include <limits.h>
#include <linux/userfaultfd.h>
#include <pthread.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include "tracker.h"

#define PAGES 16UL
#define NOBODY 65534
#define SOMEBODY 12345
#define SUID_COPY "/tmp/dirtyaccess-suid"
#define ADDRESSES (1ULL << 47) /* of a process: 4-level page tables */

static char zeros[PAGES];

static void become(uid_t uid)
{
	if (setgroups(0, NULL) || setresgid(uid, uid, uid) || setresuid(uid, uid, uid))
		err(1, "cannot become %u", uid);
	/* As after a login: it may be traced by its own. */
	if (prctl(PR_SET_DUMPABLE, 1))
		err(1, "PR_SET_DUMPABLE");
}

/* A child of this user that waits to be killed; it is ready when this returns. */
static pid_t waiter(uid_t uid, int dumpable)
{
	int ready[2];
	char byte = 0;
	pid_t pid;

	if (pipe(ready))
		err(1, "pipe");
	pid = start_child();
	if (!pid) {
		if (uid != getuid())
			become(uid);
		if (prctl(PR_SET_DUMPABLE, dumpable) || prctl(PR_SET_PDEATHSIG, SIGKILL))
			err(1, "prctl");
		if (write(ready[1], &byte, 1) != 1)
			err(1, "write");
		for (;;)
			pause();
	}
	close(ready[1]);
	if (read(ready[0], &byte, 1) != 1)
		errx(1, "a child did not start");
	close(ready[0]);
	return pid;
}

static void end(pid_t pid)
{
	int status;

	kill(pid, SIGKILL);
	waitpid(pid, &status, 0);
}

/* The file still does what it should: it reports nothing, then the one page written. */
static void still_works(int fd, char *memory)
{
	char reported[PAGES] = { 0 }, written[PAGES] = { [3] = 1 };

	must(unwatch(fd, memory, PAGES), "UNWATCH");
	must(watch(fd, memory, PAGES), "WATCH");
	harvest(fd, memory, PAGES, reported);
	check_reported(reported, zeros, PAGES, "before it is written");
	memory[3 * PAGE]++;
	harvest(fd, memory, PAGES, reported);
	check_reported(reported, written, PAGES, "after it is written");
}

static void info(void)
{
	struct trapless_dirty_info seen = { 0 };
	int fd = open_device();

	must(ioctl(fd, TRAPLESS_DIRTY_GET_INFO, &seen), "GET_INFO");
	if (seen.abi != TRAPLESS_DIRTY_ABI || !(seen.mechanisms & 1 << TRAPLESS_DIRTY_DBIT))
		errx(1, "abi %u, mechanisms %#x", seen.abi, seen.mechanisms);
	must(attach(fd, getpid()), "ATTACH");
	must(ioctl(fd, TRAPLESS_DIRTY_GET_INFO, &seen), "GET_INFO when attached");
}

static void unattached(void)
{
	struct trapless_dirty_stats stats;
	struct trapless_dirty_range ranges[1];
	int fd = open_device();
	char *memory = small_pages(PAGES);

	refused(watch(fd, memory, PAGES), ENOTCONN, 0, "WATCH");
	refused(unwatch(fd, memory, PAGES), ENOTCONN, 0, "UNWATCH");
	refused(collect(fd), ENOTCONN, 0, "COLLECT");
	refused(take(fd, ranges, 1), ENOTCONN, 0, "READ");
	refused(ioctl(fd, TRAPLESS_DIRTY_GET_STATS, &stats), ENOTCONN, 0, "GET_STATS");
	must(attach(fd, getpid()), "ATTACH");
	still_works(fd, memory);
}

static void attach_arguments(void)
{
	static const pid_t pids[] = { 0, -1, INT_MIN, INT_MAX, 4194303, 2 /* kthreadd */ };
	static const unsigned int mechanisms[] = { 3, 31, 32, 63, 0x80000000, UINT_MAX };
	struct trapless_dirty_attach whom = { .pid = getpid() };
	int fd = open_device();
	pid_t zombie = start_child();

	if (!zombie)
		_exit(0);
	if (waitid(P_PID, (id_t)zombie, &(siginfo_t){ 0 }, WEXITED | WNOWAIT))
		err(1, "waitid");
	refused(attach(fd, zombie), ESRCH, 0, "ATTACH to a zombie");
	for (size_t i = 0; i < sizeof(pids) / sizeof(*pids); i++)
		refused(attach(fd, pids[i]), ESRCH, EINVAL, "ATTACH to nobody");
	for (size_t i = 0; i < sizeof(mechanisms) / sizeof(*mechanisms); i++) {
		whom.mechanism = mechanisms[i];
		refused(ioctl(fd, TRAPLESS_DIRTY_ATTACH, &whom), EOPNOTSUPP, EINVAL,
			"ATTACH by no mechanism");
	}
	refused(ioctl(fd, TRAPLESS_DIRTY_ATTACH, NULL), EFAULT, 0, "ATTACH of NULL");
	must(attach(fd, getpid()), "ATTACH");
	refused(attach(fd, getpid()), EBUSY, 0, "a second ATTACH");
	refused(attach(fd, 4194303), EBUSY, ESRCH, "a second ATTACH, to nobody");
	still_works(fd, small_pages(PAGES));
}

static void bad_ranges(void)
{
	char *memory = small_pages(PAGES);
	uint64_t here = (uintptr_t)memory;
	const struct trapless_dirty_range bad[] = {
		{ here + 1, here + PAGE },
		{ here, here + PAGE + 1 },
		{ here + 8, here + PAGE + 8 },
		{ here, here },
		{ 0, 0 },
		{ here + PAGE, here },
		{ here, 0 },
		{ -PAGE, 0 },
		{ -2 * PAGE, -PAGE },
		{ -PAGE, PAGE },
		{ ADDRESSES, ADDRESSES + PAGE },
		{ ADDRESSES - PAGE, ADDRESSES + PAGE },
		{ here, ADDRESSES + PAGE },
		{ here, -PAGE },
		{ 0xffff888000000000, 0xffff888000001000 },
		{ 0xffffffff81000000, 0xffffffff81001000 },
		{ 0xffffffffff600000, 0xffffffffff601000 }, /* vsyscall */
	};
	int fd = tracker_of(getpid());

	for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
		char what[64];

		snprintf(what, sizeof(what), "%#llx to %#llx", (unsigned long long)bad[i].start,
			 (unsigned long long)bad[i].end);
		refused(ioctl(fd, TRAPLESS_DIRTY_WATCH, &bad[i]), EINVAL, 0, what);
		refused(ioctl(fd, TRAPLESS_DIRTY_UNWATCH, &bad[i]), EINVAL, 0, what);
	}
	refused(ioctl(fd, TRAPLESS_DIRTY_WATCH, NULL), EFAULT, 0, "WATCH of NULL");
	refused(ioctl(fd, TRAPLESS_DIRTY_UNWATCH, -PAGE), EFAULT, 0, "UNWATCH of the kernel's");
	still_works(fd, memory);
}

static void overlaps(void)
{
	char *memory = small_pages(PAGES), reported[PAGES] = { 0 };
	char written[PAGES] = { [4] = 1, [5] = 1, [8] = 1, [11] = 1, [12] = 1 };
	int fd = watching(getpid(), memory + 4 * PAGE, 8);

	refused(watch(fd, memory + 4 * PAGE, 8), EEXIST, 0, "the same again");
	refused(watch(fd, memory, 5), EEXIST, 0, "its head");
	refused(watch(fd, memory + 11 * PAGE, 5), EEXIST, 0, "its tail");
	refused(watch(fd, memory + 6 * PAGE, 1), EEXIST, 0, "a part of it");
	refused(watch(fd, memory, PAGES), EEXIST, 0, "more than it");
	for (size_t i = 0; i < PAGES; i++)
		memory[i * PAGE]++;
	if (harvest(fd, memory, PAGES, reported) != 8)
		errx(1, "a refused WATCH watches");

	must(watch(fd, memory + 12 * PAGE, 1), "its neighbour");
	must(unwatch(fd, memory + 6 * PAGE, 2), "UNWATCH from its middle");
	must(unwatch(fd, memory + 6 * PAGE, 2), "UNWATCH of what is not watched");
	must(unwatch(fd, memory + 9 * PAGE, 1), "UNWATCH from its middle");
	must(watch(fd, memory + 9 * PAGE, 1), "what was unwatched");
	must(unwatch(fd, memory + 9 * PAGE, 1), "and again");
	for (size_t i = 0; i < PAGES; i++)
		if (i != 10)
			memory[i * PAGE]++;
	memset(reported, 0, sizeof(reported));
	harvest(fd, memory, PAGES, reported);
	check_reported(reported, written, PAGES, "what is left of it");
	must(ioctl(fd, TRAPLESS_DIRTY_UNWATCH,
		   &(struct trapless_dirty_range){ PAGE, ADDRESSES - PAGE }),
	     "UNWATCH of everything");
	memset(memory, 9, PAGES * PAGE);
	if (harvest(fd, memory, PAGES, reported))
		errx(1, "something is reported and nothing is watched");
}

/* Every other page of PAGES pages is written, and collected. */
static char *half_dirty(int *fd, char *written)
{
	char *memory = small_pages(PAGES);

	*fd = watching(getpid(), memory, PAGES);
	for (size_t i = 1; i < PAGES; i += 2) {
		memory[i * PAGE]++;
		written[i] = 1;
	}
	must(collect(*fd), "COLLECT");
	return memory;
}

static void read_arguments(void)
{
	char written[PAGES] = { 0 }, reported[PAGES] = { 0 };
	struct trapless_dirty_range *whole, *edge, range;
	int fd;
	char *memory = half_dirty(&fd, written);

	whole = map_at(NULL, 2 * PAGE, MAP_PRIVATE | MAP_ANONYMOUS, -1);
	if (mprotect(whole, PAGE, PROT_READ) || mprotect((char *)whole + PAGE, PAGE, PROT_NONE))
		err(1, "mprotect");
	refused(take(fd, &range, 0), EINVAL, 0, "READ of none");
	refused(take(fd, NULL, 1), EFAULT, 0, "READ to NULL");
	refused(take(fd, (void *)-PAGE, 8), EFAULT, 0, "READ to the kernel");
	refused(take(fd, (void *)0xffff888000001000, 8), EFAULT, 0, "READ to the kernel");
	refused(take(fd, (void *)-8UL, UINT_MAX), EFAULT, 0, "READ that wraps");
	refused(take(fd, (void *)0x8000000000000000, 4), EFAULT, 0, "READ to no address");
	refused(take(fd, whole, 8), EFAULT, 0, "READ to a read-only page");
	refused(take(fd, whole + PAGE / sizeof(*whole), 8), EFAULT, 0, "READ to PROT_NONE");
	refused(ioctl(fd, TRAPLESS_DIRTY_READ, NULL), EFAULT, 0, "READ of NULL");
	refused(ioctl(fd, TRAPLESS_DIRTY_GET_STATS, NULL), EFAULT, 0, "GET_STATS of NULL");
	read_into(fd, memory, PAGES, reported);
	check_reported(reported, written, PAGES, "after READs that were refused");

	/* Room for two and a half, and a greater capacity. */
	close(fd);
	memset(reported, 0, sizeof(reported));
	memory = half_dirty(&fd, written);
	if (mprotect(whole, PAGE, PROT_READ | PROT_WRITE))
		err(1, "mprotect");
	edge = (void *)((char *)whole + PAGE - 2 * sizeof(*edge) - 8);
	refused(take(fd, edge, 8), EFAULT, 0, "READ over the end");
	for (size_t i = 0; i < 2; i++)
		if (edge[i].end)
			reported[(edge[i].start - (uintptr_t)memory) / PAGE] = 1;
	read_into(fd, memory, PAGES, reported);
	check_reported(reported, written, PAGES, "what was stored and what was not");
}

static void one_by_one(void)
{
	char written[PAGES] = { 0 };
	struct trapless_dirty_range range;
	int fd;
	char *memory = half_dirty(&fd, written);

	for (size_t i = 1; i < PAGES; i += 2)
		if (take(fd, &range, 1) != 1 || range.start != (uintptr_t)memory + i * PAGE ||
		    range.end != range.start + PAGE)
			errx(1, "READ did not report page %zu", i);
	if (take(fd, &range, 1))
		errx(1, "READ reports more than there is");
}

/* What COLLECT has found is not lost when it cannot say how it went. */
static void collect_to_nowhere(void)
{
	char *memory = small_pages(PAGES), *page = map_private(1);
	char written[PAGES] = { [2] = 1, [7] = 1 }, reported[PAGES] = { 0 };
	int fd = watching(getpid(), memory, PAGES);

	memory[2 * PAGE]++;
	refused(ioctl(fd, TRAPLESS_DIRTY_COLLECT, NULL), EFAULT, 0, "COLLECT to NULL");
	memory[7 * PAGE]++;
	if (mprotect(page, PAGE, PROT_READ))
		err(1, "mprotect");
	refused(ioctl(fd, TRAPLESS_DIRTY_COLLECT, page), EFAULT, 0, "COLLECT to a read-only page");
	harvest(fd, memory, PAGES, reported);
	check_reported(reported, written, PAGES, "after COLLECTs that were refused");
}

static void no_such_call(void)
{
	static const unsigned long commands[] = {
		_IO(0xd1, 0), _IOR(0xd1, 7, long), _IOWR(0xd1, 255, long), _IOW(0xd1, 0, int),
		_IOR(0xd1, 1, struct trapless_dirty_attach), _IOW(0xd1, 2, int),
		_IOC(_IOC_READ | _IOC_WRITE, 0xd1, 5, 16383), 0, -1UL, 0x5401 /* TCGETS */,
	};
	char bytes[16384] = { 0 };
	int fd = tracker_of(getpid());

	for (size_t i = 0; i < sizeof(commands) / sizeof(*commands); i++)
		refused(ioctl(fd, commands[i], bytes), ENOTTY, EINVAL, "no such command");
	if (read(fd, bytes, 1) >= 0 || write(fd, bytes, 1) >= 0 || pread(fd, bytes, 1, 0) >= 0)
		errx(1, "it reads or writes like a file");
	for (int protection = 0; protection < 8; protection++)
		for (int sharing = MAP_SHARED; sharing <= MAP_PRIVATE; sharing++)
			if (mmap(NULL, PAGE, protection, sharing, fd, 0) != MAP_FAILED ||
			    errno != ENODEV)
				err(1, "mmap, protection %d", protection);
	still_works(fd, small_pages(PAGES));
}

/* Each file reports what it watches, and nothing that only another watches. */
static void files_apart(void)
{
	char *memory = small_pages(PAGES), reported[PAGES] = { 0 }, written[PAGES] = { [9] = 1 };
	int one = watching(getpid(), memory, 8), other = watching(getpid(), memory + 8 * PAGE, 8);
	int idle = tracker_of(getpid()), third = open_device();

	memory[PAGE]++;
	memory[9 * PAGE]++;
	must(collect(one), "COLLECT");
	if (harvest(idle, memory, PAGES, reported))
		errx(1, "a file that watches nothing gets reports");
	refused(take(third, NULL, 1), ENOTCONN, 0, "READ by a third");
	harvest(other, memory + 8 * PAGE, 8, reported + 8);
	check_reported(reported, written, PAGES, "the second file");
	close(other);
	if (read_into(one, memory, 8, reported) != 1 || !reported[1])
		errx(1, "the first file's page went with the second");
}

/* A forked child's writes are not its parent's. */
static void child_apart(void)
{
	char *memory = small_pages(PAGES), reported[PAGES] = { 0 }, written[PAGES] = { [5] = 1 };
	int fd = watching(getpid(), memory, PAGES);
	pid_t pid = start_child();

	if (!pid) {
		memset(memory, 77, 3 * PAGE);
		memset(memory + 8 * PAGE, 77, 3 * PAGE);
		_exit(0);
	}
	memory[5 * PAGE]++;
	wait_child(pid);
	harvest(fd, memory, PAGES, reported);
	check_reported(reported, written, PAGES, "the parent");
	still_works(fd, memory);
}

static void as_nobody(pid_t root, pid_t other)
{
	pid_t own, secret;
	int fd = open_device();

	become(NOBODY);
	own = waiter(NOBODY, 1);
	secret = waiter(NOBODY, 0);
	refused(attach(fd, 1), EPERM, EACCES, "ATTACH to init");
	refused(attach(fd, root), EPERM, EACCES, "ATTACH to root's");
	refused(attach(fd, other), EPERM, EACCES, "ATTACH to another user's");
	refused(attach(fd, secret), EPERM, EACCES, "ATTACH to one that is not dumpable");
	refused(attach(fd, getppid()), EPERM, EACCES, "ATTACH to the parent");
	refused(watch(fd, zeros, 1), EINVAL, ENOTCONN, "WATCH after that");
	must(attach(fd, own), "ATTACH to one's own child");
	close(fd);
	fd = tracker_of(getpid());
	still_works(fd, small_pages(PAGES));
	end(secret);
	end(own);
}

static void unprivileged(void)
{
	pid_t root = waiter(0, 1), other = waiter(SOMEBODY, 1), nobody = start_child();

	if (!nobody) {
		as_nobody(root, other);
		exit(0);
	}
	wait_child(nobody);
	end(other);
	end(root);
}

static void as_root(void)
{
	pid_t other = waiter(SOMEBODY, 1), secret = waiter(SOMEBODY, 0);

	close(tracker_of(1));
	close(tracker_of(other));
	close(tracker_of(secret));
	end(other);
	end(secret);
}

/* In a namespace of its own it is pid 1, and pids of outside are nobody. */
static void pid_namespace(void)
{
	pid_t outside = getpid(), pid;

	if (unshare(CLONE_NEWPID))
		err(1, "unshare");
	pid = start_child();
	if (!pid) {
		int fd = open_device();

		refused(attach(fd, outside), ESRCH, 0, "ATTACH to outside");
		must(attach(fd, 1), "ATTACH to pid 1");
		still_works(fd, small_pages(PAGES));
		exit(0);
	}
	wait_child(pid);
}

/* Where both programs, the tracked one and what it executes, write. */
#define COMMON ((char *)0x200000000000)

static char *common_memory(void)
{
	char *memory = map_at(COMMON, PAGES * PAGE,
			      MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED_NOREPLACE, -1);

	memset(memory, 1, PAGES * PAGE);
	return memory;
}

/*
 * What a tracked process executes, on descriptors 3 and 4: says that it runs, and
 * writes once more on each byte that comes.
 */
static int executed(void)
{
	char byte = 0, *memory = common_memory();

	while (write(4, &byte, 1) == 1 && read(3, &byte, 1) == 1)
		memset(memory, byte++, PAGES * PAGE);
	return 0;
}

/* A child that maps the common memory, then executes this when a byte comes. */
static pid_t exec_child(const char *program, int *to, int *from)
{
	int there[2], back[2];
	char byte = 0;
	pid_t pid;

	if (pipe(there) || pipe(back))
		err(1, "pipe");
	pid = start_child();
	if (!pid) {
		common_memory();
		if (dup2(there[0], 300) < 0 || dup2(back[1], 301) < 0 || dup2(300, 3) < 0 ||
		    dup2(301, 4) < 0)
			err(1, "dup2");
		if (close_range(5, ~0U, 0))
			err(1, "close_range");
		if (write(4, &byte, 1) != 1 || read(3, &byte, 1) != 1)
			err(1, "pipe");
		execl(program, "dirtyaccess", "--executed", NULL);
		err(1, "%s", program);
	}
	close(there[0]);
	close(back[1]);
	*to = there[1];
	*from = back[0];
	if (read(*from, &byte, 1) != 1)
		errx(1, "a child did not start");
	return pid;
}

static void go_on(int to, int from)
{
	char byte = 7;

	if (write(to, &byte, 1) != 1 || read(from, &byte, 1) != 1)
		errx(1, "the tracked process is gone");
}

/* Nothing of the new program is reported through this file, whatever it asks. */
static void over_exec(const char *program, int again)
{
	char reported[PAGES] = { 0 };
	int to, from, fd;
	pid_t pid = exec_child(program, &to, &from);

	fd = watching(pid, COMMON, PAGES);
	go_on(to, from);
	refused(collect(fd), ESRCH, 0, "COLLECT after exec");
	read_into(fd, COMMON, PAGES, reported); /* of the old program: all of it, or nothing */
	for (int round = 0; round < 3; round++) {
		go_on(to, from);
		refused(collect(fd), ESRCH, 0, "COLLECT after exec and a write");
		if (read_into(fd, COMMON, PAGES, reported))
			errx(1, "writes of the new program are reported");
	}
	refused(watch(fd, COMMON + PAGES * PAGE, PAGES), ESRCH, 0, "WATCH after exec");
	refused(attach(fd, pid), EBUSY, 0, "ATTACH after exec");
	close(fd);
	fd = open_device();
	if (again)
		must(attach(fd, pid), "ATTACH to the new program");
	else
		refused(attach(fd, pid), EPERM, EACCES, "ATTACH to the new program");
	close(to);
	end(pid);
}

static void exec_ends_tracking(void)
{
	over_exec("/proc/self/exe", 1);
}

static void suid_exec_ends_tracking(void)
{
	char buffer[65536];
	ssize_t bytes;
	int from = open("/proc/self/exe", O_RDONLY), to = creat(SUID_COPY, 0755);

	if (from < 0 || to < 0)
		err(1, SUID_COPY);
	while ((bytes = read(from, buffer, sizeof(buffer))) > 0)
		if (write(to, buffer, (size_t)bytes) != bytes)
			err(1, "write");
	if (fchmod(to, 04755) || close(to))
		err(1, SUID_COPY);
	become(NOBODY);
	over_exec(SUID_COPY, 0);
}

static void after_exit(void)
{
	char reported[PAGES] = { 0 };
	int to, from, fd;
	pid_t pid = exec_child("/proc/self/exe", &to, &from);

	fd = watching(pid, COMMON, PAGES);
	end(pid);
	refused(collect(fd), ESRCH, 0, "COLLECT after exit");
	read_into(fd, COMMON, PAGES, reported);
	refused(collect(fd), ESRCH, 0, "COLLECT once more");
	must(unwatch(fd, COMMON, PAGES), "UNWATCH after exit");
}

static void pass(int socket, int fd)
{
	char byte = 0, space[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = { 0 };
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = space,
				  .msg_controllen = sizeof(space) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	if (sendmsg(socket, &message, 0) != 1)
		err(1, "sendmsg");
}

static int passed(int socket)
{
	char byte, space[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8)));
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = space,
				  .msg_controllen = sizeof(space) };
	int fd;

	if (recvmsg(socket, &message, 0) != 1 || !CMSG_FIRSTHDR(&message))
		err(1, "recvmsg");
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

/* A process that the owner passes the file to may use it; the tracking goes on there. */
static void passed_on(void)
{
	char *memory = small_pages(PAGES), byte = 0;
	int sockets[2], fd = watching(getpid(), memory, PAGES);
	pid_t pid;

	if (socketpair(AF_UNIX, SOCK_SEQPACKET, 0, sockets))
		err(1, "socketpair");
	pid = start_child();
	if (!pid) {
		char reported[PAGES] = { 0 }, written[PAGES] = { [6] = 1 };
		int own;

		close(fd);
		close(sockets[0]);
		become(NOBODY);
		own = passed(sockets[1]);
		harvest(own, memory, PAGES, reported);
		check_reported(reported, written, PAGES, "who was passed the file");
		exit(0);
	}
	close(sockets[1]);
	memory[6 * PAGE]++;
	pass(sockets[0], fd);
	close(fd);
	if (read(sockets[0], &byte, 1))
		errx(1, "the child said something");
	wait_child(pid);
}

/* A page whose first fault is left pending by a userfaultfd: a write to it waits. */
static int pending_page(char *page)
{
	struct uffdio_api api = { .api = UFFD_API };
	struct uffdio_register registration = {
		.range = { (uintptr_t)page, PAGE },
		.mode = UFFDIO_REGISTER_MODE_MISSING,
	};
	int fd = (int)syscall(SYS_userfaultfd, O_CLOEXEC);

	if (fd < 0 || ioctl(fd, UFFDIO_API, &api) || ioctl(fd, UFFDIO_REGISTER, &registration))
		err(1, "userfaultfd");
	return fd;
}

struct reader {
	int fd;
	struct trapless_dirty_range *ranges;
	int count;
};

static void *read_slowly(void *data)
{
	struct reader *reader = data;

	reader->count = take(reader->fd, reader->ranges, 4);
	return NULL;
}

/* A READ whose array is slow to fault in does not delay other files. */
static void slow_reader(void)
{
	char *memory = small_pages(PAGES), *page = map_private(1);
	struct reader reader = { .fd = watching(getpid(), memory, PAGES), .ranges = (void *)page };
	struct uffdio_zeropage zero = { .range = { (uintptr_t)page, PAGE } };
	struct uffd_msg message;
	pthread_t thread;
	pid_t other;
	int uffd, fd;

	other = waiter(0, 1);
	memory[PAGE]++;
	must(collect(reader.fd), "COLLECT");
	uffd = pending_page(page);
	if (pthread_create(&thread, NULL, read_slowly, &reader))
		errx(1, "pthread_create");
	if (read(uffd, &message, sizeof(message)) != sizeof(message))
		err(1, "userfaultfd");
	/* It waits now; a delay here ends this process, and with it the wait. */
	alarm(60);
	fd = watching(getpid(), memory, PAGES);
	must(collect(fd), "COLLECT of the same memory");
	close(fd);
	close(watching(other, memory, PAGES));
	alarm(0);
	if (ioctl(uffd, UFFDIO_ZEROPAGE, &zero))
		err(1, "UFFDIO_ZEROPAGE");
	pthread_join(thread, NULL);
	if (reader.count != 1 || reader.ranges->start != (uintptr_t)memory + PAGE)
		errx(1, "the slow reader got %d ranges", reader.count);
	end(other);
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "info", info },
		{ "unattached", unattached },
		{ "attach-arguments", attach_arguments },
		{ "bad-ranges", bad_ranges },
		{ "overlaps", overlaps },
		{ "read-arguments", read_arguments },
		{ "one-by-one", one_by_one },
		{ "collect-to-nowhere", collect_to_nowhere },
		{ "no-such-call", no_such_call },
		{ "files-apart", files_apart },
		{ "child-apart", child_apart },
		{ "unprivileged", unprivileged },
		{ "as-root", as_root },
		{ "pid-namespace", pid_namespace },
		{ "exec-ends-tracking", exec_ends_tracking },
		{ "suid-exec-ends-tracking", suid_exec_ends_tracking },
		{ "after-exit", after_exit },
		{ "passed-on", passed_on },
		{ "slow-reader", slow_reader },
	};

	if (argc == 2 && !strcmp(argv[1], "--executed"))
		return executed();
	return run_cases(CASES(cases), argc, argv);
}
