// SPDX-License-Identifier: GPL-2.0-only
/*
 * All processors work on the same tables at once: pins, unpins, updates, trapped
 * writes, in no defined order.
 *
 *   echo SEED ROUNDS > /sys/module/table_test/parameters/race
 *
 * The result of a single call is not defined. In any order no table under a pin
 * may hold an entry that page typing forbids (table_legal.c), and in the end
 * every table must be writable again and every frame must be freed.
 */
#include <linux/atomic.h>
#include <linux/module.h>
#include <linux/workqueue.h>

#include "table_test.h"

#define STEPS	400	/* a round, each processor */
#define BATCH	64	/* what l1_update does under one lock */

static unsigned int accepted, denied;
module_param_named(race_accepted, accepted, uint, 0444);
module_param_named(race_refused, denied, uint, 0444);
MODULE_PARM_DESC(race_accepted, "racing calls that Xen accepted");
MODULE_PARM_DESC(race_refused, "racing calls that Xen refused");

/* Pins less unpins that Xen accepted, so 0 or 1 when all calls are over. */
static atomic_t pins[TT_PAGES];
static atomic_t arrived, ok, not_ok;
static DEFINE_PER_CPU(struct work_struct, racers);

static void race_pin(void)
{
	unsigned int page = tt_pick(1 + tt_random(4));
	struct mmuext_op op = { .arg1.mfn = tt_pages[page].mfn };
	bool unpin = tt_chance(2);
	long rc;

	op.cmd = unpin ? MMUEXT_UNPIN_TABLE :
		 MMUEXT_PIN_L1_TABLE + tt_pages[page].level - 1;
	rc = HYPERVISOR_mmuext_op(&op, 1, NULL, DOMID_SELF);
	if (!rc)
		atomic_add(unpin ? -1 : 1, &pins[page]);
	atomic_inc(rc ? &not_ok : &ok);
}

static void race_update(void)
{
	struct mmu_update reqs[BATCH];
	unsigned int count = tt_chance(2) ? 1 : 1 + tt_random(BATCH), i;
	int rc;

	for (i = 0; i < count; i++) {
		unsigned int page = tt_pick(tt_random(4) ? 1 : 1 + tt_random(4));
		struct tt_page *p = &tt_pages[page];
		unsigned int slot = tt_slot(p->entry);

		reqs[i].ptr = p->mfn << PAGE_SHIFT | slot * sizeof(u64) |
			(tt_chance(3) ? MMU_PT_UPDATE_PRESERVE_AD : 0);
		reqs[i].val = tt_value(p->level, page, READ_ONCE(p->entry[slot]));
	}
	rc = HYPERVISOR_mmu_update(reqs, count, NULL, DOMID_SELF);
	atomic_inc(rc ? &not_ok : &ok);
}

/* The payload's fast path takes the first two, stock Xen the last. */
static void race_va(void)
{
	static const unsigned long flushes[] = {
		UVMF_NONE, UVMF_INVLPG | UVMF_LOCAL, UVMF_INVLPG | UVMF_ALL,
	};
	unsigned int slot = tt_random(TT_WINDOW);
	u64 value = tt_value(1, tt_pick(1), READ_ONCE(*tt_window_entry(slot)));
	int rc = HYPERVISOR_update_va_mapping(tt_window_address(slot),
					      __pte_ma(value),
					      flushes[tt_random(ARRAY_SIZE(flushes))]);

	atomic_inc(rc ? &not_ok : &ok);
}

static void race_trap(void)
{
	unsigned int page = tt_pick(1);
	unsigned int slot = tt_slot(tt_pages[page].entry);
	u64 value = tt_value(1, page, READ_ONCE(tt_pages[page].entry[slot]));

	atomic_inc(tt_trap(page, slot, value) ? &not_ok : &ok);
}

/* Without the payload a trap in its place. */
static void race_range(void)
{
	long rc = tt_race_range();

	if (rc == -ENOSYS)
		race_trap();
	else
		atomic_inc(rc < 0 ? &not_ok : &ok);
}

static void racer(struct work_struct *unused)
{
	unsigned int step;

	atomic_inc(&arrived);
	while (atomic_read(&arrived) < num_online_cpus())
		cpu_relax();
	for (step = 0; step < STEPS; step++) {
		switch (tt_random(8)) {
		case 0:
		case 1:
			race_pin();
			break;
		case 2:
		case 3:
		case 4:
			race_update();
			break;
		case 5:
			race_va();
			break;
		case 6:
			race_range();
			break;
		default:
			race_trap();
		}
	}
	/* A teardown to be continued belongs to the processor that began it. */
	tt_settle();
}

/* Return how many of the round's tables stayed typed, or an error. */
static int race_round(u32 seed, unsigned int round)
{
	unsigned int page;
	int rc, cpu;

	tt_seed(seed, round);
	for (page = 0; page < TT_PAGES; page++) {
		struct tt_page *p = &tt_pages[page];

		/* Few, so that processors collide. */
		p->active = page - tt_first[p->level] < (p->level ? 3 : TT_DATA);
		atomic_set(&pins[page], 0);
		if (!p->level || !p->active)
			continue;
		tt_fill(page, tt_chance(8) ? 8 : 0);
		if (tt_protect(page, true))
			return -EIO;
	}
	atomic_set(&arrived, 0);
	tt_race_streams(true);
	for_each_online_cpu(cpu) {
		INIT_WORK(per_cpu_ptr(&racers, cpu), racer);
		schedule_work_on(cpu, per_cpu_ptr(&racers, cpu));
	}
	for_each_online_cpu(cpu)
		flush_work(per_cpu_ptr(&racers, cpu));
	tt_race_streams(false);

	for (page = 0; page < TT_PAGES; page++)
		tt_pages[page].pinned = atomic_read(&pins[page]) ?
			tt_pages[page].level : 0;
	tt_count_illegal();
	for (page = 0; page < TT_PAGES; page++)
		if (tt_pages[page].pinned && tt_unpin(page))
			return -EPROTO;
	tt_settle();
	rc = tt_window_close();
	if (rc)
		return rc;
	for (page = 0; page < TT_PAGES; page++)
		tt_expect_contents(page);
	return tt_retire_typed();
}

int tt_race(u32 seed, unsigned int rounds)
{
	unsigned int round;
	int retired;

	tt_pool_renew(false);
	for (round = 0; round < rounds; round++) {
		retired = race_round(seed, round);
		if (retired < 0)
			return retired;
		/* In each round new frames, so that leaked references are the round's. */
		tt_pool_renew(!retired);
	}
	accepted += atomic_xchg(&ok, 0);
	denied += atomic_xchg(&not_ok, 0);
	return 0;
}
