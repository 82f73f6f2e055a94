// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Processes that pass a word on: through a pipe and back, and in rings of processes
 * that each read some memory in their turn, as lmbench's lat_ctx does.
 *
 * Invariant: the cost of a switch does not include pipes or memory. The time in which
 * one process passes the same words through as many pipes and reads the same memory
 * is subtracted.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "workload.h"

#define MOST_PROCESSES	16
#define MOST_BYTES	(32 << 10)

static uint32_t memory[MOST_BYTES / sizeof(uint32_t)];
static int pipes[MOST_PROCESSES][2];

/* Their sum, kept so that the compiler does not drop the reads. */
static volatile uint32_t sum;

static void look_over(size_t bytes)
{
	uint32_t total = 0;

	for (size_t i = 0; i < bytes / sizeof(memory[0]); i++)
		total += memory[i];
	sum = total;
}

static void take(unsigned int from)
{
	uint32_t word;

	if (checked(read(pipes[from][0], &word, sizeof(word))) != sizeof(word))
		die("the ring is broken");
}

static void give(unsigned int to)
{
	uint32_t word = 0;

	checked(write(pipes[to][1], &word, sizeof(word)));
}

static void one_turn(unsigned int from, unsigned int to, size_t bytes)
{
	take(from);
	look_over(bytes);
	give(to);
}

/* The same work in one process, ticks a turn times @turns. */
static uint64_t without_switches(unsigned int processes, size_t bytes, unsigned int turns)
{
	uint64_t from = ticks();

	give(0);
	for (unsigned int i = 0; i < turns; i++)
		one_turn(i % processes, (i + 1) % processes, bytes);
	take(turns % processes);
	return ticks() - from;
}

/* @turns in all, a multiple of @processes; this process takes the first of each round. */
static uint64_t with_switches(unsigned int processes, size_t bytes, unsigned int turns)
{
	pid_t children[MOST_PROCESSES];
	uint64_t from, spent;

	for (unsigned int i = 1; i < processes; i++) {
		children[i] = checked(fork());
		if (!children[i]) {
			/* its own copy of the memory */
			memset(memory, i, bytes);
			for (;;)
				one_turn(i, (i + 1) % processes, bytes);
		}
	}
	memset(memory, 1, bytes);
	/* one round in advance, so that every process and its memory are there */
	give(1 % processes);
	take(0);
	from = ticks();
	for (unsigned int i = 0; i < turns; i += processes) {
		look_over(bytes);
		give(1 % processes);
		take(0);
	}
	spent = ticks() - from;
	for (unsigned int i = 1; i < processes; i++) {
		checked(kill(children[i], SIGKILL));
		checked(waitpid(children[i], NULL, 0));
	}
	return spent;
}

static void make_pipes(unsigned int processes)
{
	for (unsigned int i = 0; i < processes; i++)
		checked(pipe(pipes[i]));
}

static void run_pipe(const char *name, unsigned int count)
{
	make_pipes(2);
	report(name, with_switches(2, 0, 2 * count), count);
}

/* @name is "ctx_<processes>p<KiB>k". */
static void run_ring(const char *name, unsigned int count)
{
	unsigned int processes, kib, turns;
	uint64_t with, without;

	if (sscanf(name, "ctx_%up%uk", &processes, &kib) != 2 ||
	    processes > MOST_PROCESSES || kib << 10 > MOST_BYTES)
		die(name);
	turns = count * processes;
	make_pipes(processes);
	memset(memory, 1, kib << 10);
	without_switches(processes, kib << 10, processes);
	without = without_switches(processes, kib << 10, turns);
	with = with_switches(processes, kib << 10, turns);
	report(name, with > without ? with - without : 0, turns);
}

const struct workload switch_workloads[] = {
	{ "pipe", run_pipe, 50, 2000 },
	{ "ctx_2p0k", run_ring, 20, 500 },
	{ "ctx_2p16k", run_ring, 20, 500 },
	{ "ctx_2p32k", run_ring, 20, 500 },
	{ "ctx_8p0k", run_ring, 4, 80 },
	{ "ctx_8p16k", run_ring, 4, 80 },
	{ "ctx_8p32k", run_ring, 4, 80 },
	{ "ctx_16p0k", run_ring, 2, 40 },
	{ "ctx_16p16k", run_ring, 2, 40 },
	{ "ctx_16p32k", run_ring, 2, 40 },
	{ }
};
