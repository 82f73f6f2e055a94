// SPDX-License-Identifier: GPL-2.0-only
/*
 * mremap() exchanges each entry that it moves for zero, which traps, and then asks Xen
 * to write the new one. Here, before move_page_tables() looks at a range, its entries
 * are moved by two hypercalls for many, or by one for all of a table, where the
 * hypervisor's payload has that (ranges.c); the stock function finds none of them.
 *
 * Invariants:
 *
 *  - Moved is anonymous memory only: its tables stay, as mmap_lock is held for writing.
 *    Both tables' locks are held from before the first entry is written until the old
 *    translations are flushed, and the lock of the reverse map where stock holds it. So
 *    whoever finds a page by either sees it in one place, and no one uses it by an old
 *    translation once the locks are dropped.
 *  - An entry is written in its new place, and cleared in the old one only if it is
 *    there. An entry that Xen refuses stays where it is, for the stock function. By
 *    TPT_OP_MOVE Xen does both, and keeps what the hardware sets to the last.
 *  - In batches the hardware may set the accessed and the dirty bit until the entry is cleared. Xen
 *    clears it with MMU_PT_UPDATE_PRESERVE_AD, which keeps both as they were in that
 *    moment, in an entry that is not present any more. They are read there, and what was
 *    set late is added to the new entry. So it is as exact as stock's exchange.
 *  - Such an entry with no more than these two bits is an empty one (pte_none()), as some
 *    processors leave them behind; it may stay.
 *  - A moved entry is soft-dirty, as on stock. Where userfaultfd or others (notifiers)
 *    hear of moves, nothing is done.
 *  - Stock moves a whole table if it can, and warns if it finds one in the new place. Such
 *    a range is left to it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/mmu_notifier.h>
#include <linux/pgtable.h>
#include <linux/rmap.h>
#include <linux/sched.h>

#include <asm/tlbflush.h>

#include "batch.h"
#include "permission.h"
#include "pvmmu.h"
#include "ranges.h"
#include "series_mmu.h"
#include "stock_symbols.h"
#include "table.h"

#define HARDWARE_BITS	((pteval_t)(_PAGE_ACCESSED | _PAGE_DIRTY))
/* What a moved entry gets. */
#define MOVED		(IS_ENABLED(CONFIG_MEM_SOFT_DIRTY) ? _PAGE_SOFT_DIRTY : (pteval_t)0)

static series_lock_table_t *stock_lock_table;
static void (*stock_flush_tlb_mm_range)(struct mm_struct *mm,
					unsigned long start, unsigned long end,
					unsigned int stride_shift,
					bool freed_tables);
static void (*stock_flush_tlb_batched_pending)(struct mm_struct *mm);

/**
 * pvmmu_mremap_resolve - find the stock functions needed here
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_mremap_resolve(void)
{
	const struct stock_symbol symbols[] = {
		{ "flush_tlb_mm_range", &stock_flush_tlb_mm_range },
		{ "flush_tlb_batched_pending", &stock_flush_tlb_batched_pending },
		{ SERIES_LOCK_TABLE_SYMBOL, &stock_lock_table },
	};

	return stock_symbols_resolve(symbols, ARRAY_SIZE(symbols) -
				     !SERIES_LOCK_TABLE_SYMBOL);
}

/**
 * struct move - entries that are moved together
 * @from:  the first entry of the range in the old table
 * @to:    the one that it becomes
 * @count: how many are moved
 * @index: which of the range
 * @value: what is written of each, with a machine frame
 */
struct move {
	pte_t *from, *to;
	unsigned int count;
	u16 index[BATCH];
	pteval_t value[BATCH];
};

static bool is_present(const pte_t *ptep)
{
	return READ_ONCE(*ptep).pte & _PAGE_PRESENT;
}

static void add_entry(struct move *move, unsigned int index)
{
	move->index[move->count] = index;
	move->value[move->count++] = READ_ONCE(move->from[index]).pte | MOVED;
}

static void write_new(const struct move *move)
{
	struct batch batch;
	unsigned int i;

	batch_start(&batch, move->to);
	for (i = 0; i < move->count; i++)
		batch_add(&batch, move->to + move->index[i], move->value[i],
			  MMU_NORMAL_PT_UPDATE);
	batch_flush(&batch);
}

static void clear_old(const struct move *move)
{
	struct batch batch;
	unsigned int i;

	batch_start(&batch, move->from);
	for (i = 0; i < move->count; i++)
		if (is_present(move->to + move->index[i]))
			batch_add(&batch, move->from + move->index[i], 0,
				  MMU_PT_UPDATE_PRESERVE_AD);
	batch_flush(&batch);
}

/* What the hardware has set since the entries were read. */
static void add_late_bits(const struct move *move)
{
	struct batch batch;
	unsigned int i;

	batch_start(&batch, move->to);
	for (i = 0; i < move->count; i++) {
		pteval_t old = READ_ONCE(move->from[move->index[i]]).pte;
		pteval_t late = old & HARDWARE_BITS & ~move->value[i];

		/* Xen refuses neither; an entry in two places would be fatal. */
		if (WARN_ON_ONCE(old & _PAGE_PRESENT))
			batch_add(&batch, move->to + move->index[i], 0,
				  MMU_NORMAL_PT_UPDATE);
		else if (late)
			batch_add(&batch, move->to + move->index[i],
				  move->value[i] | late, MMU_PT_UPDATE_PRESERVE_AD);
	}
	batch_flush(&batch);
}

static bool move_in_batches(pte_t *to, pte_t *from, unsigned int count)
{
	struct move move = { .from = from, .to = to };
	unsigned int i = 0;
	bool is_any = false;

	do {
		for (move.count = 0; i < count && move.count < BATCH; i++)
			if (is_present(from + i) && pte_none(to[i]))
				add_entry(&move, i);
		if (!move.count)
			break;
		write_new(&move);
		clear_old(&move);
		add_late_bits(&move);
		is_any = true;
	} while (i < count);
	return is_any;
}

/* Return: whether any entry was moved. */
static bool move_entries(pte_t *to, pte_t *from, unsigned int count)
{
	bool is_any = ranges_move(to, from, count, MOVED) > 0;

	/* What Xen has left, such as entries that are dirty and protected on Linux 6.12. */
	return move_in_batches(to, from, count) || is_any;
}

/* Both tables are locked. */
static void move_and_flush(struct mm_struct *mm, pte_t *from_entry, pte_t *to_entry,
			   unsigned long from, unsigned long size)
{
	stock_flush_tlb_batched_pending(mm);
	/* Unpinned tables are written without a trap. */
	if (PagePinned(virt_to_page(from_entry)) && PagePinned(virt_to_page(to_entry)) &&
	    move_entries(to_entry, from_entry, size >> PAGE_SHIFT))
		/* A flush of all is one hypercall, of a page each as many. */
		stock_flush_tlb_mm_range(mm, from, size > PAGE_SIZE ?
					 TLB_FLUSH_ALL : from + size,
					 PAGE_SHIFT, false);
}

static void move_in_table(struct mm_struct *mm, pmd_t *from_pmd, unsigned long from,
			  pmd_t *to_pmd, unsigned long to, unsigned long size)
{
	pte_t *to_entry = pte_offset_kernel(to_pmd, to), *from_entry;
	spinlock_t *to_lock = pte_lockptr(mm, to_pmd), *from_lock;

	from_entry = series_lock_table(stock_lock_table, mm, from_pmd, from, &from_lock);
	if (series_is_gone(from_entry, from_lock))
		return;
	if (to_lock == from_lock) {
		move_and_flush(mm, from_entry, to_entry, from, size);
	} else {
		/* As in stock: no one else locks two tables while mmap_lock is held. */
		spin_lock_nested(to_lock, SINGLE_DEPTH_NESTING);
		move_and_flush(mm, from_entry, to_entry, from, size);
		spin_unlock(to_lock);
	}
	pte_unmap_unlock(from_entry, from_lock);
}

/* From one table to one table. */
static void move_piece(struct vm_area_struct *vma, unsigned long from, unsigned long to,
		       unsigned long size, bool need_rmap_locks)
{
	pmd_t *from_pmd = present_pmd(vma->vm_mm, from);
	pmd_t *to_pmd = from_pmd ? pvmmu_make_table(vma->vm_mm, to) : NULL;

	if (!to_pmd || pmd_bad(*to_pmd))
		return;
	if (need_rmap_locks)
		anon_vma_lock_write(vma->anon_vma);
	move_in_table(vma->vm_mm, from_pmd, from, to_pmd, to, size);
	if (need_rmap_locks)
		anon_vma_unlock_write(vma->anon_vma);
}

static bool is_plain(const struct vm_area_struct *vma)
{
	return vma_is_anonymous((struct vm_area_struct *)vma) && vma->anon_vma &&
	       !(vma->vm_flags & (VM_SHARED | VM_HUGETLB | VM_PFNMAP | VM_MIXEDMAP |
				  VM_IO)) &&
	       !vma->vm_userfaultfd_ctx.ctx && !mm_has_notifiers(vma->vm_mm);
}

static unsigned long left_in_table(unsigned long address)
{
	return PMD_SIZE - (address & ~PMD_MASK);
}

/* May stock move a whole table, of which this is a part or all? */
static bool is_whole_table(unsigned long from, unsigned long to, unsigned long size)
{
	return left_in_table(from) == left_in_table(to) && size == left_in_table(from) &&
	       (SERIES_ALIGNS_MOVES || size == PMD_SIZE);
}

/*
 * Called by entry.S before move_page_tables(), with its arguments. mmap_lock is held for
 * writing. exec() moves a stack within one area, before it has pinned tables.
 */
void pvmmu_move_tables(struct vm_area_struct *vma, unsigned long from,
		       struct vm_area_struct *new_vma, unsigned long to,
		       unsigned long size, bool need_rmap_locks);
void pvmmu_move_tables(struct vm_area_struct *vma, unsigned long from,
		       struct vm_area_struct *new_vma, unsigned long to,
		       unsigned long size, bool need_rmap_locks)
{
	unsigned long end = from + size, piece;

	if (vma == new_vma || !is_plain(vma) || !is_plain(new_vma))
		return;
	pvmmu_enter();
	for (; from < end; from += piece, to += piece) {
		piece = min3(left_in_table(from), left_in_table(to), end - from);
		if (!is_whole_table(from, to, piece))
			move_piece(vma, from, to, piece, need_rmap_locks);
		cond_resched();
	}
	pvmmu_leave();
}
