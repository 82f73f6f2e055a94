/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * For tests in C that are C++ as well: a check that says what failed, and
 * memory to track or to read into.
 */
#ifndef CHECK_H
#define CHECK_H

#include <dirty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CHECK(condition)                                                       \
	do {                                                                   \
		if (!(condition)) {                                            \
			fprintf(stderr, "%s:%d: %s: not so; last error: %s\n", \
				__FILE__, __LINE__, #condition,                \
				dirty_last_error());                           \
			abort();                                               \
		}                                                              \
	} while (0)

#define ARRAY_SIZE(array) (sizeof(array) / sizeof((array)[0]))

static inline size_t page_size(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

/* New private memory, every page of it there. */
static inline char *new_memory(size_t pages)
{
	size_t length = pages * page_size();
	char *memory = (char *)mmap(NULL, length, PROT_READ | PROT_WRITE,
				    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	memset(memory, 1, length);
	return memory;
}

/* An array that ends where nothing may be written: one extent too many kills. */
static inline struct dirty_extent *new_array(size_t capacity)
{
	size_t page = page_size();
	size_t pages = capacity * sizeof(struct dirty_extent) / page + 2;
	char *guard = new_memory(pages) + (pages - 1) * page;

	CHECK(mprotect(guard, page, PROT_NONE) == 0);
	return (struct dirty_extent *)guard - capacity;
}

static inline void free_array(struct dirty_extent *array, size_t capacity)
{
	size_t page = page_size();
	size_t pages = capacity * sizeof(struct dirty_extent) / page + 2;
	char *end = (char *)(array + capacity) + page;

	CHECK(munmap(end - pages * page, pages * page) == 0);
}

#endif /* CHECK_H */
