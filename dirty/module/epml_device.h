/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The processors' EPML registers and rings (epml_device.c). Which process an entry is
 * about is epml.c's.
 */
#ifndef TRAPLESS_EPML_DEVICE_H
#define TRAPLESS_EPML_DEVICE_H

#include <linux/types.h>

/**
 * struct epml_reader - takes what processors log
 * @take: entries as the processor wrote them, which are not to be trusted
 * @lose: entries of a tag were lost; ~0: of an unknown one
 *
 * Both are called with interrupts off, under a raw spinlock.
 */
struct epml_reader {
	void (*take)(const u64 *entries, unsigned int count);
	void (*lose)(u64 tag);
};

int epml_device_init(const struct epml_reader *reader);
void epml_device_exit(void);
/* Whether the log can be relied upon: false once the device went away. */
bool epml_device_present(void);
/*
 * Log from now on what this processor stores, 0: nothing. With interrupts off.
 * Return: whether it logged for another tag before.
 */
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

#endif /* TRAPLESS_EPML_DEVICE_H */
