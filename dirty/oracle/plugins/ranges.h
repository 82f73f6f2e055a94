/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* What the example plug-ins share: a list of watched ranges, and what of them is mapped. */
#ifndef RANGES_H
#define RANGES_H

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

struct range {
	uintptr_t start, end;
};

struct ranges {
	struct range *items;
	size_t count;
};

static int ranges_add(struct ranges *ranges, uintptr_t start, uintptr_t end)
{
	struct range *items = realloc(ranges->items, (ranges->count + 1) * sizeof(*items));

	if (!items)
		return -ENOMEM;
	ranges->items = items;
	items[ranges->count++] = (struct range){ start, end };
	return 0;
}

/* What is cut out of the middle of a range leaves two. */
static int ranges_remove(struct ranges *ranges, uintptr_t start, uintptr_t end)
{
	struct ranges left = { NULL, 0 };
	int error = 0;

	for (size_t i = 0; i < ranges->count && !error; i++) {
		struct range old = ranges->items[i];

		if (old.end <= start || end <= old.start) {
			error = ranges_add(&left, old.start, old.end);
			continue;
		}
		if (old.start < start)
			error = ranges_add(&left, old.start, start);
		if (end < old.end && !error)
			error = ranges_add(&left, end, old.end);
	}
	free(ranges->items);
	*ranges = left;
	return error;
}

typedef int (*on_mapped)(void *context, uintptr_t start, uintptr_t end, int is_writable);

/* Call it for each part of start to end that is mapped, until it returns an error. */
static int each_mapped(pid_t pid, uintptr_t start, uintptr_t end, on_mapped call, void *context)
{
	unsigned long first, last;
	char path[64], line[4096], access[5];
	int error = 0;
	FILE *maps;

	snprintf(path, sizeof(path), "/proc/%d/maps", pid);
	maps = fopen(path, "re");
	if (!maps)
		return -errno;
	while (!error && fgets(line, sizeof(line), maps)) {
		if (sscanf(line, "%lx-%lx %4s", &first, &last, access) != 3)
			continue;
		if (first < start)
			first = start;
		if (last > end)
			last = end;
		if (first < last)
			error = call(context, first, last, access[1] == 'w');
	}
	fclose(maps);
	return error;
}

#endif
