// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * System calls one by one, as lmbench measures them.
 *
 * Invariant: a loop makes only the call that it is named for. Everything that the call
 * needs is created, and used once, before the clock is read. libc's stat and fstat are
 * not called: they copy the result with FPU registers.
 */
#include <fcntl.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "workload.h"

#define REPEAT(name, count, call)						\
	do {									\
		uint64_t from_;							\
										\
		call;								\
		from_ = ticks();						\
		for (unsigned int i_ = 0; i_ < (count); i_++) {			\
			call;							\
		}								\
		report(name, ticks() - from_, count);				\
	} while (0)

static const char path[] = "/tmp/measured";

/* More than the kernel's struct stat64. */
static uint64_t found[32];

static int make_file(void)
{
	return checked(open(path, O_RDWR | O_CREAT, 0600));
}

static void run_getppid(const char *name, unsigned int count)
{
	/* libc may not remember the answer */
	REPEAT(name, count, syscall(SYS_getppid));
}

static void run_syscall(const char *name, unsigned int count)
{
	int null = checked(open("/dev/null", O_WRONLY));
	uint32_t word = 0;

	REPEAT(name, count, checked(write(null, &word, sizeof(word))));
}

static void run_stat(const char *name, unsigned int count)
{
	make_file();
	REPEAT(name, count, checked(syscall(SYS_stat64, path, found)));
}

static void run_fstat(const char *name, unsigned int count)
{
	int file = make_file();

	REPEAT(name, count, checked(syscall(SYS_fstat64, file, found)));
}

static void run_open_close(const char *name, unsigned int count)
{
	make_file();
	REPEAT(name, count, checked(close(checked(open(path, O_RDONLY)))));
}

static volatile unsigned int caught;

static void catch(int number)
{
	(void)number;
	caught++;
}

static void run_signal_install(const char *name, unsigned int count)
{
	struct sigaction action = { .sa_handler = catch };

	REPEAT(name, count, checked(sigaction(SIGUSR1, &action, NULL)));
}

static void run_signal_catch(const char *name, unsigned int count)
{
	struct sigaction action = { .sa_handler = catch };
	pid_t self = getpid();

	checked(sigaction(SIGUSR1, &action, NULL));
	REPEAT(name, count, checked(kill(self, SIGUSR1)));
	if (caught != count + 1)
		die("signals were lost");
}

const struct workload system_call_workloads[] = {
	{ "getppid", run_getppid, 1000, 10000 },
	{ "syscall", run_syscall, 200, 10000 },
	{ "stat", run_stat, 100, 5000 },
	{ "fstat", run_fstat, 200, 10000 },
	{ "open_close", run_open_close, 100, 5000 },
	{ "signal_install", run_signal_install, 200, 10000 },
	{ "signal_catch", run_signal_catch, 100, 5000 },
	{ }
};
