/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * sampled MS STOP NAME=FILE[:KEY]...: print numbers that files have, again and again.
 *
 * Every MS milliseconds a tick is written into QEMU's trace, so that what devices did
 * between two samples can be told; then each file is read. Its number is the first in
 * it, or the first behind KEY. A file that is not there has none. It ends when the
 * file STOP exists. No process is made meanwhile, so that it does not measure itself.
 *
 * Output, a record a line, the time on the clock of measure.h:
 *
 *   sample at=NANOSECONDS NAME=NUMBER...
 */
#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "marker.h"
#include "measure.h"

#define TEXT_MAX 65536

/* Prints a file's number, if there is one. */
static void print_number(const char *given)
{
	static char text[TEXT_MAX];
	char path[256];
	const char *at = strchr(given, '=');
	const char *key = at ? strchr(at, ':') : NULL;
	size_t length = key ? (size_t)(key - at - 1) : at ? strlen(at + 1) : 0;
	ssize_t got;
	int file;

	if (!length || length >= sizeof(path))
		errx(2, "\"%s\" is not NAME=FILE[:KEY]", given);
	memcpy(path, at + 1, length);
	path[length] = 0;
	file = open(path, O_RDONLY);
	if (file < 0)
		return;
	got = read(file, text, sizeof(text) - 1);
	close(file);
	if (got <= 0)
		return;
	text[got] = 0;
	key = key ? strstr(text, key + 1) : text;
	key = key ? strpbrk(key, "0123456789") : NULL;
	if (key)
		printf(" %.*s=%llu", (int)(at - given), given, strtoull(key, NULL, 10));
}

int main(int argc, char **argv)
{
	unsigned long ms;
	int port;

	if (argc < 4)
		errx(2, "usage: sampled MS STOP NAME=FILE[:KEY]...");
	ms = number(argv[1], "MS");
	port = marker_open();
	if (port < 0)
		err(1, "/dev/port");
	while (access(argv[2], F_OK)) {
		if (marker_byte(port, MARKER_TICK))
			err(1, "/dev/port");
		printf("sample at=%llu", (unsigned long long)now_ns());
		for (int i = 3; i < argc; i++)
			print_number(argv[i]);
		putchar('\n');
		fflush(stdout);
		usleep((useconds_t)ms * 1000);
	}
	return 0;
}
