// SPDX-License-Identifier: GPL-2.0-only
/*
 * Random calls of the hypercall interface by a guest kernel that means no good,
 * each held against a model of its own:
 *
 *   echo SEED CALLS > /sys/module/hypercall_fuzz/parameters/run
 *
 * fails with EPROTO at the first answer that is not the model's, which the
 * kernel log then shows. The model is an array of 256 frames, each marked or
 * not and a page table or not, and the rules of trapless_pagetable.h; it knows
 * nothing of how the hypervisor does it. Lists name these frames, in any order
 * and more than once, and frames that are not ours to move; between the calls
 * frames become tables of all levels and pages again.
 *
 * The model also counts which flushes the IOMMU must have got, for a witness that
 * is neither it nor the payload: the machine's trace. After a run every frame is
 * a page again, unmarked, and no different from before.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/sched/signal.h>
#include <linux/vmalloc.h>

#include <asm/xen/page.h>
#include <xen/interface/xen.h>
#include <xen/xen.h>

#include "call.h"
#include "stream.h"

#define FRAMES		256
#define LEAVES_AFTER	64	/* frames, if the hypervisor has other work */

static unsigned long domain_flushes;
module_param(domain_flushes, ulong, 0444);
MODULE_PARM_DESC(domain_flushes, "flushes that the calls of all runs must have made");

static unsigned long page_flushes;
module_param(page_flushes, ulong, 0444);
MODULE_PARM_DESC(page_flushes, "flushes of one page that Xen's typing must have made");

static unsigned long moved;
module_param(moved, ulong, 0444);
MODULE_PARM_DESC(moved, "frames marked and released in all runs");

static unsigned long refused;
module_param(refused, ulong, 0444);
MODULE_PARM_DESC(refused, "calls that the model wanted refused, in all runs");

static unsigned long cut_short;
module_param(cut_short, ulong, 0444);
MODULE_PARM_DESC(cut_short, "calls that the hypervisor left in the middle");

static bool built_in;
module_param(built_in, bool, 0444);
MODULE_PARM_DESC(built_in, "no payload but a Xen with the series: no parts, nothing to evict");

static struct frame {
	struct page *page;
	u64 mfn;
	unsigned int level;	/* of the table it is pinned as; 0: a page */
	bool marked;
} frames[FRAMES];

/* One entry of a list: one of our frames, or the error that it must give. */
struct entry {
	int frame;		/* -1: none of ours */
	long mark, release;
	bool or_not_ours;	/* -EPERM will do too */
};

static struct rnd_state rnd;
static u64 *list;		/* ends where the address space does */
static struct entry entries[TPT_MAX_BATCH];
static u64 foreign;

static u32 below(u32 limit)
{
	return prandom_u32_state(&rnd) % limit;
}

static bool wrong(const char *what, long got, long want)
{
	pr_err("%s: %ld, expected %ld\n", what, got, want);
	return false;
}

static bool is(const char *what, long got, long want)
{
	return got == want || wrong(what, got, want);
}

/* --- frames that become tables --- */

static bool set_writable(const struct frame *f, bool writable)
{
	pte_t pte = pfn_pte(page_to_pfn(f->page),
			    writable ? PAGE_KERNEL : PAGE_KERNEL_RO);

	return is("mapping",
		  HYPERVISOR_update_va_mapping((unsigned long)page_address(f->page),
					       pte, UVMF_INVLPG | UVMF_ALL), 0);
}

static bool pin(struct frame *f, unsigned int level)
{
	struct mmuext_op op = {
		.cmd = MMUEXT_PIN_L1_TABLE + level - 1,
		.arg1.mfn = f->mfn,
	};

	memset(page_address(f->page), 0, PAGE_SIZE);
	if (!set_writable(f, false) ||
	    !is("pin", HYPERVISOR_mmuext_op(&op, 1, NULL, DOMID_SELF), 0))
		return false;
	if (!f->marked)
		page_flushes++;	/* taken from the devices by Xen */
	f->level = level;
	return true;
}

static bool unpin(struct frame *f)
{
	struct mmuext_op op = {
		.cmd = MMUEXT_UNPIN_TABLE,
		.arg1.mfn = f->mfn,
	};

	f->level = 0;
	return is("unpin", HYPERVISOR_mmuext_op(&op, 1, NULL, DOMID_SELF), 0) &&
	       set_writable(f, true);
}

static bool retype(void)
{
	struct frame *f = &frames[below(FRAMES)];

	return f->level ? unpin(f) : pin(f, 1 + below(4));
}

/* --- what a list must come to --- */

static u64 refused_entry(struct entry *e)
{
	static const u64 mmio[] = { 0xa0, 0xb8, 0xf0, 0xfec00, 0xfee00 };

	*e = (struct entry){ -1, -EINVAL, -EINVAL };
	switch (below(6)) {
	case 0:
		return ~0ULL;
	case 1:
		return ~0ULL >> (12 + below(12));
	case 2:		/* a frame of ours, if the upper bits went lost */
		return frames[below(FRAMES)].mfn | 1ULL << (40 + below(24));
	case 3:		/* if it is below the last frame of RAM, Xen's */
		e->or_not_ours = true;
		return mmio[below(ARRAY_SIZE(mmio))];
	case 4:
		e->mark = e->release = -EPERM;
		return foreign;
	}
	/* Xen's own, lent to us, and a live table: neither can be marked. */
	e->mark = -EBUSY;
	e->release = -ENOENT;
	return below(2) ? xen_start_info->shared_info >> PAGE_SHIFT :
			  virt_to_mfn(current->active_mm->pgd);
}

/* Half of the lists name frames that can move, and each of them once. */
static u32 make_list(u64 *at, u32 count, bool mark)
{
	u32 odd = below(3) ? ~0u : below(count), frame = below(FRAMES), i, n = 0;
	bool fitting = below(2);

	for (i = 0; n < count && (!fitting || i < FRAMES); i++) {
		frame = fitting ? (frame + 1) % FRAMES : below(FRAMES);
		if (fitting && (frames[frame].marked == mark ||
				(mark && frames[frame].level)))
			continue;
		entries[n].frame = frame;
		at[n] = n == odd ? refused_entry(&entries[n]) :
				   frames[frame].mfn;
		n++;
	}
	return n;
}

/* One frame moves, as far as the model goes. Return: 0 or why not. */
static long move(struct frame *f, bool mark, bool *flush)
{
	if (mark && f->level)
		return -EBUSY;
	if (f->marked == mark)
		return mark ? -EEXIST : -ENOENT;
	f->marked = mark;
	if (!f->level)
		*flush = true;
	moved++;
	return 0;
}

/*
 * What happened is what the hypervisor says, up to its own @done; and it must
 * have stopped there for the reason that the model has.
 */
static bool follow(bool mark, u32 count, long rc, u32 done)
{
	bool flush = false;
	long want = 0;
	u32 i;

	for (i = 0; i < count && i <= done; i++) {
		const struct entry *e = &entries[i];

		if (i == done && !rc)
			break;
		if (e->frame >= 0)
			want = move(&frames[e->frame], mark, &flush);
		else if (e->or_not_ours && rc == -EPERM)
			want = rc;
		else
			want = mark ? e->mark : e->release;
		if (want)
			break;
	}
	domain_flushes += flush;
	if (want) {
		refused++;
		return is("result", rc, want) && is("done", done, i);
	}
	if (!is("result", rc, 0))
		return false;
	if (done == count)
		return true;
	cut_short++;
	return is("cut short", done && done % LEAVES_AFTER == 0, 1);
}

static bool batch(void)
{
	static const u32 lengths[] = { 4, 16, 64, TPT_MAX_BATCH };
	u32 count = 1 + below(lengths[below(ARRAY_SIZE(lengths))]), done;
	u64 *at = list + TPT_MAX_BATCH - count;
	bool mark = below(2);
	long rc;

	count = make_list(at, count, mark);
	if (!count)
		return true;
	rc = tpt_call_batch(mark ? TPT_OP_MARK : TPT_OP_RELEASE, at, count,
			    &done);
	return follow(mark, count, rc, done);
}

/* --- calls that move nothing --- */

static const struct tpt_batch read_only = { .count = 1, .done = 77 };

static void *bad_pointer(void)
{
	static const unsigned long bad[] = {
		0, 8, HYPERVISOR_VIRT_START, HYPERVISOR_VIRT_START + (1UL << 40),
		0x0000800000000000, 0xffff000000000000, ~0UL, ~0UL - 7,
	};

	return (void *)bad[below(ARRAY_SIZE(bad))];
}

static bool bad_list(void)
{
	static const u32 counts[] = { 0, TPT_MAX_BATCH + 1, 1u << 31, ~0u };
	u32 op = below(2) ? TPT_OP_MARK : TPT_OP_RELEASE, count, done;
	long rc;

	refused++;
	switch (below(5)) {
	case 0:
		return is("bad batch", tpt_call(op, bad_pointer()), -EFAULT);
	case 1:
		return is("read-only batch", tpt_call(op, (void *)&read_only),
			  -EFAULT) && is("read-only done", read_only.done, 77);
	case 2:
		rc = tpt_call_batch(op, bad_pointer(), 1 + below(16), &done);
		break;
	case 3:		/* all but the last can be read */
		count = 1 + below(TPT_MAX_BATCH - 1);
		make_list(list + TPT_MAX_BATCH - count, count, below(2));
		rc = tpt_call_batch(op, list + TPT_MAX_BATCH - count, count + 1,
				    &done);
		break;
	default:
		count = counts[below(ARRAY_SIZE(counts))];
		return is("bad count", tpt_call_batch(op, list, count, &done),
			  count ? -E2BIG : -EINVAL) && is("done", done, ~0u);
	}
	return is("bad list", rc, -EFAULT) && is("done", done, 0);
}

static bool information(void)
{
	static const u32 ops[] = { TPT_OP_STATS, TPT_OP_GET_SWITCHES };
	u32 op = ops[below(2)], on = 1u << (4 + below(28));
	struct tpt_version v;
	u64 room[16];

	switch (below(6)) {
	case 0:
		return is("version", tpt_call(TPT_OP_VERSION, &v), 0) &&
		       is("abi", v.abi, TPT_ABI_VERSION) &&
		       is("max_batch", v.max_batch, TPT_MAX_BATCH) &&
		       is("features", v.features, TPT_FEAT_SYNC) &&
		       is("parts", v.parts, built_in ? 0 : TPT_SWITCH_ALL);
	case 1:
		return is("bad version", tpt_call(TPT_OP_VERSION, bad_pointer()),
			  -EFAULT);
	case 2:
		return is("host", tpt_call(op, room),
			  xen_initial_domain() ? 0 : -EPERM);
	case 3:
		return is("bad host", tpt_call(op, bad_pointer()),
			  xen_initial_domain() ? -EFAULT : -EPERM);
	case 4:
		if (built_in)
			return is("evict", tpt_call(TPT_OP_EVICT, room), -ENOSYS) &&
			       is("admit", tpt_call(TPT_OP_ADMIT, room), -ENOSYS);
		return is("bad evict", tpt_call(TPT_OP_EVICT, bad_pointer()),
			  xen_initial_domain() ? -EFAULT : -EPERM) &&
		       is("admit", tpt_call(TPT_OP_ADMIT, bad_pointer()),
			  xen_initial_domain() ? 0 : -EPERM);
	}
	return is("switches", tpt_call(TPT_OP_SET_SWITCHES, &on),
		  xen_initial_domain() ? -EINVAL : -EPERM);
}

static bool no_operation(void)
{
	u64 room[16] = { };
	u32 op = TPT_OP_BASE + below(0x10000);

	if (op > TPT_OP_BASE && op <= TPT_OP_MOVE)
		op = TPT_OP_BASE;
	return is("no operation", tpt_call(op, below(2) ? room : bad_pointer()),
		  -ENOSYS);
}

static bool call(void)
{
	switch (below(16)) {
	case 0:
		return bad_list();
	case 1:
		return below(2) ? information() : no_operation();
	case 2 ... 4:
		return retype();
	}
	return batch();
}

/* All frames are unmarked pages again, whatever has happened. */
static bool settle(void)
{
	bool ok = true, unused = false;
	unsigned int i, done;

	for (i = 0; i < FRAMES; i++) {
		struct frame *f = &frames[i];

		if (f->level)
			ok &= unpin(f);
		if (!f->marked)
			continue;
		ok &= is("release", tpt_call_batch(TPT_OP_RELEASE, &f->mfn, 1,
						   &done), 0);
		move(f, false, &unused);
		domain_flushes++;
	}
	return ok;
}

static int run_set(const char *val, const struct kernel_param *kp)
{
	unsigned int seed, calls, i;
	bool ok = true;

	if (!frames[FRAMES - 1].page)
		return -EAGAIN;	/* on the module's command line */
	if (sscanf(val, "%u %u", &seed, &calls) != 2)
		return -EINVAL;
	stream_begin(&rnd, seed);
	for (i = 0; i < calls && ok; i++) {
		ok = call();
		cond_resched();
		if (fatal_signal_pending(current))
			break;
	}
	if (!ok)
		pr_err("seed %u: call %u of %u\n", seed, i, calls);
	ok &= settle();
	return ok ? 0 : -EPROTO;
}

static const struct kernel_param_ops run_ops = { .set = run_set };
module_param_cb(run, &run_ops, NULL, 0200);

/* A frame of RAM that the machine-to-physical table gives to nobody of ours. */
static u64 find_foreign(void)
{
	u64 mfn;

	for (mfn = 0x10000; mfn < 0x80000; mfn++) {
		unsigned long pfn = mfn_to_pfn_no_overrides(mfn);

		if (pfn == ~0UL || pfn_to_mfn(pfn) != mfn)
			return mfn;
	}
	return ~0ULL;
}

static void free_all(void)
{
	unsigned int i;

	for (i = 0; i < FRAMES && frames[i].page; i++)
		__free_page(frames[i].page);
	vfree(list);
}

static int __init hypercall_fuzz_init(void)
{
	unsigned int i;

	if (!xen_pv_domain())
		return -ENODEV;
	/* Behind it is vmalloc's guard page. */
	list = vmalloc(PAGE_SIZE);
	for (i = 0; list && i < FRAMES; i++) {
		frames[i].page = alloc_page(GFP_KERNEL);
		if (!frames[i].page)
			break;
		frames[i].mfn = pfn_to_mfn(page_to_pfn(frames[i].page));
	}
	if (i < FRAMES) {
		free_all();
		return -ENOMEM;
	}
	foreign = find_foreign();
	return 0;
}

static void __exit hypercall_fuzz_exit(void)
{
	free_all();
}

module_init(hypercall_fuzz_init);
module_exit(hypercall_fuzz_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("trapless test: random calls of the hypercall interface");
