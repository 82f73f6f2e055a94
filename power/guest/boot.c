// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A whole boot: from reset through the kernel until a small system has started. It
 * triggers the devices' events again, as mdev -s and udevadm trigger do, and runs the
 * commands of its start-up scripts.
 *
 * Invariant: a boot is the same at each scale, and the time covers all of it, from
 * the machine's start (see init.c).
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tree.h"
#include "workload.h"

#define COMMANDS	100

static char *const command[] = { "/bin/sh", "-c", "echo Starting a service", NULL };
static char *const environment[] = { NULL };

static void announce(const char *path, const char *name, bool directory)
{
	int event;

	if (directory || strcmp(name, "uevent"))
		return;
	event = checked(open(path, O_WRONLY));
	checked(write(event, "add", 3));
	close(event);
}

static void start_up(void)
{
	int null = checked(open("/dev/null", O_WRONLY));

	for (int i = 0; i < COMMANDS; i++) {
		int status;

		if (!checked(fork())) {
			dup2(null, STDOUT_FILENO);
			execve(command[0], command, environment);
			_exit(127);
		}
		checked(wait(&status));
		if (status) {
			errno = ECHILD;
			die("a command of the start-up failed");
		}
	}
	close(null);
}

static void run_boot(const char *name, unsigned int count)
{
	const char *start = option("start=");
	char devices[PATH_MAX] = "/sys/devices";

	walk(devices, announce);
	start_up();
	report(name, ticks() - (start ? strtoull(start, NULL, 10) : 0), count);
}

const struct workload boot_workloads[] = {
	{ "boot", run_boot, 1, 1 },
	{ }
};
