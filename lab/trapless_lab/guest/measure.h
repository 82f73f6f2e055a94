/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Shared by the programs that measure: the clock, children, numbers.
 *
 * Under -icount the clock counts instructions, also the hypervisor's. Any error
 * ends the program with a message: there are no partial measurements.
 */
#ifndef MEASURE_H
#define MEASURE_H

#include <err.h>
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define PAGE 4096UL

static inline uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static inline pid_t start_child(void)
{
	pid_t pid = fork();

	if (pid < 0)
		err(1, "fork");
	return pid;
}

static inline void wait_child(pid_t pid)
{
	int status;

	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			err(1, "waitpid");
	if (status)
		errx(1, "a child failed, wait status %#x", (unsigned int)status);
}

static inline unsigned long number(const char *text, const char *option)
{
	char *end;
	unsigned long value;

	errno = 0;
	value = strtoul(text, &end, 10);
	if (errno || *end || end == text || *text == '-' || !value || value > 1000000)
		errx(2, "%s: \"%s\" is not a number from 1 to 1000000", option, text);
	return value;
}

#endif
