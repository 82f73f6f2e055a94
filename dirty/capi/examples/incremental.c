// SPDX-License-Identifier: Apache-2.0 OR MIT
// Keep a copy of some memory up to date by copying only what was written.
#include <dirty.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static int64_t check(int64_t result)
{
	if (result >= 0)
		return result;
	fprintf(stderr, "incremental: %s\n", dirty_last_error());
	exit(EXIT_FAILURE);
}

int main(void)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), size = 1000 * page, copied = 0;
	char *memory = aligned_alloc(page, size), *copy = calloc(1, size);
	struct dirty_extent extent;
	int64_t tracker = check(dirty_open(0, NULL, 0));

	memset(memory, 1, size);
	check(dirty_watch(tracker, (uintptr_t)memory, size));
	memcpy(copy, memory, size);
	for (size_t i = 0; i < size; i += 50 * page)
		memory[i]++;
	check(dirty_collect(tracker));
	while (check(dirty_read(tracker, &extent, 1)) > 0) {
		size_t at = extent.start - (uintptr_t)memory, length = extent.end - extent.start;

		memcpy(copy + at, memory + at, length);
		copied += length;
	}
	printf("copied %zu of %zu pages by %s\n", copied / page, size / page, dirty_backend(tracker));
	check(dirty_close(tracker));
	return memcmp(memory, copy, size) ? EXIT_FAILURE : EXIT_SUCCESS;
}
