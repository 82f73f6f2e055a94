// SPDX-License-Identifier: GPL-2.0-only
/*
 * __xen_pgd_pin() and __xen_pgd_unpin(): the tables of an address space become page
 * tables to Xen before it is used, and ordinary pages again after. Each table is
 * remapped (read-only before it is pinned, writable after it is unpinned) and Xen
 * flushes TLBs where a page changes its type, on all CPUs that the domain has run on
 * and that have not flushed since the page's last use in its old type. Stock queues the
 * remap and the pin of one table after the other, so each pin finds a use that is newer
 * than the last flush: a flush a table. Here all remaps are queued first, then all
 * pins; and all unpins first, then all remaps: the first type change flushes, and the
 * last uses of all others are older.
 *
 * Invariants:
 *
 *  - The tables, their marks (PagePinned) and their locks are stock's: a table is marked
 *    first, a lowest one locked then, and the lock is held until the multicall that
 *    pins or unpins it is done. Who writes an entry under the lock (set_pte.c) finds the
 *    table writable or pinned, never between.
 *  - That no CPU keeps a writable translation of a page table is Xen's to ensure, and it
 *    does so at the type change; nothing here is asked of it. The flush that Linux
 *    asks for with the top table's remap is asked for with the last remap of each
 *    multicall of a pin: it serves the type changes that follow, too. Linux asks for
 *    one after an unpin as well, where Xen has flushed already, before the first remap
 *    is done. A CPU that reads a table again before its remap may keep a read-only
 *    translation, and takes a fault at its first write, which the kernel expects
 *    (spurious_kernel_fault()).
 *  - The top tables are unpinned before the first table is remapped, and pinned after
 *    the last was. Until then Xen counts references to all tables below.
 *  - A chunk of tables fits into the queue of multicalls. If something is queued
 *    already, the queue issues itself early, at any place of the order above, which is
 *    as good: locks are released by callbacks that are queued last.
 *
 * The trace events xen_mmu_pgd_pin and xen_mmu_pgd_unpin do not fire.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bitmap.h>
#include <linux/irqflags.h>
#include <linux/mm.h>
#include <linux/percpu.h>
#include <linux/pgtable.h>
#include <linux/spinlock.h>

#include <asm/xen/page.h>

#include <xen/interface/xen.h>
#include <xen/xen-ops.h>

#include "multicall.h"
#include "pvmmu.h"
#include "series_mmu.h"
#include "stock_symbols.h"
#include "walk.h"

/* As in the stock kernel's arch/x86/xen/mmu_pv.c. */
#define USER_LIMIT	((STACK_TOP_MAX + PGDIR_SIZE - 1) & PGDIR_MASK)

/* Tables that are remapped together: with a call for all pins they fit into the queue. */
#define CHUNK		19
/* The two top tables are pinned in the same call as the last chunk. */
static_assert(CHUNK + 1 <= MULTICALL_CALLS);
static_assert((CHUNK + 2) * sizeof(struct mmuext_op) < MULTICALL_ARGUMENTS);

/**
 * struct chunk - tables that change together
 * @mm:     whose they are
 * @pin:    whether they are pinned, or unpinned
 * @count:  how many
 * @tables: their pages
 * @lowest: which of them are of the lowest level; these are locked
 */
struct chunk {
	struct mm_struct *mm;
	bool pin;
	unsigned int count;
	struct page *tables[CHUNK];
	DECLARE_BITMAP(lowest, CHUNK);
};

/* The walk's callback has no argument for it. Interrupts are off. */
static DEFINE_PER_CPU(struct chunk, chunks);

static pvmmu_walk_t *stock_walk;

/**
 * pvmmu_pin_resolve - find the stock function needed here
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_pin_resolve(void)
{
	const struct stock_symbol symbol = { "__xen_pgd_walk", &stock_walk };

	return stock_symbols_resolve(&symbol, 1);
}

static void unlock(void *lock)
{
	__acquire(lock); /* in add_table() */
	spin_unlock(lock);
}

static unsigned long table_mfn(const struct page *table)
{
	return pfn_to_mfn(page_to_pfn(table));
}

static void remap(struct page *table, pgprot_t protection, unsigned long flush)
{
	pte_t pte = pfn_pte(page_to_pfn(table), protection);

	multicall_call(__HYPERVISOR_update_va_mapping,
		       (unsigned long)page_address(table), pte.pte, flush);
}

static void remap_all(const struct chunk *chunk)
{
	unsigned int i;

	for (i = 0; i < chunk->count; i++)
		if (chunk->pin)
			remap(chunk->tables[i], PAGE_KERNEL_RO, i + 1 < chunk->count ?
			      UVMF_NONE : UVMF_TLB_FLUSH | UVMF_LOCAL);
		else
			remap(chunk->tables[i], PAGE_KERNEL, UVMF_NONE);
}

static void change_types(const struct chunk *chunk)
{
	unsigned int i;

	for_each_set_bit(i, chunk->lowest, CHUNK)
		multicall_mmuext(chunk->pin ? MMUEXT_PIN_L1_TABLE : MMUEXT_UNPIN_TABLE,
				 table_mfn(chunk->tables[i]));
}

/* Queue the chunk's calls, and leave an empty one. */
static void queue_chunk(struct chunk *chunk)
{
	unsigned int i;

	if (chunk->pin)
		remap_all(chunk);
	change_types(chunk);
	if (!chunk->pin)
		remap_all(chunk);
	for_each_set_bit(i, chunk->lowest, CHUNK)
		multicall_callback(unlock, series_table_lock(chunk->tables[i]));
	chunk->count = 0;
	bitmap_zero(chunk->lowest, CHUNK);
}

static void add_table(struct chunk *chunk, struct page *table, bool is_lowest)
{
	if (chunk->pin ? TestSetPagePinned(table) : !TestClearPagePinned(table))
		return;
	if (chunk->count == CHUNK) {
		queue_chunk(chunk);
		multicall_flush();
	}
	if (is_lowest) {
		spin_lock_nest_lock(series_table_lock(table),
				    &chunk->mm->page_table_lock);
		__release(series_table_lock(table)); /* by unlock(), later */
		__set_bit(chunk->count, chunk->lowest);
	}
	chunk->tables[chunk->count++] = table;
}

static struct page *user_table(const struct page *top)
{
	void *user = (void *)page_private(top);

	return user ? virt_to_page(user) : NULL;
}

static void visit(struct mm_struct *mm, struct page *table, enum pt_level level)
{
	struct chunk *chunk = this_cpu_ptr(&chunks);
	struct page *user = level == PT_PGD ? user_table(table) : NULL;

	if (user)
		add_table(chunk, user, false);
	add_table(chunk, table, level == PT_PTE);
}

/* For both of an address space's top tables. */
static void change_top(struct page *top, unsigned int command)
{
	struct page *user = user_table(top);

	multicall_mmuext(command, table_mfn(top));
	if (user)
		multicall_mmuext(command, table_mfn(user));
}

static void walk(struct mm_struct *mm, pgd_t *pgd, bool pin)
{
	struct chunk *chunk = this_cpu_ptr(&chunks);

	chunk->mm = mm;
	chunk->pin = pin;
	stock_walk(mm, pgd, visit, USER_LIMIT);
	queue_chunk(chunk);
}

/* Called by entry.S with the arguments of __xen_pgd_pin(). */
void pvmmu_pgd_pin(struct mm_struct *mm, pgd_t *pgd);
void pvmmu_pgd_pin(struct mm_struct *mm, pgd_t *pgd)
{
	unsigned long flags;

	/* Not if all are pinned at once, in the name of init_mm, without their locks. */
	if (pgd == mm->pgd && !PagePinned(virt_to_page(pgd)))
		pvmmu_kernel_half_leave_out(pgd);
	local_irq_save(flags);
	walk(mm, pgd, true);
	change_top(virt_to_page(pgd), MMUEXT_PIN_L4_TABLE);
	multicall_flush();
	local_irq_restore(flags);
}

/* Called by entry.S with the arguments of __xen_pgd_unpin(). */
void pvmmu_pgd_unpin(struct mm_struct *mm, pgd_t *pgd);
void pvmmu_pgd_unpin(struct mm_struct *mm, pgd_t *pgd)
{
	unsigned long flags;

	local_irq_save(flags);
	change_top(virt_to_page(pgd), MMUEXT_UNPIN_TABLE);
	walk(mm, pgd, false);
	multicall_flush();
	local_irq_restore(flags);
}
