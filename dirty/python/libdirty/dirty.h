/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * libdirty: which pages of a process were written since the last time one asked.
 *
 * Made from the Rust sources by cbindgen; do not edit.
 *
 * Open a tracker, say what to watch, then collect and read, as often as needed:
 *
 *	int64_t tracker = dirty_open(0, NULL, 0);
 *	dirty_watch(tracker, (uintptr_t)memory, length);
 *	...
 *	dirty_collect(tracker);
 *	while ((n = dirty_read(tracker, extents, 64)) > 0)
 *		copy(extents, n);
 *	dirty_close(tracker);
 *
 * Errors are returned as negative errno; a call that failed changed nothing, and dirty_last_error() says what and
 * why. A tracker is named by a handle, a number. A wrong or closed handle is an error (-EBADF), never undefined
 * behaviour; so is the result of a dirty_open() that failed.
 *
 * Every function may be called by any thread at any time; calls on one tracker are serialised. None may be
 * called in a signal handler. None is a cancellation point. A forked child cannot use its parent's trackers
 * (-EXDEV), but may open its own; across execve nothing remains.
 *
 * The writes that a back end cannot see are listed in its struct dirty_capabilities: look there before you rely on it.
 */

#ifndef DIRTY_H
#define DIRTY_H

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/**
 * Why pages are reported. All but DIRTY_REASON_WRITTEN and DIRTY_REASON_DISCARDED mean doubt: treat every page of the
 * extent as dirty. More may be added.
 */
enum dirty_reason {
	/**
	 * Each page was written (or discarded, where the back end cannot distinguish the two) since the last collect.
	 */
	DIRTY_REASON_WRITTEN = 0,
	/**
	 * Something is mapped where nothing was, or something else than before.
	 */
	DIRTY_REASON_NEW_MAPPING = 1,
	/**
	 * Nothing is mapped here any more: there is nothing to copy. Reported once.
	 */
	DIRTY_REASON_UNMAPPED = 2,
	/**
	 * The back end cannot track this mapping now; reported by every collect until it can.
	 */
	DIRTY_REASON_UNSUPPORTED = 3,
	/**
	 * A resource ran out (a buffer, vm.max_map_count), and writes went untracked.
	 */
	DIRTY_REASON_OVERFLOW = 4,
	/**
	 * The tracked program changed the protection that tracking relies on.
	 */
	DIRTY_REASON_PROTECTION_CHANGED = 5,
	/**
	 * The back end had to stop the threads of the process for a moment, and could not.
	 */
	DIRTY_REASON_NOT_STOPPED = 6,
	/**
	 * The process called execve: it has a new address space. Reported once.
	 */
	DIRTY_REASON_EXEC = 7,
	/**
	 * The process ended. Reported once.
	 */
	DIRTY_REASON_EXITED = 8,
	/**
	 * Each page reads as zeros, and may have read otherwise when it was last reported or watched: it was given back
	 * (MADV_DONTNEED, malloc_trim, a hole). There is nothing to copy: put zeros, or a hole, into the copy, even if
	 * you read something else there by now; a later write is reported by a later collect. The first collect after
	 * memory was watched reports all of its empty pages.
	 */
	DIRTY_REASON_DISCARDED = 9,
};

/**
 * How a kind of write that user code did not make itself is treated.
 */
enum dirty_sees {
	/**
	 * It is not reported: you must know of such writes by other means.
	 */
	DIRTY_SEES_NO = 0,
	/**
	 * It is reported.
	 */
	DIRTY_SEES_YES = 1,
	/**
	 * The write itself fails (EFAULT or EIO; a store by SIGSEGV): nothing is missed, but the writer must expect the
	 * error.
	 */
	DIRTY_SEES_FAILS = 2,
};

/**
 * Where the cost of tracking falls. More may be added.
 */
enum dirty_cost {
	/**
	 * The first write to each page between two collects enters the kernel, about a microsecond.
	 */
	DIRTY_COST_KERNEL_FAULT = 0,
	/**
	 * The first write to each page runs a signal handler, several microseconds.
	 */
	DIRTY_COST_SIGNAL_PER_PAGE = 1,
	/**
	 * The first write to each page waits for another thread, several microseconds to 100.
	 */
	DIRTY_COST_THREAD_SWITCH_PER_PAGE = 2,
	/**
	 * Nothing: the processor notes it.
	 */
	DIRTY_COST_HARDWARE = 3,
	/**
	 * The first write to each page exits the virtual machine; where the processor keeps the hypervisor's log (PML),
	 * one in hundreds does.
	 */
	DIRTY_COST_HYPERVISOR_EXIT = 4,
};

/**
 * Pages reported dirty, and why.
 */
struct dirty_extent {
	/**
	 * Address of the first byte.
	 */
	uintptr_t start;
	/**
	 * Address after the last byte.
	 */
	uintptr_t end;
	/**
	 * One of enum dirty_reason. Treat a value that you do not know as dirty.
	 */
	uint32_t reason;
	/**
	 * Zero.
	 */
	uint32_t reserved;
};

/**
 * The record of one back end.
 */
struct dirty_capabilities {
	/**
	 * Set it to sizeof(struct dirty_capabilities) before the call. Later versions of the library may add members at
	 * the end; a program compiled before gets those that it knows, one compiled after finds zeroes.
	 */
	uint32_t size;
	/**
	 * Smallest unit it reports, in pages; in huge mappings (hugetlb) that of the mapping.
	 */
	uint32_t granule_pages;
	/**
	 * 1 if it reports only pages that were written, except as inexact says.
	 */
	uint32_t exact;
	/**
	 * Writes that the kernel makes on behalf of the process: read(2) into a buffer, recvmsg, signal frames.
	 * This and the next six: one of enum dirty_sees.
	 */
	uint32_t kernel_writes;
	/**
	 * Writes through process_vm_writev.
	 */
	uint32_t foreign_writes;
	/**
	 * Writes through /proc/PID/mem and PTRACE_POKEDATA: debuggers.
	 */
	uint32_t mem_writes;
	/**
	 * Writes to memory that the program itself made writable (or mapped anew) since the last collect, and made
	 * read-only again before the next.
	 */
	uint32_t reprotected_writes;
	/**
	 * Writes to watched memory that the program has moved or grown by mremap since the last collect.
	 */
	uint32_t remapped_writes;
	/**
	 * Changes to shared memory by other ways than the watched mapping: another mapping of it, operations on its file
	 * (write, truncation, punching holes) and MADV_REMOVE.
	 */
	uint32_t shared_aliases;
	/**
	 * Writes by devices or the kernel into pages pinned before the last collect (O_DIRECT, io_uring's registered
	 * buffers, RDMA).
	 */
	uint32_t pinned_writes;
	/**
	 * 1 if it can watch all memory of the calling process, its own stacks and data included.
	 */
	uint32_t whole_own_process;
	/**
	 * 1 if it can track a process other than the caller.
	 */
	uint32_t other_process;
	/**
	 * One of enum dirty_cost.
	 */
	uint32_t cost;
	/**
	 * Writes to pages that the kernel reclaimed (shared memory) or merged with equal ones (KSM) before they were
	 * collected, and brought back for a read. One of enum dirty_sees.
	 */
	uint32_t reclaimed_writes;
	/**
	 * When a page that was not written is reported nevertheless.
	 */
	const char *inexact;
	/**
	 * What the caller needs beyond the permission to ptrace the target; empty if nothing.
	 */
	const char *privilege;
};

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * Make a tracker that watches nothing yet.
 *
 * pid: the process to track, 0 for the calling one. For another process the caller needs the permission to ptrace it.
 * backend: "mprotect", "soft-dirty", "uffd-sync", "uffd-async", "dbit", "spml" or "epml": this one, or fail. NULL or
 * "auto": the cheapest that works here, which is found by trying.
 * flags: 0.
 *
 * Returns the tracker's handle, which is above 2^32 and never given out twice, or -EINVAL (back end or flags unknown),
 * -ESRCH (no such process), -EPERM, -EOPNOTSUPP (the back end, or every one, does not work here; dirty_last_error()
 * says why), or an error of the kernel (-EMFILE, ...).
 *
 * The caller promises:
 * backend is NULL or a text that ends with a zero.
 */
int64_t dirty_open(pid_t pid, const char *backend, uint32_t flags);

/**
 * Make a tracker of process pid (0: the calling one) with a userfaultfd that this process has made itself, and from
 * which the caller has it: by SCM_RIGHTS, pidfd_getfd(2) or a parasite. For a process that may not be made to call
 * userfaultfd(2): one under seccomp, or one that a debugger holds by ptrace, be it the caller. Nothing is injected, and
 * ptrace is not used; the caller needs the permission to ptrace the process all the same.
 *
 * The back end is uffd-async. The userfaultfd may have been made with any flags. Best is one that is not initialised
 * (UFFDIO_API); it then is by this call, even if the call fails. The tracker keeps a copy of the descriptor until it is
 * closed; the caller's is the caller's to close.
 *
 * Returns a handle as dirty_open(), or -EOPNOTSUPP (it is no userfaultfd, or not one for the memory of this process, or
 * one initialised without asynchronous write protection; or the back end does not work here; dirty_last_error() says
 * which), -EBADF (no open descriptor), -ESRCH, -EPERM, or an error of the kernel.
 */
int64_t dirty_open_fd(pid_t pid, int userfaultfd);

/**
 * End a tracker. Its process runs on, untracked, as if it had never been tracked. Waits for calls that other threads
 * have in progress on this tracker; later calls get -EBADF.
 *
 * Returns 0 or -EBADF, -EXDEV.
 */
int dirty_close(int64_t handle);

/**
 * Watch length bytes from start, both multiples of the page size. The content at return is the baseline: later
 * writes are reported. Nothing needs to be mapped there yet: what appears later is reported and watched.
 *
 * Returns 0 or -EINVAL (no range of pages in user space), -EEXIST (overlaps what is watched already), -ESRCH (the
 * process is gone), -EBADF, -EXDEV.
 */
int dirty_watch(int64_t handle, uintptr_t start, size_t length);

/**
 * Watch all of user space, but for what is watched already: whatever the process has mapped, and will map. Meant for
 * tracking another process; in the calling process it also watches the memory of the library and of its caller.
 *
 * Returns as dirty_watch(), but never -EEXIST.
 */
int dirty_watch_all(int64_t handle);

/**
 * Stop watching a range; every page of it must be watched. Writes there that no collect has found are forgotten.
 *
 * Returns 0 or -EINVAL, -ENOENT (not watched as a whole), -ESRCH, -EBADF, -EXDEV.
 */
int dirty_unwatch(int64_t handle, uintptr_t start, size_t length);

/**
 * Find the pages written since the last collect, or since they were watched, and arm them again. A write that races
 * with this call is reported by this collect or by the next. The extents are sorted, do not overlap, and wait for
 * dirty_read(). Read the memory itself only after this call.
 *
 * This, the next three, dirty_read() and dirty_discard() may be called while other threads of the program are stopped
 * by a signal at any point, inside malloc() too, as a garbage collector stops them: these functions do not use the
 * program's allocator, and signals are blocked in them. But no thread may be stopped then inside dirty_open(),
 * dirty_close(), dirty_survey() or dirty_backend(): hold the lock under which threads are stopped around calls of these
 * four.
 * (None of this holds for tracking another process by soft-dirty.)
 *
 * Returns the number of extents, or -EBUSY when some of the last collect or peek are unread (nothing was done; read or
 * discard them), -ESRCH when the end of the process, or its execve, was reported before, -EBADF, -EXDEV, or an error
 * of the kernel.
 */
int64_t dirty_collect(int64_t handle);

/**
 * dirty_collect() for length bytes from start alone, both multiples of the page size; every page of it must be
 * watched. What was written elsewhere is reported by the first collect that covers it, whatever ranges are collected
 * until then.
 *
 * "uffd-async", "uffd-sync" and "mprotect" look at the range alone, for the cost of its pages, except once after memory
 * in it was watched or mapped. The other back ends look at everything each time.
 *
 * Returns as dirty_collect(), or -EINVAL (no range of pages in user space), -ENOENT (not watched as a whole). It is
 * -ESRCH when the end of the process, or its execve, was reported for all of the range.
 */
int64_t dirty_collect_range(int64_t handle, uintptr_t start, size_t length);

/**
 * Find what dirty_collect() would report now, and take nothing away: the next collect reports it all the same, with
 * what is written until then. So copy pages after the collect that reports them, and not only after a peek. The extents
 * wait for dirty_read(), or for dirty_discard(), which only forgets this answer.
 *
 * It costs what a collect costs, in the tracked process too: the pages are armed again.
 *
 * Returns as dirty_collect().
 */
int64_t dirty_peek(int64_t handle);

/**
 * dirty_peek() for length bytes from start alone.
 *
 * Returns as dirty_collect_range().
 */
int64_t dirty_peek_range(int64_t handle, uintptr_t start, size_t length);

/**
 * Take the next extents that the last collect or peek found, in order of addresses, at most capacity of them; call it
 * until it returns 0. Each extent is given out once, also if several threads read in parallel. out may be watched memory.
 *
 * Returns how many were stored, 0 when all have been read, or -EFAULT (out is NULL), -EINVAL (out is not aligned,
 * capacity is 0 or greater than memory), -EBADF, -EXDEV.
 *
 * The caller promises:
 * out may be written capacity times.
 */
int64_t dirty_read(int64_t handle, struct dirty_extent *out, size_t capacity);

/**
 * Forget the extents of the last collect or peek that are unread: for a caller that starts over and does not need them.
 *
 * Returns the number of extents forgotten, or -EBADF, -EXDEV.
 */
int64_t dirty_discard(int64_t handle);

/**
 * The name of the back end at work: a constant. NULL for a handle that names no tracker; dirty_last_error() says
 * why.
 */
const char *dirty_backend(int64_t handle);

/**
 * What a back end can and cannot do, whether it works here or not. Set out->size first. The texts are constants.
 *
 * Returns 0 or -EFAULT (an argument is NULL), -EINVAL (no such back end, out is not aligned or out->size too small),
 * -E2BIG (out->size was not set).
 *
 * The caller promises:
 * backend is NULL or a text that ends with a zero; out may be written as far as its size says.
 */
int dirty_capabilities(const char *backend, struct dirty_capabilities *out);

/**
 * Try every back end on scratch memory of the own process, cheapest first, and call visit for each, with why it does
 * not work here, or NULL if it does. Both texts live until visit returns. visit may call any function of this header;
 * it must return (no longjmp, no C++ exception).
 *
 * Returns how many work, or -EFAULT (visit is NULL).
 */
int dirty_survey(void (*visit)(void *context, const char *backend, const char *rejected), void *context);

/**
 * One of enum dirty_reason in words: a constant. Never NULL.
 */
const char *dirty_reason_text(uint32_t reason);

/**
 * 1 if pages reported for this reason are to be zeros in the copy, or a hole, even if something else can be read there
 * by now; 0 if not.
 */
int dirty_reason_is_zero(uint32_t reason);

/**
 * 1 if pages reported for this reason are there to be read, 0 if nothing is mapped there any more.
 */
int dirty_reason_is_mapped(uint32_t reason);

/**
 * The message of the last call that failed in this thread, at most 1023 bytes; empty if none did. It stays until
 * another call fails in this thread.
 */
const char *dirty_last_error(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* DIRTY_H */
