/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * trapless_pagetable, the guest half of PiBooster: what its files share.
 *
 *   main.c        load, unload, refusals
 *   tables.c      the kernel functions it replaces
 *   cache.c       one list of ready pages per level (the hot path)
 *   pool.c        which pages are ours: grow, sweep, give back
 *   hypervisor.c  the hypercalls
 *   stock.c       kernel symbols that are not exported to modules
 *   sysfs.c       /sys/kernel/trapless_pagetable
 */
#ifndef TRAPLESS_H
#define TRAPLESS_H

#include <linux/list.h>
#include <linux/mm_types.h>
#include <linux/spinlock.h>
#include <linux/types.h>

#include "trapless_pagetable.h"

struct kobject;

/* In Linux's names; PiBooster's L3, L2 and L1 are PTE, PMD and PGD. */
enum tpt_level {
	TPT_PTE,
	TPT_PMD,
	TPT_PUD,
	TPT_PGD,	/* the table the kernel runs on */
	TPT_USER_PGD,	/* the one Xen PV gives user mode beside it */
	TPT_LEVELS
};

/*
 * A level with fewer cached pages than this grows: once the pool has seen the
 * workload's peak, a little more than the peak does not make it miss.
 */
#define TPT_RESERVE	2

/**
 * struct tpt_cache - ready semi-writable pages of one page-table level
 * @name:    the level's name, as in sysfs
 * @order:   allocation order of one table
 * @gfp:     how the kernel itself allocates one
 * @lock:    guards all fields below
 * @free:    the pages, linked by page->lru, last pushed first
 * @cached:  length of @free
 * @owned:   pages of this level that are ours: cached, in use, or waiting for
 *           an RCU grace period
 * @missing: misses since the pool last grew
 * @serving: page tables come from here and return to here
 * @hits:    allocations served
 * @misses:  allocations left to the kernel's allocator
 * @kobj:    the level's directory in sysfs
 */
struct tpt_cache {
	const char *name;
	unsigned int order;
	gfp_t gfp;
	spinlock_t lock;
	struct list_head free;
	unsigned int cached;
	unsigned int owned;
	unsigned int missing;
	bool serving;
	u64 hits;
	u64 misses;
	struct kobject *kobj;
};

extern struct tpt_cache tpt_caches[TPT_LEVELS];

/* cache.c */
void tpt_cache_init(void);
struct page *tpt_cache_pop(enum tpt_level level);
bool tpt_cache_return(struct tpt_cache *cache, struct page *page);
void tpt_cache_serve(bool on);
void tpt_cache_take_all(struct tpt_cache *cache, struct list_head *pages);

/* pool.c */
bool tpt_pool_return(struct page *page);
void tpt_pool_wants_more(void);
void tpt_pool_wants_sweep(void);
int tpt_pool_enable(void);
int tpt_pool_disable(void);
bool tpt_pool_enabled(void);
void tpt_pool_exit(void);

/* hypervisor.c */
int tpt_hypervisor_check(void);
int tpt_hypervisor_mark(u64 *mfns, unsigned int count, unsigned int *done);
int tpt_hypervisor_release(u64 *mfns, unsigned int count, unsigned int *done);

/* stock.c */
struct tpt_stock {
	spinlock_t *pgd_lock;
	struct list_head *pgd_list;
	pgd_t *init_top_pgt;
	void *level3_user_vsyscall;
	struct mm_struct *init_mm;
	struct page **huge_zero_page;
	void (*free_swap_cache)(struct page *page);
	int (*memcg_kmem_charge_page)(struct page *page, gfp_t gfp, int order);
	void (*memcg_kmem_uncharge_page)(struct page *page, int order);
};

extern struct tpt_stock tpt_stock;
int tpt_stock_resolve(void);

/* tables.c */
int tpt_tables_patch(void);

/* sysfs.c */
int tpt_sysfs_init(void);
void tpt_sysfs_exit(void);

#endif /* TRAPLESS_H */
