/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * dirtyvictim sleep|poll|pause|registers|sve: what a process must not notice when a tracker
 * attaches to it. It prints what it noticed: of a sleep how long it took, of a pause
 * what it returned, of values in registers how often they were lost.
 *
 * sve is arm64's; the registers are those that the kernel or the tracer might use for
 * a system call that is made behind the program's back.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define SLEEP_S 6
#define COMPUTE_S 6

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec / 1e9;
}

static int sleep_once(int use_poll)
{
	struct timespec time = { .tv_sec = SLEEP_S };
	double begin = now();
	int result = use_poll ? poll(NULL, 0, SLEEP_S * 1000) : nanosleep(&time, NULL);
	double took = now() - begin;

	printf("result %d took %.2f\n", result, took);
	return 0;
}

static void on_alarm(int signal)
{
	(void)signal;
}

/* The alarm ends it, however often a tracer has interrupted it before. */
static int pause_once(void)
{
	struct sigaction action = { .sa_handler = on_alarm };

	sigaction(SIGALRM, &action, NULL);
	alarm(SLEEP_S);
	printf("result %d ", pause());
	printf("interrupted %d\n", errno == EINTR);
	return 0;
}

#if defined(__aarch64__)

/* Some tenths of a second under emulation. */
#define TURNS 20000000UL

static int hold_registers(void)
{
	register uint64_t x0 asm("x0") = 0x1000;
	register uint64_t x1 asm("x1") = 0x1001;
	register uint64_t x7 asm("x7") = 0x1007;
	register uint64_t x8 asm("x8") = 0x1008;
	register uint64_t x9 asm("x9") = TURNS;
	register uint64_t x10 asm("x10") = 0x100a;
	register uint64_t x16 asm("x16") = -514; /* as if a call were to be restarted */

	asm volatile("1: subs x9, x9, #1; b.ne 1b"
		     : "+r"(x0), "+r"(x1), "+r"(x7), "+r"(x8), "+r"(x9), "+r"(x10), "+r"(x16)
		     : : "cc");
	return x0 == 0x1000 && x1 == 0x1001 && x7 == 0x1007 && x8 == 0x1008 && x10 == 0x100a &&
		x16 == (uint64_t)-514;
}

/* x0 looks like the result of a call that the kernel restarts. */
static int hold_result(void)
{
	register uint64_t x0 asm("x0") = -514;
	register uint64_t x9 asm("x9") = TURNS;

	asm volatile("1: subs x9, x9, #1; b.ne 1b" : "+r"(x0), "+r"(x9) : : "cc");
	return x0 == (uint64_t)-514;
}

/* Every byte of z8 and all of p4: a system call empties what is beyond the lowest 128 bits. */
static int hold_vectors(void)
{
	uint8_t vector[256] = { 0 };
	uint8_t predicate[32] = { 0 };
	uint64_t turns = TURNS, length;
	uint64_t all;

	asm volatile(".arch armv8-a+sve\n"
		     "ptrue p4.b\n"
		     "dup z8.b, #77\n"
		     "1: subs %[turns], %[turns], #1\n"
		     "b.ne 1b\n"
		     "str z8, [%[vector]]\n"
		     "str p4, [%[predicate]]\n"
		     "rdvl %[length], #1\n"
		     : [turns] "+r"(turns), [length] "=r"(length)
		     : [vector] "r"(vector), [predicate] "r"(predicate)
		     : "cc", "memory", "v8");
	for (all = 0; all < length; all++)
		if (vector[all] != 77)
			return 0;
	for (all = 0; all < length / 8; all++)
		if (predicate[all] != 0xff)
			return 0;
	return length > 16; /* else there is nothing to lose */
}

static int compute(int (*const *holds)(void))
{
	double end = now() + COMPUTE_S;
	int rounds = 0, wrong = 0;

	while (now() < end) {
		for (int i = 0; holds[i]; i++) {
			wrong += !holds[i]();
			rounds++;
		}
	}
	printf("rounds %d wrong %d\n", rounds, wrong);
	return 0;
}

static int (*const registers[])(void) = { hold_registers, hold_result, NULL };
static int (*const vectors[])(void) = { hold_vectors, NULL };

#endif

int main(int argc, char **argv)
{
	const char *what = argc == 2 ? argv[1] : "";

	if (!strcmp(what, "sleep") || !strcmp(what, "poll"))
		return sleep_once(!strcmp(what, "poll"));
	if (!strcmp(what, "pause"))
		return pause_once();
#if defined(__aarch64__)
	if (!strcmp(what, "registers"))
		return compute(registers);
	if (!strcmp(what, "sve"))
		return compute(vectors);
#endif
	fprintf(stderr, "usage: dirtyvictim sleep|poll|pause|registers|sve\n");
	return 2;
}
