// SPDX-License-Identifier: GPL-2.0-only
/*
 * A child begins where its parent is: in the code that made the system call, and soon
 * in the code that called it. fork does not copy the entries of a file's area in which
 * nothing was written, since faults can bring them back; so the child takes a fault at
 * once for either. Here the parent's entries of these two blocks are copied as fork
 * copies those of other areas.
 *
 * Invariants:
 *
 *  - Copied are entries that are present, without write permission, of a page of the
 *    file, as copy_present_pte() does it: with a reference, a mapping of the page and
 *    the child's count, not accessed. Both tables' locks are held.
 *  - The file can be truncated meanwhile, by a walk that finds an area's entries by the
 *    file. It comes to the child's area after the parent's (dup_mmap() links it right
 *    behind), so it clears a copy that was made before it came to the parent, and
 *    later there is nothing to copy.
 *  - The child's table is not pinned yet: its entries are written directly.
 *  - If anything is missing, memory for a table too, nothing is copied: the child takes
 *    its faults.
 *
 * What is copied is a guess, whose cost is bounded: a block is as large as the one that
 * the fault would have mapped, and there are two of an area at most, to which the
 * instruction pointer or a word at the end of the parent's stack points.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/pgtable.h>
#include <linux/rmap.h>
#include <linux/sched.h>
#include <linux/uaccess.h>

#include <asm/ptrace.h>

#include "copy_range.h"
#include "permission.h"
#include "pvmmu.h"
#include "series_mmu.h"
#include "stock_symbols.h"
#include "table.h"

/* As fault-around, by default. */
#define BLOCK		(16 * PAGE_SIZE)
/* Blocks of an area. */
#define GUESSES		2
/* Words of the stack that are looked at: some frames of a C library. */
#define WORDS		48

static series_lock_table_t *stock_lock_table;

/**
 * pvmmu_fork_text_resolve - find the stock function needed here, if any
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_fork_text_resolve(void)
{
	const struct stock_symbol symbol = { SERIES_LOCK_TABLE_SYMBOL,
					     &stock_lock_table };

	return symbol.name ? stock_symbols_resolve(&symbol, 1) : 0;
}

static bool is_plain_text(const struct vm_area_struct *vma)
{
	return vma->vm_file && !vma->anon_vma &&
	       (vma->vm_flags & (VM_EXEC | VM_SHARED)) == VM_EXEC &&
	       !(vma->vm_flags & (VM_HUGETLB | VM_PFNMAP | VM_MIXEDMAP | VM_IO)) &&
	       !vma->vm_userfaultfd_ctx.ctx;
}

static bool contains(const struct vm_area_struct *vma, unsigned long address)
{
	return address >= vma->vm_start && address < vma->vm_end;
}

static unsigned long block_of(unsigned long address)
{
	return address & ~(BLOCK - 1);
}

/* Return: how many words of the parent's stack were read, at most WORDS. */
static unsigned int read_stack(unsigned long *words)
{
	unsigned long sp = task_pt_regs(current)->sp, left;
	/* No more than is left of the stack's page, which is there. */
	unsigned int count = min_t(unsigned long, WORDS,
				   (PAGE_SIZE - offset_in_page(sp)) / sizeof(*words));

	if (sp % sizeof(*words) ||
	    !access_ok((void __user *)sp, count * sizeof(*words)))
		return 0;
	pagefault_disable();
	left = __copy_from_user_inatomic(words, (void __user *)sp,
					 count * sizeof(*words));
	pagefault_enable();
	return left ? 0 : count;
}

/*
 * Guess where in the area the child will soon be: in the block of the instruction
 * pointer, or in another to which a word of the stack points. Return: how many, at
 * most GUESSES.
 */
static unsigned int guess(const struct vm_area_struct *vma, unsigned long *guesses)
{
	unsigned long ip = task_pt_regs(current)->ip, words[WORDS];
	unsigned int found = 0, count, i;

	if (contains(vma, ip))
		guesses[found++] = ip;
	count = read_stack(words);
	for (i = 0; i < count && found < GUESSES; i++)
		if (contains(vma, words[i]) &&
		    !(found && block_of(words[i]) == block_of(guesses[0])))
			guesses[found++] = words[i];
	return found;
}

static bool is_copied(pte_t pte)
{
	struct page *page;

	if (!is_protected(pte) || pte_special(pte) || pte_devmap(pte) ||
	    !pfn_valid(pte_pfn(pte)))
		return false;
	page = pte_page(pte);
	return !PageAnon(page) && !PageCompound(page);
}

static void copy_entries(struct mm_struct *mm, pte_t *to, const pte_t *from,
			 unsigned int count)
{
	int copied[NR_MM_COUNTERS] = { };
	unsigned int i;

	for (i = 0; i < count; i++) {
		pte_t pte = READ_ONCE(from[i]);
		struct page *page;

		if (!is_copied(pte) || !pte_none(to[i]))
			continue;
		page = pte_page(pte);
		get_page(page);
		series_dup_file_rmap(page);
		copied[series_file_counter(page)]++;
		native_set_pte(to + i, pte_mkold(pte));
	}
	for (i = 0; i < NR_MM_COUNTERS; i++)
		if (copied[i])
			series_count_pages(mm, i, copied[i]);
}

/* The block around @address, as far as it lies in the area. */
static void copy_block(struct vm_area_struct *dst, struct vm_area_struct *src,
		       unsigned long address)
{
	unsigned long start = max(block_of(address), src->vm_start);
	unsigned long end = min(block_of(address) + BLOCK, src->vm_end);
	pmd_t *from_pmd = present_pmd(src->vm_mm, start);
	pmd_t *to_pmd = from_pmd ? pvmmu_make_table(dst->vm_mm, start) : NULL;
	spinlock_t *to_lock, *from_lock;
	pte_t *to, *from;

	if (!to_pmd)
		return;
	to = series_lock_table(stock_lock_table, dst->vm_mm, to_pmd, start, &to_lock);
	if (series_is_gone(to, to_lock))
		return;
	from = series_lock_table(stock_lock_table, src->vm_mm, from_pmd, start,
				 &from_lock);
	if (!series_is_gone(from, from_lock)) {
		if (!PagePinned(virt_to_page(to)))
			copy_entries(dst->vm_mm, to, from,
				     (end - start) >> PAGE_SHIFT);
		pte_unmap_unlock(from, from_lock);
	}
	pte_unmap_unlock(to, to_lock);
}

/**
 * pvmmu_fork_text - copy what the child will execute first
 * @dst: an area of the child
 * @src: the parent's
 */
void pvmmu_fork_text(struct vm_area_struct *dst, struct vm_area_struct *src)
{
	unsigned long guesses[GUESSES];
	unsigned int count;

	if (!is_plain_text(src) || !user_64bit_mode(task_pt_regs(current)) ||
	    src->vm_mm != current->mm)
		return;
	count = guess(src, guesses);
	while (count--)
		copy_block(dst, src, guesses[count]);
}
