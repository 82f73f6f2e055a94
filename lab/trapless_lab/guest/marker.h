/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Markers in QEMU's device trace: a byte written to the parallel port's data
 * register appears in the trace between the device events around it, so events
 * are attributed by order and never by time.
 *
 * A tick is a single byte, so a background workload's ticks and the text of a
 * marker cannot break each other.
 */
#ifndef MARKER_H
#define MARKER_H

#include <fcntl.h>
#include <unistd.h>

#define MARKER_PORT 0x378
#define MARKER_TICK '\a'

/* Returns a descriptor for marker_byte(), or -1 with errno set. */
static inline int marker_open(void)
{
	return open("/dev/port", O_WRONLY | O_CLOEXEC);
}

/* One byte a call: a longer write would continue at the next ports. */
static inline int marker_byte(int fd, char byte)
{
	return pwrite(fd, &byte, 1, MARKER_PORT) == 1 ? 0 : -1;
}

#endif /* MARKER_H */
