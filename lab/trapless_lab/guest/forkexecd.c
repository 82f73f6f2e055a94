/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * forkexecd COUNT COMMAND [ARGUMENT...]: run a command COUNT times in the way in which
 * xapi's daemon of that name starts a helper.
 *
 * The daemon forks a process for each request; that one forks again, the grandchild
 * executes the program, and its parent waits for it and reports to the daemon: two forks
 * and an exec a helper.
 *
 * The output of the commands is not read. The first that fails ends the program.
 */
#include <stdio.h>
#include <string.h>

#include "measure.h"

/* Returns the exit code of the command, which it waits for. */
static int session(char **argv)
{
	int status;
	pid_t pid = start_child();

	if (!pid) {
		execvp(argv[0], argv);
		err(127, "%s", argv[0]);
	}
	while (waitpid(pid, &status, 0) < 0)
		if (errno != EINTR)
			err(1, "waitpid");
	return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

int main(int argc, char **argv)
{
	unsigned long count;

	if (argc < 3) {
		fprintf(stderr, "usage: forkexecd COUNT COMMAND [ARGUMENT...]\n");
		return 2;
	}
	count = number(argv[1], "COUNT");
	for (unsigned long i = 0; i < count; i++) {
		pid_t pid = start_child();

		if (!pid)
			_exit(session(argv + 2));
		wait_child(pid);
	}
	return 0;
}
