/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note OR Apache-2.0 OR MIT */
/*
 * Shadow PML: what a guest and its VMM say to each other (docs/spml.md).
 *
 * The VMM is there if a hypervisor's CPUID leaf, base, has the signature in EBX,
 * ECX and EDX. Leaf base + 1 then holds the version in EAX and a port in EBX.
 *
 * A call is a 32-bit IN from that port: the function in EAX, arguments in RBX and
 * RCX, and the result comes back in EAX. KVM gives a VMM in userspace no other
 * exit that a stock kernel can make.
 *
 * The promise: while a process is enabled, a page of guest memory that a virtual
 * processor wrote since the last DRAIN is in the ring when DRAIN returns, or DRAIN
 * answers OVERRUN. What the VMM itself writes is not told; it has no device that
 * writes to memory.
 *
 * Neither side trusts the other: the VMM takes addresses, sizes and the tail, the
 * guest takes the head and the entries, for any number that can be written there.
 */
#ifndef TRAPLESS_SPML_H
#define TRAPLESS_SPML_H

#include <linux/types.h>

#define TRAPLESS_SPML_SIGNATURE	"TraplessSPML"
#define TRAPLESS_SPML_VERSION	1

/*
 * REGISTER_RING   RBX: guest-physical address of struct trapless_spml_ring, aligned
 *                 to a page; RCX: entries, a power of two of at most MAX_ENTRIES.
 *                 It replaces the ring that was there, if it is not refused.
 * UNREGISTER_RING the VMM touches the ring no more, and nobody is enabled.
 * ENABLE          RBX: a process, any number below MAX_PROCESSES. The first one
 *                 switches logging on for all of the guest's memory.
 * DISABLE         RBX: the same. The last one switches logging off.
 * SCHEDULE_IN     RBX: the process runs on this virtual processor from now on,
 * SCHEDULE_OUT    and no more. Nothing depends on these two: what is logged does
 *                 not depend on who runs. They are counted.
 * DRAIN           see above. All that is in the ring may be written again after it,
 *                 and is then logged again.
 */
#define TRAPLESS_SPML_REGISTER_RING	1
#define TRAPLESS_SPML_UNREGISTER_RING	2
#define TRAPLESS_SPML_ENABLE		3
#define TRAPLESS_SPML_DISABLE		4
#define TRAPLESS_SPML_SCHEDULE_IN	5
#define TRAPLESS_SPML_SCHEDULE_OUT	6
#define TRAPLESS_SPML_DRAIN		7

#define TRAPLESS_SPML_MAX_ENTRIES	(1 << 24)
#define TRAPLESS_SPML_MAX_PROCESSES	4096

/*
 * What a call returns. OVERRUN, from DRAIN only: pages were written that are not in
 * the ring; told once. INVALID: function or argument; nothing has changed. NO_RING:
 * ENABLE and DRAIN need one. FAILED: the VMM's own host refused; take it for an
 * overrun.
 */
#define TRAPLESS_SPML_OK	0
#define TRAPLESS_SPML_OVERRUN	1
#define TRAPLESS_SPML_INVALID	-1
#define TRAPLESS_SPML_NO_RING	-2
#define TRAPLESS_SPML_FAILED	-3

/**
 * struct trapless_spml_ring - the head of the ring, in the guest's memory
 * @head: entries written so far; the VMM writes it and never reads it
 * @tail: entries taken so far; the guest writes it
 *
 * Both run freely: entry i is at i modulo the number of entries, and the ring is full
 * when they are that number apart. The entries, 64-bit page numbers, begin at
 * ENTRIES_OFFSET.
 */
struct trapless_spml_ring {
	__u32 head;
	__u32 reserved[15];
	__u32 tail;
};

#define TRAPLESS_SPML_ENTRIES_OFFSET	4096

#endif /* TRAPLESS_SPML_H */
