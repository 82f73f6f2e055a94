// SPDX-License-Identifier: GPL-2.0-only
/*
 * Some pages are written by a child at once, and soon by its parent: those around the
 * stack pointer, that of the thread's control block, and those that were copied after
 * earlier forks (fork_hints.c). Each costs the protection in fork, a copy on write in the
 * one process, and a fault in the other that finds the page its own. fork copies a page
 * at once if it is pinned for DMA: the child gets a copy, the parent keeps the page. Here
 * these pages are treated so: while fork copies their area they have the references of a
 * pin.
 *
 * Invariants:
 *
 *  - The copy is made by the stock function, from a page that is the parent's alone: it
 *    is anonymous and exclusive, or passes do_wp_page()'s test for one that may become
 *    so (pvmmu_make_exclusive()), and besides the entry nobody has a reference to it (no
 *    DMA, no swap cache, no get_user_pages()).
 *  - Nobody writes the page while it is copied: the process has one thread, and its
 *    address space one user; whoever else writes by way of it holds its mmap_lock, which
 *    fork holds for writing. So the copy is what the page held at the fork.
 *  - The references are taken under the table's lock and dropped after the stock
 *    function, whatever it returned. While they are held reclaim, migration and KSM find
 *    a page that is in use. The last may be ours (a page that memory failure
 *    unmapped): then it is freed here.
 *  - A page stays shared, as on stock, where writes are tracked (userfaultfd, soft-dirty)
 *    or others have copies of the entries (notifiers).
 *
 * MMF_HAS_PINNED stays set, as for any process that used O_DIRECT: a later fork looks
 * at the references of each page. The child's copies are charged to its cgroup in
 * fork, not at its first write: if there is no memory for one, fork fails (ENOMEM), where
 * on stock the child would meet that at its write.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/page_ref.h>
#include <linux/pgtable.h>
#include <linux/sched.h>
#include <linux/sched/coredump.h>
#include <linux/sched/signal.h>

#include <asm/cpufeature.h>
#include <asm/fsgsbase.h>
#include <asm/ptrace.h>

#include "copy_range.h"
#include "permission.h"
#include "pvmmu.h"
#include "series_mmu.h"
#include "stock_symbols.h"
#include "table.h"

/*
 * What a child writes of the stack at once, in bytes from the stack pointer: frames of
 * what it calls next, and of what it returns to.
 */
#define STACK_BELOW	512
#define STACK_ABOVE	512
static_assert(STACK_BELOW + STACK_ABOVE <= PAGE_SIZE);

static series_lock_table_t *stock_lock_table;

/**
 * pvmmu_fork_copy_resolve - find the stock function needed here, if any
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_fork_copy_resolve(void)
{
	const struct stock_symbol symbol = { SERIES_LOCK_TABLE_SYMBOL,
					     &stock_lock_table };

	return symbol.name ? stock_symbols_resolve(&symbol, 1) : 0;
}

/* Can nobody else write its memory, and does nobody track writes? */
static bool is_plain_process(struct mm_struct *mm)
{
	return mm == current->mm && thread_group_empty(current) &&
	       atomic_read(&mm->mm_users) == 1 && !mm_has_notifiers(mm);
}

static bool is_plain_memory(const struct vm_area_struct *vma)
{
	return vma->anon_vma && (vma->vm_flags & (VM_WRITE | VM_SHARED)) == VM_WRITE &&
	       !(vma->vm_flags & (VM_HUGETLB | VM_PFNMAP | VM_MIXEDMAP | VM_IO)) &&
	       !vma->vm_userfaultfd_ctx.ctx;
}

/* Return: the parent's page behind an entry, or NULL if it is not the parent's alone. */
static struct page *own_page(pte_t pte, struct vm_area_struct *vma)
{
	struct page *page;

	if (!(is_writable(pte) || is_protected(pte)) || pte_special(pte) || pte_devmap(pte) ||
	    (IS_ENABLED(CONFIG_MEM_SOFT_DIRTY) && !pte_soft_dirty(pte)) ||
	    !pfn_valid(pte_pfn(pte)))
		return NULL;
	page = pte_page(pte);
	return PageAnon(page) && !PageCompound(page) && !series_in_swap_cache(page) &&
	       page_count(page) == 1 && pvmmu_make_exclusive(page, vma) ? page : NULL;
}

static void add_copy(struct vm_area_struct *src, struct fork_copies *copies,
		     unsigned long address)
{
	struct mm_struct *mm = src->vm_mm;
	struct page *page;
	spinlock_t *lock;
	pmd_t *pmd;
	pte_t *ptep;

	address &= PAGE_MASK;
	if (address < src->vm_start || address >= src->vm_end ||
	    is_copied_in_fork(address, copies))
		return;
	pmd = present_pmd(mm, address);
	if (!pmd)
		return;
	ptep = series_lock_table(stock_lock_table, mm, pmd, address, &lock);
	if (series_is_gone(ptep, lock))
		return;
	page = own_page(*ptep, src);
	if (page) {
		if (!test_bit(MMF_HAS_PINNED, &mm->flags))
			set_bit(MMF_HAS_PINNED, &mm->flags);
		page_ref_add(page, GUP_PIN_COUNTING_BIAS);
		copies->address[copies->count] = address;
		copies->page[copies->count++] = page;
	}
	pte_unmap_unlock(ptep, lock);
}

/* Where the thread's control block is. */
static unsigned long control_block(void)
{
	return boot_cpu_has(X86_FEATURE_FSGSBASE) ? rdfsbase() : current->thread.fsbase;
}

/**
 * pvmmu_fork_copy_begin - mark pages that fork shall copy
 * @src:    an area of the parent
 * @parts:  PVMMU_ bits of those that are on
 * @copies: receives them; empty
 */
void pvmmu_fork_copy_begin(struct vm_area_struct *src, unsigned int parts,
			   struct fork_copies *copies)
{
	unsigned long hints[FORK_HINTS], sp = task_pt_regs(current)->sp;
	unsigned int count;

	if (!is_plain_memory(src) || !is_plain_process(src->vm_mm))
		return;
	if (parts & PVMMU_FORK_COPY) {
		/* In one page, or in two that are neighbours. */
		add_copy(src, copies, sp - STACK_BELOW);
		add_copy(src, copies, sp + STACK_ABOVE);
		add_copy(src, copies, control_block());
	}
	count = parts & PVMMU_FORK_HINTS ? pvmmu_fork_hints(src, hints) : 0;
	while (count--)
		add_copy(src, copies, hints[count]);
}

/**
 * pvmmu_fork_copy_end - undo it
 * @copies: the pages
 */
void pvmmu_fork_copy_end(const struct fork_copies *copies)
{
	unsigned int i;

	for (i = 0; i < copies->count; i++)
		folio_put_refs(page_folio(copies->page[i]), GUP_PIN_COUNTING_BIAS);
}
