// SPDX-License-Identifier: GPL-2.0-only
/*
 * The pool: which pages are ours, how it grows, and how it gives all back.
 *
 * Invariants:
 *
 *  - `owned` maps the page frame number of every page that the hypervisor
 *    holds semi-writable for us to its level. A page that may carry the mark
 *    is never freed to the kernel: its next user could want it for DMA.
 *  - The pool holds one reference to each owned page, its ownership. A second
 *    one, possession, belongs to the cache or to whoever uses the page as a
 *    page table. Code that frees a table without passing through tables.c
 *    (pte_free() is inlined everywhere; a page fault that must wait for its
 *    file page frees its spare table so) thereby only drops possession and
 *    leaves the count at 1; sweep() finds such pages. Others may hold short
 *    speculative references: they delay sweep(), no more.
 *  - Giving a page back: first the hypervisor forgets the mark, then `owned`
 *    forgets the page, then ownership is dropped, at which the page is free or
 *    stays with its present user like any page of the kernel's.
 *
 * Locking: `resize` serialises growing, sweeping and giving back. Page tables
 * come back under rcu_read_lock() (tpt_pool_return): a grace period after the
 * caches have stopped serving no page enters a list, and one after `owned` has
 * forgotten the pages no reader knows them any more.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/rcupdate.h>
#include <linux/slab.h>
#include <linux/workqueue.h>
#include <linux/xarray.h>

#include <asm/xen/page.h>

#include "trapless.h"

/* Pages that one RELEASE gives back, while all other CPUs wait. */
#define RELEASE_BATCH	64
/* How long a run that could not grow the pool keeps others from trying. */
#define GROWTH_PAUSE	HZ
/* How long a table that was freed behind our back waits to be found. */
#define SWEEP_INTERVAL	(10 * HZ)
/* How often, and how long apart, a page that changes type is tried again. */
#define BUSY_RETRIES	100
#define BUSY_WAIT_MS	10

/*
 * Filled in bulk at load: a little under the cache sizes that PiBooster's
 * Table 1 found (5 PGDs, 26 PMDs, 145 PTEs), the rest comes with demand.
 */
static unsigned int prefill[TPT_LEVELS] = { 96, 24, 16, 6, 6 };
module_param_array(prefill, uint, NULL, 0444);
MODULE_PARM_DESC(prefill, "tables cached when enabled: pte,pmd,pud,pgd,user_pgd");

static unsigned int max_tables;
module_param(max_tables, uint, 0444);
MODULE_PARM_DESC(max_tables, "most tables the pool may own (default: 1/128 of memory)");

static DEFINE_XARRAY(owned);
static DEFINE_MUTEX(resize);
static bool enabled;

static void grow_work(struct work_struct *work);
static DECLARE_WORK(growth, grow_work);
static unsigned long next_growth = INITIAL_JIFFIES;

static void sweep_work(struct work_struct *work);
static DECLARE_DEFERRABLE_WORK(sweeping, sweep_work);

static void set_owned(struct tpt_cache *cache, int delta)
{
	spin_lock_irq(&cache->lock);
	cache->owned += delta;
	spin_unlock_irq(&cache->lock);
}

static unsigned int owned_tables(void)
{
	unsigned int level, sum = 0;

	for (level = 0; level < TPT_LEVELS; level++)
		sum += READ_ONCE(tpt_caches[level].owned);
	return sum;
}

static struct page *new_page(struct tpt_cache *cache)
{
	unsigned int order = cache->order;
	struct page *page;

	/*
	 * Compound, so that a stock free of a larger table drops possession of
	 * the whole (see __free_pages()). Charged when used, not when cached.
	 */
	page = alloc_pages(GFP_KERNEL | __GFP_NOWARN | __GFP_NORETRY |
			   (order ? __GFP_COMP : 0), order);
	if (!page)
		return NULL;
	if (xa_reserve(&owned, page_to_pfn(page), GFP_KERNEL)) {
		__free_pages(page, order);
		return NULL;
	}
	return page;
}

static void drop_new_page(struct tpt_cache *cache, struct page *page)
{
	xa_release(&owned, page_to_pfn(page));
	__free_pages(page, cache->order);
}

/* The page is semi-writable: own it, and hand possession to the cache. */
static void adopt(struct tpt_cache *cache, struct page *page)
{
	unsigned long pfn = page_to_pfn(page);

	get_page(page);
	xa_store(&owned, pfn, xa_mk_value(cache - tpt_caches), GFP_KERNEL);
	set_owned(cache, 1);
	if (!tpt_cache_return(cache, page))
		__free_pages(page, cache->order);	/* for sweep() to find */
}

/* Add up to @count tables to a level in one batch. Return: how many. */
static unsigned int add_batch(struct tpt_cache *cache, unsigned int count)
{
	struct page **pages;
	unsigned int i, done, n = 0;
	u64 *mfns;
	int rc;

	count = min(count, TPT_MAX_BATCH + 0u);
	pages = kmalloc_array(count, sizeof(*pages), GFP_KERNEL);
	mfns = kmalloc_array(count, sizeof(*mfns), GFP_KERNEL);
	while (pages && mfns && n < count) {
		pages[n] = new_page(cache);
		if (!pages[n])
			break;
		mfns[n] = pfn_to_mfn(page_to_pfn(pages[n]));
		n++;
	}
	if (!n) {
		done = 0;
		goto out;
	}

	rc = tpt_hypervisor_mark(mfns, n, &done);
	for (i = 0; i < done; i++)
		adopt(cache, pages[i]);
	if (rc)
		pr_warn_ratelimited("%u of %u %s pages not made semi-writable: %d\n",
				    n - done, n, cache->name, rc);
	/* After -EIO the rest may be beyond the reach of devices: keep it. */
	if (rc != -EIO)
		for (; i < n; i++)
			drop_new_page(cache, pages[i]);
out:
	kfree(mfns);
	kfree(pages);
	return done;
}

static void grow(struct tpt_cache *cache, unsigned int count)
{
	unsigned int all = owned_tables();

	if (all >= max_tables)
		return;
	count = min(count, max_tables - all);
	while (count) {
		unsigned int done = add_batch(cache, count);

		if (!done)
			return;
		count -= done;
	}
}

/* Pages whose user freed them behind our back: possession is ours again. */
static void sweep(void)
{
	unsigned long pfn;
	void *entry;

	xa_for_each(&owned, pfn, entry) {
		struct tpt_cache *cache = &tpt_caches[xa_to_value(entry)];
		struct page *page = pfn_to_page(pfn);

		cond_resched();
		if (page_count(page) != 1)
			continue;
		get_page(page);
		if (!tpt_cache_return(cache, page)) {
			__free_pages(page, cache->order);
			return;
		}
	}
}

static void grow_work(struct work_struct *work)
{
	struct tpt_cache *cache;
	unsigned int before;

	mutex_lock(&resize);
	if (!enabled)
		goto out;
	sweep();
	before = owned_tables();
	for (cache = tpt_caches; cache < tpt_caches + TPT_LEVELS; cache++) {
		unsigned int missing, cached;

		spin_lock_irq(&cache->lock);
		missing = cache->missing;
		cached = cache->cached;
		cache->missing = 0;
		spin_unlock_irq(&cache->lock);
		/* What was missing may have come back meanwhile. */
		if (missing + TPT_RESERVE > cached)
			grow(cache, missing + TPT_RESERVE - cached);
	}
	/* At the limit, or without memory, not at every allocation again. */
	if (owned_tables() == before)
		WRITE_ONCE(next_growth, jiffies + GROWTH_PAUSE);
out:
	mutex_unlock(&resize);
}

/* A cache is nearly empty: grow soon, outside the caller's path. */
void tpt_pool_wants_more(void)
{
	if (time_after_eq(jiffies, READ_ONCE(next_growth)))
		schedule_work(&growth);
}

static void sweep_work(struct work_struct *work)
{
	mutex_lock(&resize);
	if (enabled) {
		sweep();
		schedule_delayed_work(&sweeping, SWEEP_INTERVAL);
	}
	mutex_unlock(&resize);
}

/*
 * A memory cgroup is at its limit, and tables that were freed behind our back
 * are still charged to it: find them now.
 */
void tpt_pool_wants_sweep(void)
{
	mod_delayed_work(system_wq, &sweeping, 0);
}

/**
 * tpt_pool_return - a page table is free
 * @page: any page that the kernel gives up for good
 *
 * Return: true if it was ours and is back in its cache; false if it is the
 * caller's to free as ever.
 */
bool tpt_pool_return(struct page *page)
{
	bool taken = false;
	void *entry;

	rcu_read_lock();
	entry = xa_load(&owned, page_to_pfn(page));
	if (entry)
		taken = tpt_cache_return(&tpt_caches[xa_to_value(entry)], page);
	rcu_read_unlock();
	return taken;
}

static void disown(unsigned long pfn)
{
	struct tpt_cache *cache =
		&tpt_caches[xa_to_value(xa_erase(&owned, pfn))];

	set_owned(cache, -1);
	__free_pages(pfn_to_page(pfn), cache->order);
}

/*
 * Release a batch and drop ownership of what was released. A page that the
 * hypervisor does not release stays ours, semi-writable and out of the
 * kernel's allocator. Return: 0, or why the last such page was refused.
 */
static int give_back(const unsigned long *pfns, u64 *mfns, unsigned int count)
{
	unsigned int i, done, from = 0, tries = 0;
	int rc, failed = 0;

	while (from < count) {
		rc = tpt_hypervisor_release(mfns + from, count - from, &done);
		for (i = from; i < from + done; i++)
			disown(pfns[i]);
		from += done;
		/* After some progress the error may not be of page @from. */
		if (!rc || done)
			continue;
		if (rc == -EBUSY && tries++ < BUSY_RETRIES) {
			msleep(BUSY_WAIT_MS);
			continue;
		}
		pr_err("page %lx stays semi-writable: %d\n", pfns[from], rc);
		failed = rc;
		from++;
	}
	return failed;
}

static int give_all_back(void)
{
	unsigned long *pfns, pfn, next = 0;
	unsigned int n;
	int rc, failed = 0;
	void *entry;
	u64 *mfns;

	pfns = kmalloc_array(RELEASE_BATCH, sizeof(*pfns), GFP_KERNEL);
	mfns = kmalloc_array(RELEASE_BATCH, sizeof(*mfns), GFP_KERNEL);
	if (!pfns || !mfns) {
		failed = -ENOMEM;
		goto out;
	}
	do {
		n = 0;
		xa_for_each_start(&owned, pfn, entry, next) {
			pfns[n] = pfn;
			mfns[n] = pfn_to_mfn(pfn);
			next = pfn + 1;
			if (++n == RELEASE_BATCH)
				break;
		}
		rc = give_back(pfns, mfns, n);
		if (rc)
			failed = rc;
	} while (n == RELEASE_BATCH);
out:
	kfree(mfns);
	kfree(pfns);
	return failed;
}

/* The caches give up possession; give_all_back() then frees the pages. */
static void empty_caches(void)
{
	struct tpt_cache *cache;

	for (cache = tpt_caches; cache < tpt_caches + TPT_LEVELS; cache++) {
		struct page *page, *next;
		LIST_HEAD(pages);

		tpt_cache_take_all(cache, &pages);
		list_for_each_entry_safe(page, next, &pages, lru)
			__free_pages(page, cache->order);
	}
}

/**
 * tpt_pool_enable - fill the caches and let them serve
 *
 * Return: 0, also when it is enabled already; -ENOMEM if not a single page
 * became semi-writable.
 */
int tpt_pool_enable(void)
{
	unsigned int level;
	int rc = 0;

	mutex_lock(&resize);
	if (enabled)
		goto out;
	if (!max_tables)
		max_tables = totalram_pages() / 128;
	tpt_cache_serve(true);
	for (level = 0; level < TPT_LEVELS; level++)
		grow(&tpt_caches[level], prefill[level]);
	enabled = owned_tables() > 0;
	if (enabled) {
		schedule_delayed_work(&sweeping, SWEEP_INTERVAL);
	} else {
		tpt_cache_serve(false);
		rc = -ENOMEM;
	}
out:
	mutex_unlock(&resize);
	return rc;
}

/**
 * tpt_pool_disable - stop serving and give every page back
 *
 * Live page tables stay where they are and become ordinary pages.
 *
 * Return: 0, also when it is disabled already; or why some pages could not be
 * given back. Those stay owned and semi-writable; calling again tries again.
 */
int tpt_pool_disable(void)
{
	int rc;

	mutex_lock(&resize);
	enabled = false;
	tpt_cache_serve(false);
	synchronize_rcu();	/* no tpt_pool_return() is still serving */
	empty_caches();
	rc = give_all_back();
	synchronize_rcu();	/* nobody still holds an entry that went now */
	mutex_unlock(&resize);
	return rc;
}

bool tpt_pool_enabled(void)
{
	return READ_ONCE(enabled);
}

/* For unloading: nobody calls into the caches any more. */
void tpt_pool_exit(void)
{
	int rc = tpt_pool_disable();

	/* Disabled, they do nothing more, and do not come again. */
	cancel_work_sync(&growth);
	cancel_delayed_work_sync(&sweeping);
	if (rc)
		pr_err("%u page tables leak: the payload cannot be reverted any more\n",
		       owned_tables());
	xa_destroy(&owned);
}
