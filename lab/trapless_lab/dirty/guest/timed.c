/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * dirtytimed NAME COMMAND...		run it to its end, and print what it took
 * dirtytimed NAME PIDFILE OUTPUT COMMAND...	where NAME is "tracked": the same in a
 *					session of its own, with its output in a file and
 *					its pid in another, so that it can be checkpointed
 * dirtytimed of PID WORDS		print "WORDS cpu_ns=": what a process took so far
 *
 *   timed NAME wall_ns= cpu_ns= faults= status=
 *
 * cpu_ns is the scheduler's sum for the command and for the children that it has waited
 * for, not a count of ticks; of a process, all of its threads, those that have ended too.
 * faults are minor ones.
 */
#define _GNU_SOURCE
#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static uint64_t ns(struct timeval t)
{
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_usec * 1000u;
}

static int taken(pid_t pid, const char *words)
{
	struct timespec t;
	clockid_t clock;

	if (clock_getcpuclockid(pid, &clock) || clock_gettime(clock, &t))
		errx(1, "process %d has no clock", pid);
	printf("%s cpu_ns=%ju\n", words, (uintmax_t)t.tv_sec * 1000000000u + (uintmax_t)t.tv_nsec);
	return 0;
}

/* The child's own: a checkpoint has no terminal and no pipe in it. */
static void detach(const char *pidfile, const char *output)
{
	int nothing = open("/dev/null", O_RDONLY);
	int out = open(output, O_WRONLY | O_CREAT | O_TRUNC, 0644);
	FILE *file = fopen(pidfile, "w");

	if (setsid() < 0 || nothing < 0 || out < 0 || !file)
		err(126, "%s, %s", pidfile, output);
	fprintf(file, "%d\n", getpid());
	if (fclose(file) || dup2(nothing, 0) || dup2(out, 1) != 1 || dup2(out, 2) != 2)
		_exit(126);
	close(nothing);
	close(out);
}

int main(int words, char **word)
{
	int status, is_tracked = words > 1 && !strcmp(word[1], "tracked");
	char **command = word + (is_tracked ? 4 : 2);
	struct rusage used;
	uint64_t start;
	pid_t pid;

	if (words < (is_tracked ? 5 : 3))
		errx(2, "usage: dirtytimed NAME COMMAND... | tracked PIDFILE OUTPUT COMMAND... | of PID WORDS");
	if (!strcmp(word[1], "of") && words == 4)
		return taken(atoi(word[2]), word[3]);
	start = now_ns();
	pid = fork();
	if (pid < 0)
		err(126, "fork");
	if (!pid) {
		if (is_tracked)
			detach(word[2], word[3]);
		execvp(command[0], command);
		err(127, "%s", command[0]);
	}
	while (wait4(pid, &status, 0, &used) < 0)
		if (errno != EINTR)
			err(126, "wait");
	status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	printf("timed %s wall_ns=%ju cpu_ns=%ju faults=%ld status=%d\n", word[1],
	       (uintmax_t)(now_ns() - start), (uintmax_t)(ns(used.ru_utime) + ns(used.ru_stime)),
	       used.ru_minflt, status);
	return status;
}
