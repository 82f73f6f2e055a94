// SPDX-License-Identifier: GPL-2.0-only
/*
 * Generates entries and tables, from valid to impossible ones.
 *
 * The result depends only on the seed and the contents of the pool's pages. Frame
 * numbers enter an entry whole or not at all: half a frame number would name
 * another frame in another boot.
 */
#include "stream.h"
#include "table_test.h"

static struct rnd_state streams[NR_CPUS];
static bool racing;

/* Each round can be generated without the ones before it. */
void tt_seed(u32 seed, u32 round)
{
	stream_begin(&streams[0], (u64)seed << 32 | round);
}

/* One stream for each processor, as long as callers do not migrate. */
void tt_race_streams(bool race)
{
	unsigned int cpu;

	if (race)
		for_each_online_cpu(cpu)
			stream_begin(&streams[cpu], (u64)cpu << 32 | tt_random(~0U));
	racing = race;
}

u32 tt_random(u32 below)
{
	unsigned int cpu = racing ? raw_smp_processor_id() : 0;

	return prandom_u32_state(&streams[cpu]) % below;
}

bool tt_chance(u32 in)
{
	return !tt_random(in);
}

unsigned int tt_pick(unsigned int level)
{
	unsigned int i, n = tt_random(tt_count[level]);

	/* One of the round, if there is one. */
	for (i = 0; i < tt_count[level]; i++, n = (n + 1) % tt_count[level])
		if (tt_pages[tt_first[level] + n].active)
			break;
	return tt_first[level] + n;
}

/* Any page of the round, of the lowest level most often. */
unsigned int tt_pick_active(void)
{
	static const u8 levels[] = { 0, 1, 1, 1, 1, 2, 3, 4 };
	unsigned int page;

	do
		page = tt_pick(levels[tt_random(ARRAY_SIZE(levels))]);
	while (!tt_pages[page].active);
	return page;
}

/* A slot: an end, one in use, or any. */
unsigned int tt_slot(const u64 *table)
{
	unsigned int slot = tt_random(TT_SLOTS), i;

	switch (tt_random(8)) {
	case 0:
		return 0;
	case 1:
		return TT_SLOTS - 1;
	case 2:
		return TT_XEN_FIRST - 1 + tt_random(18);
	case 3:
		return slot;
	default:
		for (i = 0; i < TT_SLOTS && !table[slot]; i++)
			slot = (slot + 1) % TT_SLOTS;
		return slot;
	}
}

static u64 frame(unsigned int page)
{
	return tt_pages[page].mfn << PAGE_SHIFT;
}

static u64 attributes(unsigned int level)
{
	u64 flags = _PAGE_PRESENT | _PAGE_ACCESSED;

	if (level > 1)
		return flags | _PAGE_RW | _PAGE_USER | _PAGE_DIRTY;
	flags |= tt_random(3) ? _PAGE_RW : 0;
	flags |= tt_random(4) ? _PAGE_USER : 0;
	flags |= tt_random(3) ? _PAGE_DIRTY : 0;
	flags ^= tt_random(4) ? 0 : _PAGE_ACCESSED;
	flags |= tt_random(3) ? 0 : TT_NX;
	flags |= tt_random(16) ? 0 : _PAGE_GLOBAL;
	flags |= tt_random(8) ? 0 : 1ULL << (9 + tt_random(3));
	flags |= tt_random(24) ? 0 : 1ULL << (52 + tt_random(7));
	if (!tt_random(48))
		flags |= tt_random(2) ? _PAGE_PCD : _PAGE_PWT | _PAGE_PAT;
	return flags;
}

static u64 good(unsigned int level)
{
	return frame(tt_pick(level ? level - 1 : 0)) | attributes(level);
}

/* A frame number above 2 GiB in each 4 GiB, which in the lab is no RAM. */
u64 tt_no_ram(u32 below)
{
	return (u64)tt_random(below) << 20 | 1 << 19 | tt_random(1 << 19);
}

/* Not present, not zero, and of no frame that exists. */
static u64 garbage(void)
{
	return (tt_no_ram(2) | 1 << 22) << PAGE_SHIFT |
	       (u64)tt_random(1 << 11) << 1;
}

static u64 bad(unsigned int level, unsigned int self)
{
	const u64 rw = _KERNPG_TABLE | _PAGE_USER, ro = rw & ~_PAGE_RW;

	switch (tt_random(24)) {
	case 0:
	case 1:
		return tt_special_frame(tt_random(TT_SPECIALS)) << PAGE_SHIFT | rw;
	case 2:
	case 3:
		return tt_special_frame(tt_random(TT_SPECIALS)) << PAGE_SHIFT | ro;
	case 4:
		return frame(self) | rw;
	case 5:
		return frame(self) | ro;
	case 6:
		return frame(tt_pick(level)) | rw;
	case 7:
	case 8:
		return frame(tt_pick(level)) | ro;
	case 9:
		return frame(tt_pick(tt_random(TT_LEVELS))) | rw;
	case 10:
		return frame(tt_pick(tt_random(TT_LEVELS))) | ro;
	case 11:
		return good(level) | 1ULL << (40 + tt_random(12));
	case 12:
		return good(level) | _PAGE_PSE;
	case 13:
		return good(level) | 1ULL << (59 + tt_random(4));
	case 14:
		return good(level) | _PAGE_GLOBAL;
	case 15:
		return tt_no_ram(1 << 10) << PAGE_SHIFT | rw;
	case 16:
		return garbage() | _PAGE_PRESENT;
	case 17:
		return garbage() | _PAGE_PSE;
	case 18:
		/* Not present, but of a frame: what L1TF reads. */
		return good(level) & ~_PAGE_PRESENT;
	case 19:
		return ~0ULL << tt_random(2);
	case 20:
		return good(level) | (tt_random(2) ? _PAGE_PCD : _PAGE_PWT);
	case 21:
	case 22:
		/* Xen's own page, whose caching is not ours to choose. */
		return tt_special_frame(TT_SHARED_INFO) << PAGE_SHIFT | ro |
		       _PAGE_PCD | (tt_random(2) ? _PAGE_PWT : 0);
	default:
		return frame(tt_pick(1)) | ro | TT_NX;
	}
}

/* Of 1,000 entries @bad are chosen to be refused, though not all are. */
u64 tt_entry(unsigned int level, unsigned int self, unsigned int of_thousand)
{
	u32 kind = tt_random(1000);

	if (kind < of_thousand)
		return bad(level, self);
	if (kind < of_thousand + 40)
		return garbage();
	return good(level);
}

/* A new value for an entry that holds @old. */
u64 tt_value(unsigned int level, unsigned int self, u64 old)
{
	static const u64 flags[] = {
		_PAGE_RW, _PAGE_RW, _PAGE_RW, _PAGE_DIRTY, _PAGE_DIRTY,
		_PAGE_ACCESSED, _PAGE_ACCESSED, _PAGE_DIRTY | _PAGE_ACCESSED,
		_PAGE_USER, _PAGE_PRESENT, _PAGE_PRESENT, TT_NX, _PAGE_GLOBAL,
		_PAGE_PWT, _PAGE_PCD, _PAGE_PAT, _PAGE_SOFTW1, _PAGE_SOFTW2,
		_PAGE_SOFTW3, _BITULL(52), _BITULL(58), _BITULL(59), _BITULL(61),
		_BITULL(62), _BITULL(62),
	};

	switch (tt_random(16)) {
	case 0:
	case 1:
		return 0;
	case 2:
		return garbage();
	case 3:
		return bad(level, self);
	case 4:
	case 5:
	case 6:
	case 7:
	case 8:
		return tt_entry(level, self, 20);
	case 9:	/* the address alone */
		return (old & ~TT_FRAME_MASK) | (good(level) & TT_FRAME_MASK);
	case 10: /* the flags alone */
		return (old & TT_FRAME_MASK) | (good(level) & ~TT_FRAME_MASK);
	default:
		return old ^ flags[tt_random(ARRAY_SIZE(flags))];
	}
}

static unsigned int gap(unsigned int density)
{
	switch (density) {
	case 0:
		return 0;
	case 1:
		return tt_random(3);
	case 2:
		return tt_random(20);
	case 3:
		return tt_random(80);
	case 4:
		return 8 * tt_random(9);
	default:
		return tt_random(300);
	}
}

/* Runs of zeros of all lengths and alignments, short runs of entries. */
void tt_fill(unsigned int page, unsigned int of_thousand)
{
	static const unsigned int most[] = { 16, 512, 40, 12, 12 };
	struct tt_page *p = &tt_pages[page];
	unsigned int left = most[p->level], density = tt_random(6);
	unsigned int slot = 0, run;

	memset(p->entry, 0, PAGE_SIZE);
	if (tt_chance(8))
		return;
	if (tt_chance(2))
		left = 1 + tt_random(left);
	while (left) {
		slot += gap(density);
		run = tt_random(3) ? 1 : 1 + tt_random(10);
		for (; run && left; run--, left--, slot++) {
			if (slot >= TT_SLOTS)
				goto ends;
			p->entry[slot] = tt_entry(p->level, page, of_thousand);
		}
	}
ends:
	if (tt_chance(3))
		p->entry[TT_SLOTS - 1] = tt_entry(p->level, page, of_thousand);
	if (tt_chance(3))
		p->entry[0] = tt_entry(p->level, page, of_thousand);
}
