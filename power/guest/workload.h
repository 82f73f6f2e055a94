/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Shared by the workloads: the clock, and the output of results.
 *
 * Invariant: nothing is printed between two readings of the clock. A character on the
 * console causes several exits of a guest that are not the workload's.
 */
#ifndef WORKLOAD_H
#define WORKLOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* With -icount the timebase counts instructions: 400 MHz, 0.8 tick each. */
static inline uint64_t ticks(void)
{
	uint32_t high, low, again;

	/* this processor does not have mftb */
	do {
		__asm__ __volatile__("mfspr %0,269" : "=r" (high));
		__asm__ __volatile__("mfspr %0,268" : "=r" (low));
		__asm__ __volatile__("mfspr %0,269" : "=r" (again));
	} while (high != again);
	return (uint64_t)high << 32 | low;
}

/* A workload does @count times what it is named for. */
struct workload {
	const char *name;
	void (*run)(const char *name, unsigned int count);
	unsigned int quick;
	unsigned int full;
};

/* Each array ends with an entry without a name. */
extern const struct workload boot_workloads[];
extern const struct workload system_call_workloads[];
extern const struct workload process_workloads[];
extern const struct workload switch_workloads[];
extern const struct workload tree_workloads[];
extern const struct workload text_workloads[];
extern const struct workload module_workloads[];
extern const struct workload memory_workloads[];
extern const struct workload huge_page_workloads[];

/* Print "result NAME TICKS COUNT". */
void report(const char *name, uint64_t spent, unsigned int count);

/* Say what failed, with errno, and end this process. */
_Noreturn void die(const char *what);

/* Return @value, a call's result; die if it is negative. */
#define checked(value)	({ __typeof__(value) v_ = (value); if (v_ < 0) die(#value); v_; })

/* The value of @name (with its '=') on the kernel's command line, or NULL. */
const char *option(const char *name);

/* Where the kernel's own mapping of all memory begins. */
#define KERNEL_BASE	0xc0000000u

/* The address of a symbol of the kernel's, zero if there is none (text.c). */
uint32_t kernel_symbol(const char *wanted);

/* The two roles of process 1; false if anything failed. */
bool run_workloads(void);
bool run_script(const char *path);

#endif
