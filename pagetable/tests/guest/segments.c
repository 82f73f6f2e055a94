/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * segments [ROUNDS]: threads of two processes give up the processor again and again, and
 * each knows what its segment registers and their bases must be.
 *
 * A context switch restores them. The threads differ in what there is to restore: a base
 * of GS or none, a selector of GS from a local descriptor table, selectors of DS and ES.
 * All have a base of FS, their thread-local memory. Now and then one forks: a child has
 * what its parent has.
 */
#define _GNU_SOURCE
#include <asm/ldt.h>
#include <asm/prctl.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>

#include "oracle.h"

#define PROCESSES 2
#define THREADS	  8
#define USER_DS	  0x2b

enum kind { GS_BASE, NO_GS, GS_SELECTOR, DATA_SELECTORS, KINDS };

struct thread {
	uint64_t id; /* what GS points to */
	enum kind kind;
	unsigned short gs, ds, es;
};

static struct thread *threads;
static unsigned long rounds = 2000;
static __thread uint64_t own;

static void set_base(struct thread *me)
{
	if (syscall(SYS_arch_prctl, ARCH_SET_GS, me))
		err(1, "ARCH_SET_GS");
}

static void set_selector(struct thread *me)
{
	struct user_desc entry = {
		.entry_number = me->id % THREADS,
		.base_addr = (unsigned int)(uintptr_t)me,
		.limit = PAGE - 1,
		.seg_32bit = 1,
		.useable = 1,
	};

	if (syscall(SYS_modify_ldt, 1, &entry, sizeof(entry)))
		err(1, "modify_ldt");
	me->gs = (unsigned short)(entry.entry_number << 3 | 7);
	__asm__ volatile("mov %0, %%gs" : : "r"(me->gs));
}

static void set_up(struct thread *me)
{
	own = me->id;
	if (me->kind == GS_BASE || me->kind == DATA_SELECTORS)
		set_base(me);
	if (me->kind == GS_SELECTOR)
		set_selector(me);
	if (me->kind == DATA_SELECTORS) {
		me->ds = me->es = USER_DS;
		__asm__ volatile("mov %0, %%ds; mov %0, %%es" : : "r"(me->ds));
	}
}

static void check(const struct thread *me, const char *what)
{
	unsigned short gs, ds, es;
	uint64_t found;

	__asm__ volatile("mov %%gs, %0" : "=r"(gs));
	__asm__ volatile("mov %%ds, %0" : "=r"(ds));
	__asm__ volatile("mov %%es, %0" : "=r"(es));
	if (gs != me->gs || ds != me->ds || es != me->es)
		errx(1, "%s %lu: gs %#x ds %#x es %#x", what, (unsigned long)me->id, gs, ds, es);
	if (own != me->id)
		errx(1, "%s %lu: FS is that of %lu", what, (unsigned long)me->id,
		     (unsigned long)own);
	if (me->kind == NO_GS) {
		if (syscall(SYS_arch_prctl, ARCH_GET_GS, &found))
			err(1, "ARCH_GET_GS");
		if (found)
			errx(1, "%s %lu: GS has a base", what, (unsigned long)me->id);
		return;
	}
	__asm__ volatile("mov %%gs:0, %0" : "=r"(found));
	if (found != me->id)
		errx(1, "%s %lu: GS is that of %lu", what, (unsigned long)me->id,
		     (unsigned long)found);
}

static void *run(void *argument)
{
	struct thread *me = argument;
	uint64_t state = me->id + 1;

	set_up(me);
	for (unsigned long i = 0; i < rounds; i++) {
		pid_t pid;

		check(me, "thread");
		if (next_random(&state) % 4)
			sched_yield();
		else
			usleep(1);
		if (next_random(&state) % 128)
			continue;
		pid = start_child();
		if (!pid) {
			check(me, "child");
			sched_yield();
			check(me, "child");
			_exit(0);
		}
		wait_child(pid);
	}
	return NULL;
}

static void run_threads(void)
{
	pthread_t running[THREADS];

	for (unsigned int i = 0; i < THREADS; i++)
		if (pthread_create(&running[i], NULL, run, &threads[i]))
			err(1, "pthread_create");
	for (unsigned int i = 0; i < THREADS; i++)
		pthread_join(running[i], NULL);
}

int main(int argc, char **argv)
{
	pid_t pids[PROCESSES];

	if (argc == 2)
		rounds = number(argv[1], "ROUNDS");
	/* The base of a local descriptor has 32 bits. */
	threads = map_at(NULL, PAGE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_32BIT, -1);
	for (unsigned int p = 0; p < PROCESSES; p++) {
		for (unsigned int i = 0; i < THREADS; i++)
			threads[i] = (struct thread){ .id = 100 * (p + 1) + i,
						      .kind = i % KINDS };
		pids[p] = start_child();
		if (!pids[p]) {
			run_threads();
			return 0;
		}
	}
	for (unsigned int p = 0; p < PROCESSES; p++)
		wait_child(pids[p]);
	return 0;
}
