// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Process 1 of every machine: bare metal, host and guest. The kernel's command
 * line says what it does:
 *
 *   run=NAME,...      workloads by name, in this order; all is each of them, and those
 *                     of NAME+NAME... run at the same time
 *   scale=quick|full  how often each repeats what it measures; quick if left out
 *   start=TICKS       when this machine was started, for the time of its boot
 *   script=PATH       be a host: see script.c
 *
 * Invariant: it ends by resetting the machine, whatever happened, and says "done"
 * only if everything on the command line was done.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/stat.h>
#include <termios.h>
#include <unistd.h>

#include "workload.h"

static char command_line[4096];

const char *option(const char *name)
{
	static char value[4096];
	char line[sizeof(command_line)];
	char *rest = line;
	char *word;

	strcpy(line, command_line);
	while ((word = strsep(&rest, "\n "))) {
		if (!strncmp(word, name, strlen(name))) {
			strcpy(value, word + strlen(name));
			return value;
		}
	}
	return NULL;
}

void die(const char *what)
{
	/* Standard output may be a file or nothing. */
	fprintf(stderr, "failed: %s: %s\n", what, strerror(errno));
	_exit(1);
}

void report(const char *name, uint64_t spent, unsigned int count)
{
	printf("result %s %llu %u\n", name, (unsigned long long)spent, count);
	fflush(stdout);
}

static void mount_at(const char *type, const char *path)
{
	mkdir(path, 0755);
	checked(mount(type, path, type, 0, NULL));
}

static void prepare(void)
{
	int file;

	mount_at("proc", "/proc");
	mount_at("sysfs", "/sys");
	mount_at("devtmpfs", "/dev");
	mount_at("tmpfs", "/tmp");
	mount_at("debugfs", "/sys/kernel/debug");
	file = checked(open("/proc/cmdline", O_RDONLY));
	checked(read(file, command_line, sizeof(command_line) - 1));
	close(file);
}

int main(void)
{
	uint64_t started = ticks();
	const char *start, *script;
	bool good;

	/* The console that the kernel opened is there already. */
	prepare();
	start = option("start=");
	report("kernel_boot", started - (start ? strtoull(start, NULL, 10) : 0), 1);
	script = option("script=");
	good = script ? run_script(script) : run_workloads();
	printf("lasted %llu\n", (unsigned long long)ticks());
	printf("%s\n", good ? "done" : "not done");
	fflush(stdout);
	tcdrain(STDOUT_FILENO);
	reboot(RB_AUTOBOOT);
	return 1;
}
