/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note OR Apache-2.0 OR MIT */
/*
 * Shadow PML: the interface between a guest and its VMM (docs/spml.md).
 *
 * The VMM is present if a hypervisor's CPUID leaf, base, has the signature in EBX,
 * ECX and EDX. Leaf base + 1 then holds the version in EAX and a port in EBX.
 *
 * A call is a 32-bit IN from that port: the function in EAX, arguments in RBX and
 * RCX; the result is returned in EAX. No other exit that a stock guest kernel can
 * cause is handed by KVM to a VMM in userspace.
 *
 * The promise: while a process is enabled, each page of guest memory that a virtual
 * processor wrote since the last DRAIN is in the ring when DRAIN returns, or DRAIN
 * returns OVERRUN. Writes by the VMM itself are not reported; it has no device that
 * writes to memory.
 *
 * Neither side trusts the other: the VMM checks addresses, sizes and the tail, and the
 * guest checks the head and the entries, as these can hold any number.
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
 * UNREGISTER_RING the VMM does not touch the ring any more, and no process is enabled.
 * ENABLE          RBX: a process, any number below MAX_PROCESSES. The first one
 *                 switches logging on for all of the guest's memory.
 * DISABLE         RBX: the same. The last one switches logging off.
 * SCHEDULE_IN     RBX: the process runs on this virtual processor from now on.
 * SCHEDULE_OUT    RBX: it does not any more. These two are only counted: what is
 *                 logged does not depend on which process runs.
 * DRAIN           see above. A page in the ring that is written again after it is
 *                 logged again.
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
 * the ring; reported once. INVALID: unknown function or bad argument; nothing has
 * changed. NO_RING: ENABLE and DRAIN need one. FAILED: the VMM's host refused; treat
 * it as an overrun.
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
