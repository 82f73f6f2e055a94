/* SPDX-License-Identifier: GPL-2.0-only WITH Linux-syscall-note OR Apache-2.0 OR MIT */
/*
 * /dev/trapless_dirty: which pages of a process were written.
 *
 * Each open file is a tracker. It is attached to one process by one mechanism,
 * watches the ranges that WATCH names, and reports to this file alone. Closing
 * the file, also by the death of its owner, ends the tracker and frees what it
 * holds.
 *
 * The promise: a write that ends before COLLECT begins is reported by the READs
 * after that COLLECT; a write that races with COLLECT is reported by them or after
 * the next COLLECT. Memory whose content may have changed otherwise (unmapped,
 * discarded, swapped, written through the kernel's own mapping) is reported as
 * written. In doubt a page is reported.
 *
 * No mechanism reports changes to shared memory other than through the process's
 * mapping of it (through another mapping, by write(2) to its file), pages that
 * mremap(2) moves into a hole of a watched range (watch what is mapped), and I/O
 * in flight into pages that mremap(2) moved meanwhile. EPML does not report
 * UFFDIO_COPY either.
 *
 * Memory that is also mapped by page tables other than the process's (guest memory
 * of KVM, RDMA with on-demand paging, GPUs, shared virtual addressing; in Linux:
 * memory of a process whose MMU notifier has a subscriber) cannot be tracked: ATTACH
 * and WATCH refuse it with EOPNOTSUPP. If that begins after ATTACH, every COLLECT
 * until the end of the tracker reports all that is watched as written.
 *
 * A user who may open the device may track the processes that they may ptrace
 * (PTRACE_MODE_ATTACH). All calls fail with EINVAL for arguments that are not as
 * described below. A call that fails has changed nothing.
 */
#ifndef TRAPLESS_DIRTY_H
#define TRAPLESS_DIRTY_H

#include <linux/ioctl.h>
#include <linux/types.h>

#define TRAPLESS_DIRTY_DEVICE	"/dev/trapless_dirty"
/*
 * A line "mechanism: why" for each that is left out, as one of the kernel's functions that
 * it relies on is not known; "all" is every mechanism.
 */
#define TRAPLESS_DIRTY_LEFT_OUT	"/sys/class/misc/trapless_dirty/left_out"
#define TRAPLESS_DIRTY_ABI	1

/**
 * enum trapless_dirty_mechanism - how writes are found
 * @TRAPLESS_DIRTY_DBIT: the dirty bit of the process's own page-table entries;
 *	no fault, no hypervisor
 * @TRAPLESS_DIRTY_SPML: the hypervisor's log of guest-physical pages, forwarded
 *	(Shadow PML; slides of OoH, section 4.2)
 * @TRAPLESS_DIRTY_EPML: the processor's log of guest-virtual pages (Extended PML;
 *	section 4.3, docs/epml.md)
 */
enum trapless_dirty_mechanism {
	TRAPLESS_DIRTY_DBIT,
	TRAPLESS_DIRTY_SPML,
	TRAPLESS_DIRTY_EPML,
};

/**
 * struct trapless_dirty_info - what the module can do here
 * @abi:        TRAPLESS_DIRTY_ABI; another value is another interface
 * @mechanisms: bit 1 << mechanism is set for each that works on this machine
 */
struct trapless_dirty_info {
	__u32 abi;
	__u32 mechanisms;
};

/**
 * struct trapless_dirty_attach - which process to track, and how
 * @pid:       a process, as the caller's pid namespace numbers it
 * @mechanism: enum trapless_dirty_mechanism
 */
struct trapless_dirty_attach {
	__s32 pid;
	__u32 mechanism;
};

/**
 * struct trapless_dirty_range - a range of the process's addresses
 * @start: first byte, page-aligned
 * @end:   first byte after it, page-aligned, greater than @start
 */
struct trapless_dirty_range {
	__u64 start;
	__u64 end;
};

/* All that is watched is reported as written: the log had run over. */
#define TRAPLESS_DIRTY_OVERRUN	(1 << 0)

/**
 * struct trapless_dirty_collect - how a collect went
 * @flags: out: TRAPLESS_DIRTY_OVERRUN or 0
 */
struct trapless_dirty_collect {
	__u64 flags;
};

/**
 * struct trapless_dirty_read - take the pages that collects have found
 * @ranges:   address of an array of struct trapless_dirty_range
 * @capacity: its length, at least 1
 * @count:    out: how many were stored, in the order of addresses, none adjacent
 *            to the next; fewer than @capacity: that was all
 *
 * The module forgets what it has stored.
 */
struct trapless_dirty_read {
	__u64 ranges;
	__u32 capacity;
	__u32 count;
};

/**
 * struct trapless_dirty_stats - what tracking has cost, since ATTACH
 * @logged:     entries taken from the log (SPML: of all processes)
 * @foreign:    how many of these were for pages that are not watched
 * @arms:       times a thread of the process was armed
 * @interrupts: of the log, on all processors (EPML)
 * @overruns:   times the log was full, and all was reported as written
 * @walk_ns:    nanoseconds walking page tables: harvest (D bit), reverse mapping (SPML)
 * @flush_ns:   nanoseconds in TLB flushes
 */
struct trapless_dirty_stats {
	__u64 logged;
	__u64 foreign;
	__u64 arms;
	__u64 interrupts;
	__u64 overruns;
	__u64 walk_ns;
	__u64 flush_ns;
};

/*
 * GET_INFO	needs no ATTACH.
 * ATTACH	once a file. EBUSY: attached already; ESRCH: no such process, or it
 *		is ending; EPERM, EACCES: it may not be traced; EOPNOTSUPP: no such
 *		mechanism here (see GET_INFO), or others map its memory (see above);
 *		ENOSPC: 4,095 processes are tracked; ENOMEM.
 * WATCH	writes to the range are found from its return on; the caller knows the
 *		content of the range then. Holes are allowed. EEXIST: a part is watched
 *		already; EOPNOTSUPP: memory in it cannot be watched (device memory), or
 *		others map the process's memory; ENOSPC: 65,536 ranges of the process
 *		are watched, by all trackers together; ENOMEM.
 * UNWATCH	forget the range, watched or not. ENOMEM, ENOSPC: only when a piece is
 *		cut out of the middle of a range.
 * COLLECT	find what was written. ESRCH: the process's memory is gone.
 * READ		see above. EFAULT: @ranges cannot be written; what was not stored
 *		is kept.
 * All but GET_INFO and ATTACH: ENOTCONN: nothing is attached.
 */
#define TRAPLESS_DIRTY_GET_INFO	_IOR(0xd1, 0, struct trapless_dirty_info)
#define TRAPLESS_DIRTY_ATTACH	_IOW(0xd1, 1, struct trapless_dirty_attach)
#define TRAPLESS_DIRTY_WATCH	_IOW(0xd1, 2, struct trapless_dirty_range)
#define TRAPLESS_DIRTY_UNWATCH	_IOW(0xd1, 3, struct trapless_dirty_range)
#define TRAPLESS_DIRTY_COLLECT	_IOR(0xd1, 4, struct trapless_dirty_collect)
#define TRAPLESS_DIRTY_READ	_IOWR(0xd1, 5, struct trapless_dirty_read)
#define TRAPLESS_DIRTY_GET_STATS _IOR(0xd1, 6, struct trapless_dirty_stats)

#endif /* TRAPLESS_DIRTY_H */
