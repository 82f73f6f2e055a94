/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * profiled COMMAND [ARGUMENT...]: run a command between the profiler's markers.
 *
 * It exits as the command did, and prints, after the stop marker,
 *
 *   around ns=NANOSECONDS                   from marker to marker
 *
 * the time for which the profiler counted, unless the command has markers of its
 * own; such a command prints a record "profiled ns=" for each pair.
 */
#include <stdio.h>

#include "measure.h"
#include "profiled.h"

int main(int argc, char **argv)
{
	uint64_t start, spent;
	int status;
	pid_t pid;

	if (argc < 2) {
		fprintf(stderr, "usage: profiled COMMAND [ARGUMENT...]\n");
		return 2;
	}
	start = now_ns();
	profiled_start();
	pid = start_child();
	if (!pid) {
		execvp(argv[1], argv + 1);
		warn("%s", argv[1]);
		_exit(127);
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			err(1, "waitpid");
	profiled_stop();
	spent = now_ns() - start;
	printf("around ns=%llu\n", (unsigned long long)spent);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
