/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * trapless_pagetable, the guest half of PiBooster: what its files share.
 *
 *   main.c        load, unload, refusals
 *   known.c       the stock functions that were compared with ours
 *   tables.c      the kernel functions that allocate and free tables
 *   entry.S       the entry code of their hooks
 *   cache.c       one list of ready pages per level (the hot path)
 *   pool.c        which pages are ours: grow, shrink, sweep, give back
 *   policy.c      the policies by which tables are given back
 *   pressure.c    giving back when the kernel needs memory
 *   suspend.c     giving all back while the domain is saved or sleeps
 *   hypervisor.c  the hypercalls
 *   stock.c       kernel symbols that are not exported to modules
 *   sysfs.c       /sys/kernel/trapless_pagetable
 */
#ifndef TRAPLESS_H
#define TRAPLESS_H

#include <linux/atomic.h>
#include <linux/llist.h>
#include <linux/mm_types.h>
#include <linux/percpu.h>
#include <linux/spinlock.h>
#include <linux/types.h>

#include "policy.h"
#include "trapless_pagetable.h"

struct kobject;
struct mmu_gather;

/* In Linux's names; PiBooster's L3, L2 and L1 are PTE, PMD and PGD. */
enum tpt_level {
	TPT_PTE,
	TPT_PMD,
	TPT_PUD,
	TPT_PGD,	/* the table the kernel runs on */
	TPT_USER_PGD,	/* the one Xen PV gives user mode beside it */
	TPT_LEVELS
};

/**
 * struct tpt_cache - ready semi-writable pages of one page-table level
 * @cached:     length of the level's list in tpt_free, or a little more or less
 *              while pages move
 * @pop:        held while a page is taken from the list; guards the fields up to
 *              @refused
 * @lowest:     smallest @cached since the last tick of the policy
 * @wanting:    by how much @cached has been below @reserve since the pool last
 *              grew
 * @hits:       allocations served
 * @refused:    allocations that a memory cgroup refused a ready page
 * @owned:      pages of this level that are ours: cached, in use, or waiting
 *              for an RCU grace period; guarded by the pool's lock
 * @reserve:    the pool grows if fewer tables are ready
 * @name:       the level's name, as in sysfs
 * @order:      allocation order of one table
 * @gfp:        the flags with which the kernel allocates one
 * @comes_zero: the kernel gives such tables back zero, see cache.c
 * @kobj:       the level's directory in sysfs
 */
struct tpt_cache {
	atomic_t cached;
	spinlock_t pop;
	unsigned int lowest;
	int wanting;
	u64 hits;
	u64 refused;
	unsigned int owned;

	int reserve;
	const char *name;
	unsigned int order;
	gfp_t gfp;
	bool comes_zero;
	struct kobject *kobj;
};

extern struct tpt_cache tpt_caches[TPT_LEVELS];

/*
 * Read by entry.S, so that a miss costs a handful of instructions: whether
 * page tables come from the caches and return to them; the ready pages of each
 * level, linked by page->lru, last pushed first; allocations that found none; and
 * whether the pool has been asked to grow.
 */
extern bool tpt_serving;
extern struct llist_head tpt_free[TPT_LEVELS];
DECLARE_PER_CPU(u64 [TPT_LEVELS], tpt_misses);
extern bool tpt_growth_asked;

/* cache.c */
void tpt_cache_init(bool bare);
struct page *tpt_cache_pop(enum tpt_level level, bool *low);
bool tpt_cache_prepare(enum tpt_level level, struct page *page);
bool tpt_cache_return(enum tpt_level level, struct page *page);
void tpt_cache_put(enum tpt_level level, struct page *page);
void tpt_cache_serve(bool on);
struct page *tpt_cache_take(struct tpt_cache *cache);
unsigned int tpt_cache_cached(const struct tpt_cache *cache);
u64 tpt_cache_misses(enum tpt_level level);

/* pool.c */
bool tpt_pool_owns(struct page *page);
struct page *tpt_pool_alloc(enum tpt_level level);
bool tpt_pool_return(struct page *page);
void tpt_pool_wants_more(void);
int tpt_pool_init(void);
int tpt_pool_enable(void);
int tpt_pool_disable(void);
bool tpt_pool_enabled(void);
bool tpt_pool_wanted(void);
void tpt_pool_exit(void);
int tpt_pool_shrink(const unsigned int counts[TPT_LEVELS]);
unsigned int tpt_pool_spare(enum tpt_level level);
int tpt_pool_try_shrink(unsigned int count);
u64 tpt_pool_shrunk(void);
struct tpt_policy tpt_pool_policy(void);
void tpt_pool_set_policy(struct tpt_policy policy);

/* hypervisor.c */
int tpt_hypervisor_check(bool bare, bool unmarked);
bool tpt_hypervisor_admits(void);
int tpt_hypervisor_mark(u64 *mfns, unsigned int count, unsigned int *done);
int tpt_hypervisor_release(u64 *mfns, unsigned int count, unsigned int *done);
int tpt_hypervisor_release_live(u64 *mfns, unsigned int count,
				unsigned int *done);

/* known.c */
int tpt_known_check(bool bare);
bool tpt_is_left_out(const char *part);
ssize_t tpt_left_out_show(char *buf);

/* stock.c */
struct tpt_stock {
	spinlock_t *pgd_lock;
	struct list_head *pgd_list;
	pgd_t *init_top_pgt;
	void *level3_user_vsyscall;
	struct mm_struct *init_mm;
	unsigned long *max_pfn;
	int (*memcg_kmem_charge_page)(struct page *page, gfp_t gfp, int order);
	void (*memcg_kmem_uncharge_page)(struct page *page, int order);
	void (*tlb_remove_table)(struct mmu_gather *tlb, void *table);
};

extern struct tpt_stock tpt_stock;
int tpt_stock_resolve(void);

/* entry.S */
void tpt_entry(void);

/* tables.c */
extern unsigned long tpt_bodies[];
int tpt_tables_resolve(void);
int tpt_tables_hook(bool bare);
void tpt_tables_unhook(void);

/* pressure.c */
int tpt_pressure_init(void);
void tpt_pressure_exit(void);

/* suspend.c */
int tpt_suspend_init(void);
void tpt_suspend_exit(void);

/* sysfs.c */
int tpt_sysfs_init(void);
void tpt_sysfs_exit(void);

#endif /* TRAPLESS_H */
