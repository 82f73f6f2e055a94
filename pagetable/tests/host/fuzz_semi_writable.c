// SPDX-License-Identifier: GPL-2.0-only
/*
 * Fuzz test: bytes become a sequence of hypercalls, of the guest's and Xen's
 * own changes of page types, of faults, and of another CPU's interference.
 * A reference model of the ABI header's words says what each call must answer;
 * fake_check() says what the machine must look like after it.
 */
#include "call.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const u8 *input;
static size_t left;
static bool closed;	/* MARK is refused */

static u8 byte(void)
{
	if (!left)
		return 0;
	left--;
	return *input++;
}

void violation(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "VIOLATION: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	abort();
}

/* Few frames most of the time, so that operations meet. */
static u64 some_frame(void)
{
	u8 b = byte();

	if (fake.current == &domu)
		return DOMU_MFN(b < 224 ? b % 6 : b % NR_DOMU);
	return DOM0_MFN(b < 224 ? b % 6 : b % NR_DOM0);
}

static u64 hostile_frame(void)
{
	u8 b = byte();

	switch (b % 8) {
	case 0: return ALIAS_MFN(b % 6);
	case 1: return fake.current == &domu ? DOM0_MFN(b % NR_DOM0) :
					       DOMU_MFN(b % NR_DOMU);
	case 2: return MMIO_MFN(b % NR_MMIO);
	case 3: return NR_MFN;
	case 4: return ~0UL >> (b & 63);
	case 5: return (u64)b << 40 | (b % 6);
	case 6: return 1UL << 52 | (b % 6);
	}
	return fake.current == &domu ? DOMU_MFN(b % 6) : DOM0_MFN(b % 6);
}

static u32 some_list(u64 *mfns)
{
	u8 kind = byte(), first = byte();
	u32 n = kind % 8 == 7 ? 1 + byte() * 2 : 1 + kind % 5;

	if (n > TPT_MAX_BATCH)
		n = TPT_MAX_BATCH;
	if (kind & 0x40) {
		for (u32 i = 0; i < n; i++)
			mfns[i] = some_frame();
	} else {
		for (u32 i = 0; i < n; i++)
			mfns[i] = fake.current == &domu ?
				DOMU_MFN((first % 8 + i) % NR_DOMU) :
				DOM0_MFN((first % 8 + i) % NR_DOM0);
	}
	if (kind & 0x80)
		mfns[byte() % n] = hostile_frame();
	return n;
}

/* --- the reference model --- */

static bool hits(enum fault which, unsigned int n)
{
	return fake.fail_at[which] &&
	       (n == fake.fail_at[which] ||
		(n > fake.fail_at[which] && fake.fail_on[which]));
}

static long expect_common(u64 mfn)
{
	if (!fake_is_ram(mfn))
		return -EINVAL;
	if (!fake_owned(mfn, fake.current))
		return -EPERM;
	return 0;
}

static bool leaves(u32 i, u32 *looks)
{
	return i && i % 64 == 0 && fake.pending_at &&
	       ++*looks >= fake.pending_at;
}

static struct answer expect_mark(const u64 *mfns, u32 count, u32 *flushes)
{
	u8 now[NR_PDX] = { 0 };
	u32 i, looks = 0, types = 0, unmaps = 0;
	bool dirty = false, lost = false;
	struct answer a = { 0, 0 };

	*flushes = 0;
	if (closed) {
		a.rc = -EACCES;
		return a;
	}
	for (i = 0; i < count && !leaves(i, &looks); i++) {
		a.rc = expect_common(mfns[i]);
		if (a.rc)
			break;
		if (fake_owed(mfns[i])->held ||
		    hits(FAULT_GET_TYPE, ++types) || fake_is_live(mfns[i]))
			a.rc = -EBUSY;
		else if (fake_owed(mfns[i])->marked ||
			 now[mfn_to_pdx(mfns[i])])
			a.rc = -EEXIST;
		else if (hits(FAULT_UNMAP, ++unmaps))
			a.rc = UNMAP_ERROR;
		if (a.rc)
			break;
		now[mfn_to_pdx(mfns[i])] = 1;
		dirty = true;
	}
	*flushes = dirty;
	if (!dirty || !hits(FAULT_FLUSH, 1)) {
		a.done = i;
		return a;
	}
	for (u32 k = 0; k < i; k++)
		lost |= hits(FAULT_MAP, k + 1);
	a.rc = lost ? -EIO : FLUSH_ERROR;
	*flushes = 99;	/* one, or two if the undoing changed anything */
	return a;
}

static struct answer expect_release(const u64 *mfns, u32 count)
{
	u8 now[NR_PDX] = { 0 };
	u32 i, looks = 0, types = 0, maps = 0;
	struct answer a = { 0, 0 };
	bool dirty = false;

	for (i = 0; i < count && !leaves(i, &looks); i++) {
		a.rc = expect_common(mfns[i]);
		if (a.rc)
			break;
		if (now[mfn_to_pdx(mfns[i])])	/* twice in the list */
			a.rc = fake_page(mfns[i])->count_info == 1 ?
				-EPERM :	/* the mark was all that held it */
				-ENOENT;
		else if (!fake_owed(mfns[i])->marked)
			a.rc = -ENOENT;
		else if (!fake_is_live(mfns[i])) {
			if (hits(FAULT_GET_TYPE, ++types))
				a.rc = -EBUSY;
			else if (hits(FAULT_MAP, ++maps))
				a.rc = MAP_ERROR;
			else
				dirty = true;
		} else if (!(fake_page(mfns[i])->type_info & PGT_validated)) {
			++types;
			a.rc = -EBUSY;
		}
		if (a.rc)
			break;
		now[mfn_to_pdx(mfns[i])] = 1;
	}
	a.done = i;
	if (!a.rc && dirty && hits(FAULT_FLUSH, 1))
		a.rc = FLUSH_ERROR;
	return a;
}

static struct answer expect(int op, const u64 *mfns, u32 count, u32 *flushes)
{
	bool mark = op == (int)TPT_OP_MARK;
	struct answer a = { -EFAULT, 0 };

	*flushes = 0;
	if (hits(FAULT_COPY, 1) || hits(FAULT_COPY, 2)) {
		a.done = guest_batch()->done;	/* as the guest has it */
		if (fake.scribble && !hits(FAULT_COPY, 1))
			a.done = ~0u;
		return a;
	}
	a.rc = -ENOMEM;
	if (hits(FAULT_MALLOC, 1) ||
	    (!payload_has_map() && hits(FAULT_VZALLOC, 1)))
		return a;
	a.rc = -EFAULT;
	if (hits(FAULT_COPY, 3))
		return a;
	if (mark)
		return expect_mark(mfns, count, flushes);
	*flushes = 99;
	return expect_release(mfns, count);
}

/* --- operations --- */

struct other_cpu {
	u8 what, frame;
};

static void guest_op(u8 what, u64 mfn)
{
	switch (what % 8) {
	case 0: guest_map_writable(mfn); break;
	case 1: guest_unmap_writable(mfn); break;
	case 2: guest_pin(mfn, 1 + what / 8 % 4, what & 0x80); break;
	case 3: guest_unpin(mfn, what & 0x80); break;
	case 4: guest_map_segment(mfn); break;
	case 5: guest_unmap_segment(mfn); break;
	case 6: guest_free(mfn); break;
	case 7: guest_alloc(mfn); break;
	}
}

static void other_cpu(void *arg)
{
	const struct other_cpu *o = arg;
	u64 mfn = fake.race.domain == &domu ? DOMU_MFN(o->frame % 6) :
					      DOM0_MFN(o->frame % 6);

	struct tpt_evict report;

	if (o->what >= 240) {
		if (call_evict(&report) != -EPERM)
			closed = true;
	} else if (o->what % 4 == 0)
		call_batch(TPT_OP_MARK, &mfn, 1);
	else if (o->what % 4 == 1)
		call_batch(TPT_OP_RELEASE, &mfn, 1);
	else
		guest_op(o->what / 4, mfn);
}

static struct other_cpu other;

static void some_trouble(void)
{
	u8 what = byte();

	if (what < 96)
		return;
	if (what < 176) {
		other.what = byte();
		other.frame = byte();
		fake.race.at = 1 + what % 24;
		fake.race.run = other_cpu;
		fake.race.domain = other.frame & 0x40 ? &domu : &dom0;
		fake.race.arg = &other;
		if (what & 1)
			return;
	}
	if (what & 2)
		fake.pending_at = 1 + (what >> 2) % 3;
	for (u8 n = 0; n < 1 + (what & 1); n++) {
		u8 b = byte();
		enum fault f = b % FAULT_REVERT;

		if (f == FAULT_COPY && b & 0x80)
			fake.scribble = true;
		else
			fake.fail_at[f] = 1 + (b >> 3) % 4;
		fake.fail_on[f] = b & 0x40;
	}
	/* Half of all undoing needs a flush that failed. */
	if (what >= 216)
		fake.fail_at[FAULT_FLUSH] = 1;
}

static void batch_op(int op)
{
	static u64 mfns[TPT_MAX_BATCH];
	u32 count, flushes, total;
	struct answer want, got;

	count = some_list(mfns);
	some_trouble();
	memcpy(guest_list(), mfns, sizeof(mfns));
	guest_batch()->count = count;
	guest_batch()->done = 0x77777777;
	guest_batch()->mfns = (u64)guest_list();
	want = expect(op, mfns, count, &flushes);
	got = call_prepared(op, mfns, count);
	total = fake.flushes;

	if (fake.race.ran) {
		ledger_follow_marks();
		return;
	}
	/* Only the answer is lost when it cannot be delivered. */
	if (hits(FAULT_COPY, 4) && !hits(FAULT_COPY, 3) &&
	    fake.calls[FAULT_COPY] == 4) {
		ledger_follow_marks();
		return;
	}
	if (got.rc != want.rc || got.done != want.done)
		violation("op %x: %ld and %u done, not %ld and %u", op, got.rc,
			  got.done, want.rc, want.done);
	if (flushes != 99 ? total != flushes : total > 2)
		violation("%u flushes, not %u", total, flushes);
}

/* Headers that name no list, and callers that are not served. */
static void odd_call(u8 kind)
{
	static const u32 counts[] = { 0, 513, 1u << 31, ~0u, 512, 1, 2 };
	struct tpt_batch *batch = guest_batch();
	int op = byte() & 1 ? TPT_OP_MARK : TPT_OP_RELEASE;
	struct domain *callers[] = { &dom0, &domu, &dom_hvm, &domu };
	bool bad_list = kind & 4;
	long want, got;

	fake.current = callers[kind & 3];
	domu.sync = (kind & 3) != 3;
	batch->count = counts[byte() % 7];
	batch->done = 1234;
	batch->mfns = bad_list ? 0xdead0000 : (u64)guest_list();
	memset(guest_list(), 0xff, TPT_MAX_BATCH * 8);
	if (kind & 8)
		op = TPT_OP_BASE | (kind >> 4) << 8 | 11;
	else if (kind & 16)
		op ^= 1 << (16 + (kind >> 5));	/* stock's range */
	if (fake.current == &dom_hvm || ((u32)op & TPT_OP_MASK) != TPT_OP_BASE)
		want = STOCK_CALLBACK;
	else if (kind & 8)
		want = -ENOSYS;
	else if (batch->count > TPT_MAX_BATCH)
		want = -E2BIG;
	else if (!batch->count)
		want = -EINVAL;
	else if (!fake.current->sync)
		want = -EOPNOTSUPP;
	else
		want = bad_list ? -EFAULT :
		       closed && op == (int)TPT_OP_MARK ? -EACCES : -EINVAL;
	got = payload_callback(op, batch);
	if (got != want)
		violation("odd call %x: %ld, not %ld", op, got, want);
	if (want == STOCK_CALLBACK &&
	    (fake.last_op != op || fake.last_arg != batch))
		violation("stock call changed on its way");
	domu.sync = true;
}

/* Xen maps and unmaps for reasons of its own, grants for instance. */
static void stock_iommu(u8 kind)
{
	struct domain *d = kind & 1 ? &dom0 : &domu;
	u64 mfn = kind & 2 ? hostile_frame() : some_frame();
	u64 dfn = kind & 4 ? hostile_frame() : mfn;
	unsigned long count = 1 + !!(kind & 8) * (byte() % 3);
	bool own = fake_is_ram(mfn) && fake_home(mfn) == d;
	bool skip = dfn == mfn && count == 1 && own && fake_owed(mfn)->marked;

	/* Real Xen would not: a mapping of its own not made by typing. */
	if (own && !skip && count == 1 && dfn == mfn)
		return;
	if (d == &dom0 && !own)
		count = 2;
	if (payload_map(d, dfn, mfn, count, 0x40) ||
	    fake.originals != !skip)
		violation("map of %#lx skipped: %d", mfn, !fake.originals);
	if (!skip && (fake.last_dfn != dfn || fake.last_mfn != mfn ||
		      fake.last_count != count || fake.last_flags != 0x40))
		violation("stock map changed on its way");
	if (dfn != mfn)
		return;
	fake.originals = 0;
	if (payload_unmap(d, dfn, count) || fake.originals != !skip)
		violation("unmap of %#lx skipped: %d", mfn, !fake.originals);
	if (!skip && (fake.last_dfn != dfn || fake.last_count != count))
		violation("stock unmap changed on its way");
}

static void info_ops(void)
{
	struct tpt_version *v = (void *)guest_memory[0];
	struct tpt_stats *s = (void *)guest_memory[0];

	if (payload_callback(TPT_OP_VERSION, v) || v->abi != TPT_ABI_VERSION ||
	    v->max_batch != TPT_MAX_BATCH ||
	    v->features != (TPT_FEAT_SYNC | (closed ? TPT_FEAT_EVICTED : 0)) ||
	    v->parts != TPT_SWITCH_ALL)
		violation("version");
	if (fake.current == &domu) {
		if (payload_callback(TPT_OP_STATS, s) != -EPERM)
			violation("a guest sees the host's statistics");
	} else if (payload_callback(TPT_OP_STATS, s) ||
		   memcmp(s, &semi_writable_stats, sizeof(*s))) {
		violation("statistics");
	}
}

static void try_revert(void)
{
	bool marks = false;
	int rc;

	for (unsigned int i = 0; i < NR_DOM0; i++)
		marks |= fake_owed(DOM0_MFN(i))->marked;
	for (unsigned int i = 0; i < NR_DOMU; i++)
		marks |= fake_owed(DOMU_MFN(i))->marked ||
			 fake_owed(DOMU_MFN(i))->held;
	if (!marks)
		return;		/* would end the sequence */
	rc = payload_try_revert();
	if (rc != -EBUSY)
		violation("reverted with frames marked: %d", rc);
	rc = payload_revert_action();
	if (rc != -EBUSY)
		violation("revert action with frames marked: %d", rc);
}

static bool any_marked(void)
{
	for (unsigned int i = 0; i < NR_DOM0; i++)
		if (fake_owed(DOM0_MFN(i))->marked)
			return true;
	for (unsigned int i = 0; i < NR_DOMU; i++)
		if (fake_owed(DOMU_MFN(i))->marked)
			return true;
	return false;
}

/* Some calls of an eviction, or all of it, or its end. */
static void eviction(void)
{
	u8 how = byte();
	struct tpt_evict report = { };
	bool is_guest = fake.current == &domu;
	unsigned int calls = how % 8 ? how % 8 : 100, troubled = 0;
	long rc;

	if (how >= 192) {
		rc = payload_callback(TPT_OP_ADMIT, NULL);
		if (rc != (is_guest ? -EPERM : 0))
			violation("admit: %ld", rc);
		closed &= is_guest;
		return;
	}
	do {
		/* Not for ever: what fails is tried again. */
		if (troubled++ < 3 && how & 0x40)
			some_trouble();
		if (troubled <= 3 && how & 0x20)
			fake.fail_at[FAULT_PAUSE] = 1;
		rc = call_evict(&report);
		if (is_guest ? rc != -EPERM :
			       rc && rc != -EAGAIN && rc != -EFAULT)
			violation("evict: %ld", rc);
		if (is_guest)
			return;
		/* The first copy fails before anything is done. */
		closed |= rc != -EFAULT || evict_is_closed();
		if (!rc && any_marked())
			violation("evicted, and frames are marked");
		fake_begin();
		fake_check();
	} while (rc && --calls);
	if (rc && how % 8 == 0)
		violation("the eviction does not end");
}

/* A domain dies at any moment, and another one gets its id and its frames. */
static void end_of_domu(void)
{
	u8 how = byte();

	fake.unfinished = how % 3;
	fake.pending_at = how / 4 % 4;
	if (how & 0x40) {
		other.what = byte();
		other.frame = byte();
		fake.race = (struct race){
			.at = 1 + how / 2 % 32, .run = other_cpu, .arg = &other,
		};
	}
	fake_kill(&domu, 20);
	if (fake.race.ran)
		ledger_follow_marks();
	fake_begin();
	fake_check();
	fake_create_domu();
}

static void one_op(void)
{
	u8 what = byte();

	fake_begin();
	fake.current = what & 0x40 ? &domu : &dom0;
	switch (what % 16) {
	case 0 ... 3:
		batch_op(TPT_OP_MARK);
		break;
	case 4 ... 6:
		batch_op(TPT_OP_RELEASE);
		break;
	case 7 ... 11:
		what = byte();
		some_trouble();
		guest_op(what, some_frame());
		if (fake.race.ran)
			ledger_follow_marks();
		break;
	case 12:
		odd_call(byte());
		break;
	case 13:
		stock_iommu(byte());
		break;
	case 14:
		if (what & 0x80)
			eviction();
		else
			info_ops();
		break;
	case 15:
		fake.current = &dom0;
		if (what & 0x80)
			end_of_domu();
		else
			try_revert();
		break;
	}
	fake.current = &dom0;
	fake_check();
}

static bool as_it_was(u64 mfn)
{
	const struct page_info *p = fake_page(mfn);
	const struct ledger *l = fake_owed(mfn);

	return l->allocated && !l->marked && p->count_info == 1 &&
	       (dom0.io[mfn] & IO_TABLE) &&
	       p->type_info == (PGT_writable_page | PGT_validated);
}

/* The guest gives everything back; the machine must be as it was. */
static void end_sequence(void)
{
	fake_begin();
	fake_kill(&domu, 0);
	for (unsigned int i = 0; i < NR_DOM0; i++) {
		u64 mfn = DOM0_MFN(i);
		struct ledger *l = fake_owed(mfn);

		if (as_it_was(mfn))
			continue;
		while (guest_unpin(mfn, false) || guest_unmap_writable(mfn) ||
		       guest_unmap_segment(mfn))
			;
		if (l->marked && call_batch(TPT_OP_RELEASE, &mfn, 1).rc)
			violation("mfn %#lx cannot be released", mfn);
		if (!l->held) {
			guest_alloc(mfn);
			guest_map_writable(mfn);
			guest_unmap_writable(mfn);
		}
	}
	fake_check();
	for (unsigned int i = 0; i < NR_DOM0; i++) {
		u64 mfn = DOM0_MFN(i);

		if (!fake_owed(mfn)->held && !as_it_was(mfn))
			violation("mfn %#lx is not as it was", mfn);
	}
	if (payload_try_revert())
		violation("no revert at the end");
	if (payload_has_map() || fake_heap_blocks())
		violation("heap leaked");
}

int LLVMFuzzerTestOneInput(const u8 *data, size_t size)
{
	input = data;
	left = size;
	fake_reset();
	closed = false;
	for (int n = 0; left && n < 200; n++)
		one_op();
	end_sequence();
	return 0;
}
