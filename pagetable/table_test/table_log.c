// SPDX-License-Identifier: GPL-2.0-only
/*
 * Records each call and its result.
 *
 * Every call makes one record, and all records of a run make its digest. With
 * mode "record" the records are kept; "compare" compares each of the next runs
 * with those of its seed, one by one, and names the first that differs. A
 * digest shows whether two runs agree, the records show where they do not.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/vmalloc.h>

#include "table_test.h"

struct record {
	u64 what;	/* kind, command, number of requests, page or address */
	u64 value;	/* what the first request writes */
	u64 in;		/* hash of the request */
	u64 out;	/* hash of all changes */
	u32 rc;
	u32 done;
};

static unsigned int records = 400000;
module_param(records, uint, 0644);
MODULE_PARM_DESC(records, "most records that can be kept");

static unsigned int flip = ~0U;
module_param(flip, uint, 0644);
MODULE_PARM_DESC(flip, "change this call's record: the comparison must find it");

static unsigned int trace_from = ~0U, trace_to;
module_param(trace_from, uint, 0644);
module_param(trace_to, uint, 0644);
MODULE_PARM_DESC(trace_from, "first call to print");
MODULE_PARM_DESC(trace_to, "last call to print");

static const char * const kinds[] = {
	[TT_MAP] = "map", [TT_MMUEXT] = "mmuext", [TT_UPDATE] = "mmu_update",
	[TT_VA] = "update_va_mapping", [TT_TRAP] = "trap",
	[TT_MULTICALL] = "multicall", [TT_RANGE] = "range", [TT_ROUND] = "round",
};

static unsigned int ok[TT_KINDS], refused[TT_KINDS];

static enum { OFF, RECORD, COMPARE } mode;
static struct record *kept;
static unsigned int capacity, used, cursor;
static bool differs;
module_param(differs, bool, 0444);
MODULE_PARM_DESC(differs, "a run was not like the recorded one");

/* The first difference of this round, until the round's end decides. */
static struct {
	bool found;
	unsigned int call;
	struct record want, got;
} pending;
static unsigned int voided;
module_param(voided, uint, 0444);
MODULE_PARM_DESC(voided, "rounds whose differences do not count");

static struct record now;
static enum tt_kind kind;
static u32 seed;
static unsigned int calls;
static u64 digest;

/* Where the records of each seed begin, so that one can be compared without the others. */
static struct {
	u32 seed;
	unsigned int at;
} recorded[4096];
static unsigned int recorded_seeds;

u64 tt_mix(u64 hash, u64 word)
{
	hash = (hash ^ word) * 0x9e3779b97f4a7c15ULL;
	return hash ^ hash >> 29;
}

void tt_log_begin_run(u32 of)
{
	unsigned int i;

	seed = of;
	calls = 0;
	if (mode == RECORD && recorded_seeds < ARRAY_SIZE(recorded)) {
		recorded[recorded_seeds].seed = of;
		recorded[recorded_seeds++].at = used;
	}
	for (i = 0; mode == COMPARE && i < recorded_seeds; i++)
		if (recorded[i].seed == of)
			cursor = recorded[i].at;
	digest = 0;
	memset(ok, 0, sizeof(ok));
	memset(refused, 0, sizeof(refused));
}

void tt_log_call(enum tt_kind of)
{
	kind = of;
	now = (struct record){ .what = (u64)of << 56 };
}

void tt_log_what(unsigned int command, unsigned int count, u64 where, u64 value)
{
	now.what |= (u64)(command & 0xff) << 48 | (u64)(count & 0xff) << 40 |
		    (where & 0xffffffffffULL);
	now.value = tt_canonical(value);
	tt_log_in(now.what);
	tt_log_in(now.value);
}

void tt_log_in(u64 word)
{
	now.in = tt_mix(now.in, word);
}

void tt_log_out(u64 word)
{
	now.out = tt_mix(now.out, word);
}

static void print(const char *who, unsigned int call, const struct record *r)
{
	pr_err("%s: seed %u call %u %s command %u requests %u at %llx value %llx in %llx: rc %d done %d out %llx\n",
		who, seed, call, kinds[r->what >> 56], (u32)(r->what >> 48) & 0xff,
		(u32)(r->what >> 40) & 0xff, r->what & 0xffffffffffULL, r->value,
		r->in, (int)r->rc, (int)r->done, r->out);
}

static void compare(const struct record *got)
{
	const struct record *want = &kept[cursor++];

	if (!memcmp(want, got, sizeof(*got)))
		return;
	pending.found = true;
	pending.call = calls;
	pending.want = *want;
	pending.got = *got;
}

static bool begins_round(const struct record *r)
{
	return r->what >> 56 == TT_ROUND && (u8)(r->what >> 48) == TT_BEGIN;
}

void tt_log_begin_round(unsigned int round)
{
	tt_log_call(TT_ROUND);
	tt_log_what(TT_BEGIN, 1, round, 0);
	tt_log_end(0, 0);
}

/*
 * If stock Xen is interrupted in the middle of a pin and then refuses it, tables
 * may stay typed; later calls of the round then have other results, which do not
 * count. Return whether the round counts and differs.
 */
bool tt_log_end_round(bool is_void)
{
	if (!pending.found)
		return false;
	pending.found = false;
	if (is_void) {
		voided++;
		while (cursor < used && !begins_round(&kept[cursor]))
			cursor++;
		return false;
	}
	differs = true;
	print("expected", pending.call, &pending.want);
	print("got     ", pending.call, &pending.got);
	return true;
}

void tt_log_end(long rc, u32 done)
{
	now.rc = rc;
	now.done = done;
	if (calls == flip)
		now.rc ^= 1;
	if (calls >= trace_from && calls <= trace_to)
		print("trace   ", calls, &now);
	digest = tt_mix(digest, now.what);
	digest = tt_mix(digest, now.in);
	digest = tt_mix(digest, now.out);
	digest = tt_mix(digest, (u64)now.rc << 32 | now.done);
	if (mode == RECORD && used < capacity)
		kept[used++] = now;
	if (mode == COMPARE && !differs && !pending.found && cursor < used)
		compare(&now);
	(rc ? refused : ok)[kind]++;
	calls++;
}

/* After the first difference later ones have no meaning. */
bool tt_log_differs(void)
{
	return differs;
}

void tt_log_exit(void)
{
	vfree(kept);
}

static int mode_set(const char *val, const struct kernel_param *kp)
{
	if (sysfs_streq(val, "record")) {
		if (!kept) {
			kept = vzalloc(array_size(records, sizeof(*kept)));
			if (!kept)
				return -ENOMEM;
			capacity = records;
		}
		used = 0;
		recorded_seeds = 0;
		mode = RECORD;
	} else if (sysfs_streq(val, "compare")) {
		if (mode == OFF && !used)
			return -ENODATA;
		mode = COMPARE;
	} else if (sysfs_streq(val, "off")) {
		mode = OFF;
	} else {
		return -EINVAL;
	}
	cursor = 0;
	differs = false;
	pending.found = false;
	voided = 0;
	return 0;
}

static const struct kernel_param_ops mode_ops = { .set = mode_set };
module_param_cb(mode, &mode_ops, NULL, 0200);

static int digest_get(char *buf, const struct kernel_param *kp)
{
	unsigned int i;
	int len;

	len = sysfs_emit(buf, "seed %u calls %u digest %016llx compared %u differs %u retired %u",
			 seed, calls, digest, mode == COMPARE ? cursor : 0, differs,
			 tt_retired);
	for (i = 0; i < TT_KINDS; i++)
		len += sysfs_emit_at(buf, len, " %s %u/%u", kinds[i], ok[i],
				     ok[i] + refused[i]);
	return len + sysfs_emit_at(buf, len, "\n");
}

static const struct kernel_param_ops digest_ops = { .get = digest_get };
module_param_cb(digest, &digest_ops, NULL, 0444);
