/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * mark TEXT: write TEXT and a newline into QEMU's trace (see marker.h).
 *
 * TEXT is printable ASCII; the host drops a marker with any other byte in it.
 */
#include <err.h>
#include <stdio.h>

#include "marker.h"

int main(int argc, char **argv)
{
	if (argc != 2) {
		fprintf(stderr, "usage: mark TEXT\n");
		return 2;
	}
	for (const char *c = argv[1]; *c; c++)
		if (*c < ' ' || *c > '~')
			errx(2, "the marker holds a byte that is not printable ASCII");

	int fd = marker_open();

	if (fd < 0)
		err(1, "/dev/port");
	for (const char *c = argv[1]; *c; c++)
		if (marker_byte(fd, *c))
			err(1, "/dev/port");
	if (marker_byte(fd, '\n'))
		err(1, "/dev/port");
	return 0;
}
