// SPDX-License-Identifier: GPL-2.0-only
/*
 * The pool: records which pages are ours, grows, shrinks, and gives all pages back.
 *
 * Invariants:
 *
 *  - `owner` records for every page frame whether it is marked semi-writable for
 *    us, and if so for which level. A page that may be marked is never freed to
 *    the kernel's allocator: its next user might use it for DMA.
 *  - The pool holds one reference to each owned page. A second one, the user's,
 *    belongs to the cache, or to the code that uses the page as a page table.
 *    Code that frees a table without passing through tables.c only drops the
 *    user's reference and leaves the count at 1; the next sweep() reclaims such
 *    pages. (pte_free() is inlined everywhere; for example, a page fault that
 *    must wait for its file page frees its spare table this way.) Short
 *    speculative references of other code only delay sweep().
 *  - With unmarked=1, where the IOMMU does not follow page types, no page has a mark, and
 *    a page of the pool is an ordinary one that only the pool uses.
 *  - dom0 may take all marks back, without a word. A page that has lost its mark is as
 *    good a table as any, and costs what the kernel's own do. tick_work() looks, and
 *    turns the pool off until marks are admitted again.
 *  - Giving a page back: first the hypervisor clears the mark, then the entry in
 *    `owner` is cleared, then the pool's reference is dropped: the page is freed,
 *    or stays with its present user as an ordinary page.
 *
 * Locking: `resize` serialises growing, sweeping, shrinking and giving back, and
 * guards `owner`. It is held across allocations, so reclaim may only try it.
 * The code that frees a table reads `owner` without it, with preemption off from
 * before the read until the page is in its cache. An entry is cleared only
 *  - while we hold both references and the page is out of the cache, so that no
 *    other code can be freeing it; or
 *  - after the caches have stopped serving and synchronize_rcu(): CPUs that read
 *    the entry before have finished, and CPUs that still read it set find that
 *    the cache refuses the page, and free it themselves. Before the caches serve
 *    again, synchronize_rcu() waits for those CPUs, too.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/delay.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/mutex.h>
#include <linux/preempt.h>
#include <linux/slab.h>
#include <linux/vmalloc.h>
#include <linux/workqueue.h>

#include <asm/xen/page.h>

#include "trapless.h"

/* Pages per RELEASE; for live tables all other CPUs wait meanwhile. */
#define RELEASE_BATCH	64u
/*
 * The number of misses does not say how many tables were lacking at one moment:
 * one run adds at most half as many tables as the level has, or this many.
 */
#define GROWTH_STEP	8u
/* How long a run that could not grow the pool keeps others from trying. */
#define GROWTH_PAUSE	HZ
/*
 * The period of the sweep for tables that were not freed through our hooks, and
 * of the policy.
 */
#define TICK		(10 * HZ)
/* How often, and how long apart, a page that changes type is tried again. */
#define BUSY_RETRIES	100
#define BUSY_WAIT_MS	10

/*
 * Filled in bulk at load. Freed tables wait for an RCU grace period, so while
 * processes come and go one by one there are up to 31 PTE, 22 PMD, 19 PUD and
 * 4 PGD tables out: so many of the upper levels that none of these grows, and
 * flushes, after that. Of the lowest, of which PiBooster's Table 1 found 145
 * cached, the rest comes with demand.
 */
static unsigned int prefill[TPT_LEVELS] = { 84, 25, 21, 8, 8 };
module_param_array(prefill, uint, NULL, 0444);
MODULE_PARM_DESC(prefill, "tables cached when enabled: pte,pmd,pud,pgd,user_pgd");

static unsigned int max_tables;
module_param(max_tables, uint, 0444);
MODULE_PARM_DESC(max_tables, "most tables the pool may own (default: 1/128 of memory)");

/* One byte a page frame: 0, or 1 more than the level. */
static u8 *owner;
static unsigned long owner_frames;
/* How many frames of each chunk are ours: memory is long and tables are few. */
#define CHUNK		512u
static u16 *owned_in_chunk;

static DEFINE_MUTEX(resize);
static bool enabled;
/* Off, but only until the hypervisor admits pages again. */
static bool evicted;
static u64 shrunk;

/* The paper's own limit on its cache, and the draft's proportion. */
static struct tpt_policy policy = {
	.kind = TPT_POLICY_ADAPTIVE, .number = 180, .percent = 100,
};
static struct tpt_demand demand[TPT_LEVELS];
static u64 misses_seen[TPT_LEVELS];
/* Allocations that missed since the pool last grew. */
static unsigned int missing[TPT_LEVELS];

static void grow_work(struct work_struct *work);
static DECLARE_WORK(growth, grow_work);
bool tpt_growth_asked;
static bool sweep_asked;

static void growth_allow_work(struct work_struct *work);
static DECLARE_DELAYED_WORK(growth_allow, growth_allow_work);

static void tick_work(struct work_struct *work);
static DECLARE_DELAYED_WORK(ticking, tick_work);

/* 0, or 1 more than the level of a page that is ours. */
static u8 owner_of(struct page *page)
{
	unsigned long pfn = page_to_pfn(page);

	return pfn < owner_frames ? READ_ONCE(owner[pfn]) : 0;
}

/**
 * tpt_pool_owns - is this page the pool's?
 * @page: any page
 *
 * It may have been given back when this returns, unless the caller has
 * preemption off.
 */
bool tpt_pool_owns(struct page *page)
{
	return owner_of(page);
}

static enum tpt_level level_of(unsigned long pfn)
{
	return owner[pfn] - 1;
}

static void set_owner(unsigned long pfn, u8 entry)
{
	WRITE_ONCE(owner[pfn], entry);
	owned_in_chunk[pfn / CHUNK] += entry ? 1 : -1;
}

/* The first owned frame at or after @pfn, or the end of `owner`. */
static unsigned long next_owned(unsigned long pfn)
{
	while (pfn < owner_frames && !owner[pfn]) {
		if (IS_ALIGNED(pfn, CHUNK) && !owned_in_chunk[pfn / CHUNK])
			pfn += CHUNK;
		else
			pfn++;
	}
	return pfn;
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
	 * Compound, so that a stock free of a larger table drops the reference to
	 * the whole (see __free_pages()). Charged when used, not when cached.
	 */
	page = alloc_pages(GFP_KERNEL | __GFP_ZERO | __GFP_NOWARN |
			   __GFP_NORETRY | (order ? __GFP_COMP : 0), order);
	/* Memory added after loading has no entry in `owner`. */
	if (page && page_to_pfn(page) >= owner_frames) {
		__free_pages(page, order);
		return NULL;
	}
	return page;
}

/* The page is semi-writable: own it, and put it into the cache. */
static void adopt(enum tpt_level level, struct page *page)
{
	get_page(page);
	set_owner(page_to_pfn(page), level + 1);
	tpt_caches[level].owned++;
	tpt_cache_put(level, page);
}

/* No other page of a batch can be made semi-writable after this error. */
static bool ends_batch(int rc)
{
	return rc == -EIO || rc == -ENOMEM || rc == -EACCES;
}

/* Add up to @count tables to a level in one batch. Return: how many. */
static unsigned int add_batch(enum tpt_level level, unsigned int count)
{
	struct tpt_cache *cache = &tpt_caches[level];
	unsigned int i, done, n = 0, from = 0, kept = 0;
	struct page **pages;
	u64 *mfns;
	int rc = 0;

	count = min(count, TPT_MAX_BATCH + 0u);
	pages = kmalloc_array(count, sizeof(*pages), GFP_KERNEL | __GFP_NOWARN);
	mfns = kmalloc_array(count, sizeof(*mfns), GFP_KERNEL | __GFP_NOWARN);
	while (pages && mfns && n < count) {
		pages[n] = new_page(cache);
		if (!pages[n])
			break;
		mfns[n] = pfn_to_mfn(page_to_pfn(pages[n]));
		n++;
	}
	while (from < n && !ends_batch(rc)) {
		rc = tpt_hypervisor_mark(mfns + from, n - from, &done);
		for (i = from; i < from + done; i++)
			adopt(level, pages[i]);
		from += done;
		if (!rc)
			break;
		if (rc == -EACCES) {
			/* Evicted: the tick takes notice. */
			mod_delayed_work(system_wq, &ticking, 0);
			break;
		}
		pr_warn_ratelimited("%s page %lx not made semi-writable: %d\n",
				    cache->name, page_to_pfn(pages[from]), rc);
		/* Freed last: freed now, it would be first in the next batch. */
		if (!ends_batch(rc))
			pages[kept++] = pages[from++];
	}
	/* After -EIO the rest may be beyond the reach of devices: keep it. */
	if (rc != -EIO)
		for (i = from; i < n; i++)
			__free_pages(pages[i], cache->order);
	for (i = 0; i < kept; i++)
		__free_pages(pages[i], cache->order);
	kfree(mfns);
	kfree(pages);
	return from - kept;
}

static void grow(enum tpt_level level, unsigned int count)
{
	unsigned int all = owned_tables();

	if (all >= max_tables)
		return;
	count = min(count, max_tables - all);
	while (count) {
		unsigned int done = add_batch(level, count);

		if (!done)
			return;
		count -= done;
	}
}

/* Reclaim the pages that were not freed through our hooks. */
static void sweep(void)
{
	unsigned long pfn;

	for (pfn = next_owned(0); pfn < owner_frames; pfn = next_owned(pfn + 1)) {
		struct page *page = pfn_to_page(pfn);

		cond_resched();
		if (page_count(page) != 1 || PageHWPoison(page))
			continue;
		get_page(page);
		tpt_cache_put(level_of(pfn), page);
	}
}

/* Both growth and the policy need the misses since the last call. */
static void count_misses(enum tpt_level level)
{
	u64 misses = tpt_cache_misses(level);
	unsigned int new = misses - misses_seen[level];

	misses_seen[level] = misses;
	demand[level].missed += new;
	missing[level] += new;
}

/* Return: how many tables the level lacked since the last call. */
static unsigned int lacking(enum tpt_level level)
{
	struct tpt_cache *cache = &tpt_caches[level];
	unsigned int lacked, wanting;

	count_misses(level);
	spin_lock(&cache->pop);
	lacked = min(missing[level], max(cache->owned / 2, GROWTH_STEP));
	wanting = lacked ? cache->reserve : cache->wanting;
	cache->wanting = 0;
	spin_unlock(&cache->pop);
	missing[level] = 0;
	/* Spare tables for the next such peak, too: each growth costs a flush. */
	return lacked + wanting ? lacked + wanting + cache->reserve : 0;
}

static void grow_work(struct work_struct *work)
{
	unsigned int before, lacked = 0;
	enum tpt_level level;

	mutex_lock(&resize);
	if (!enabled)
		goto out;
	WRITE_ONCE(tpt_growth_asked, false);
	if (xchg(&sweep_asked, false))
		sweep();
	before = owned_tables();
	for (level = 0; level < TPT_LEVELS; level++) {
		unsigned int count = lacking(level);

		lacked += count;
		grow(level, count);
	}
	/* At the limit or out of memory: do not retry at every allocation. */
	if (lacked && owned_tables() == before) {
		WRITE_ONCE(tpt_growth_asked, true);
		schedule_delayed_work(&growth_allow, GROWTH_PAUSE);
	}
out:
	mutex_unlock(&resize);
}

static void growth_allow_work(struct work_struct *work)
{
	WRITE_ONCE(tpt_growth_asked, false);
}

/*
 * A memory cgroup is at its limit, and tables that were not freed through our hooks
 * are still charged to it: reclaim them now.
 */
static void wants_sweep(void)
{
	WRITE_ONCE(sweep_asked, true);
	schedule_work(&growth);
}

/* A cache is nearly empty: grow soon, outside the caller's path. */
void tpt_pool_wants_more(void)
{
	if (READ_ONCE(tpt_growth_asked))
		return;
	WRITE_ONCE(tpt_growth_asked, true);
	schedule_work(&growth);
}

/**
 * tpt_pool_alloc - a page table is needed
 * @level: its level
 *
 * Return: a zeroed page with the user's reference, or NULL: use the kernel's
 * allocator. Does not sleep.
 */
struct page *tpt_pool_alloc(enum tpt_level level)
{
	bool low;
	struct page *page = tpt_cache_pop(level, &low);

	if (unlikely(low))
		tpt_pool_wants_more();
	if (!page || likely(tpt_cache_prepare(level, page)))
		return page;
	if (!tpt_pool_return(page))
		__free_pages(page, tpt_caches[level].order);
	wants_sweep();
	return NULL;
}

/**
 * tpt_pool_return - take back a page table that the kernel frees
 * @page: any page that the kernel frees
 *
 * Return: true if the pool owns it and it is back in its cache; false if the
 * caller must free it as usual.
 */
bool tpt_pool_return(struct page *page)
{
	bool taken = false;
	u8 entry;

	preempt_disable();
	entry = owner_of(page);
	if (entry)
		taken = tpt_cache_return(entry - 1, page);
	preempt_enable();
	return taken;
}

static void disown(unsigned long pfn)
{
	struct tpt_cache *cache;

	if (WARN_ON(!owner[pfn]))
		return;
	cache = &tpt_caches[level_of(pfn)];
	set_owner(pfn, 0);
	cache->owned--;
	__free_pages(pfn_to_page(pfn), cache->order);
}

/*
 * Release cached pages in one hypercall and free them. Pages that the hypervisor
 * does not release go back into the cache. Cached pages have no user, so unlike in
 * give_back() no CPU has to wait. Return: how many were freed; *@rc says why not all.
 */
static unsigned int shrink_batch(enum tpt_level level, unsigned int count,
				 int *rc)
{
	struct tpt_cache *cache = &tpt_caches[level];
	struct page *page, *next;
	u64 mfns[RELEASE_BATCH];
	unsigned int done, n = 0;
	LIST_HEAD(pages);

	*rc = 0;
	while (n < min(count, RELEASE_BATCH)) {
		page = tpt_cache_take(cache);
		if (!page)
			break;
		list_add_tail(&page->lru, &pages);
		mfns[n++] = pfn_to_mfn(page_to_pfn(page));
	}
	if (!n)
		return 0;
	*rc = tpt_hypervisor_release(mfns, n, &done);
	n = 0;
	list_for_each_entry_safe(page, next, &pages, lru) {
		list_del(&page->lru);
		if (n++ >= done) {
			tpt_cache_put(level, page);
			continue;
		}
		/* The user's reference first: the pool's must be the last. */
		__free_pages(page, cache->order);
		disown(page_to_pfn(page));
	}
	shrunk += done;
	return done;
}

static unsigned int shrink_level(enum tpt_level level, unsigned int count,
				 int *rc)
{
	unsigned int sum = 0;

	*rc = 0;
	while (sum < count && !*rc) {
		unsigned int done = shrink_batch(level, count - sum, rc);

		if (!done)
			break;
		sum += done;
	}
	return sum;
}

/**
 * tpt_pool_shrink - give cached tables back to the kernel
 * @counts: at most so many of each level
 *
 * Return: 0, or the hypervisor's error for those that stay cached.
 */
int tpt_pool_shrink(const unsigned int counts[TPT_LEVELS])
{
	enum tpt_level level;
	int rc, failed = 0;

	mutex_lock(&resize);
	for (level = 0; level < TPT_LEVELS; level++) {
		shrink_level(level, counts[level], &rc);
		if (rc)
			failed = rc;
	}
	mutex_unlock(&resize);
	return failed;
}

/* Cached tables of a level beyond the reserve. */
unsigned int tpt_pool_spare(enum tpt_level level)
{
	unsigned int cached = tpt_cache_cached(&tpt_caches[level]);

	return cached > TPT_POLICY_RESERVE ? cached - TPT_POLICY_RESERVE : 0;
}

/**
 * tpt_pool_try_shrink - tpt_pool_shrink() for reclaim, which must not wait
 * @count: at most so many cached tables, the lowest level's first
 *
 * Return: pages given back, or -EBUSY if the pool is at work.
 */
int tpt_pool_try_shrink(unsigned int count)
{
	unsigned int sum = 0, pages = 0;
	enum tpt_level level;
	int rc;

	if (!mutex_trylock(&resize))
		return -EBUSY;
	for (level = 0; level < TPT_LEVELS; level++) {
		unsigned int spare = tpt_pool_spare(level);
		unsigned int done = shrink_level(level, min(count - sum, spare),
						 &rc);

		sum += done;
		pages += done << tpt_caches[level].order;
	}
	/* Keep the pool from growing again at once. */
	if (sum) {
		WRITE_ONCE(tpt_growth_asked, true);
		schedule_delayed_work(&growth_allow, GROWTH_PAUSE);
	}
	mutex_unlock(&resize);
	return pages;
}

/* Tables given back by shrinking since the module was loaded. */
u64 tpt_pool_shrunk(void)
{
	return READ_ONCE(shrunk);
}

static void ask_policy(void)
{
	unsigned int surplus[TPT_LEVELS];
	enum tpt_level level;
	int rc;

	for (level = 0; level < TPT_LEVELS; level++) {
		struct tpt_cache *cache = &tpt_caches[level];

		count_misses(level);
		spin_lock(&cache->pop);
		demand[level].cached = min(tpt_cache_cached(cache),
					   cache->owned);
		demand[level].in_use = cache->owned - demand[level].cached;
		demand[level].lowest = min(cache->lowest, demand[level].cached);
		cache->lowest = demand[level].cached;
		spin_unlock(&cache->pop);
	}
	tpt_policy_tick(&policy, demand, TPT_LEVELS, surplus);
	for (level = 0; level < TPT_LEVELS; level++) {
		demand[level].missed = 0;
		shrink_level(level, surplus[level], &rc);
		if (rc)
			pr_warn_ratelimited("%s pages not given back: %d\n",
					    tpt_caches[level].name, rc);
	}
}

static int enable_locked(void);
static int disable_locked(void);

/* Follow dom0, which evicts all marks or admits them again. */
static void follow_hypervisor(void)
{
	bool admits = tpt_hypervisor_admits();
	int rc;

	if (enabled && !admits) {
		pr_warn("dom0 has taken the semi-writable pages back: off until it admits them again\n");
		rc = disable_locked();
		evicted = !rc;
	} else if (evicted && admits && !enable_locked()) {
		pr_info("semi-writable pages are admitted again\n");
	}
}

static void tick_work(struct work_struct *work)
{
	mutex_lock(&resize);
	if (enabled || evicted)
		follow_hypervisor();
	if (enabled) {
		sweep();
		ask_policy();
	}
	if (enabled || evicted)
		schedule_delayed_work(&ticking, TICK);
	mutex_unlock(&resize);
}

struct tpt_policy tpt_pool_policy(void)
{
	struct tpt_policy copy;

	mutex_lock(&resize);
	copy = policy;
	mutex_unlock(&resize);
	return copy;
}

/* Takes effect at once: the policy is applied now, not at the next tick. */
void tpt_pool_set_policy(struct tpt_policy new)
{
	mutex_lock(&resize);
	policy = new;
	if (enabled)
		ask_policy();
	mutex_unlock(&resize);
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
		rc = tpt_hypervisor_release_live(mfns + from, count - from,
						 &done);
		for (i = from; i < from + done; i++)
			disown(pfns[i]);
		from += done;
		/* After some progress the error may not be of page @from. */
		if (!rc || done) {
			tries = 0;
			continue;
		}
		if ((rc == -EBUSY || rc == -ENOMEM) && tries++ < BUSY_RETRIES) {
			msleep(BUSY_WAIT_MS);
			continue;
		}
		tries = 0;
		pr_err("page %lx stays semi-writable: %d\n", pfns[from], rc);
		failed = rc;
		from++;
	}
	return failed;
}

static int give_all_back(void)
{
	/* Not on the stack, and not allocated: this must not fail. */
	static unsigned long pfns[RELEASE_BATCH];
	static u64 mfns[RELEASE_BATCH];
	unsigned long pfn = next_owned(0);
	int rc, failed = 0;

	while (pfn < owner_frames) {
		unsigned int n = 0;

		for (; n < RELEASE_BATCH && pfn < owner_frames; n++) {
			pfns[n] = pfn;
			mfns[n] = pfn_to_mfn(pfn);
			pfn = next_owned(pfn + 1);
		}
		rc = give_back(pfns, mfns, n);
		if (rc)
			failed = rc;
		cond_resched();
	}
	return failed;
}

/* Drops the caches' references; give_all_back() then frees the pages. */
static void empty_caches(void)
{
	struct tpt_cache *cache;
	struct page *page;

	for (cache = tpt_caches; cache < tpt_caches + TPT_LEVELS; cache++)
		while ((page = tpt_cache_take(cache)))
			__free_pages(page, cache->order);
}

static int enable_locked(void)
{
	enum tpt_level level;

	if (enabled)
		return 0;
	if (!max_tables)
		max_tables = totalram_pages() / 128;
	tpt_cache_serve(true);
	for (level = 0; level < TPT_LEVELS; level++) {
		grow(level, prefill[level]);
		demand[level].cached = tpt_cache_cached(&tpt_caches[level]);
		tpt_caches[level].lowest = demand[level].cached;
		count_misses(level);
		demand[level].missed = 0;
		missing[level] = 0;
	}
	tpt_policy_start(demand, TPT_LEVELS);
	enabled = owned_tables() > 0;
	if (!enabled) {
		tpt_cache_serve(false);
		return tpt_hypervisor_admits() ? -ENOMEM : -EACCES;
	}
	evicted = false;
	WRITE_ONCE(tpt_growth_asked, false);
	schedule_delayed_work(&ticking, TICK);
	return 0;
}

static int disable_locked(void)
{
	enabled = false;
	evicted = false;
	tpt_cache_serve(false);
	empty_caches();
	return give_all_back();
}

/**
 * tpt_pool_enable - fill the caches and let them serve
 *
 * Return: 0, also when it is enabled already; -ENOMEM if not a single page
 * became semi-writable; -EACCES if dom0 admits none.
 */
int tpt_pool_enable(void)
{
	int rc;

	mutex_lock(&resize);
	rc = enable_locked();
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
	rc = disable_locked();
	mutex_unlock(&resize);
	return rc;
}

bool tpt_pool_enabled(void)
{
	return READ_ONCE(enabled);
}

/* Is it enabled, or would it be, did dom0 admit it? */
bool tpt_pool_wanted(void)
{
	return READ_ONCE(enabled) || READ_ONCE(evicted);
}

static void free_owner(void)
{
	vfree(owned_in_chunk);
	vfree(owner);
}

/**
 * tpt_pool_init - make room for one byte a page frame
 *
 * Return: 0, or -ENOMEM.
 */
int tpt_pool_init(void)
{
	owner_frames = round_up(*tpt_stock.max_pfn, CHUNK);
	owner = vzalloc(owner_frames);
	owned_in_chunk = vcalloc(owner_frames / CHUNK, sizeof(u16));
	if (owner && owned_in_chunk)
		return 0;
	free_owner();
	return -ENOMEM;
}

/* For unloading: no hook calls the caches any more. */
void tpt_pool_exit(void)
{
	int rc = tpt_pool_disable();

	/* With the pool disabled the work items do nothing and do not requeue. */
	cancel_work_sync(&growth);
	cancel_delayed_work_sync(&growth_allow);
	cancel_delayed_work_sync(&ticking);
	if (rc)
		pr_err("%u page tables leak: the payload cannot be reverted any more\n",
		       owned_tables());
	free_owner();
}
