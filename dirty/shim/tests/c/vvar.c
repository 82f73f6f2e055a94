// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Preloaded into criu 3.17, which knows the vDSO's data as one mapping right before its code. Since Linux 6.13 there
 * are two, "[vvar]" and "[vvar_vclock]", and criu stops. Here it reads them as one. This has nothing to do with dirty
 * tracking; it only lets criu go on to where it asks for it.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static char *line_of(char *text, char *at)
{
	while (at > text && at[-1] != '\n')
		at--;
	return at;
}

ssize_t read(int fd, void *buffer, size_t count)
{
	ssize_t (*original)(int fd, void *buffer, size_t count) = dlsym(RTLD_NEXT, "read");
	static const char clock_name[] = "[vvar_vclock]\n", data_name[] = "[vvar]\n";
	ssize_t length = original(fd, buffer, count), named;
	char link[32], name[128], *text = buffer, *data, *clock, *next;

	if (length <= 0)
		return length;
	snprintf(link, sizeof(link), "/proc/self/fd/%d", fd);
	named = readlink(link, name, sizeof(name));
	if (named < 5 || memcmp(name + named - 5, "/maps", 5))
		return length;
	data = memmem(text, length, data_name, sizeof(data_name) - 1);
	clock = memmem(text, length, clock_name, sizeof(clock_name) - 1);
	if (!data || !clock)
		return length;
	/* "START-END ...": the end of the second becomes the end of the first, and its line goes. */
	data = memchr(line_of(text, data), '-', 20);
	next = clock + sizeof(clock_name) - 1;
	clock = line_of(text, clock);
	memcpy(data + 1, (char *)memchr(clock, '-', 20) + 1, 12);
	memmove(clock, next, text + length - next);
	return length - (next - clock);
}
