/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * dirtykill [CASE...], dirtykill hold: trackers and tracked processes that die.
 *
 * One of the two is killed after each step of the tracker, and then at random
 * moments. Afterwards the other goes on unharmed, and the module is not in use any
 * more, as /sys/module shows. "hold" tracks itself until it is killed.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include "tracker.h"

#define PAGES 1100UL /* of more than two page tables */
#define HALF (PAGES / 2)
#define MOMENTS 60
#define PATIENCE 3000 /* of 10 ms */
#define MODULE "trapless_dirty"

struct shared {
	volatile unsigned long loops;
	volatile int stop;
	volatile int looked;
	volatile int collected;
};

static char *memory; /* mapped before the fork: at the same place in both */
static struct shared *shared;

static void prepare(void)
{
	memory = map_private(PAGES);
	shared = map_at(NULL, PAGE, MAP_SHARED | MAP_ANONYMOUS, -1);
}

static void tracked(void)
{
	for (unsigned long loop = 1; !shared->stop; loop++) {
		for (size_t i = 0; i < PAGES; i++) {
			volatile unsigned long *word = (void *)(memory + i * PAGE);

			if (*word != loop - 1)
				errx(1, "page %zu holds %lu in loop %lu", i, *word, loop);
			*word = loop;
		}
		shared->loops = loop;
	}
	_exit(0);
}

/* It has gone twice through its memory since. */
static void wait_loops(void)
{
	unsigned long now = shared->loops;

	for (unsigned int i = 0; shared->loops < now + 2; i++) {
		if (i == PATIENCE)
			errx(1, "the tracked process stands still");
		usleep(10000);
	}
}

static pid_t start_tracked(void)
{
	pid_t pid;

	shared->loops = 0;
	shared->stop = 0;
	pid = start_child();
	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		tracked();
	}
	wait_loops();
	return pid;
}

static void end_tracked(pid_t pid)
{
	wait_loops();
	shared->stop = 1;
	wait_child(pid);
}

static void kill_and_wait(pid_t pid)
{
	int status;

	if (kill(pid, SIGKILL) || waitpid(pid, &status, 0) != pid)
		err(1, "kill");
	if (!WIFSIGNALED(status) || WTERMSIG(status) != SIGKILL)
		errx(1, "wait status %#x before it was killed", (unsigned int)status);
}

static unsigned long users(void)
{
	FILE *file = fopen("/sys/module/" MODULE "/refcnt", "r");
	unsigned long count;

	if (!file || fscanf(file, "%lu", &count) != 1)
		err(1, "refcnt");
	fclose(file);
	return count;
}

static void released(void)
{
	for (unsigned int i = 0; users(); i++) {
		if (i == PATIENCE)
			errx(1, "the module has %lu users still", users());
		usleep(10000);
	}
}

enum step { OPEN, ATTACH, WATCH, WATCH_REST, COLLECT, READ_ONE, READ, UNWATCH, COLLECT_LESS,
	    WATCH_AGAIN, COLLECT_AGAIN, CLOSE, STEPS };

static int perform(enum step step, int *fd, pid_t pid)
{
	static struct trapless_dirty_range ranges[64];

	switch (step) {
	case OPEN:
		*fd = open_device();
		return 0;
	case ATTACH:
		return attach(*fd, pid);
	case WATCH:
		return watch(*fd, memory, HALF);
	case WATCH_REST:
		return watch(*fd, memory + HALF * PAGE, PAGES - HALF);
	case COLLECT:
	case COLLECT_LESS:
	case COLLECT_AGAIN:
		return collect(*fd);
	case READ_ONE:
		return take(*fd, ranges, 1);
	case READ:
		return take(*fd, ranges, 64);
	case UNWATCH:
		return unwatch(*fd, memory + 100 * PAGE, HALF);
	case WATCH_AGAIN:
		return watch(*fd, memory + 100 * PAGE, HALF);
	default:
		return close(*fd);
	}
}

/* The tracker is killed after each step, by itself. */
static void tracker_at_each_step(void)
{
	pid_t pid;

	prepare();
	pid = start_tracked();
	for (enum step last = OPEN; last < STEPS; last++) {
		pid_t tracker = start_child();
		int status, fd;

		if (!tracker) {
			for (enum step step = OPEN; step <= last; step++)
				must(perform(step, &fd, pid), "a step");
			raise(SIGKILL);
		}
		if (waitpid(tracker, &status, 0) != tracker || !WIFSIGNALED(status))
			errx(1, "the tracker failed before it died in step %d", last);
		released();
		wait_loops();
	}
	end_tracked(pid);
}

static void __attribute__((noreturn)) track_for_ever(pid_t pid)
{
	int fd;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	for (;;)
		for (enum step step = OPEN; step < STEPS; step++)
			must(perform(step, &fd, pid), "a step");
}

/* How long from fork to kill: other moments of the tracker's loop each time. */
static void moment(unsigned int which)
{
	uint64_t until = now_ns() + which * which * 20000ULL;

	while (now_ns() < until)
		usleep(0);
}

static void tracker_at_any_time(void)
{
	pid_t pid;

	prepare();
	pid = start_tracked();
	for (unsigned int i = 0; i < MOMENTS; i++) {
		pid_t tracker = start_child();

		if (!tracker)
			track_for_ever(pid);
		moment(i);
		kill_and_wait(tracker);
	}
	released();
	end_tracked(pid);
}

/* The tracked process dies after a step; the others find it gone, or work. */
static void tracked_at_each_step(void)
{
	prepare();
	for (enum step last = OPEN; last < CLOSE; last++) {
		pid_t pid = start_tracked();
		int fd;

		for (enum step step = OPEN; step < STEPS; step++) {
			/* Who came too late to attach is not connected. */
			if (perform(step, &fd, pid) < 0 &&
			    (step <= last || (errno != ESRCH && (last || errno != ENOTCONN))))
				err(1, "step %d of a process killed after step %d", step, last);
			if (step == last)
				kill_and_wait(pid);
		}
		released();
	}
}

/* It dies while its tracker, which goes on till then, does this or that. */
static void tracked_at_any_time(void)
{
	prepare();
	for (unsigned int i = 0; i < MOMENTS / 2; i++) {
		pid_t pid = start_tracked(), tracker = start_child();
		int status;

		if (!tracker) {
			int fd;

			for (;;)
				for (enum step step = OPEN; step < STEPS; step++)
					if (perform(step, &fd, pid) < 0)
						_exit(errno == ESRCH ? 0 : errno);
		}
		moment(i);
		kill_and_wait(pid);
		if (waitpid(tracker, &status, 0) != tracker || status)
			errx(1, "the tracker of a killed process: wait status %#x", status);
	}
	released();
}

/* Tracker and tracked are one, and die in one. */
static void both_at_any_time(void)
{
	prepare();
	for (unsigned int i = 0; i < MOMENTS / 2; i++) {
		pid_t pid = start_child();

		if (!pid) {
			pthread_t thread;

			if (pthread_create(&thread, NULL, (void *(*)(void *))tracked, NULL))
				errx(1, "pthread_create");
			track_for_ever(getpid());
		}
		moment(i);
		kill_and_wait(pid);
	}
	released();
}

static void still_tells(int fd)
{
	char reported[8] = { 0 }, written[8] = { [5] = 1 };

	harvest(fd, memory, 8, reported);
	memset(reported, 0, sizeof(reported));
	memory[5 * PAGE]++;
	harvest(fd, memory, 8, reported);
	check_reported(reported, written, 8, "afterwards");
}

/* A child has the file too; it closes it, or dies with it. */
static void forked_tracker(void)
{
	int fd;

	prepare();
	memory = small_pages(8); /* or one write would be of all of a huge page */
	fd = watching(getpid(), memory, 8);
	for (int closes = 0; closes < 2; closes++) {
		pid_t pid = start_child();

		if (!pid) {
			if (closes)
				close(fd);
			_exit(0);
		}
		wait_child(pid);
		still_tells(fd);
	}
	close(fd);
	released();
}

/* The child is left with it, and uses it, when the tracker has died. */
static void orphaned_file(void)
{
	pid_t pid, tracker;

	prepare();
	pid = start_tracked();
	tracker = start_child();
	if (!tracker) {
		int fd = watching(pid, memory, PAGES);

		if (!start_child()) {
			for (int ms = 0; !shared->looked && ms < 60000; ms++)
				usleep(1000);
			must(collect(fd), "COLLECT by a child of the dead");
			shared->collected = 1;
			_exit(0);
		}
		raise(SIGKILL);
	}
	waitpid(tracker, NULL, 0);
	if (!users())
		errx(1, "the file was released while a child has it");
	shared->looked = 1;
	released();
	if (!shared->collected)
		errx(1, "the child could not collect");
	end_tracked(pid);
}

/* In a socket that nobody will read. */
static void in_flight(void)
{
	char byte = 0, space[CMSG_SPACE(sizeof(int))] __attribute__((aligned(8))) = { 0 };
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = space,
				  .msg_controllen = sizeof(space) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);
	int sockets[2], fd;

	prepare();
	fd = watching(getpid(), memory, PAGES);
	if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets))
		err(1, "socketpair");
	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	if (sendmsg(sockets[0], &message, 0) != 1)
		err(1, "sendmsg");
	close(fd);
	if (!users())
		errx(1, "the file was released in flight");
	close(sockets[0]);
	close(sockets[1]);
	released();
}

/* While a tracker exists, the module cannot be unloaded, and tracking goes on. */
static void unload_refused(void)
{
	int fd;

	prepare();
	memory = small_pages(8); /* or one write would be of all of a huge page */
	fd = watching(getpid(), memory, 8);
	refused((int)syscall(SYS_delete_module, MODULE, O_NONBLOCK), EWOULDBLOCK, 0, "unloading");
	still_tells(fd);
	close(fd);
	fd = open_device();
	refused((int)syscall(SYS_delete_module, MODULE, O_NONBLOCK), EWOULDBLOCK, 0,
		"unloading with an open file");
	close(fd);
	released();
}

static void hold(void)
{
	prepare();
	memset(memory, 1, PAGES * PAGE);
	watching(getpid(), memory, PAGES);
	memset(memory, 2, PAGES * PAGE);
	must(collect(watching(getpid(), memory, PAGES)), "COLLECT");
	puts("holding");
	fflush(stdout);
	for (;;)
		pause();
}

int main(int argc, char **argv)
{
	static const struct test_case cases[] = {
		{ "tracker-at-each-step", tracker_at_each_step },
		{ "tracker-at-any-time", tracker_at_any_time },
		{ "tracked-at-each-step", tracked_at_each_step },
		{ "tracked-at-any-time", tracked_at_any_time },
		{ "both-at-any-time", both_at_any_time },
		{ "forked-tracker", forked_tracker },
		{ "orphaned-file", orphaned_file },
		{ "in-flight", in_flight },
		{ "unload-refused", unload_refused },
	};

	if (argc == 2 && !strcmp(argv[1], "hold"))
		hold();
	return run_cases(CASES(cases), argc, argv);
}
