// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Process creation and exit, as lmbench measures them, and many runs of echo.
 *
 * Invariant: a child's exit status is checked, so that a program that did not run
 * does not count as fast. The executed programs are in small/, which says why.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "workload.h"

static char *const echo[] = { "/bin/echo", "abracadabra", NULL };
static char *const shell[] = { "/bin/sh", "-c", "echo abracadabra", NULL };
static char *const environment[] = { NULL };

/* How many run at the same time. */
#define SPAWNED	8

/* A child that executes @argv, or nothing at all. */
static void start_child(char *const argv[])
{
	if (checked(fork()))
		return;
	if (argv)
		execve(argv[0], argv, environment);
	_exit(argv ? 127 : 0);
}

static void end_child(void)
{
	int status;

	checked(wait(&status));
	if (status) {
		errno = ECHILD;
		die("a child did not do what it was made for");
	}
}

/* @count children, of which @at_once are alive at a time. */
static void repeat(const char *name, unsigned int count, char *const argv[], unsigned int at_once)
{
	int null = checked(open("/dev/null", O_WRONLY));
	int console = checked(dup(STDOUT_FILENO));
	uint64_t from, spent;

	checked(dup2(null, STDOUT_FILENO));
	start_child(argv);
	end_child();
	from = ticks();
	for (unsigned int i = 0; i < count; i += at_once) {
		for (unsigned int j = 0; j < at_once; j++)
			start_child(argv);
		for (unsigned int j = 0; j < at_once; j++)
			end_child();
	}
	spent = ticks() - from;
	checked(dup2(console, STDOUT_FILENO));
	report(name, spent, count);
}

static void run_fork(const char *name, unsigned int count)
{
	repeat(name, count, NULL, 1);
}

static void run_exec(const char *name, unsigned int count)
{
	repeat(name, count, echo, 1);
}

static void run_shell(const char *name, unsigned int count)
{
	repeat(name, count, shell, 1);
}

static void run_echo_spawn(const char *name, unsigned int count)
{
	repeat(name, count, echo, SPAWNED);
}

const struct workload process_workloads[] = {
	{ "fork", run_fork, 10, 200 },
	{ "exec", run_exec, 10, 200 },
	{ "sh", run_shell, 10, 100 },
	/* multiples of SPAWNED */
	{ "echo_spawn", run_echo_spawn, 16, 200 },
	{ }
};
