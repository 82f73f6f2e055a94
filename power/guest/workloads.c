// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Runs workloads by name.
 *
 * Invariant: each runs in a process of its own, so none inherits memory, descriptors or
 * signal handlers of another, and a failure does not stop the others. The number of FPU
 * instructions that the kernel emulated is printed: it should be zero.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "workload.h"

static const struct workload *const tables[] = {
	boot_workloads,
	system_call_workloads,
	process_workloads,
	tree_workloads,
	switch_workloads,
	text_workloads,
	NULL,
};

/* Not part of "all": nothing to measure. */
static const struct workload *const checks[] = {
	module_workloads,
	memory_workloads,
	huge_page_workloads,
	NULL,
};

/* Instructions of a classic FPU that the kernel has emulated; zero if it does not count. */
static unsigned int emulated(void)
{
	FILE *file = fopen("/sys/kernel/debug/powerpc/emulated_instructions/math", "r");
	unsigned int count = 0;

	if (file && fscanf(file, "%u", &count) != 1)
		count = 0;
	if (file)
		fclose(file);
	return count;
}

static pid_t start(const struct workload *workload, bool full)
{
	pid_t child;

	fflush(stdout);
	child = checked(fork());
	if (!child) {
		workload->run(workload->name, full ? workload->full : workload->quick);
		exit(0);
	}
	return child;
}

static bool run_one(const struct workload *workload, bool full)
{
	unsigned int before = emulated(), after;
	int status;

	checked(waitpid(start(workload, full), &status, 0));
	if (status)
		printf("failed: workload %s: status %#x\n", workload->name, status);
	after = emulated();
	if (after != before)
		printf("emulated %s %u\n", workload->name, after - before);
	return !status;
}

/* All of @list that match. */
static bool run_matching(const struct workload *const *list, const char *name, bool full, bool *found)
{
	bool all = !strcmp(name, "all");
	bool good = true;

	for (; *list; list++) {
		for (const struct workload *w = *list; w->name; w++) {
			if (all || !strcmp(name, w->name)) {
				*found = true;
				good &= run_one(w, full);
			}
		}
	}
	return good;
}

static const struct workload *find_in(const struct workload *const *list, const char *name)
{
	for (; *list; list++)
		for (const struct workload *w = *list; w->name; w++)
			if (!strcmp(name, w->name))
				return w;
	return NULL;
}

/* All of @names, separated by '+', at the same time. */
static bool run_together(char *names, bool full)
{
	unsigned int running = 0;
	bool good = true;
	char *name;
	int status;

	printf("together on %ld\n", sysconf(_SC_NPROCESSORS_ONLN));
	while ((name = strsep(&names, "+"))) {
		const struct workload *workload = find_in(tables, name);

		workload = workload ?: find_in(checks, name);
		if (!workload) {
			printf("failed: there is no workload %s\n", name);
			good = false;
			continue;
		}
		start(workload, full);
		running++;
	}
	while (running--) {
		checked(wait(&status));
		good &= !status;
	}
	if (!good)
		printf("failed: not all that ran together are good\n");
	return good;
}

/* There must be one. */
static bool run_named(const char *name, bool full)
{
	bool found = false;
	bool good = run_matching(tables, name, full, &found);

	if (!found)
		good = run_matching(checks, name, full, &found);
	if (!found)
		printf("failed: there is no workload %s\n", name);
	return found && good;
}

bool run_workloads(void)
{
	const char *scale = option("scale=");
	bool full = scale && !strcmp(scale, "full");
	const char *wanted = option("run=");
	bool good = true;
	char *names, *rest, *name;

	if (!wanted)
		return true;
	rest = names = strdup(wanted);
	while ((name = strsep(&rest, ",")))
		good &= strchr(name, '+') ? run_together(name, full) : run_named(name, full);
	free(names);
	return good;
}
