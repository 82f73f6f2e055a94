// SPDX-License-Identifier: GPL-2.0-only
/*
 * Entries of top tables behind which nothing is mapped. The kernel copies its own half into
 * the top table of each address space: some ten entries that it uses, and one for each 512
 * GiB in which vmalloc() might map something, 64 that lead to tables most of which stay
 * empty. Xen validates each entry when a top table is pinned, and drops its reference when
 * it is unpinned. Here the longest run of those entries is left out of address spaces that
 * are pinned, and put in before anything is mapped there.
 *
 * Invariants:
 *
 *  - An entry is left out only while the table behind it, which init_mm's top table keeps,
 *    has no entry: a processor finds nothing there either way.
 *  - Such a table gets its first entry under init_mm's page_table_lock, after
 *    xen_alloc_pmd() has made the table that the entry leads to a page table to Xen. That is
 *    hooked: first nothing is left out any more, then the entries are put into all top
 *    tables. Only then does the kernel go on.
 *  - What is left out is read by who pins an address space, under its page_table_lock and
 *    after it is in pgd_list; and is changed before the lock is taken by who puts entries
 *    in. So either the former finds that nothing is left out, or the latter finds its table
 *    without the entries.
 *  - The hook stays as long as the part is on: the kernel lets nobody turn it off
 *    (series_hooks_stay()).
 *  - Order of the locks: init_mm's page_table_lock, state_lock, pgd_lock, that of an address
 *    space. pgd_lock is taken before the last as in the stock kernel.
 *
 * Putting entries in takes one pass over all address spaces, without preemption and under
 * pgd_lock, for which each fork and exec waits: two hypercalls an address space. An address
 * space gets them once, so that happens as often as vmalloc() enters another 512 GiB, which
 * is seldom, or when memory is plugged in.
 *
 * sync_global_pgds(), by which the kernel adds entries for memory that is plugged in, changes
 * none in the range of vmalloc(), so it is not concerned.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/jiffies.h>
#include <linux/list.h>
#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/spinlock.h>
#include <linux/string.h>
#include <linux/workqueue.h>

#include "pvmmu.h"
#include "series_lazy.h"
#include "series_mmu.h"
#include "stock_symbols.h"

static struct mm_struct *stock_init_mm;
static spinlock_t *stock_pgd_lock;
static struct list_head *stock_pgd_list;
static series_lazy_t *stock_lazy;

/**
 * struct run - consecutive entries of a top table
 * @first: the first of them
 * @count: how many; 0: none
 */
struct run {
	u16 first;
	u16 count;
} __aligned(sizeof(u32));

static_assert(sizeof(struct run) == sizeof(u32)); /* read and written as a whole */

/* What is left out. Changed under state_lock. */
static struct run left_out;
/* Whether the part is on. Under state_lock. */
static bool is_on;
static DEFINE_SPINLOCK(state_lock);

static void look_again(struct work_struct *work);
static DECLARE_DELAYED_WORK(later, look_again);

/**
 * pvmmu_kernel_half_resolve - find what is needed here
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_kernel_half_resolve(void)
{
	const struct stock_symbol symbols[] = {
		{ "init_mm", &stock_init_mm },
		{ "pgd_lock", &stock_pgd_lock },
		{ "pgd_list", &stock_pgd_list },
		{ SERIES_LAZY_SYMBOL, &stock_lazy },
	};

	return stock_symbols_resolve(symbols, ARRAY_SIZE(symbols));
}

/**
 * pvmmu_kernel_half_leave_out - empty the entries of an address space that need not be there
 * @pgd: its top table, not pinned yet; the address space's page_table_lock is held
 */
void pvmmu_kernel_half_leave_out(pgd_t *pgd)
{
	struct run run = READ_ONCE(left_out);

	memset(pgd + run.first, 0, run.count * sizeof(*pgd));
}

static void put_into(pgd_t *pgd, struct run run)
{
	unsigned int i;

	for (i = run.first; i < run.first + run.count; i++) {
		p4d_t *p4d = (p4d_t *)&pgd[i];

		if (p4d_none(*p4d))
			set_p4d(p4d, *(p4d_t *)&stock_init_mm->pgd[i]);
	}
}

/* Under state_lock: nothing is left out any more, of any address space. */
static void put_in(void)
{
	struct run run = left_out;
	struct list_head *node;
	bool collects;

	WRITE_ONCE(left_out, (struct run){ });
	if (!run.count)
		return;
	spin_lock(stock_pgd_lock);
	/* Many entries a hypercall. Nobody allocates tables while this CPU collects, but in case: */
	collects = stock_lazy() == SERIES_LAZY_NONE;
	if (collects)
		arch_enter_lazy_mmu_mode();
	list_for_each(node, stock_pgd_list) {
		struct page *table = series_pgd_page(node);
		spinlock_t *lock = &series_pgd_mm(table)->page_table_lock;

		spin_lock_nested(lock, SINGLE_DEPTH_NESTING);
		put_into(page_address(table), run);
		spin_unlock(lock);
	}
	if (collects)
		arch_leave_lazy_mmu_mode();
	else
		arch_flush_lazy_mmu_mode();
	spin_unlock(stock_pgd_lock);
}

/* Does the entry lead to a table that is empty? */
static bool leads_nowhere(unsigned int i)
{
	p4d_t *p4d = (p4d_t *)&stock_init_mm->pgd[i];

	return p4d_present(*p4d) &&
	       !memchr_inv(pud_offset(p4d, 0), 0, PAGE_SIZE);
}

/* The longest run of entries that lead nowhere, of those for vmalloc(). */
static struct run longest_run(void)
{
	struct run run = { }, longest = { };
	unsigned int i;

	for (i = pgd_index(VMALLOC_START); i <= pgd_index(VMALLOC_END); i++) {
		if (!leads_nowhere(i)) {
			run.count = 0;
			continue;
		}
		if (!run.count++)
			run.first = i;
		if (run.count > longest.count)
			longest = run;
	}
	return longest;
}

static void look_again(struct work_struct *work)
{
	spin_lock(&stock_init_mm->page_table_lock);
	spin_lock(&state_lock);
	/* Of another run entries would be missed that nobody puts in. */
	if (is_on && !left_out.count)
		WRITE_ONCE(left_out, longest_run());
	spin_unlock(&state_lock);
	spin_unlock(&stock_init_mm->page_table_lock);
}

/* Called by entry.S with the arguments of xen_alloc_pmd(), before it. */
void pvmmu_alloc_pmd(struct mm_struct *mm, unsigned long pfn);
void pvmmu_alloc_pmd(struct mm_struct *mm, unsigned long pfn)
{
	if (likely(mm != stock_init_mm))
		return;
	spin_lock(&state_lock);
	put_in();
	if (is_on)
		mod_delayed_work(system_wq, &later, HZ);
	spin_unlock(&state_lock);
}

int pvmmu_kernel_half_enable(struct pvmmu_switch *part)
{
	int rc = pvmmu_hook(part);

	if (rc)
		return rc;
	spin_lock(&state_lock);
	is_on = true;
	spin_unlock(&state_lock);
	/* Who came too early to be hooked has left the lock when this gets it. */
	look_again(NULL);
	return 0;
}

void pvmmu_kernel_half_disable(struct pvmmu_switch *part)
{
	spin_lock(&state_lock);
	is_on = false;
	put_in();
	spin_unlock(&state_lock);
	cancel_delayed_work_sync(&later);
	pvmmu_unhook(part);
}
