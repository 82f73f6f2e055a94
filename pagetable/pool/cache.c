// SPDX-License-Identifier: GPL-2.0-only
/*
 * One cache of ready pages per page-table level (PiBooster, sections 3.5 and
 * 4.2): a list, a lock, push and pop in constant time.
 *
 * Invariants:
 *
 *  - A page on a list is semi-writable, owned by the pool (pool.c), charged to no
 *    memory cgroup, and in no page table. It has two references: the pool's
 *    and the user's, which passes to the next user.
 *  - A page that was popped and prepared looks as if it came from the kernel's
 *    allocator: zero, charged to the current memory cgroup where the kernel
 *    would charge it, with the struct page fields that page tables use at rest.
 *  - A page enters a list only while the cache serves: tpt_cache_serve(false)
 *    is final once it has returned.
 *
 * Which tables need no clearing: a table above the lowest level holds nothing but
 * pointers to tables, and the kernel clears each pointer before it frees the table
 * that it points to (free_pgd_range() and below), or the freed table would still
 * be walked. So such a table is zero when it is freed, and other architectures
 * rely on it (powerpc's and sparc64's caches of upper tables clear once, when a
 * page is first added). The other entries of the two top tables are rewritten by
 * the code that allocates them, see tables.c and clear_for(). A table of the
 * lowest level points to data, where a bug of the kernel's would give one
 * process's pages to another: these are cleared each time, as are pages that were
 * not freed through our hooks (tpt_cache_put()). The module parameter `verify`
 * checks that the other tables are zero.
 *
 * Locking: tables are freed from RCU callbacks and where a process ends. They are
 * pushed without a lock and with preemption off, which synchronize_rcu() waits
 * for; only the list and its length are changed. Tables are popped by tasks only,
 * and under the lock `pop`, as llist_del_first() requires. `pop` is a leaf lock.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/moduleparam.h>
#include <linux/percpu.h>
#include <linux/preempt.h>
#include <linux/rcupdate.h>
#include <linux/string.h>

#include "series_tables.h"
#include "trapless.h"

/* GFP_PGTABLE_USER, as <asm-generic/pgalloc.h> has it. */
#define GFP_TABLE	(GFP_KERNEL | __GFP_ZERO | __GFP_ACCOUNT)

/* The hypervisor's own slots of a top table, which it writes at each pin. */
#define XEN_FIRST_SLOT	256
#define XEN_SLOTS	16

static bool verify;
module_param(verify, bool, 0444);
MODULE_PARM_DESC(verify, "check that freed tables are zero (slow, for tests)");

struct tpt_cache tpt_caches[TPT_LEVELS] = {
	/* A new process takes several of each of these in a row. */
	[TPT_PTE] = { .name = "pte", .gfp = GFP_TABLE, .reserve = 2 },
	[TPT_PMD] = { .name = "pmd", .gfp = GFP_TABLE, .reserve = 2 },
	[TPT_PUD] = { .name = "pud", .gfp = GFP_TABLE, .reserve = 2 },
	/* The kernel allocates two pages where page-table isolation exists. */
	[TPT_PGD] = { .name = "pgd", .gfp = GFP_TABLE, .order = 1,
		      .reserve = 1 },
	[TPT_USER_PGD] = { .name = "user_pgd", .gfp = GFP_KERNEL | __GFP_ZERO,
			   .reserve = 1 },
};

bool tpt_serving;
struct llist_head tpt_free[TPT_LEVELS];
DEFINE_PER_CPU(u64 [TPT_LEVELS], tpt_misses);

/**
 * tpt_cache_init - set the caches up; call it before all else
 * @bare: on bare metal top tables have a second half that is not rewritten at each use
 */
void tpt_cache_init(bool bare)
{
	enum tpt_level level;

	for (level = 0; level < TPT_LEVELS; level++) {
		spin_lock_init(&tpt_caches[level].pop);
		tpt_caches[level].comes_zero = level > TPT_PTE && !bare;
	}
}

static bool charge(struct tpt_cache *cache, struct page *page)
{
	/* Do not wait: on failure the kernel's allocator does, and reports it. */
	return !(cache->gfp & __GFP_ACCOUNT) || !series_charges_memory() ||
	       !tpt_stock.memcg_kmem_charge_page(page, GFP_NOWAIT |
						 __GFP_ACCOUNT | __GFP_NOWARN,
						 cache->order);
}

static __always_inline void uncharge(struct tpt_cache *cache,
				     struct page *page)
{
	if (series_charges_memory() && PageMemcgKmem(page))
		tpt_stock.memcg_kmem_uncharge_page(page, cache->order);
}

static void clear(struct tpt_cache *cache, struct page *page)
{
	unsigned int i;

	for (i = 0; i < 1U << cache->order; i++)
		clear_page(page_address(page + i));
}

/* Is a freed table as clean as this file assumes? */
static noinline void verify_zero(enum tpt_level level, struct page *page)
{
	const u64 *entries = page_address(page);
	/* The kernel's half of the top table is copied again at each use. */
	unsigned int i, count = level == TPT_PGD ? PTRS_PER_PGD / 2 :
						   PTRS_PER_PGD;

	for (i = 0; i < count; i++) {
		if (!entries[i])
			continue;
		if (level == TPT_USER_PGD &&
		    (i == PTRS_PER_PGD - 1 ||
		     (i >= XEN_FIRST_SLOT && i < XEN_FIRST_SLOT + XEN_SLOTS)))
			continue;
		WARN(1, "a %s table came back with entry %u set: %llx\n",
		     tpt_caches[level].name, i, entries[i]);
		clear(&tpt_caches[level], page);
		return;
	}
}

/* What the kernel's allocator would hand out; see the head of this file. */
static void clear_for(enum tpt_level level, struct page *page)
{
	if (!tpt_caches[level].comes_zero)
		clear(&tpt_caches[level], page);
	else if (level == TPT_USER_PGD)
		memset((u64 *)page_address(page) + XEN_FIRST_SLOT, 0,
		       XEN_SLOTS * sizeof(u64));
}

static struct llist_node *node_of(struct page *page)
{
	BUILD_BUG_ON(sizeof(struct llist_node) > sizeof(page->lru));
	return (struct llist_node *)&page->lru;
}

/* Called with the lock held. */
static struct page *take(struct tpt_cache *cache, int *left)
{
	struct llist_node *node = llist_del_first(&tpt_free[cache - tpt_caches]);

	if (!node)
		return NULL;
	*left = atomic_dec_return(&cache->cached);
	return list_entry((struct list_head *)node, struct page, lru);
}

/* Return: whether the page is in the cache now; if not, the cache has stopped serving. */
static __always_inline bool push(struct tpt_cache *cache, struct page *page)
{
	/* The kernel's allocator would set a broken page aside; so do we. */
	if (!READ_ONCE(tpt_serving) || unlikely(PageHWPoison(page)))
		return false;
	llist_add(node_of(page), &tpt_free[cache - tpt_caches]);
	atomic_inc(&cache->cached);
	return true;
}

/* Ready tables of a level, at this moment. */
unsigned int tpt_cache_cached(const struct tpt_cache *cache)
{
	/* A page may be popped before the CPU that pushed it has counted it. */
	return max(atomic_read(&cache->cached), 0);
}

/**
 * tpt_cache_pop - take a page table
 * @level: its level
 * @low:   set to whether fewer are left than the level keeps in reserve
 *
 * Return: a page with the user's reference, for tpt_cache_prepare(), or NULL.
 * Does not sleep.
 */
struct page *tpt_cache_pop(enum tpt_level level, bool *low)
{
	struct tpt_cache *cache = &tpt_caches[level];
	struct page *page;
	int left;

	spin_lock(&cache->pop);
	page = take(cache, &left);
	if (unlikely(!page)) {
		spin_unlock(&cache->pop);
		this_cpu_inc(tpt_misses[level]); /* as entry.S does */
		*low = true;
		return NULL;
	}
	if (left < (int)cache->lowest)
		cache->lowest = max(left, 0);
	*low = left < cache->reserve;
	if (unlikely(*low))
		cache->wanting = max(cache->wanting,
				     cache->reserve - max(left, 0));
	cache->hits++;
	spin_unlock(&cache->pop);
	return page;
}

/**
 * tpt_cache_prepare - make a page what the kernel's allocator would hand out
 * @level: its level
 * @page:  as tpt_cache_pop() returned it
 *
 * Return: true, or false if the memory cgroup refuses to be charged; the page is
 * as before then. Does not sleep.
 */
bool tpt_cache_prepare(enum tpt_level level, struct page *page)
{
	struct tpt_cache *cache = &tpt_caches[level];

	if (unlikely(!charge(cache, page))) {
		spin_lock(&cache->pop);
		cache->hits--;
		cache->refused++;
		spin_unlock(&cache->pop);
		return false;
	}
	clear_for(level, page);
	set_page_private(page, 0);
	page->index = 0;
	return true;
}

/**
 * tpt_cache_return - take back a page table that is not in use any more
 * @level: its level
 * @page:  a page of the pool, as the kernel's memory management frees it; takes
 *         over the caller's reference
 *
 * The caller has preemption off since before it checked that the pool owns the
 * page.
 *
 * Return: true, or false if the cache does not serve; the caller then keeps its
 * reference.
 */
bool tpt_cache_return(enum tpt_level level, struct page *page)
{
	struct tpt_cache *cache = &tpt_caches[level];

	if (unlikely(verify) && cache->comes_zero)
		verify_zero(level, page);
	uncharge(cache, page);
	return push(cache, page);
}

/**
 * tpt_cache_put - put a page into a cache whatever it holds
 * @level: the level
 * @page:  a page of the pool; takes over the caller's reference
 *
 * If the cache does not serve, our reference is dropped; the pool's next sweep
 * reclaims the page.
 */
void tpt_cache_put(enum tpt_level level, struct page *page)
{
	struct tpt_cache *cache = &tpt_caches[level];

	bool taken;

	clear(cache, page);
	uncharge(cache, page);
	preempt_disable();
	taken = push(cache, page);
	preempt_enable();
	if (!taken)
		__free_pages(page, cache->order);
}

/* Start or stop serving at every level. Sleeps. */
void tpt_cache_serve(bool on)
{
	/* Wait for CPUs that still push a page from when we served last. */
	if (on)
		synchronize_rcu();
	WRITE_ONCE(tpt_serving, on);
	/* Wait for CPUs that are still pushing. */
	if (!on)
		synchronize_rcu();
}

/**
 * tpt_cache_take - take a page out of a cache, not to be used as a table
 * @cache: its level
 *
 * Return: the page, now the caller's, or NULL.
 */
struct page *tpt_cache_take(struct tpt_cache *cache)
{
	struct page *page;
	int left;

	spin_lock(&cache->pop);
	page = take(cache, &left);
	/* The page was spare: without it @lowest would have been one less. */
	if (page && cache->lowest)
		cache->lowest--;
	spin_unlock(&cache->pop);
	return page;
}

/* Allocations of a level that found its cache empty. */
u64 tpt_cache_misses(enum tpt_level level)
{
	u64 sum = 0;
	int cpu;

	for_each_possible_cpu(cpu)
		sum += per_cpu(tpt_misses[level], cpu);
	return sum;
}
