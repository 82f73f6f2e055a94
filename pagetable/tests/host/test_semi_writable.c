// SPDX-License-Identifier: GPL-2.0-only
/*
 * One test for each promise of trapless_pagetable.h and of the comments in
 * semi_writable.c and payload.c. Each starts on a fresh machine and ends with
 * fake_check(), which knows all invariants.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "call.h"

#define MARK	((int)TPT_OP_MARK)
#define RELEASE	((int)TPT_OP_RELEASE)
#define F0	DOM0_MFN(0)
#define F1	DOM0_MFN(1)
#define F2	DOM0_MFN(2)
#define U0	DOMU_MFN(0)
#define U1	DOMU_MFN(1)

/* The machine is beyond checking; one message is enough. */
static bool broken;

void violation(const char *format, ...)
{
	char text[200];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	broken = true;
	fail_msg("VIOLATION: %s", text);
	__builtin_unreachable();
}

static int fresh(void **state)
{
	fake_reset();
	broken = false;
	return 0;
}

static int checked(void **state)
{
	fake_begin();
	if (!broken)
		fake_check();
	fake_forget_heap();
	return 0;
}

#define assert_answer(call, wanted_rc, wanted_done) do {		\
	struct answer answer_ = (call);				\
									\
	assert_int_equal(answer_.rc, wanted_rc);			\
	assert_int_equal(answer_.done, wanted_done);			\
} while (0)

static struct answer mark_1(u64 mfn)
{
	fake_begin();
	return call_batch(MARK, &mfn, 1);
}

static struct answer release_1(u64 mfn)
{
	fake_begin();
	return call_batch(RELEASE, &mfn, 1);
}

static bool reached(u64 mfn)
{
	return dom0.io[mfn] & (IO_TABLE | IO_TLB);
}

static void marked_before(u64 mfn)
{
	assert_answer(mark_1(mfn), 0, 1);
	fake_begin();
}

/* --- the two moves --- */

static void mark_takes_the_frame_from_devices(void **state)
{
	assert_true(reached(F0));
	assert_answer(mark_1(F0), 0, 1);
	assert_int_equal(fake.flushes, 1);
	assert_false(reached(F0));
	assert_true(fake_bit(F0));
	assert_true(guest_map_writable(F0));
}

static void release_gives_it_back(void **state)
{
	marked_before(F0);
	assert_answer(release_1(F0), 0, 1);
	assert_int_equal(fake.flushes, 1);
	assert_int_equal(dom0.io[F0], IO_TABLE | IO_TLB);
	assert_int_equal(fake_page(F0)->count_info, 1);
}

static void full_batch_costs_one_flush(void **state)
{
	u64 mfns[NR_DOM0];

	for (unsigned int i = 0; i < NR_DOM0; i++)
		mfns[i] = DOM0_MFN(i);
	assert_answer(call_batch(MARK, mfns, NR_DOM0), 0, NR_DOM0);
	assert_int_equal(fake.flushes, 1);
	fake_check();
	fake_begin();
	assert_answer(call_batch(RELEASE, mfns, NR_DOM0), 0, NR_DOM0);
	assert_int_equal(fake.flushes, 1);
	for (unsigned int i = 0; i < NR_DOM0; i++)
		assert_int_equal(dom0.io[mfns[i]], IO_TABLE | IO_TLB);
}

static void typing_costs_no_flush_while_marked(void **state)
{
	u8 before;

	marked_before(F0);
	before = dom0.io[F0];
	for (unsigned int level = 1; level <= 4; level++) {
		assert_true(guest_pin(F0, level, false));
		fake_check();
		assert_true(guest_unpin(F0, false));
		assert_true(guest_map_writable(F0));
		assert_true(guest_unmap_writable(F0));
	}
	assert_int_equal(fake.originals, 0);
	assert_int_equal(dom0.io[F0], before);
	assert_int_equal(semi_writable_stats.skipped_map, 4);
	assert_int_equal(semi_writable_stats.skipped_unmap, 4);
}

static void release_of_idle_former_table(void **state)
{
	marked_before(F0);
	assert_true(guest_pin(F0, 2, false));
	assert_true(guest_unpin(F0, false));
	assert_answer(release_1(F0), 0, 1);
	assert_int_equal(dom0.io[F0], IO_TABLE | IO_TLB);
}

static void release_of_live_table_forgets_only_the_mark(void **state)
{
	for (unsigned int level = 1; level <= 4; level++) {
		u64 mfn = DOM0_MFN(level);

		marked_before(mfn);
		assert_true(guest_pin(mfn, level, false));
		assert_answer(release_1(mfn), 0, 1);
		assert_int_equal(fake.flushes, 0);
		assert_false(reached(mfn));
		fake_check();
		assert_true(guest_unpin(mfn, false));
		assert_true(guest_map_writable(mfn));
		assert_int_equal(dom0.io[mfn], IO_TABLE | IO_TLB);
	}
}

static void release_of_live_descriptor_table(void **state)
{
	marked_before(F0);
	assert_true(guest_map_segment(F0));
	assert_answer(release_1(F0), 0, 1);
	assert_false(reached(F0));
}

static void marked_frame_is_not_freed(void **state)
{
	marked_before(F0);
	assert_true(guest_free(F0));
	assert_true(fake_owned(F0, &dom0));
	fake_check();
	assert_answer(release_1(F0), 0, 1);
	assert_false(fake_owned(F0, &dom0));
	assert_false(reached(F0));
}

/* --- refusals, each of which leaves all after it as it was --- */

static void refused(int op, u64 bad, long rc)
{
	u64 mfns[] = { DOM0_MFN(60), bad, DOM0_MFN(61) };

	if (op == RELEASE) {
		marked_before(mfns[0]);
		marked_before(mfns[2]);
	}
	assert_answer(call_batch(op, mfns, 3), rc, 1);
	assert_int_equal(fake.flushes, 1);
	assert_int_equal(fake_bit(mfns[0]), op == MARK);
	assert_int_equal(fake_bit(mfns[2]), op == RELEASE);
	fake_check();
	if (op == MARK)
		assert_answer(release_1(mfns[0]), 0, 1);
	else
		assert_answer(release_1(mfns[2]), 0, 1);
	fake_begin();
}

static void einval_is_no_ram(void **state)
{
	const u64 bad[] = {
		ALIAS_MFN(0), ALIAS_MFN(70), NR_MFN, NR_MFN + BANK_FRAMES,
		1UL << 32, 1UL << 52, 1UL << 63, ~0UL,
	};

	for (unsigned int i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		refused(MARK, bad[i], -EINVAL);
		refused(RELEASE, bad[i], -EINVAL);
	}
}

static void alias_of_a_marked_frame_is_not_marked(void **state)
{
	marked_before(F0);
	assert_answer(release_1(ALIAS_MFN(0)), -EINVAL, 0);
	assert_answer(mark_1(ALIAS_MFN(0)), -EINVAL, 0);
	assert_false(semi_writable_test(&dom0, ALIAS_MFN(0)));
	assert_int_equal(payload_map(&dom0, ALIAS_MFN(0), ALIAS_MFN(0), 2, 0),
			 0);
	assert_int_equal(fake.originals, 1);
	assert_true(fake_bit(F0));
}

static void eperm_is_not_the_callers(void **state)
{
	refused(MARK, DOMU_MFN(3), -EPERM);
	refused(RELEASE, DOMU_MFN(3), -EPERM);
	refused(MARK, MMIO_MFN(3), -EPERM);
	refused(RELEASE, MMIO_MFN(3), -EPERM);
	assert_true(guest_free(F0));
	refused(MARK, F0, -EPERM);
}

static void ebusy_is_in_use_otherwise(void **state)
{
	assert_true(guest_pin(F0, 3, false));
	refused(MARK, F0, -EBUSY);
	assert_true(guest_unpin(F0, false));
	assert_true(guest_map_segment(F0));
	refused(MARK, F0, -EBUSY);
	assert_true(guest_unmap_segment(F0));
	fake.fail_at[FAULT_GET_TYPE] = 1;
	assert_answer(call_batch(MARK, &(u64){ F0 }, 1), -EBUSY, 0);
}

static void ebusy_is_special(void **state)
{
	fake_page(F0)->count_info |= PGC_special;
	assert_answer(call_batch(MARK, &(u64){ F0 }, 1), -EBUSY, 0);
	fake_page(F0)->count_info &= ~PGC_special;
	fake_check();
}

static void ebusy_is_half_validated(void **state)
{
	marked_before(F0);
	assert_false(guest_pin(F0, 2, true));
	refused(RELEASE, F0, -EBUSY);
	assert_true(guest_pin(F0, 2, false));
	assert_false(guest_unpin(F0, true));
	refused(RELEASE, F0, -EBUSY);
	assert_true(guest_unpin(F0, false));
	assert_answer(release_1(F0), 0, 1);
}

static void eexist_is_marked(void **state)
{
	marked_before(F0);
	refused(MARK, F0, -EEXIST);
	fake_begin();
	assert_answer(call_batch(MARK, (u64[]){ F1, F1 }, 2), -EEXIST, 1);
}

static void enoent_is_not_marked(void **state)
{
	marked_before(F1);
	refused(RELEASE, F0, -ENOENT);
	fake_begin();
	assert_answer(call_batch(RELEASE, (u64[]){ F1, F1 }, 2), -ENOENT, 1);
}

static void enoent_also_before_the_first_mark(void **state)
{
	assert_answer(release_1(F0), -ENOENT, 0);
	assert_answer(release_1(DOMU_MFN(0)), -EPERM, 0);
	assert_answer(release_1(NR_MFN), -EINVAL, 0);
}

static struct answer with_count(int op, u32 count)
{
	guest_batch()->count = count;
	guest_batch()->done = 77;
	guest_batch()->mfns = (u64)guest_list();
	return call_prepared(op, NULL, 0);
}

static void counts(void **state)
{
	assert_answer(with_count(MARK, 0), -EINVAL, 77);
	assert_answer(with_count(RELEASE, 0), -EINVAL, 77);
	assert_answer(with_count(MARK, TPT_MAX_BATCH + 1), -E2BIG, 77);
	assert_answer(with_count(RELEASE, ~0u), -E2BIG, 77);
	assert_false(payload_has_map());
}

static void longest_list(void **state)
{
	static u64 mfns[TPT_MAX_BATCH];

	for (unsigned int i = 0; i < TPT_MAX_BATCH; i++)
		mfns[i] = i < NR_DOM0 ? DOM0_MFN(i) : ~0UL;
	assert_answer(call_batch(MARK, mfns, TPT_MAX_BATCH), -EINVAL, NR_DOM0);
}

static void relaxed_domain_is_refused(void **state)
{
	struct tpt_version *v = (void *)guest_memory[0];

	marked_before(F0);
	dom0.sync = false;
	assert_answer(mark_1(F1), -EOPNOTSUPP, 0x77777777);
	assert_answer(release_1(F0), -EOPNOTSUPP, 0x77777777);
	assert_int_equal(payload_callback(TPT_OP_VERSION, v), 0);
	assert_int_equal(v->features, 0);
	dom0.sync = true;
	assert_true(fake_bit(F0));
}

/* --- guest memory --- */

static void unreadable_argument(void **state)
{
	assert_int_equal(payload_callback(MARK, NULL), -EFAULT);
	assert_int_equal(payload_callback(RELEASE, (void *)~0UL), -EFAULT);
	assert_int_equal(payload_callback(TPT_OP_VERSION, NULL), -EFAULT);
	assert_int_equal(payload_callback(TPT_OP_STATS, NULL), -EFAULT);
}

static void nth_copy_fails(int op, unsigned int nth, bool moved)
{
	struct answer a;

	fake_begin();
	fake.fail_at[FAULT_COPY] = nth;
	a = call_batch(op, &(u64){ F0 }, 1);
	assert_int_equal(a.rc, -EFAULT);
	assert_int_equal(fake_bit(F0), (op == MARK) == moved);
	assert_int_equal(fake_heap_blocks(), payload_has_map());
	fake_owed(F0)->marked = fake_bit(F0);
	fake_check();
}

static void no_work_without_room_for_the_result(void **state)
{
	nth_copy_fails(MARK, 1, false);
	nth_copy_fails(MARK, 2, false);
	assert_false(payload_has_map());
	nth_copy_fails(MARK, 3, false);
	nth_copy_fails(MARK, 4, true);	/* taken away during the call */
	nth_copy_fails(RELEASE, 1, false);
	nth_copy_fails(RELEASE, 2, false);
	nth_copy_fails(RELEASE, 3, false);
	nth_copy_fails(RELEASE, 4, true);
}

static void an_error_is_not_hidden_by_the_result(void **state)
{
	fake.fail_at[FAULT_COPY] = 4;
	assert_int_equal(call_batch(MARK, &(u64){ NR_MFN }, 1).rc, -EINVAL);
}

static void list_out_of_reach(void **state)
{
	guest_batch()->count = 2;
	guest_batch()->mfns = (u64)guest_memory[0] + GUEST_BYTES - 8;
	assert_int_equal(payload_callback(MARK, guest_batch()), -EFAULT);
	assert_int_equal(guest_batch()->done, 0);
}

static void argument_is_read_once(void **state)
{
	struct answer a;

	fake.scribble = true;
	a = call_batch(MARK, (u64[]){ F0, F1 }, 2);
	assert_answer(a, 0, 2);
	assert_true(fake_bit(F0) && fake_bit(F1));
}

static void no_memory(void **state)
{
	fake.fail_at[FAULT_MALLOC] = 1;
	assert_answer(call_batch(MARK, &(u64){ F0 }, 1), -ENOMEM, 0);
	fake_begin();
	fake.fail_at[FAULT_VZALLOC] = 1;
	assert_answer(call_batch(MARK, &(u64){ F0 }, 1), -ENOMEM, 0);
	assert_int_equal(fake_heap_blocks(), 0);
	marked_before(F0);
	fake.fail_at[FAULT_MALLOC] = 1;
	assert_answer(call_batch(RELEASE, &(u64){ F0 }, 1), -ENOMEM, 0);
}

/* --- IOMMU errors --- */

static void unmap_error(void **state)
{
	fake.fail_at[FAULT_UNMAP] = 2;
	assert_answer(call_batch(MARK, (u64[]){ F0, F1, F2 }, 3), UNMAP_ERROR,
		      1);
	assert_int_equal(fake.flushes, 1);
	assert_false(reached(F0));
	assert_true(dom0.io[F1] & IO_TABLE);
}

static void failed_flush_is_undone(void **state)
{
	fake.fail_at[FAULT_FLUSH] = 1;
	assert_answer(call_batch(MARK, (u64[]){ F0, F1 }, 2), FLUSH_ERROR, 0);
	assert_false(fake_bit(F0) || fake_bit(F1));
	assert_int_equal(dom0.io[F0], IO_TABLE | IO_TLB);
	assert_int_equal(fake_page(F0)->count_info, 1);
}

static void failed_flush_outranks_a_bad_frame(void **state)
{
	fake.fail_at[FAULT_FLUSH] = 1;
	assert_answer(call_batch(MARK, (u64[]){ F0, NR_MFN }, 2), FLUSH_ERROR,
		      0);
}

static void failed_undo_holds_the_frame(void **state)
{
	fake.fail_at[FAULT_FLUSH] = 1;
	fake.fail_at[FAULT_MAP] = 2;
	assert_answer(call_batch(MARK, (u64[]){ F0, F1, F2 }, 3), -EIO, 0);
	assert_int_equal(semi_writable_stats.held, 1);
	assert_int_equal(semi_writable_stats.semi_writable, 0);
	assert_answer(mark_1(F1), -EBUSY, 0);
	/* Nobody will ever let go of it: it is in nobody's way. */
	assert_int_equal(semi_writable_owed(), 0);
	fake_check();
	assert_int_equal(dom0.io[F0], IO_TABLE | IO_TLB);
	assert_int_equal(dom0.io[F2], IO_TABLE | IO_TLB);
	/* Never a page table, never freed. */
	assert_false(guest_pin(F1, 1, false));
	assert_true(guest_free(F1));
	assert_true(fake_owned(F1, &dom0));
	assert_answer(release_1(F1), -ENOENT, 0);
}

static void map_error_keeps_the_mark(void **state)
{
	marked_before(F0);
	marked_before(F1);
	fake.fail_at[FAULT_MAP] = 2;
	assert_answer(call_batch(RELEASE, (u64[]){ F0, F1 }, 2), MAP_ERROR, 1);
	assert_true(fake_bit(F1));
	assert_false(reached(F1));
}

static void release_holds_after_a_failed_flush(void **state)
{
	marked_before(F0);
	fake.fail_at[FAULT_FLUSH] = 1;
	assert_answer(call_batch(RELEASE, &(u64){ F0 }, 1), FLUSH_ERROR, 1);
	assert_false(fake_bit(F0));
	assert_true(dom0.io[F0] & IO_TABLE);
}

/* --- preemption --- */

static void leaves_when_needed_elsewhere(void **state)
{
	u64 mfns[NR_DOM0];

	for (unsigned int i = 0; i < NR_DOM0; i++)
		mfns[i] = DOM0_MFN(i);
	fake.pending_at = 1;
	assert_answer(call_batch(MARK, mfns, NR_DOM0), 0, 64);
	fake_check();
	fake_begin();
	fake.pending_at = 1;
	assert_answer(call_batch(MARK, mfns + 64, NR_DOM0 - 64), 0, 64);
	fake_begin();
	fake.pending_at = 1;
	assert_answer(call_batch(MARK, mfns + 128, NR_DOM0 - 128), 0, 8);
	fake_begin();
	fake.pending_at = 2;
	assert_answer(call_batch(RELEASE, mfns, NR_DOM0), 0, 128);
}

/* --- callers and numbers --- */

static void as_domu(void)
{
	fake_begin();
	fake.current = &domu;
}

static void as_dom0(void)
{
	fake_begin();
	fake.current = &dom0;
}

static void domu_has_no_say_in_the_host(void **state)
{
	static const u32 ops[] = {
		TPT_OP_STATS, TPT_OP_GET_SWITCHES, TPT_OP_SET_SWITCHES,
		TPT_OP_EVICT, TPT_OP_ADMIT,
	};

	as_domu();
	for (unsigned int i = 0; i < sizeof(ops) / sizeof(ops[0]); i++)
		assert_int_equal(payload_callback(ops[i], guest_memory[0]),
				 -EPERM);
	assert_int_equal(payload_callback(TPT_OP_BASE, guest_memory[0]),
			 -ENOSYS);
	assert_int_equal(fake.originals, 0);
	as_dom0();
}

static void domu_without_devices_is_refused(void **state)
{
	struct tpt_version *v = (void *)guest_memory[0];

	as_domu();
	domu.sync = false;
	assert_answer(call_batch(MARK, &(u64){ U0 }, 1), -EOPNOTSUPP,
		      0x77777777);
	assert_int_equal(payload_callback(TPT_OP_VERSION, v), 0);
	assert_int_equal(v->features, 0);
	assert_false(payload_has_map());
	domu.sync = true;
	assert_int_equal(payload_callback(TPT_OP_VERSION, v), 0);
	assert_int_equal(v->features, TPT_FEAT_SYNC);
	as_dom0();
}

static void hvm_reaches_stock(void **state)
{
	fake.current = &dom_hvm;
	assert_int_equal(payload_callback(MARK, guest_batch()),
			 STOCK_CALLBACK);
	assert_int_equal(fake.last_op, MARK);
	assert_ptr_equal(fake.last_arg, guest_batch());
	fake.current = &dom0;
}

static void hvm_hardware_domain_is_not_served(void **state)
{
	dom0.pv = false;
	assert_int_equal(payload_callback(MARK, guest_batch()),
			 STOCK_CALLBACK);
	dom0.pv = true;
}

static void other_numbers_reach_stock(void **state)
{
	const int ops[] = { 0, 1, 17, -1, TPT_OP_BASE - 1,
			    TPT_OP_BASE + 0x10000, 0x5450, (int)0xd4500002 };

	for (unsigned int i = 0; i < sizeof(ops) / sizeof(ops[0]); i++) {
		assert_int_equal(payload_callback(ops[i], (void *)(u64)i),
				 STOCK_CALLBACK);
		assert_int_equal(fake.last_op, ops[i]);
		assert_ptr_equal(fake.last_arg, (void *)(u64)i);
	}
}

static void unknown_numbers_in_range(void **state)
{
	assert_int_equal(payload_callback(TPT_OP_BASE, NULL), -ENOSYS);
	assert_int_equal(payload_callback(TPT_OP_MOVE + 1, NULL), -ENOSYS);
	assert_int_equal(payload_callback(TPT_OP_BASE | 0xffff, NULL), -ENOSYS);
}

static void ranges_are_everybodys(void **state)
{
	as_domu();
	assert_int_equal(payload_callback(TPT_OP_PROTECT, NULL), FAKE_PROTECT);
	assert_int_equal(payload_callback(TPT_OP_MOVE, NULL), FAKE_MOVE);
	fake_parts = TPT_SWITCH_ALL & ~TPT_SWITCH_RANGES;
	assert_int_equal(payload_callback(TPT_OP_PROTECT, NULL), -EOPNOTSUPP);
	assert_int_equal(payload_callback(TPT_OP_MOVE, NULL), -EOPNOTSUPP);
	fake_parts = TPT_SWITCH_ALL;
	as_dom0();
}

static u32 switches(void)
{
	u32 on;

	memset(guest_memory[0], 0xff, sizeof(on));
	assert_int_equal(payload_callback(TPT_OP_GET_SWITCHES, guest_memory[0]),
			 0);
	memcpy(&on, guest_memory[0], sizeof(on));
	return on;
}

static long set_switches(u32 on)
{
	memcpy(guest_memory[0], &on, sizeof(on));
	return payload_callback(TPT_OP_SET_SWITCHES, guest_memory[0]);
}

static void switches_as_asked(void **state)
{
	u32 on;

	for (on = 0; on <= TPT_SWITCH_ALL; on++) {
		assert_int_equal(set_switches(on), 0);
		assert_int_equal(switches(), on);
		assert_int_equal(set_switches(TPT_SWITCH_ALL + 1), -EINVAL);
		assert_int_equal(set_switches(~0u), -EINVAL);
		assert_int_equal(switches(), on);
	}
	assert_int_equal(payload_callback(TPT_OP_GET_SWITCHES, NULL), -EFAULT);
	assert_int_equal(payload_callback(TPT_OP_SET_SWITCHES, NULL), -EFAULT);
	assert_int_equal(switches(), TPT_SWITCH_ALL);
}

/* What the payload was built without cannot be turned on, and it says so. */
static void a_part_that_is_left_out(void **state)
{
	struct tpt_version v;
	u32 on;

	assert_int_equal(set_switches(0), 0);
	for (fake_parts = 0; fake_parts <= TPT_SWITCH_ALL; fake_parts++) {
		assert_int_equal(payload_callback(TPT_OP_VERSION,
						  guest_memory[0]), 0);
		memcpy(&v, guest_memory[0], sizeof(v));
		assert_int_equal(v.parts, fake_parts);
		for (on = 0; on <= TPT_SWITCH_ALL; on++) {
			u32 before = switches();
			bool is_there = !(on & ~fake_parts);

			assert_int_equal(set_switches(on),
					 is_there ? 0 : -EOPNOTSUPP);
			assert_int_equal(switches(), is_there ? on : before);
		}
		assert_int_equal(set_switches(0), 0);
	}
}

static void version_and_statistics(void **state)
{
	struct tpt_version v;
	struct tpt_stats s;

	memset(guest_memory[0], 0xff, sizeof(v));
	assert_int_equal(payload_callback(TPT_OP_VERSION, guest_memory[0]), 0);
	memcpy(&v, guest_memory[0], sizeof(v));
	assert_int_equal(v.abi, TPT_ABI_VERSION);
	assert_int_equal(v.max_batch, TPT_MAX_BATCH);
	assert_int_equal(v.features, TPT_FEAT_SYNC);
	assert_int_equal(v.parts, TPT_SWITCH_ALL);

	marked_before(F0);
	marked_before(F1);
	assert_answer(release_1(F0), 0, 1);
	assert_int_equal(payload_callback(TPT_OP_STATS, guest_memory[0]), 0);
	memcpy(&s, guest_memory[0], sizeof(s));
	assert_int_equal(s.semi_writable, 1);
	assert_int_equal(s.marked, 2);
	assert_int_equal(s.released, 1);
	assert_int_equal(s.flushes, 3);
	assert_int_equal(s.held, 0);
}

/* --- what the hooks skip --- */

static void map_passes(struct domain *d, u64 dfn, u64 mfn, unsigned long n)
{
	fake.originals = 0;
	payload_map(d, dfn, mfn, n, 0x40);
	assert_int_equal(fake.originals, 1);
	assert_int_equal(fake.last_dfn, dfn);
	assert_int_equal(fake.last_mfn, mfn);
	assert_int_equal(fake.last_count, n);
	assert_int_equal(fake.last_flags, 0x40);
}

static void hooks_skip_only_what_is_marked(void **state)
{
	marked_before(F0);
	assert_int_equal(payload_map(&dom0, F0, F0, 1, IOMMUF_rw), 0);
	assert_int_equal(payload_unmap(&dom0, F0, 1), 0);
	assert_int_equal(fake.originals, 0);
	assert_false(reached(F0));

	map_passes(&dom0, F0, F0, 2);
	map_passes(&dom0, F0, F0, 512);
	map_passes(&dom0, F0, F1, 1);
	map_passes(&dom0, F1, F0, 1);
	map_passes(&dom0, F1, F1, 1);
	map_passes(&domu, F0, F0, 1);
	assert_true(domu.io[F0] & IO_TABLE);
	fake.originals = 0;
	payload_unmap(&domu, F0, 1);
	payload_unmap(&dom0, F0, 2);
	assert_int_equal(fake.originals, 2);
	assert_int_equal(fake.last_dfn, F0);
	assert_int_equal(fake.last_count, 2);
	assert_false(domu.io[F0] & IO_TABLE);
}

/* --- another CPU, at every call of Xen's functions in turn --- */

static void other_marks(void *arg)
{
	call_batch(MARK, arg, 1);
}

static void other_releases(void *arg)
{
	call_batch(RELEASE, arg, 1);
}

static void other_pins(void *arg)
{
	guest_pin(*(u64 *)arg, 4, false);
}

static void other_unpins(void *arg)
{
	guest_unpin(*(u64 *)arg, false);
}

static void other_frees(void *arg)
{
	guest_free(*(u64 *)arg);
}

typedef void other_t(void *arg);

/* Pinning last: a table that devices reach is found by any later call. */
static void raced(int op, other_t *other, void (*prepare)(void), bool no_flush)
{
	static u64 mfn;

	for (unsigned int at = 1; at < 20; at++) {
		fake_reset();
		mfn = F0;
		if (prepare)
			prepare();
		fake_begin();
		fake.race = (struct race){ .at = at, .run = other, .arg = &mfn };
		if (no_flush) {
			fake.fail_at[FAULT_FLUSH] = 1;
			fake.fail_on[FAULT_FLUSH] = true;
		}
		call_batch(op, &mfn, 1);
		ledger_follow_marks();
		fake_begin();
		fake_check();
		while (guest_unmap_writable(F0))
			;
		guest_pin(F0, 1, false);
		fake_check();
		fake_forget_heap();
	}
	fake_reset();
}

static void prepare_marked(void)
{
	marked_before(F0);
}

/* Nothing but MARK's own reference keeps the frame from becoming a table. */
static void prepare_unmapped(void)
{
	while (guest_unmap_writable(F0))
		;
}

static void prepare_live(void)
{
	marked_before(F0);
	assert_true(guest_pin(F0, 4, false));
}

static void mark_races(void **state)
{
	raced(MARK, other_marks, NULL, false);
	raced(MARK, other_pins, NULL, false);
	raced(MARK, other_pins, prepare_unmapped, false);
	raced(MARK, other_frees, NULL, false);
}

static void mark_races_release(void **state)
{
	raced(MARK, other_releases, NULL, false);
}

static void failing_mark_races_release(void **state)
{
	raced(MARK, other_releases, NULL, true);
}

static void release_races(void **state)
{
	raced(RELEASE, other_releases, prepare_marked, false);
	raced(RELEASE, other_pins, prepare_marked, false);
	raced(RELEASE, other_frees, prepare_marked, false);
	raced(RELEASE, other_releases, prepare_live, false);
}

static void release_races_mark(void **state)
{
	raced(RELEASE, other_marks, prepare_marked, false);
}

static void release_races_unpin(void **state)
{
	raced(RELEASE, other_unpins, prepare_live, false);
}

/* Nothing of the frame's type keeps MARK away while a grant is mapped. */
static void own_grant_races_mark(void **state)
{
	static u64 mfn = F0;

	for (unsigned int at = 1; at < 8; at++) {
		fake_reset();
		fake_begin();
		fake.race = (struct race){
			.at = at, .run = other_marks, .arg = &mfn,
		};
		payload_map(&dom0, F0, F0, 1, IOMMUF_rw);
		ledger_follow_marks();
		fake_begin();
		fake_check();
		assert_int_equal(reached(F0), !fake_bit(F0));
		fake_forget_heap();
	}
	fake_reset();
}

static void typing_races(void **state)
{
	static other_t *const others[] = { other_marks, other_releases };
	u64 mfn = F0;

	for (unsigned int i = 0; i < 2; i++) {
		for (unsigned int at = 1; at < 12; at++) {
			for (int was_marked = 0; was_marked < 2; was_marked++) {
				fake_reset();
				if (was_marked)
					marked_before(F0);
				fake_begin();
				fake.race = (struct race){
					.at = at, .run = others[i], .arg = &mfn,
				};
				guest_pin(F0, 2, at & 1);
				guest_pin(F0, 2, false);
				ledger_follow_marks();
				fake_check();
				fake.race = (struct race){
					.at = at, .run = others[i], .arg = &mfn,
				};
				guest_unpin(F0, at & 1);
				guest_unpin(F0, false);
				guest_map_writable(F0);
				ledger_follow_marks();
				fake_begin();
				fake_check();
				fake_forget_heap();
			}
		}
	}
	fake_reset();
}

/* --- several domains --- */

static void each_marks_its_own(void **state)
{
	marked_before(F0);
	as_domu();
	assert_answer(call_batch(MARK, (u64[]){ U0, F1 }, 2), -EPERM, 1);
	assert_false(domu.io[U0] & (IO_TABLE | IO_TLB));
	fake_check();
	assert_answer(release_1(F0), -EPERM, 0);
	as_dom0();
	assert_answer(release_1(U0), -EPERM, 0);
	assert_true(fake_bit(U0) && fake_bit(F0));
	as_domu();
	assert_true(guest_pin(U0, 2, false));
	assert_int_equal(semi_writable_stats.skipped_unmap, 1);
	assert_answer(release_1(U0), 0, 1);
	assert_true(guest_unpin(U0, false));
	as_dom0();
}

static void other_domain_marks(void *arg)
{
	fake.current = &domu;
	assert_int_equal(call_batch(MARK, arg, 1).rc, 0);
}

/* Wherever the one stands in its call, the other need not wait for it. */
static void no_domain_waits_for_another(void **state)
{
	static u64 mfn = U0;
	bool ran = true;

	for (unsigned int at = 1; ran; at++) {
		fake_reset();
		marked_before(F1);
		fake.race = (struct race){
			.at = at, .domain = &domu, .run = other_domain_marks,
			.arg = &mfn,
		};
		assert_answer(call_batch(MARK, (u64[]){ F0, F2 }, 2), 0, 2);
		ran = fake.race.ran;
		/* All the calls of Xen's functions that a MARK of two makes. */
		assert_true(ran || at == 15);
		assert_int_equal(fake_bit(U0), ran);
		fake.current = &dom0;
		fake_check();
		fake_forget_heap();
	}
	fake_reset();
}

/* A CPU that waits for the lock is let in after as many frames as a softirq. */
static void a_lock_is_handed_on(void **state)
{
	u64 mfns[NR_DOM0];

	for (unsigned int i = 0; i < NR_DOM0; i++)
		mfns[i] = DOM0_MFN(i);
	marked_before(F0);
	assert_answer(release_1(F0), 0, 1);
	fake_begin();
	fake.queue = &marks_of(&dom0)->next;
	assert_answer(call_batch(MARK, mfns, NR_DOM0), 0, 64);
	/* The one that drew a ticket has its turn, and is gone again. */
	marks_of(&dom0)->serving++;
}

static void domu_marked(u64 mfn)
{
	as_domu();
	assert_answer(call_batch(MARK, &mfn, 1), 0, 1);
	as_dom0();
}

/* --- the end of a domain --- */

static void no_zombie_is_left(void **state)
{
	marked_before(F0);
	for (unsigned int i = 0; i < NR_DOMU; i++)
		domu_marked(DOMU_MFN(i));
	assert_true(guest_pin(DOMU_MFN(3), 3, false));
	assert_true(guest_map_writable(DOMU_MFN(4)));
	assert_true(guest_map_segment(DOMU_MFN(5)));
	assert_false(guest_pin(DOMU_MFN(6), 2, true));
	assert_true(guest_free(DOMU_MFN(7)));
	assert_int_equal(payload_try_revert(), -EBUSY);
	fake_kill(&domu, 0);
	fake_check();
	assert_int_equal(fake.flushes, 0);
	assert_int_equal(semi_writable_stats.semi_writable, 1);
	assert_true(fake_bit(F0));
	assert_answer(release_1(F0), 0, 1);
	assert_int_equal(payload_try_revert(), 0);
}

static void held_frames_go_too(void **state)
{
	as_domu();
	fake.fail_at[FAULT_FLUSH] = 1;
	fake.fail_at[FAULT_MAP] = 1;
	assert_answer(call_batch(MARK, (u64[]){ U0, U1 }, 2), -EIO, 0);
	as_dom0();
	assert_int_equal(semi_writable_stats.held, 1);
	/* Freed, and still within a device's reach until that is gone. */
	assert_true(guest_free(U0));
	assert_int_equal(payload_try_revert(), -EBUSY);
	assert_int_equal(payload_revert_action(), -EBUSY);
	fake_kill(&domu, 0);
	assert_int_equal(semi_writable_stats.held, 0);
	fake_check();
	assert_int_equal(payload_try_revert(), 0);
}

static void nothing_is_dropped_before_the_end(void **state)
{
	domu_marked(U0);
	fake.unfinished = 1;
	assert_int_equal(payload_domain_kill(&domu), -ERESTART);
	assert_true(fake_bit(U0));
	fake_kill(&domu, 0);
	assert_int_equal(payload_domain_kill(&dom0), -EINVAL);
}

static void teardown_leaves_when_needed_elsewhere(void **state)
{
	domu_marked(U0);
	domu_marked(DOMU_MFN(NR_DOMU - 1));
	fake.pending_at = 1;
	/* Two words of the map are dom0's, the third is ours. */
	assert_int_equal(payload_domain_kill(&domu), -ERESTART);
	assert_int_equal(payload_domain_kill(&domu), -ERESTART);
	assert_true(fake_bit(U0));
	assert_int_equal(payload_domain_kill(&domu), 0);
	fake_owed(U0)->marked = 0;
	fake_owed(DOMU_MFN(NR_DOMU - 1))->marked = 0;
	fake_kill(&domu, 0);
}

static void without_marks_nothing_is_done(void **state)
{
	fake.pending_at = 1;
	fake_kill(&domu, 0);
	assert_int_equal(fake.looks, 0);
	assert_false(payload_has_map());
	fake_create_domu();
	marked_before(F0);
	fake.pending_at = 1;
	fake_kill(&domu, 0);
	assert_int_equal(fake.looks, 0);
}

/* The id comes again: the new domain finds what a first one would. */
static void ids_are_reused(void **state)
{
	for (unsigned int life = 0; life < 3; life++) {
		domu_marked(DOMU_MFN(life));
		fake_check();
		as_domu();
		assert_answer(release_1(U1), life == 1 ? 0 : -ENOENT, life == 1);
		assert_answer(call_batch(MARK, &(u64){ U1 }, 1), 0, 1);
		as_dom0();
		fake.pending_at = 1;
		fake_kill(&domu, 2);
		fake_create_domu();
		fake_begin();
		fake_check();
	}
}

static void teardown_races_the_other_domains_calls(void **state)
{
	static other_t *const others[] = { other_marks, other_releases };
	static u64 mfn = DOM0_MFN(130);	/* of the same word of the map */

	for (unsigned int i = 0; i < 2; i++) {
		for (unsigned int at = 1; at < 40; at++) {
			fake_reset();
			if (i)
				marked_before(mfn);
			domu_marked(U0);
			domu_marked(U1);
			fake.race = (struct race){
				.at = at, .run = others[i], .arg = &mfn,
			};
			fake_kill(&domu, 0);
			ledger_follow_marks();
			fake_check();
			fake_forget_heap();
		}
	}
	fake_reset();
}

/* --- revert --- */

static void no_revert_while_marked(void **state)
{
	marked_before(F0);
	assert_int_equal(payload_try_revert(), -EBUSY);
	assert_int_equal(payload_revert_action(), -EBUSY);
	assert_true(payload_has_map());
	assert_answer(release_1(F0), 0, 1);
	assert_int_equal(payload_try_revert(), 0);
	assert_false(payload_has_map());
	assert_int_equal(fake_heap_blocks(), 0);
}

static void failed_revert_changes_nothing(void **state)
{
	marked_before(F0);
	assert_answer(release_1(F0), 0, 1);
	fake_begin();
	fake.fail_at[FAULT_REVERT] = 1;
	assert_int_equal(payload_try_revert(), -EINVAL);
	assert_true(payload_has_map());
	assert_int_equal(payload_try_revert(), 0);
}

static void revert_without_any_mark(void **state)
{
	assert_int_equal(payload_try_revert(), 0);
}

/* --- eviction --- */

static struct tpt_evict report;

/* Return: the number of calls that it took. */
static unsigned int evicted(void)
{
	unsigned int calls = 0;
	long rc;

	do {
		fake_begin();
		rc = call_evict(&report);
		assert_true(rc == 0 || rc == -EAGAIN);
		assert_true(++calls < 100);
		fake_check();
	} while (rc);
	assert_int_equal(report.left, 0);
	assert_int_equal(semi_writable_stats.semi_writable, 0);
	return calls;
}

static u32 features(void)
{
	struct tpt_version v;

	fake_begin();
	assert_int_equal(payload_callback(TPT_OP_VERSION, guest_memory[0]), 0);
	memcpy(&v, guest_memory[0], sizeof(v));
	return v.features;
}

static void admitted(void)
{
	fake_begin();
	assert_int_equal(payload_callback(TPT_OP_ADMIT, NULL), 0);
}

/* Frames in all states that a guest can leave them in, for as long as it likes. */
static void in_every_state(u64 (*mfn)(unsigned int n), struct domain *d)
{
	for (unsigned int i = 0; i < 8; i++) {
		fake_begin();
		fake.current = d;
		assert_answer(call_batch(MARK, &(u64){ mfn(i) }, 1), 0, 1);
	}
	assert_true(guest_pin(mfn(1), 4, false));
	assert_false(guest_pin(mfn(2), 2, true));	/* half validated */
	assert_true(guest_pin(mfn(3), 3, false));
	assert_false(guest_unpin(mfn(3), true));	/* half torn down */
	assert_true(guest_map_segment(mfn(4)));
	assert_true(guest_map_writable(mfn(5)));
	assert_true(guest_pin(mfn(6), 1, false));
	assert_true(guest_unpin(mfn(6), false));	/* of no use, and last a table */
	assert_true(guest_free(mfn(7)));
	as_dom0();
}

/* None of it is lost to the guest, nor to its devices once it is writable. */
static void is_ordinary(u64 (*mfn)(unsigned int n), struct domain *d)
{
	assert_true(guest_unpin(mfn(1), false));
	assert_true(guest_pin(mfn(2), 2, false));
	assert_true(guest_unpin(mfn(2), false));
	assert_true(guest_unpin(mfn(3), false));
	assert_true(guest_unmap_segment(mfn(4)));
	assert_false(fake_owned(mfn(7), d));
	for (unsigned int i = 0; i < 7; i++) {
		assert_true(guest_map_writable(mfn(i)));
		assert_int_equal(d->io[mfn(i)], IO_TABLE | IO_TLB);
	}
}

static u64 dom0_frame(unsigned int n)
{
	return DOM0_MFN(n * 9);		/* several words of the map */
}

static u64 domu_frame(unsigned int n)
{
	return DOMU_MFN(n);
}

static void evict_takes_all_marks_back(void **state)
{
	in_every_state(dom0_frame, &dom0);
	in_every_state(domu_frame, &domu);
	assert_int_equal(payload_try_revert(), -EBUSY);
	evicted();
	fake_check();
	assert_int_equal(semi_writable_stats.released, 16);
	is_ordinary(dom0_frame, &dom0);
	is_ordinary(domu_frame, &domu);
	fake_check();
	assert_int_equal(payload_try_revert(), 0);
}

static void evict_refuses_new_marks(void **state)
{
	marked_before(F0);
	assert_int_equal(features(), TPT_FEAT_SYNC);
	evicted();
	assert_int_equal(features(), TPT_FEAT_SYNC | TPT_FEAT_EVICTED);
	assert_answer(mark_1(F1), -EACCES, 0);
	as_domu();
	assert_answer(call_batch(MARK, &(u64){ U0 }, 1), -EACCES, 0);
	as_dom0();
	/* An owner that does not know gives its frame back. */
	assert_answer(release_1(F0), -ENOENT, 0);
	assert_int_equal(evicted(), 1);
	admitted();
	admitted();
	assert_int_equal(features(), TPT_FEAT_SYNC);
	assert_answer(mark_1(F1), 0, 1);
	evicted();
	assert_false(fake_bit(F1));
}

static void evict_before_the_first_mark(void **state)
{
	assert_int_equal(evicted(), 1);
	assert_false(payload_has_map());
	assert_answer(mark_1(F0), -EACCES, 0);
	assert_int_equal(payload_try_revert(), 0);
}

static void evict_is_of_the_hardware_domain(void **state)
{
	marked_before(F0);
	as_domu();
	assert_int_equal(call_evict(&report), -EPERM);
	as_dom0();
	assert_true(fake_bit(F0));
	assert_int_equal(features(), TPT_FEAT_SYNC);
	evicted();
	as_domu();
	assert_int_equal(payload_callback(TPT_OP_ADMIT, NULL), -EPERM);
	as_dom0();
	assert_answer(mark_1(F1), -EACCES, 0);
}

static void evict_without_room_for_the_result(void **state)
{
	marked_before(F0);
	assert_int_equal(payload_callback(TPT_OP_EVICT, NULL), -EFAULT);
	fake.fail_at[FAULT_COPY] = 1;
	assert_int_equal(call_evict(&report), -EFAULT);
	assert_int_equal(features(), TPT_FEAT_SYNC);
	assert_true(fake_bit(F0));
}

static void evict_leaves_after_so_many(void **state)
{
	u64 mfns[NR_DOM0];

	for (unsigned int i = 0; i < NR_DOM0; i++)
		mfns[i] = DOM0_MFN(i);
	assert_answer(call_batch(MARK, mfns, NR_DOM0), 0, NR_DOM0);
	fake_begin();
	assert_int_equal(call_evict(&report), -EAGAIN);
	assert_int_equal(report.moved, 128);
	assert_int_equal(report.left, NR_DOM0 - 128);
	assert_int_equal(report.domain, dom0.id);
	assert_int_equal(report.error, 0);
	assert_int_equal(fake.flushes, 1);
	evicted();
}

static void evict_goes_on_after_errors(void **state)
{
	marked_before(F0);
	marked_before(F1);
	fake.fail_at[FAULT_MAP] = 1;
	assert_int_equal(call_evict(&report), -EAGAIN);
	assert_int_equal(report.error, MAP_ERROR);
	assert_int_equal(report.left, 1);
	assert_true(fake_bit(F0) && !fake_bit(F1));
	fake_begin();
	fake.fail_at[FAULT_GET_TYPE] = 1;
	assert_int_equal(call_evict(&report), -EAGAIN);
	assert_int_equal(report.error, -EBUSY);
	fake_begin();
	fake.fail_at[FAULT_PAUSE] = 1;
	assert_int_equal(call_evict(&report), -EAGAIN);
	assert_int_equal(report.moved, 0);
	fake_begin();
	fake.fail_at[FAULT_FLUSH] = 1;
	assert_int_equal(call_evict(&report), -EAGAIN);
	assert_int_equal(report.error, FLUSH_ERROR);
	assert_int_equal(report.left, 0);
	assert_true(dom0.io[F0] & IO_TABLE);
	evicted();
}

static bool was_pinned;

static void other_pins_for_sure(void *arg)
{
	was_pinned = guest_pin(*(u64 *)arg, 4, false);
}

/* A guest's pin is never refused, and what it pins is never reached. */
static void evict_races_pin(void **state)
{
	static u64 mfn;
	struct domain *const owners[] = { &dom0, &domu };

	for (unsigned int i = 0; i < 2; i++) {
		bool ran = true;

		for (unsigned int at = 1; ran; at++) {
			fake_reset();
			mfn = i ? U0 : F0;
			fake.current = owners[i];
			assert_answer(call_batch(MARK, &mfn, 1), 0, 1);
			as_dom0();
			fake.race = (struct race){
				.at = at, .domain = owners[i],
				.run = other_pins_for_sure, .arg = &mfn,
			};
			call_evict(&report);
			ran = fake.race.at == 0;
			assert_true(!fake.race.ran || was_pinned);
			evicted();
			assert_int_equal(payload_try_revert(), 0);
			fake_forget_heap();
		}
	}
	fake_reset();
}

/* It goes on marking while it is evicted, wherever that stands. */
static void evict_races_mark(void **state)
{
	static u64 mfn;
	bool ran = true;

	for (unsigned int at = 1; ran; at++) {
		fake_reset();
		marked_before(F0);
		domu_marked(U0);
		mfn = U1;
		fake.race = (struct race){
			.at = at, .domain = &domu, .run = other_marks, .arg = &mfn,
		};
		call_evict(&report);
		ran = fake.race.at == 0;
		evicted();
		assert_int_equal(payload_try_revert(), 0);
		fake_forget_heap();
	}
	fake_reset();
}

static long others_rc;

static void other_evicts(void *arg)
{
	for (int i = 0; i < 3; i++)
		others_rc = call_evict(arg);
}

/* Done is done: a MARK that was on its way is refused, or was waited for. */
static void mark_races_evict(void **state)
{
	static struct tpt_evict other;
	bool ran = true;

	for (unsigned int at = 1; ran; at++) {
		fake_reset();
		domu_marked(U0);
		evicted();
		admitted();
		as_domu();
		others_rc = 1;
		fake.race = (struct race){
			.at = at, .domain = &dom0, .run = other_evicts,
			.arg = &other,
		};
		call_batch(MARK, (u64[]){ U0, U1 }, 2);
		ran = fake.race.at == 0;
		ledger_follow_marks();
		assert_true(!fake.race.ran || others_rc ||
			    !semi_writable_stats.semi_writable);
		as_dom0();
		fake_check();
		evicted();
		fake_forget_heap();
	}
	fake_reset();
}

/* The toolstack takes a table from a guest that is stopped. */
static void other_takes_down(void *arg)
{
	while (guest_unpin(*(u64 *)arg, false))
		;
	guest_map_writable(*(u64 *)arg);
}

static void evict_races_the_toolstack(void **state)
{
	static u64 mfn;

	for (unsigned int at = 1; at < 40; at++) {
		fake_reset();
		mfn = U0;
		domu_marked(U0);
		assert_false(guest_pin(U0, 2, true));
		fake.race = (struct race){
			.at = at, .domain = &dom0, .run = other_takes_down,
			.arg = &mfn,
		};
		call_evict(&report);
		evicted();
		other_takes_down(&mfn);
		assert_int_equal(domu.io[U0], IO_TABLE | IO_TLB);
		fake_check();
		fake_forget_heap();
	}
	fake_reset();
}

static void evict_of_the_dying(void **state)
{
	/* Before the end, and when the end was interrupted in the map's middle. */
	for (unsigned int unfinished = 0; unfinished < 2; unfinished++) {
		domu_marked(U0);
		domu_marked(U1);
		fake.unfinished = unfinished;
		fake.pending_at = 1;
		assert_int_equal(payload_domain_kill(&domu), -ERESTART);
		fake_begin();
		while (call_evict(&report) == -EAGAIN)
			;
		assert_int_equal(semi_writable_stats.semi_writable, 0);
		fake_begin();
		fake_kill(&domu, 0);
		fake_check();
		fake_create_domu();
		admitted();
	}
	/* The next domain of that id is torn down from the start. */
	domu_marked(U0);
	fake_kill(&domu, 0);
}

#define TEST(f)	cmocka_unit_test_setup_teardown(f, fresh, checked)

int main(void)
{
	const struct CMUnitTest tests[] = {
		TEST(mark_takes_the_frame_from_devices),
		TEST(release_gives_it_back),
		TEST(full_batch_costs_one_flush),
		TEST(typing_costs_no_flush_while_marked),
		TEST(release_of_idle_former_table),
		TEST(release_of_live_table_forgets_only_the_mark),
		TEST(release_of_live_descriptor_table),
		TEST(marked_frame_is_not_freed),
		TEST(einval_is_no_ram),
		TEST(alias_of_a_marked_frame_is_not_marked),
		TEST(eperm_is_not_the_callers),
		TEST(ebusy_is_in_use_otherwise),
		TEST(ebusy_is_special),
		TEST(ebusy_is_half_validated),
		TEST(eexist_is_marked),
		TEST(enoent_is_not_marked),
		TEST(enoent_also_before_the_first_mark),
		TEST(counts),
		TEST(longest_list),
		TEST(relaxed_domain_is_refused),
		TEST(unreadable_argument),
		TEST(no_work_without_room_for_the_result),
		TEST(an_error_is_not_hidden_by_the_result),
		TEST(list_out_of_reach),
		TEST(argument_is_read_once),
		TEST(no_memory),
		TEST(unmap_error),
		TEST(failed_flush_is_undone),
		TEST(failed_flush_outranks_a_bad_frame),
		TEST(failed_undo_holds_the_frame),
		TEST(map_error_keeps_the_mark),
		TEST(release_holds_after_a_failed_flush),
		TEST(leaves_when_needed_elsewhere),
		TEST(domu_has_no_say_in_the_host),
		TEST(domu_without_devices_is_refused),
		TEST(hvm_reaches_stock),
		TEST(hvm_hardware_domain_is_not_served),
		TEST(other_numbers_reach_stock),
		TEST(unknown_numbers_in_range),
		TEST(ranges_are_everybodys),
		TEST(switches_as_asked),
		TEST(a_part_that_is_left_out),
		TEST(version_and_statistics),
		TEST(hooks_skip_only_what_is_marked),
		TEST(mark_races),
		TEST(mark_races_release),
		TEST(failing_mark_races_release),
		TEST(release_races),
		TEST(release_races_mark),
		TEST(release_races_unpin),
		TEST(own_grant_races_mark),
		TEST(typing_races),
		TEST(each_marks_its_own),
		TEST(no_domain_waits_for_another),
		TEST(a_lock_is_handed_on),
		TEST(no_zombie_is_left),
		TEST(held_frames_go_too),
		TEST(nothing_is_dropped_before_the_end),
		TEST(teardown_leaves_when_needed_elsewhere),
		TEST(without_marks_nothing_is_done),
		TEST(ids_are_reused),
		TEST(teardown_races_the_other_domains_calls),
		TEST(evict_takes_all_marks_back),
		TEST(evict_refuses_new_marks),
		TEST(evict_before_the_first_mark),
		TEST(evict_is_of_the_hardware_domain),
		TEST(evict_without_room_for_the_result),
		TEST(evict_leaves_after_so_many),
		TEST(evict_goes_on_after_errors),
		TEST(evict_races_pin),
		TEST(evict_races_mark),
		TEST(mark_races_evict),
		TEST(evict_races_the_toolstack),
		TEST(evict_of_the_dying),
		TEST(no_revert_while_marked),
		TEST(failed_revert_changes_nothing),
		TEST(revert_without_any_mark),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
