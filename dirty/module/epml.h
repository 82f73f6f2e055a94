/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Between the two parts of EPML: epml_device.c, which talks to the processors'
 * registers, and epml.c, which knows whom the log is about.
 */
#ifndef TRAPLESS_LINUX_EPML_H
#define TRAPLESS_LINUX_EPML_H

#include <linux/types.h>

/* epml_device.c */

int epml_device_init(void);
void epml_device_exit(void);
/* Whether the log can be relied upon: false once the device went away. */
bool epml_device_present(void);
/* Log from now on what this processor stores, 0: nothing. With interrupts off. True if it is news. */
bool epml_device_arm(unsigned int tag);
/* The tag that this processor logs for. With interrupts off. */
unsigned int epml_device_armed(void);
/* Clear L of those of a block's pages that are set. */
void epml_device_rearm(unsigned int tag, unsigned long base, const unsigned long *pages);
void epml_device_rearm_range(unsigned int tag, unsigned long start, unsigned long end);
/* Have all that was logged before the call taken. */
void epml_device_drain(void);
/* Interrupts of the log since the module was loaded. */
u64 epml_device_interrupts(void);

/* epml.c: with interrupts off. */

/* Entries of a log, as the processor wrote them: not to be trusted. */
void epml_take(const u64 *entries, unsigned int count);
/* Entries of a tag were lost; ~0: nobody knows of which. */
void epml_lost(u64 tag);

#endif /* TRAPLESS_LINUX_EPML_H */
