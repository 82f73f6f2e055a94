/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * soaked COMMAND [ARGUMENT...]: run a command, and print how many instructions
 * the machine spent on it.
 *
 * A command that waits for a device leaves the processor idle, for a time that
 * depends on the host. So a child uses up the idle time: it runs only when nothing
 * else would, and counts loops of two instructions. Under -icount the clock then
 * counts only instructions, and those that the child did not execute are the
 * command's cost: its own, the kernel's and the hypervisor's, including interrupts
 * and timer ticks.
 *
 * One record, after the command's own output:
 *
 *   soaked ns=NANOSECONDS idle=INSTRUCTIONS
 *
 * The exit code is the command's.
 */
#define _GNU_SOURCE /* SCHED_IDLE */
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <sys/mman.h>

#include "measure.h"

#define PER_LOOP 2

static void __attribute__((noreturn)) soak(volatile uint64_t *loops)
{
	for (;;)
		__asm__ volatile("1: incq %0\n\tjmp 1b" : "+m"(*loops));
}

int main(int argc, char **argv)
{
	static const struct sched_param lowest;
	volatile uint64_t *loops;
	pid_t soaker, command;
	uint64_t start, spent;
	int status;

	if (argc < 2)
		errx(2, "usage: soaked COMMAND [ARGUMENT...]");
	loops = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (loops == MAP_FAILED)
		err(1, "mmap");
	soaker = start_child();
	if (!soaker) {
		if (sched_setscheduler(0, SCHED_IDLE, &lowest))
			err(1, "sched_setscheduler");
		soak(loops);
	}
	/* Make sure that the child is running before the measurement. */
	while (!*loops)
		usleep(1000);

	start = now_ns();
	spent = *loops;
	command = start_child();
	if (!command) {
		execvp(argv[1], argv + 1);
		err(127, "%s", argv[1]);
	}
	while (waitpid(command, &status, 0) < 0)
		if (errno != EINTR)
			err(1, "waitpid");
	spent = *loops - spent;
	start = now_ns() - start;

	if (kill(soaker, SIGKILL) || waitpid(soaker, NULL, 0) != soaker)
		err(1, "the soaker");
	printf("soaked ns=%llu idle=%llu\n", (unsigned long long)start,
	       (unsigned long long)spent * PER_LOOP);
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
