// SPDX-License-Identifier: GPL-2.0-only
/*
 * Every promise of trapless_pagetable.h, asked of the running hypervisor by a
 * guest kernel that does not play along. One case at a time:
 *
 *   echo CASE > /sys/module/hypercall_test/parameters/run
 *
 * fails with EPROTO if the hypervisor's answer is not the promised one, which
 * the kernel log then names. Each case but "mark" and "storm" leaves all pages
 * unmarked.
 * Counts (flushes a batch, say) are not asked of the payload: the machine's
 * own trace is the witness for those. Random calls are hypercall_fuzz.c's.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/completion.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>

#include <asm/xen/page.h>
#include <xen/interface/callback.h>
#include <xen/interface/memory.h>
#include <xen/xen.h>

#include "call.h"
#include "stream.h"

#define PAGES		TPT_MAX_BATCH
#define MFN_NO_RAM	(~0ULL >> 12)

static struct page *pages[PAGES];
static u64 mfns[PAGES + 1];	/* one more than a call may take */

static unsigned int calls;
module_param(calls, uint, 0444);
MODULE_PARM_DESC(calls, "hypercalls that the last cycle case needed");

#define EXPECT(_what, _got, _want) ({					\
	long __got = (_got), __want = (_want);				\
									\
	if (__got != __want)						\
		pr_err("%s:%d: %s: %ld, expected %ld\n",		\
		       __func__, __LINE__, _what, __got, __want);	\
	__got == __want;						\
})

/* All of a list, in as many calls as the hypervisor wants. */
static bool move_all(unsigned int op, const u64 *list, unsigned int count)
{
	unsigned int done, sum = 0;
	long rc = 0;

	while (sum < count && !rc) {
		rc = tpt_call_batch(op, list + sum, count - sum, &done);
		calls++;
		if (!rc && !EXPECT("progress", !!done, 1))
			return false;
		sum += done;
	}
	return EXPECT("rc", rc, 0) && EXPECT("done", sum, count);
}

static bool batch_is(unsigned int op, const u64 *list, unsigned int count,
		     long want_rc, unsigned int want_done)
{
	unsigned int done;
	long rc = tpt_call_batch(op, list, count, &done);

	return EXPECT("rc", rc, want_rc) && EXPECT("done", done, want_done);
}

static bool case_version(void)
{
	struct tpt_version v = { };

	return EXPECT("rc", tpt_call(TPT_OP_VERSION, &v), 0) &&
	       EXPECT("abi", v.abi, TPT_ABI_VERSION) &&
	       EXPECT("max_batch", v.max_batch, TPT_MAX_BATCH) &&
	       EXPECT("features", v.features, TPT_FEAT_SYNC) &&
	       EXPECT("parts", v.parts, TPT_SWITCH_ALL);
}

static bool case_unknown_operation(void)
{
	u64 scratch[64] = { };

	return EXPECT("op 0", tpt_call(TPT_OP_BASE, scratch), -ENOSYS) &&
	       EXPECT("op 11", tpt_call(TPT_OP_BASE + 11, scratch), -ENOSYS) &&
	       EXPECT("last", tpt_call(TPT_OP_BASE + 0xffff, scratch), -ENOSYS);
}

static bool case_switches(void)
{
	u32 before, on, now;
	bool ok = EXPECT("get", tpt_call(TPT_OP_GET_SWITCHES, &before), 0);

	for (on = 0; ok && on <= TPT_SWITCH_ALL; on++) {
		u32 bad = on | (TPT_SWITCH_ALL + 1);

		ok = EXPECT("set", tpt_call(TPT_OP_SET_SWITCHES, &on), 0) &&
		     EXPECT("bad", tpt_call(TPT_OP_SET_SWITCHES, &bad),
			    -EINVAL) &&
		     EXPECT("get", tpt_call(TPT_OP_GET_SWITCHES, &now), 0) &&
		     EXPECT("on", now, on);
	}
	ok &= EXPECT("set at 0", tpt_call(TPT_OP_SET_SWITCHES, NULL), -EFAULT);
	ok &= EXPECT("get at 0", tpt_call(TPT_OP_GET_SWITCHES, NULL), -EFAULT);
	ok &= EXPECT("restore", tpt_call(TPT_OP_SET_SWITCHES, &before), 0);
	return ok;
}

/* What is no range is refused before anything changes. table_test makes the others. */
static bool case_ranges(void)
{
	const struct tpt_protect none = { .table = mfns[0] };
	struct tpt_protect protect = { .table = mfns[0], .count = 1 };
	struct tpt_move move = { .from = mfns[0], .to = mfns[1], .count = 1 };
	bool ok = EXPECT("protect data", tpt_call(TPT_OP_PROTECT, &protect), -EPERM) &&
		  EXPECT("move data", tpt_call(TPT_OP_MOVE, &move), -EPERM);
	unsigned int bit;

	ok &= EXPECT("protect at 0", tpt_call(TPT_OP_PROTECT, NULL), -EFAULT);
	ok &= EXPECT("move at 0", tpt_call(TPT_OP_MOVE, NULL), -EFAULT);
	ok &= EXPECT("none", tpt_call(TPT_OP_PROTECT, (void *)&none), -EINVAL);
	protect.first = 511;
	protect.count = 2;
	ok &= EXPECT("beyond", tpt_call(TPT_OP_PROTECT, &protect), -EINVAL);
	protect.count = ~0u;
	ok &= EXPECT("wraps", tpt_call(TPT_OP_PROTECT, &protect), -EINVAL);
	protect = (struct tpt_protect){ .table = ~0ULL, .count = 1 };
	ok &= EXPECT("no frame", tpt_call(TPT_OP_PROTECT, &protect), -EPERM);
	move.to_first = 512;
	ok &= EXPECT("beyond", tpt_call(TPT_OP_MOVE, &move), -EINVAL);
	move.to_first = 0;
	move.reserved = 1;
	ok &= EXPECT("reserved", tpt_call(TPT_OP_MOVE, &move), -EINVAL);
	move.reserved = 0;
	for (bit = 0; bit < 64; bit++) {
		move.set = 1ULL << bit;
		ok &= EXPECT("set", tpt_call(TPT_OP_MOVE, &move),
			     bit >= 9 && bit <= 11 ? -EPERM : -EINVAL);
	}
	move = (struct tpt_move){ .from = mfns[0], .to = mfns[1], .from_first = 2,
				  .count = 511 };
	ok &= EXPECT("from ends beyond", tpt_call(TPT_OP_MOVE, &move), -EINVAL);
	move.from_first = 0;
	move.to_first = 2;
	ok &= EXPECT("to ends beyond", tpt_call(TPT_OP_MOVE, &move), -EINVAL);
	return ok;
}

/* The first frame of Xen's table of machine frames, which dom0 may map, and does not own. */
static u64 frame_of_xen(void)
{
	xen_pfn_t frame = 0;
	struct xen_machphys_mfn_list list = { .max_extents = 1 };

	set_xen_guest_handle(list.extent_start, &frame);
	return HYPERVISOR_memory_op(XENMEM_machphys_mfn_list, &list) ? 0 : frame;
}

static long set_entry(u64 table, unsigned int slot, u64 value, domid_t owner)
{
	struct mmu_update req = {
		.ptr = table << PAGE_SHIFT | slot * sizeof(value),
		.val = value,
	};

	return HYPERVISOR_mmu_update(&req, 1, NULL, owner);
}

static long pin(unsigned int command, u64 table)
{
	struct mmuext_op op = { .cmd = command, .arg1.mfn = table };

	return HYPERVISOR_mmuext_op(&op, 1, NULL, DOMID_SELF);
}

/* In a table in use: of two entries one is of our page, and one of a page of Xen's. */
static bool move_beside(u64 table, const u64 *entries)
{
	const u64 flags = _PAGE_PRESENT | _PAGE_USER | _PAGE_ACCESSED;
	struct tpt_move move = { .from = table, .to = table, .to_first = 2, .count = 2 };
	u64 other = frame_of_xen() << PAGE_SHIFT | flags;
	u64 ours = mfns[1] << PAGE_SHIFT | flags;
	unsigned int slot;
	bool ok = EXPECT("of Xen", set_entry(table, 0, other, DOMID_XEN), 0) &&
		  EXPECT("ours", set_entry(table, 1, ours, DOMID_SELF), 0);

	ok = ok && EXPECT("moved", tpt_call(TPT_OP_MOVE, &move), 1) &&
	     EXPECT("stays", READ_ONCE(entries[0]) >> PAGE_SHIFT, other >> PAGE_SHIFT) &&
	     EXPECT("is gone", READ_ONCE(entries[1]), 0) &&
	     EXPECT("is not there", READ_ONCE(entries[2]), 0) &&
	     EXPECT("is there", READ_ONCE(entries[3]) >> PAGE_SHIFT, ours >> PAGE_SHIFT);
	for (slot = 0; slot < 4; slot++)
		ok &= EXPECT("clear", set_entry(table, slot, 0, DOMID_SELF), 0);
	return ok;
}

/* What is another's stays as it is, though the caller may map it. */
static bool case_ranges_of_others(void)
{
	u64 *entries = page_address(pages[0]);
	unsigned long address = (unsigned long)entries;
	pte_t usable = mfn_pte(mfns[0], PAGE_KERNEL);
	bool ok;

	clear_page(entries);
	if (!EXPECT("read-only", HYPERVISOR_update_va_mapping(address,
			pte_wrprotect(usable), UVMF_INVLPG | UVMF_ALL), 0))
		return false;
	ok = EXPECT("pin", pin(MMUEXT_PIN_L1_TABLE, mfns[0]), 0);
	if (ok) {
		ok = move_beside(mfns[0], entries);
		ok &= EXPECT("unpin", pin(MMUEXT_UNPIN_TABLE, mfns[0]), 0);
	}
	return EXPECT("writable", HYPERVISOR_update_va_mapping(address, usable,
			UVMF_INVLPG | UVMF_ALL), 0) && ok;
}

/* Numbers outside our range keep their stock meaning: but for the last none exist. */
static bool case_other_operations(void)
{
	u64 scratch[64] = { };

	return EXPECT("below", tpt_call(TPT_OP_BASE - 1, scratch), -ENOSYS) &&
	       EXPECT("above", tpt_call(TPT_OP_BASE + 0x10000, scratch),
		      -ENOSYS) &&
	       EXPECT("signed", tpt_call(TPT_OP_MARK | 1u << 31, scratch),
		      -ENOSYS) &&
	       EXPECT("register at 0", tpt_call(CALLBACKOP_register, NULL),
		      -EFAULT);
}

/* A module of ABI 2 asks xenoprof_op, where it must find no hypervisor half. */
static bool case_older_module(void)
{
	struct tpt_version v = { };
	long rc = _hypercall2(long, xenoprof_op, TPT_OP_VERSION, &v);

	return EXPECT("rc", rc == -EINVAL || rc == -ENOSYS, true) &&
	       EXPECT("abi", v.abi, 0);
}

static const struct tpt_batch read_only_batch = { .count = 1, .done = 77 };

static bool case_bad_pointer(void)
{
	void *hypervisor = (void *)HYPERVISOR_VIRT_START;
	struct tpt_batch far = { .count = 2 };
	bool ok = true;

	ok &= EXPECT("version at 0", tpt_call(TPT_OP_VERSION, NULL), -EFAULT);
	ok &= EXPECT("stats at 0", tpt_call(TPT_OP_STATS, NULL), -EFAULT);
	ok &= EXPECT("batch at 0", tpt_call(TPT_OP_MARK, NULL), -EFAULT);
	ok &= EXPECT("batch in hypervisor",
		     tpt_call(TPT_OP_MARK, hypervisor), -EFAULT);
	ok &= EXPECT("version into hypervisor",
		     tpt_call(TPT_OP_VERSION, hypervisor), -EFAULT);
	/* No work for a caller that the result cannot be copied to. */
	ok &= EXPECT("read-only batch",
		     tpt_call(TPT_OP_MARK, (void *)&read_only_batch), -EFAULT);
	ok &= EXPECT("read-only done", read_only_batch.done, 77);
	ok &= batch_is(TPT_OP_MARK, NULL, 1, -EFAULT, 0);
	ok &= batch_is(TPT_OP_MARK, hypervisor, 1, -EFAULT, 0);
	far.mfns = ~0ULL - 7;	/* the list wraps around the address space */
	ok &= EXPECT("wrapping list", tpt_call(TPT_OP_MARK, &far), -EFAULT);
	far.mfns = 0x0000900000000000;	/* not canonical */
	ok &= EXPECT("non-canonical list", tpt_call(TPT_OP_MARK, &far), -EFAULT);
	return ok;
}

static bool case_bad_count(void)
{
	unsigned int done;

	return EXPECT("0", tpt_call_batch(TPT_OP_MARK, mfns, 0, &done), -EINVAL) &&
	       EXPECT("513", tpt_call_batch(TPT_OP_MARK, mfns, PAGES + 1, &done),
		      -E2BIG) &&
	       EXPECT("max", tpt_call_batch(TPT_OP_RELEASE, mfns, ~0u, &done),
		      -E2BIG);
}

/* A frame of RAM that the machine-to-physical table gives to nobody of ours. */
static u64 foreign_mfn(void)
{
	u64 mfn;

	for (mfn = 0x10000; mfn < 0x80000; mfn++) {
		unsigned long pfn = mfn_to_pfn_no_overrides(mfn);

		if (pfn == ~0UL || pfn_to_mfn(pfn) != mfn)
			return mfn;
	}
	return 0;
}

static bool case_not_ours(void)
{
	u64 no_ram = MFN_NO_RAM, huge = ~0ULL, local_apic = 0xfee00;
	u64 foreign = foreign_mfn();
	unsigned int done;
	bool ok = EXPECT("a foreign frame", !!foreign, 1);

	ok &= batch_is(TPT_OP_MARK, &no_ram, 1, -EINVAL, 0);
	ok &= batch_is(TPT_OP_MARK, &huge, 1, -EINVAL, 0);
	ok &= batch_is(TPT_OP_RELEASE, &no_ram, 1, -EINVAL, 0);
	ok &= EXPECT("MMIO refused",
		     tpt_call_batch(TPT_OP_MARK, &local_apic, 1, &done) < 0, 1);
	ok &= batch_is(TPT_OP_MARK, &foreign, 1, -EPERM, 0);
	ok &= batch_is(TPT_OP_RELEASE, &foreign, 1, -EPERM, 0);
	return ok;
}

static bool case_twice(void)
{
	bool ok = batch_is(TPT_OP_RELEASE, mfns, 1, -ENOENT, 0);
	u64 same[2] = { mfns[0], mfns[0] };

	ok &= batch_is(TPT_OP_MARK, same, 2, -EEXIST, 1);
	ok &= batch_is(TPT_OP_MARK, mfns, 1, -EEXIST, 0);
	ok &= batch_is(TPT_OP_RELEASE, same, 2, -ENOENT, 1);
	return ok;
}

/* The page tables we run on: neither markable nor, unmarked, releasable. */
static bool case_page_table(void)
{
	u64 pgd = virt_to_mfn(current->mm->pgd);

	return batch_is(TPT_OP_MARK, &pgd, 1, -EBUSY, 0) &&
	       batch_is(TPT_OP_RELEASE, &pgd, 1, -ENOENT, 0);
}

/* Xen's own page, lent to us: in no IOMMU table of ours, and to stay so. */
static bool case_xen_page(void)
{
	u64 shared = xen_start_info->shared_info >> PAGE_SHIFT;

	return batch_is(TPT_OP_MARK, &shared, 1, -EBUSY, 0) &&
	       batch_is(TPT_OP_RELEASE, &shared, 1, -ENOENT, 0);
}

/* What stands before a bad entry is done, what stands after it is not. */
static bool case_bad_in_the_middle(void)
{
	u64 list[4] = { mfns[0], mfns[1], MFN_NO_RAM, mfns[3] };
	bool ok = batch_is(TPT_OP_MARK, list, 4, -EINVAL, 2);

	ok &= batch_is(TPT_OP_MARK, mfns + 3, 1, 0, 1);
	ok &= batch_is(TPT_OP_RELEASE, mfns + 3, 1, 0, 1);
	ok &= batch_is(TPT_OP_RELEASE, list, 4, -EINVAL, 2);
	ok &= batch_is(TPT_OP_RELEASE, mfns, 1, -ENOENT, 0);
	return ok;
}

/* Software still writes a semi-writable page, and its contents survive. */
static bool case_contents(void)
{
	u8 *data = page_address(pages[0]);
	bool ok;

	memset(data, 0x11, PAGE_SIZE);
	ok = batch_is(TPT_OP_MARK, mfns, 1, 0, 1);
	ok &= EXPECT("kept", !memchr_inv(data, 0x11, PAGE_SIZE), 1);
	memset(data, 0x22, PAGE_SIZE);
	ok &= batch_is(TPT_OP_RELEASE, mfns, 1, 0, 1);
	ok &= EXPECT("written", !memchr_inv(data, 0x22, PAGE_SIZE), 1);
	return ok;
}

/* For the witness outside: one IOTLB flush a call, whatever its length. */
static bool cycles(unsigned int times, unsigned int length)
{
	bool ok = true;

	calls = 0;
	while (times-- && ok)
		ok = move_all(TPT_OP_MARK, mfns, length) &&
		     move_all(TPT_OP_RELEASE, mfns, length);
	return ok;
}

static bool case_cycle_1(void)
{
	return cycles(100, 1);
}

static bool case_cycle_512(void)
{
	return cycles(100, PAGES);
}

/* The hardware domain takes all marks back; other domains are refused: no_evict. */
static bool case_evict(void)
{
	struct tpt_evict report = { };
	struct tpt_version v = { };
	unsigned int times = 0;
	long rc;

	if (!move_all(TPT_OP_MARK, mfns, PAGES))
		return false;
	do {
		rc = tpt_call(TPT_OP_EVICT, &report);
		if (!EXPECT("few at a time", report.moved <= 128, 1))
			return false;
	} while (rc == -EAGAIN && times++ < 10000);
	return EXPECT("rc", rc, 0) && EXPECT("left", report.left, 0) &&
	       EXPECT("again", tpt_call(TPT_OP_EVICT, &report), 0) &&
	       EXPECT("at 0", tpt_call(TPT_OP_EVICT, NULL), -EFAULT) &&
	       EXPECT("version", tpt_call(TPT_OP_VERSION, &v), 0) &&
	       EXPECT("features", v.features,
		      TPT_FEAT_SYNC | TPT_FEAT_EVICTED) &&
	       batch_is(TPT_OP_RELEASE, mfns, 1, -ENOENT, 0) &&
	       batch_is(TPT_OP_MARK, mfns, 1, -EACCES, 0) &&
	       EXPECT("admit", tpt_call(TPT_OP_ADMIT, NULL), 0) &&
	       batch_is(TPT_OP_MARK, mfns, 1, 0, 1) &&
	       batch_is(TPT_OP_RELEASE, mfns, 1, 0, 1);
}

static bool case_no_evict(void)
{
	struct tpt_evict report = { };

	return EXPECT("evict", tpt_call(TPT_OP_EVICT, &report), -EPERM) &&
	       EXPECT("admit", tpt_call(TPT_OP_ADMIT, NULL), -EPERM);
}

/*
 * A guest that means to keep the payload marks all that it has, again and again, until
 * it is told to be calm. Without a payload stock Xen's answers do not matter.
 */
static struct task_struct *storm;
static bool storm_ok;
static unsigned long storm_marked, storm_refused;
module_param(storm_marked, ulong, 0444);
MODULE_PARM_DESC(storm_marked, "calls of storms that marked frames");
module_param(storm_refused, ulong, 0444);
MODULE_PARM_DESC(storm_refused, "calls of storms that were refused after an eviction");

static int storm_thread(void *unused)
{
	unsigned int at = 0, done;
	struct tpt_version v;

	storm_ok = true;
	while (!kthread_should_stop()) {
		unsigned int count = min(64u, PAGES - at);
		long rc = tpt_call_batch(TPT_OP_MARK, mfns + at, count, &done);

		if (done > count)
			done = 0;	/* not ours: untouched */
		storm_marked += done > 0;
		storm_refused += rc == -EACCES;
		if (rc && rc != -EEXIST && rc != -EACCES &&
		    !tpt_call(TPT_OP_VERSION, &v))
			storm_ok = EXPECT("storm", rc, 0);
		at = (at + max(done, 1u)) % PAGES;
		cond_resched();
	}
	return 0;
}

static bool case_storm(void)
{
	if (storm)
		return false;
	storm = kthread_run(storm_thread, NULL, "storm");
	if (!IS_ERR(storm))
		return true;
	storm = NULL;
	return false;
}

static bool case_calm(void)
{
	if (!storm)
		return false;
	kthread_stop(storm);
	storm = NULL;
	return storm_ok;
}

/* Left semi-writable, for what must be refused meanwhile. */
static bool case_mark(void)
{
	return move_all(TPT_OP_MARK, mfns, PAGES);
}

static bool case_release(void)
{
	return move_all(TPT_OP_RELEASE, mfns, PAGES);
}

/*
 * Two CPUs mark and release the same few pages. Which of them wins is open, so
 * a page may be found in either state; nothing else may come back, and at the
 * end every page is released exactly once or not at all.
 */
#define RACE_PAGES	8
#define RACE_CALLS	20000

struct racer {
	struct completion finished;
	u32 seed;
	bool ok;
};

static int race(void *arg)
{
	struct racer *racer = arg;
	struct rnd_state rnd;
	unsigned int call, done;

	stream_begin(&rnd, racer->seed);
	racer->ok = true;
	for (call = 0; call < RACE_CALLS && racer->ok; call++) {
		u32 random = prandom_u32_state(&rnd);
		unsigned int from = random % RACE_PAGES;
		bool mark = random >> 31;
		long rc = tpt_call_batch(mark ? TPT_OP_MARK : TPT_OP_RELEASE,
					 mfns + from, RACE_PAGES - from, &done);

		if (rc && rc != (mark ? -EEXIST : -ENOENT))
			racer->ok = EXPECT("race", rc, 0);
	}
	kthread_complete_and_exit(&racer->finished, 0);
}

static bool case_race(void)
{
	struct racer racers[2];
	unsigned int i, started, done;
	bool ok = true;

	for (started = 0; started < ARRAY_SIZE(racers); started++) {
		struct racer *racer = &racers[started];
		struct task_struct *task;

		init_completion(&racer->finished);
		racer->seed = started + 1;
		task = kthread_create(race, racer, "racer/%u", started);
		if (IS_ERR(task)) {
			ok = EXPECT("kthread", PTR_ERR(task), 0);
			break;
		}
		kthread_bind(task, started % num_online_cpus());
		wake_up_process(task);
	}
	for (i = 0; i < started; i++) {
		wait_for_completion(&racers[i].finished);
		ok &= racers[i].ok;
	}
	for (i = 0; i < RACE_PAGES; i++) {
		long rc = tpt_call_batch(TPT_OP_RELEASE, mfns + i, 1, &done);

		if (rc && rc != -ENOENT)
			ok = EXPECT("release", rc, 0);
	}
	return ok;
}

static const struct {
	const char *name;
	bool (*run)(void);
} cases[] = {
	{ "version", case_version },
	{ "unknown_operation", case_unknown_operation },
	{ "switches", case_switches },
	{ "other_operations", case_other_operations },
	{ "older_module", case_older_module },
	{ "ranges", case_ranges },
	{ "ranges_of_others", case_ranges_of_others },
	{ "bad_pointer", case_bad_pointer },
	{ "bad_count", case_bad_count },
	{ "not_ours", case_not_ours },
	{ "twice", case_twice },
	{ "page_table", case_page_table },
	{ "xen_page", case_xen_page },
	{ "bad_in_the_middle", case_bad_in_the_middle },
	{ "contents", case_contents },
	{ "cycle_1", case_cycle_1 },
	{ "cycle_512", case_cycle_512 },
	{ "mark", case_mark },
	{ "release", case_release },
	{ "race", case_race },
	{ "evict", case_evict },
	{ "no_evict", case_no_evict },
	{ "storm", case_storm },
	{ "calm", case_calm },
};

static int run_set(const char *val, const struct kernel_param *kp)
{
	unsigned int i;

	if (!pages[PAGES - 1])
		return -EAGAIN;	/* on the module's command line */
	for (i = 0; i < ARRAY_SIZE(cases); i++) {
		if (!sysfs_streq(val, cases[i].name))
			continue;
		if (!cases[i].run())
			return -EPROTO;
		return 0;
	}
	return -EINVAL;
}

static const struct kernel_param_ops run_ops = { .set = run_set };
module_param_cb(run, &run_ops, NULL, 0200);

static void free_pages_again(void)
{
	unsigned int i, done;

	for (i = 0; i < PAGES && pages[i]; i++) {
		long rc = tpt_call_batch(TPT_OP_RELEASE, mfns + i, 1, &done);

		if (rc != -EOPNOTSUPP && tpt_may_be_marked(rc))
			pr_err("page %u not released (%ld), leaking it\n", i, rc);
		else
			__free_page(pages[i]);
	}
}

static int __init hypercall_test_init(void)
{
	unsigned int i;

	if (!xen_pv_domain())
		return -ENODEV;
	for (i = 0; i < PAGES; i++) {
		pages[i] = alloc_page(GFP_KERNEL);
		if (!pages[i]) {
			free_pages_again();
			return -ENOMEM;
		}
		mfns[i] = pfn_to_mfn(page_to_pfn(pages[i]));
	}
	mfns[PAGES] = MFN_NO_RAM;
	return 0;
}

static void __exit hypercall_test_exit(void)
{
	if (storm)
		kthread_stop(storm);
	free_pages_again();
}

module_init(hypercall_test_init);
module_exit(hypercall_test_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("trapless test: the hypercall interface");
