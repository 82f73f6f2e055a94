// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * LD_PRELOAD: how long a collector, or a checkpointer, takes to learn which pages are
 * dirty, whoever answers.
 *
 * Stands before the C library and before the shim, and takes the time of each call for
 * dirty bits: reads of a pagemap, writes to a clear_refs, and mprotect calls that take the
 * permission to write away (those that give it back are the tracked program's, in its
 * fault handler). What a call costs the tracked program later is not in it. At the end:
 *
 * passes reads=N read_ns=N clears=N clear_ns=N protects=N protect_ns=N faults=N
 *
 * on stderr; faults are minor ones, of the whole program. For programs with one thread.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

struct total {
	uint64_t calls, ns;
};

static struct total reads, clears, protects;
static int pagemap = -1, clear_refs = -1;

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void add(struct total *total, uint64_t since)
{
	total->calls++;
	total->ns += now_ns() - since;
}

static int ends_in(const char *path, const char *name)
{
	size_t length = strlen(path), wanted = strlen(name);

	return length >= wanted && !strcmp(path + length - wanted, name);
}

/* A number that another file gets stands for that one from then on. */
static void note(int *known, const char *path, const char *name, int fd)
{
	if (ends_in(path, name))
		*known = fd;
	else if (*known == fd)
		*known = -1;
}

static int opened(const char *path, int fd)
{
	if (fd >= 0) {
		note(&pagemap, path, "pagemap", fd);
		note(&clear_refs, path, "clear_refs", fd);
	}
	return fd;
}

/* Looked up once. */
#define NEXT(name) ({ static __typeof__(&name) next; next ?: (next = dlsym(RTLD_NEXT, #name)); })

#define OPEN(name)							\
int name(const char *path, int flags, ...)				\
{									\
	va_list more;							\
	mode_t mode;							\
									\
	va_start(more, flags);						\
	mode = va_arg(more, mode_t);					\
	va_end(more);							\
	return opened(path, NEXT(name)(path, flags, mode));		\
}
OPEN(open)
OPEN(open64)

#define OPENAT(name)							\
int name(int folder, const char *path, int flags, ...)			\
{									\
	va_list more;							\
	mode_t mode;							\
									\
	va_start(more, flags);						\
	mode = va_arg(more, mode_t);					\
	va_end(more);							\
	return opened(path, NEXT(name)(folder, path, flags, mode));	\
}
OPENAT(openat)
OPENAT(openat64)

int __open_2(const char *path, int flags);
int __open64_2(const char *path, int flags);

int __open_2(const char *path, int flags)
{
	return opened(path, NEXT(__open_2)(path, flags));
}

int __open64_2(const char *path, int flags)
{
	return opened(path, NEXT(__open64_2)(path, flags));
}

ssize_t read(int fd, void *buffer, size_t count)
{
	uint64_t start;
	ssize_t done;

	if (fd != pagemap || fd < 0)
		return NEXT(read)(fd, buffer, count);
	start = now_ns();
	done = NEXT(read)(fd, buffer, count);
	add(&reads, start);
	return done;
}

#define PREAD(name, offset_t)						\
ssize_t name(int fd, void *buffer, size_t count, offset_t offset)	\
{									\
	uint64_t start;							\
	ssize_t done;							\
									\
	if (fd != pagemap || fd < 0)					\
		return NEXT(name)(fd, buffer, count, offset);		\
	start = now_ns();						\
	done = NEXT(name)(fd, buffer, count, offset);			\
	add(&reads, start);						\
	return done;							\
}
PREAD(pread, off_t)
PREAD(pread64, off64_t)

ssize_t write(int fd, const void *buffer, size_t count)
{
	uint64_t start;
	ssize_t done;

	if (fd != clear_refs || fd < 0)
		return NEXT(write)(fd, buffer, count);
	start = now_ns();
	done = NEXT(write)(fd, buffer, count);
	add(&clears, start);
	return done;
}

int mprotect(void *start, size_t length, int protection)
{
	uint64_t since;
	int done;

	if (protection & PROT_WRITE)
		return NEXT(mprotect)(start, length, protection);
	since = now_ns();
	done = NEXT(mprotect)(start, length, protection);
	add(&protects, since);
	return done;
}

__attribute__((destructor)) static void report(void)
{
	struct rusage used = { 0 };

	getrusage(RUSAGE_SELF, &used);
	fprintf(stderr,
		"passes reads=%llu read_ns=%llu clears=%llu clear_ns=%llu protects=%llu protect_ns=%llu faults=%ld\n",
		(unsigned long long)reads.calls, (unsigned long long)reads.ns,
		(unsigned long long)clears.calls, (unsigned long long)clears.ns,
		(unsigned long long)protects.calls, (unsigned long long)protects.ns, used.ru_minflt);
}
