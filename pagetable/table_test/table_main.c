// SPDX-License-Identifier: GPL-2.0-only
/*
 * An adversarial guest: makes page tables and calls about them from a seed. The
 * records (table_log.c) hold the result of each call; two hypervisors behave
 * alike for a guest if their records are equal.
 *
 *   echo SEED ROUNDS > /sys/module/table_test/parameters/run
 *   cat /sys/module/table_test/parameters/digest
 *
 * A run leaves nothing behind: all pins are dropped, every frame is given back to
 * Xen, and frames that Xen does not free are part of the record. So a run depends
 * on its seed and on the hypervisor, not on the runs before it.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/sched.h>

#include <xen/xen.h>

#include "call.h"
#include "table_test.h"

static char *kinds = "all";
module_param(kinds, charp, 0644);
MODULE_PARM_DESC(kinds, "calls to make: of mmuext,update,va,trap,multicall,range; all: all but range");

static unsigned int leaked;
module_param(leaked, uint, 0444);
MODULE_PARM_DESC(leaked, "times data pages were left with a type");
static unsigned int tables;
module_param(tables, uint, 0444);
MODULE_PARM_DESC(tables, "tables generated");

static int switches = -1;
module_param(switches, int, 0644);
MODULE_PARM_DESC(switches, "payload's switches during a run, all off after it (-1: as they are)");

static bool leak;
module_param(leak, bool, 0644);
MODULE_PARM_DESC(leak, "negative control: illegal entries, and references that are kept");

static bool ready;
static DEFINE_MUTEX(lock);

static const struct {
	const char *name;
	unsigned int share;
	void (*call)(void);
} callers[] = {
	{ "mmuext", 3, tt_call_mmuext },
	{ "update", 6, tt_call_update },
	{ "va", 4, tt_call_va },
	{ "trap", 4, tt_call_trap },
	{ "multicall", 2, tt_call_multicall },
	{ "range", 5, tt_call_range },
};

/* "all" are the calls that stock Xen has, too: "all,range" makes every kind. */
static bool is_chosen(unsigned int caller)
{
	return strstr(kinds, callers[caller].name) ||
	       (strstarts(kinds, "all") && callers[caller].call != tt_call_range);
}

static void call(void)
{
	unsigned int i, total = 0, at;

	for (i = 0; i < ARRAY_SIZE(callers); i++)
		if (is_chosen(i))
			total += callers[i].share;
	if (!total)
		return;
	at = tt_random(total);
	for (i = 0; i < ARRAY_SIZE(callers); i++) {
		if (!is_chosen(i))
			continue;
		if (at < callers[i].share)
			return callers[i].call();
		at -= callers[i].share;
	}
}

/* Which tables take part: a tree up to the level, of few or many. */
static void choose(unsigned int top)
{
	static const u8 few[TT_LEVELS] = { TT_DATA, 4, 2, 2, 1 };
	unsigned int level, i, n;

	for (level = 0; level < TT_LEVELS; level++) {
		n = tt_chance(4) ? tt_count[level] : few[level];
		n = level ? 1 + tt_random(n) : TT_DATA;
		for (i = 0; i < tt_count[level]; i++)
			tt_pages[tt_first[level] + i].active = level <= top && i < n;
	}
}

static void log_pin(unsigned int page, unsigned int level)
{
	long rc;

	tt_log_call(TT_MMUEXT);
	tt_log_what(MMUEXT_PIN_L1_TABLE + level - 1, 1, page, 0);
	tt_preempt_call();
	rc = tt_pin(page, level);
	tt_log_out(tt_changes(page));
	tt_log_end(rc, 0);
	if (rc)
		tt_settle();
}

static void log_unpin(unsigned int page)
{
	long rc;

	tt_log_call(TT_MMUEXT);
	tt_log_what(MMUEXT_UNPIN_TABLE, 1, page, 0);
	tt_preempt_call();
	rc = tt_unpin(page);
	tt_log_out(tt_changes(page));
	tt_log_end(rc, 0);
}

static void prepare(unsigned int top)
{
	unsigned int of_thousand = tt_chance(2) ? 0 : top == 1 ? 30 : 8;
	unsigned int page, spoil;

	for (page = TT_DATA; page < TT_PAGES; page++) {
		if (!tt_pages[page].active)
			continue;
		spoil = tt_chance(4) ? of_thousand : 0;
		tt_fill(page, spoil);
		tt_expect_contents(page);
		tables++;
		/* Now and then a table stays writable, which Xen must find. */
		if (spoil && tt_chance(12))
			continue;
		tt_log_call(TT_MAP);
		tt_log_what(1, 1, page, 0);
		tt_log_end(tt_protect(page, true), 0);
	}
}

static void one_round(u32 seed, unsigned int round)
{
	unsigned int top, calls, i, page;
	bool retired;

	tt_seed(seed, round);
	tt_log_begin_round(round);
	top = 1 + tt_random(4);
	calls = tt_random(128);
	choose(top);
	prepare(top);
	log_pin(tt_first[top], top);
	for (i = tt_random(3); i; i--) {
		page = tt_pick(1 + tt_random(top));
		log_pin(page, tt_chance(8) ? 1 + tt_random(4) : tt_pages[page].level);
	}
	for (i = 0; i < calls; i++)
		call();
	tt_count_illegal();

	for (page = 0; page < TT_PAGES; page++)
		if (tt_pages[page].pinned)
			log_unpin(page);
	tt_settle();
	tt_log_call(TT_ROUND);
	tt_log_what(TT_END, calls, top, 0);
	for (page = 0; page < TT_PAGES; page++)
		tt_log_out(tt_changes(page));
	tt_log_end(tt_window_close(), 0);

	retired = tt_retire_typed();
	if (tt_chance(16) && !retired) {
		u64 pages = tt_data_typed();

		tt_log_call(TT_ROUND);
		tt_log_what(TT_TYPES, 0, 0, pages);
		tt_log_end(0, 0);
		leaked += !!pages;
	}
	tt_log_end_round(retired);
	/* A table that stays typed keeps its references: start with new pages. */
	if (retired)
		tt_pool_renew(false);
}

/*
 * Only the hardware domain may set switches, and only with a payload. Parts that the
 * payload was built without stay off.
 */
static int set_switches(int wanted)
{
	struct tpt_version version;
	u32 word;

	if (wanted < 0)
		return 0;
	if (tpt_call(TPT_OP_VERSION, &version))
		return -ENODEV;
	word = wanted & version.parts;
	return tpt_call(TPT_OP_SET_SWITCHES, &word) ? -ENODEV : 0;
}

/*
 * For the negative controls: a table that maps itself writable, as if it were
 * under a pin, then a type and a reference that are never dropped.
 */
static void keep_references(void)
{
	struct tt_page *table = &tt_pages[TT_DATA];

	memset(table->entry, 0, PAGE_SIZE);
	table->entry[0] = table->mfn << PAGE_SHIFT | _PAGE_PRESENT | _PAGE_RW;
	table->pinned = 1;
	tt_count_illegal();
	table->entry[0] = 0;

	tt_protect(TT_DATA, true);
	tt_pin(TT_DATA, 1);
	tt_retire_typed();
	HYPERVISOR_update_va_mapping(tt_window_address(0),
				     __pte_ma(tt_pages[0].mfn << PAGE_SHIFT |
					      _PAGE_PRESENT), UVMF_INVLPG);
}

static int run(u32 seed, unsigned int rounds)
{
	unsigned int round;
	int rc = set_switches(switches);

	if (rc)
		return rc;
	tt_pool_renew(false);
	tt_log_begin_run(seed);
	tt_preempt_begin();
	for (round = 0; round < rounds && !tt_log_differs(); round++) {
		one_round(seed, round);
		cond_resched();
	}
	tt_preempt_end();
	if (leak)
		keep_references();
	tt_pool_renew(true);
	set_switches(switches < 0 ? switches : 0);
	if (leak)
		tt_window_close();
	return tt_log_differs() ? -EPROTO : 0;
}

static int run_set(const char *val, const struct kernel_param *kp)
{
	unsigned int rounds;
	u32 seed;
	int rc;

	if (!ready)
		return -EAGAIN;	/* on the module's command line */
	if (sscanf(val, "%u %u", &seed, &rounds) != 2)
		return -EINVAL;
	mutex_lock(&lock);
	rc = run(seed, rounds);
	mutex_unlock(&lock);
	return rc;
}

static int race_set(const char *val, const struct kernel_param *kp)
{
	unsigned int rounds;
	u32 seed;
	int rc;

	if (!ready)
		return -EAGAIN;
	if (sscanf(val, "%u %u", &seed, &rounds) != 2)
		return -EINVAL;
	mutex_lock(&lock);
	rc = tt_race(seed, rounds);
	mutex_unlock(&lock);
	return rc;
}

/* A frame that another domain's test uses as a foreign one. */
static int frame_get(char *buf, const struct kernel_param *kp)
{
	return sysfs_emit(buf, "%llu\n", ready ? tt_pages[0].mfn : 0);
}

static const struct kernel_param_ops frame_ops = { .get = frame_get };
module_param_cb(frame, &frame_ops, NULL, 0444);

static const struct kernel_param_ops race_ops = { .set = race_set };
module_param_cb(race, &race_ops, NULL, 0200);

static const struct kernel_param_ops run_ops = { .set = run_set };
module_param_cb(run, &run_ops, NULL, 0200);

static int __init table_test_init(void)
{
	int rc;

	if (!xen_pv_domain()) {
		pr_err("not a Xen PV guest\n");
		return -ENODEV;
	}
	rc = tt_pool_init();
	if (rc)
		return rc;
	rc = tt_calls_init();
	if (rc)
		goto no_calls;
	rc = tt_window_init();
	if (rc)
		goto no_window;
	ready = true;
	return 0;

no_window:
	tt_calls_exit();
no_calls:
	tt_pool_exit();
	return rc;
}

static void __exit table_test_exit(void)
{
	tt_window_exit();
	tt_calls_exit();
	tt_pool_exit();
	tt_log_exit();
}

module_init(table_test_init);
module_exit(table_test_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("trapless test: an adversarial guest's page tables");
