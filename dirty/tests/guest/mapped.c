/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * dirtymapped [CASE...]: memory that others than the process map, here virtual
 * machines (KVM), is not tracked by the module: it is refused, and where the machine
 * comes later all that is watched is reported, also after it has gone.
 *
 * That a machine's writes are what makes this necessary is shown by dirty-oracle
 * (scenario guest). Here no machine runs: that it is there is enough to refuse.
 */
#define _GNU_SOURCE
#include <linux/kvm.h>

#include "tracker.h"

#define PAGES 16UL

static int new_machine(void)
{
	int kvm = open("/dev/kvm", O_RDWR | O_CLOEXEC), machine;

	if (kvm < 0)
		err(1, "/dev/kvm");
	machine = ioctl(kvm, KVM_CREATE_VM, 0);
	if (machine < 0)
		err(1, "KVM_CREATE_VM");
	close(kvm);
	return machine;
}

static void expect_count(int fd, const char *memory, size_t pages, const char *when)
{
	char reported[PAGES] = { 0 };
	size_t count = harvest(fd, memory, PAGES, reported);

	if (count != pages)
		errx(1, "%s: %zu pages reported, not %zu", when, count, pages);
}

static void before(void)
{
	char *memory = small_pages(PAGES);
	int fd = open_device(), machine = new_machine();

	refused(attach(fd, getpid()), EOPNOTSUPP, 0, "ATTACH beside a machine");
	refused(attach(fd, getpid()), EOPNOTSUPP, 0, "ATTACH once more");
	close(machine);
	must(attach(fd, getpid()), "ATTACH after the machine");
	must(watch(fd, memory, PAGES), "WATCH");
	expect_count(fd, memory, 0, "untouched");
}

static void after(void)
{
	char *memory = small_pages(2 * PAGES);
	int fd = watching(getpid(), memory, PAGES), other = open_device(), machine;

	expect_count(fd, memory, 0, "before the machine");
	machine = new_machine();
	expect_count(fd, memory, PAGES, "beside the machine");
	expect_count(fd, memory, PAGES, "beside the machine, again");
	refused(watch(fd, memory + PAGES * PAGE, PAGES), EOPNOTSUPP, 0, "WATCH beside a machine");
	refused(attach(other, getpid()), EOPNOTSUPP, 0, "ATTACH of another tracker");
	close(machine);
	expect_count(fd, memory, PAGES, "after the machine");
	refused(attach(other, getpid()), EOPNOTSUPP, 0, "ATTACH while such a tracker is left");
	close(fd);
	must(attach(other, getpid()), "ATTACH to what nobody maps any more");
}

/* It came and went between two collects. */
static void between(void)
{
	char *memory = small_pages(PAGES);
	int fd = watching(getpid(), memory, PAGES);

	expect_count(fd, memory, 0, "before the machine");
	close(new_machine());
	expect_count(fd, memory, PAGES, "after the machine");
}

/* Who has no machine is tracked as ever. */
static void others(void)
{
	char *memory = small_pages(PAGES);
	int fd = watching(getpid(), memory, PAGES), status;
	pid_t child = start_child();

	if (!child) {
		new_machine();
		_exit(0);
	}
	if (waitpid(child, &status, 0) != child || status)
		errx(1, "the child's machine");
	/* All that a fork may have made of it is taken. */
	must(collect(fd), "COLLECT");
	must(unwatch(fd, memory, PAGES), "UNWATCH");
	must(watch(fd, memory, PAGES), "WATCH");
	memory[3 * PAGE]++;
	expect_count(fd, memory, 1, "after the child's machine");
}

static const struct test_case cases[] = {
	{ "before", before },
	{ "after", after },
	{ "between", between },
	{ "others", others },
};

int main(int argc, char **argv)
{
	return run_cases(CASES(cases), argc, argv);
}
