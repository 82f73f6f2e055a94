/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * trapless_pvmmu: what Xen PV adds to fork, exec and exit inside the guest's
 * kernel, made smaller. It needs nothing of the hypervisor but stock Xen, makes use of
 * its payload where that is there, and works in dom0 and in any other PV domain.
 *
 *   main.c          load, unload, refusals
 *   sysfs.c         /sys/kernel/trapless_pvmmu: one switch a file
 *   known.c         the stock functions that were compared with ours
 *   hooks.c         the hooks on stock functions
 *   entry.S         the entry code of the hooks
 *   walk.c          the walk for pinning: 32 entries of a table at a time
 *   walk.h          its types
 *   pin.c           pinning and unpinning: one flush for many tables
 *   kernel_half.c   entries of top tables that lead nowhere: left out
 *   exit_mmap.c     leaving and unpinning an address space: one hypercall
 *   context_switch.c   a context switch: one hypercall
 *   multicall.c     the kernel's queue of hypercalls
 *   series_lazy.h   its modes, where the series of Linux differ
 *   set_pte.c       entries of unpinned tables: written without a hypercall
 *   fault_around.c  all entries of a fault-around: one hypercall, on Linux 6.1
 *   fault_around_folios.c   the same on Linux 6.12
 *   series_mmu.h    what differs between series of Linux
 *   copy_range.c    the hook that five parts of fork share
 *   inside.c        tasks that sleep inside a hook
 *   fork_copy.c     pages that a child writes at once: copied in fork
 *   fork_hints.c    the same, of pages that were copied after earlier forks
 *   fork_text.c     code that a child executes at once: mapped in fork
 *   fork.c          write protection of the parent: many entries a hypercall
 *   fork_entries.c  entries of anonymous memory: copied without conversions
 *   reuse_around.c  write permission for the neighbours of an exclusive page
 *   permission.h    whether an entry allows writing
 *   mremap.c        entries that move: many a hypercall
 *   zap.c           pages that are unmapped: many a hypercall
 *   gather.h        the queue of pages that are freed
 *   table.c         new tables of the lowest level
 *   table.h         where they are
 *   batch.h         updates of one table in one hypercall
 *   ranges.c        ranges of entries that the hypervisor's payload changes in one call
 *   ranges.h        its calls
 *   clear_flush.c   an entry cleared and flushed: one hypercall, no trap
 *   hypervisor.c    the switches of the hypervisor's payload
 *   thunks.c        faster conversion between machine and guest frames
 */
#ifndef TRAPLESS_PVMMU_H
#define TRAPLESS_PVMMU_H

#include <linux/bits.h>
#include <linux/mm_types.h>
#include <linux/spinlock.h>
#include <linux/types.h>

struct direct_hook;

/**
 * struct pvmmu_switch - a part that can be turned on and off at run time
 * @name:    its file in sysfs
 * @on:      whether it is on; guarded by main.c's mutex
 * @xen:     not 0: a part of the hypervisor's payload, TPT_SWITCH_ bit; Xen keeps
 *           its state, and the fields below and @on are not used
 * @enable:  turn it on; on an error nothing has changed
 * @disable: turn it off; tasks may be inside our code until the module waits
 *           for them, see pvmmu_exit()
 * @unknown: a stock function that is not as any we know; the part is left out
 * @found:   its digest
 * @hooks:   what pvmmu_hook() and pvmmu_unhook() take, for parts that are hooks;
 *           NULL ends them
 * @bit:     PVMMU_ bit, for parts that share a hook
 */
struct pvmmu_switch {
	const char *name;
	bool on;
	u32 xen;
	int (*enable)(struct pvmmu_switch *part);
	void (*disable)(struct pvmmu_switch *part);
	const char *unknown;
	u64 found;
	struct direct_hook *const *hooks;
	unsigned int bit;
};

extern struct pvmmu_switch pvmmu_switches[];
extern const unsigned int pvmmu_switch_count;

/* main.c */
int pvmmu_switch_get(struct pvmmu_switch *part);
int pvmmu_switch_set(struct pvmmu_switch *part, bool on);

/* sysfs.c */
int pvmmu_sysfs_init(void);
void pvmmu_sysfs_exit(void);

/* hooks.c */
extern struct direct_hook pvmmu_hook_pgd_walk;
extern struct direct_hook pvmmu_hook_pgd_pin;
extern struct direct_hook pvmmu_hook_pgd_unpin;
extern struct direct_hook pvmmu_hook_alloc_pmd;
extern struct direct_hook pvmmu_hook_exit_mmap;
extern struct direct_hook pvmmu_hook_end_switch;
extern struct direct_hook pvmmu_hook_write_msr;
extern struct direct_hook pvmmu_hook_load_gs_index;
extern struct direct_hook pvmmu_hook_load_sp0;
extern struct direct_hook pvmmu_hook_set_pte;
extern struct direct_hook pvmmu_hook_map_pages;
extern struct direct_hook pvmmu_hook_copy_range;
extern struct direct_hook pvmmu_hook_clear_flush;
extern struct direct_hook pvmmu_hook_set_access_flags;
extern struct direct_hook pvmmu_hook_move_tables;
extern struct direct_hook pvmmu_hook_unmap_range;
int pvmmu_hooks_resolve(void);
int pvmmu_hook(struct pvmmu_switch *part);
void pvmmu_unhook(struct pvmmu_switch *part);

/* entry.S */
void pvmmu_entry_pgd_walk(void);
void pvmmu_entry_pgd_pin(void);
void pvmmu_entry_pgd_unpin(void);
void pvmmu_entry_alloc_pmd(void);
void pvmmu_entry_exit_mmap(void);
void pvmmu_entry_end_switch(void);
void pvmmu_entry_write_msr(void);
void pvmmu_entry_load_gs_index(void);
void pvmmu_entry_load_sp0(void);
void pvmmu_entry_set_pte(void);
void pvmmu_entry_map_pages(void);
void pvmmu_entry_copy_range(void);
void pvmmu_entry_clear_flush(void);
void pvmmu_entry_set_access_flags(void);
void pvmmu_entry_move_tables(void);
void pvmmu_entry_unmap_range(void);

/* clear_flush.c */
int pvmmu_clear_flush_resolve(void);

/* copy_range.c */
#define PVMMU_FORK		BIT(0)
#define PVMMU_FORK_COPY		BIT(1)
#define PVMMU_FORK_TEXT		BIT(2)
#define PVMMU_FORK_HINTS	BIT(3)
#define PVMMU_FORK_ENTRIES	BIT(4)
typedef int copy_range_t(struct vm_area_struct *dst, struct vm_area_struct *src);
int pvmmu_copy_range_enable(struct pvmmu_switch *part);
void pvmmu_copy_range_disable(struct pvmmu_switch *part);
bool pvmmu_copy_range_is_on(unsigned int bit);

/* exit_mmap.c */
int pvmmu_exit_mmap_resolve(void);

/* fault_around.c */
int pvmmu_fault_around_resolve(void);

/* fork.c */
int pvmmu_fork_resolve(void);

/* fork_copy.c */
int pvmmu_fork_copy_resolve(void);

/* fork_entries.c */
int pvmmu_fork_entries_resolve(void);

/* fork_hints.c */
void pvmmu_fork_hint(struct vm_area_struct *vma, unsigned long address, pte_t pte);

/* fork_text.c */
int pvmmu_fork_text_resolve(void);

/* hypervisor.c */
int pvmmu_hypervisor_get(u32 bit);
int pvmmu_hypervisor_set(u32 bit, bool on);

/* inside.c */
void pvmmu_enter(void);
void pvmmu_leave(void);
void pvmmu_drain(void);

/* kernel_half.c */
int pvmmu_kernel_half_resolve(void);
int pvmmu_kernel_half_enable(struct pvmmu_switch *part);
void pvmmu_kernel_half_disable(struct pvmmu_switch *part);
void pvmmu_kernel_half_leave_out(pgd_t *pgd);

/* known.c */
int pvmmu_known_check(void);

/* mremap.c */
int pvmmu_mremap_resolve(void);

/* pin.c */
int pvmmu_pin_resolve(void);

/* reuse_around.c */
bool pvmmu_make_exclusive(struct page *page, struct vm_area_struct *vma);
int pvmmu_reuse_around_resolve(void);

/* thunk_code.S */
void pvmmu_val(void);
void pvmmu_make(void);

/* thunks.c */
int pvmmu_thunks_resolve(void);
int pvmmu_thunks_enable(struct pvmmu_switch *part);
void pvmmu_thunks_disable(struct pvmmu_switch *part);

/* zap.c */
int pvmmu_zap_resolve(void);

#endif /* TRAPLESS_PVMMU_H */
