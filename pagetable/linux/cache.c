// SPDX-License-Identifier: GPL-2.0-only
/*
 * One cache of ready pages per page-table level (PiBooster, sections 3.5 and
 * 4.2): a list, a lock, push and pop in constant time.
 *
 * Invariants:
 *
 *  - A page on a list is semi-writable, owned by the pool (pool.c), referenced
 *    twice (the pool's ownership and the possession that the next user gets),
 *    charged to nobody, and in nobody's page tables.
 *  - What pop hands out looks as if it came from the kernel's allocator: zero,
 *    charged to the current memory cgroup where the kernel would charge it,
 *    with the struct page fields that page tables use at rest.
 *  - A page enters a list only while the cache serves; tpt_cache_serve(false)
 *    is final once it has returned.
 *
 * Locking: tables come back from RCU callbacks, so the locks disable
 * interrupts. They are leaves: nothing is called under them.
 */
#include <linux/memcontrol.h>
#include <linux/mm.h>
#include <linux/rcupdate.h>

#include "trapless.h"

/* GFP_PGTABLE_USER, as <asm-generic/pgalloc.h> has it. */
#define GFP_TABLE	(GFP_KERNEL | __GFP_ZERO | __GFP_ACCOUNT)

struct tpt_cache tpt_caches[TPT_LEVELS] = {
	[TPT_PTE] = { .name = "pte", .gfp = GFP_TABLE },
	[TPT_PMD] = { .name = "pmd", .gfp = GFP_TABLE },
	[TPT_PUD] = { .name = "pud", .gfp = GFP_TABLE },
	/* The kernel allocates two pages where page-table isolation exists. */
	[TPT_PGD] = { .name = "pgd", .gfp = GFP_TABLE, .order = 1 },
	[TPT_USER_PGD] = { .name = "user_pgd", .gfp = GFP_KERNEL | __GFP_ZERO },
};

void tpt_cache_init(void)
{
	struct tpt_cache *cache;

	for (cache = tpt_caches; cache < tpt_caches + TPT_LEVELS; cache++) {
		spin_lock_init(&cache->lock);
		INIT_LIST_HEAD(&cache->free);
	}
}

static bool charge(struct tpt_cache *cache, struct page *page)
{
#ifdef TPT_NEGATIVE_CONTROL_NO_CHARGE
	/* A build that breaks the second invariant, to prove the tests see it. */
	return true;
#endif
	return !(cache->gfp & __GFP_ACCOUNT) || !memcg_kmem_enabled() ||
	       !tpt_stock.memcg_kmem_charge_page(page, cache->gfp,
						 cache->order);
}

static void uncharge(struct tpt_cache *cache, struct page *page)
{
#ifdef TPT_NEGATIVE_CONTROL_NO_UNCHARGE
	return;
#endif
	if (memcg_kmem_enabled() && PageMemcgKmem(page))
		tpt_stock.memcg_kmem_uncharge_page(page, cache->order);
}

/**
 * tpt_cache_pop - take a page table
 * @level: its level
 *
 * Return: a zeroed page that the caller now possesses, or NULL: use the
 * kernel's allocator.
 */
struct page *tpt_cache_pop(enum tpt_level level)
{
	struct tpt_cache *cache = &tpt_caches[level];
	struct page *page = NULL;
	unsigned long flags;
	unsigned int i;
	bool low;

	if (!READ_ONCE(cache->serving))
		return NULL;
	spin_lock_irqsave(&cache->lock, flags);
	if (cache->cached) {
		page = list_first_entry(&cache->free, struct page, lru);
		list_del(&page->lru);
		cache->cached--;
		cache->hits++;
	} else {
		cache->misses++;
		cache->missing++;
	}
	low = cache->cached < TPT_RESERVE;
	spin_unlock_irqrestore(&cache->lock, flags);

	if (low)
		tpt_pool_wants_more();
	if (!page)
		return NULL;
	if (!charge(cache, page)) {
		/* Let the kernel's allocator meet the limit and report it. */
		if (!tpt_pool_return(page))
			__free_pages(page, cache->order);
		tpt_pool_wants_sweep();
		return NULL;
	}
	for (i = 0; i < 1U << cache->order; i++)
		clear_page(page_address(page + i));
	set_page_private(page, 0);
	page->index = 0;
	return page;
}

/**
 * tpt_cache_return - take back a page table that nobody uses any more
 * @cache: its level
 * @page:  a page of the pool, whose possession the caller gives up
 *
 * Return: true, or false if the cache does not serve and the caller still
 * possesses the page.
 */
bool tpt_cache_return(struct tpt_cache *cache, struct page *page)
{
	unsigned long flags;
	bool serving;

	uncharge(cache, page);
	spin_lock_irqsave(&cache->lock, flags);
	serving = cache->serving;
	if (serving) {
		list_add(&page->lru, &cache->free);
		cache->cached++;
	}
	spin_unlock_irqrestore(&cache->lock, flags);
	return serving;
}

/* Start or stop serving at every level. May sleep. */
void tpt_cache_serve(bool on)
{
	struct tpt_cache *cache;

	for (cache = tpt_caches; cache < tpt_caches + TPT_LEVELS; cache++) {
		spin_lock_irq(&cache->lock);
		WRITE_ONCE(cache->serving, on);
		spin_unlock_irq(&cache->lock);
	}
}

/**
 * tpt_cache_take_all - empty a list
 * @cache: its level
 * @pages: out: the pages, now the caller's
 */
void tpt_cache_take_all(struct tpt_cache *cache, struct list_head *pages)
{
	spin_lock_irq(&cache->lock);
	list_splice_init(&cache->free, pages);
	cache->cached = 0;
	spin_unlock_irq(&cache->lock);
}
