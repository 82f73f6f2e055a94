/* SPDX-License-Identifier: GPL-2.0-only OR Apache-2.0 OR MIT */
/*
 * The EPML model's registers and rings (docs/epml.md says what a processor with
 * EPML would have in their place, section 8 in what the model differs).
 *
 * They are the shared memory, BAR 2, of QEMU's ivshmem device: one page that
 * identifies it, then for each processor a page of registers and its ring. The model
 * sees every store of the machine. When the kernel stores a non-zero value to
 * `command` of the storing processor, the model obeys before the next instruction of
 * that processor, and then sets `command` to 0.
 *
 * Neither side trusts the other: the guest does not trust the device, nor the model
 * the guest.
 */
#ifndef TRAPLESS_EPML_H
#define TRAPLESS_EPML_H

#include <linux/types.h>

#define TRAPLESS_EPML_MAGIC	0x4c4d5045736c7074ULL	/* "tplsEPML" */
#define TRAPLESS_EPML_VERSION	1
#define TRAPLESS_EPML_PAGE	4096

/* An entry of a ring: the page's address, and in its low bits who wrote it. */
#define TRAPLESS_EPML_TAG_MASK	0xfffULL

/* A ring has a power of two of entries, in these bounds. */
#define TRAPLESS_EPML_ENTRIES_MIN	8
#define TRAPLESS_EPML_ENTRIES_MAX	(1 << 20)

/**
 * struct trapless_epml_identity - the first page
 * @magic:      TRAPLESS_EPML_MAGIC
 * @version:    TRAPLESS_EPML_VERSION; another value is another layout
 * @processors: how many have registers and a ring
 * @entries:    of each ring
 * @stride:     bytes from one processor's registers to the next one's; the first
 *              processor's are in the second page
 */
struct trapless_epml_identity {
	__u64 magic;
	__u32 version;
	__u32 processors;
	__u32 entries;
	__u32 stride;
};

/**
 * enum trapless_epml_command - commands to a processor
 * @TRAPLESS_EPML_HELLO: result becomes trapless_epml_answer(argument 0, processor),
 *	tag becomes 0
 * @TRAPLESS_EPML_ARM: log from now on, with the tag of argument 0; 0: do not log
 * @TRAPLESS_EPML_REARM: clear L of pages of the tag: argument 0 is the first one's
 *	address and the tag, as in an entry, and bit N of argument 1 is for the
 *	N-th page from there
 * @TRAPLESS_EPML_REARM_RANGE: the same for argument 1 pages in a row
 */
enum trapless_epml_command {
	TRAPLESS_EPML_HELLO = 1,
	TRAPLESS_EPML_ARM,
	TRAPLESS_EPML_REARM,
	TRAPLESS_EPML_REARM_RANGE,
};

/* What overrun says when more than one tag lost its log. */
#define TRAPLESS_EPML_OVERRUN_MANY	(~0ULL)

/**
 * struct trapless_epml_processor - one processor's registers; its ring is in the
 *	pages behind
 * @head:      entries that were ever logged; the next one goes to head modulo the
 *             ring's size. Written by the processor
 * @tail:      entries that were ever taken. Written by the guest
 * @threshold: interrupt when so many entries wait; 0: never. Written by the guest
 * @overrun:   0, the tag that had no room in the ring, or
 *             TRAPLESS_EPML_OVERRUN_MANY; set by the processor, exchanged for 0 by
 *             the guest
 * @arguments: of the command
 * @result:    of the command, as described there, or 0
 * @reserved:  0
 * @command:   enum trapless_epml_command, 0 when it is done. The model looks at each
 *             store to this offset in any page, so it is one that the kernel seldom
 *             stores to
 */
struct trapless_epml_processor {
	__u64 head;
	__u64 tail;
	__u64 threshold;
	__u64 overrun;
	__u64 arguments[2];
	__u64 result;
	__u64 reserved[504];
	__u64 command;
};

/* Only a model of this version, asked on this processor, knows it. */
static inline __u64 trapless_epml_answer(__u64 question, unsigned int processor)
{
	return (question ^ TRAPLESS_EPML_MAGIC) * (2 * (__u64)processor + 2 * TRAPLESS_EPML_VERSION + 1);
}

#endif /* TRAPLESS_EPML_H */
