// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A random sequence of instructions, in groups: each group can be entered at its
 * first word, and at other words where that is harmless.
 *
 * The invariant of generate.h holds because: branches go forward, except the bdnz of
 * a loop that sets its own counter; a lwarx with a stwcx. loops until that succeeds;
 * MSR, SRR0 and SRR1 get random values only in bits that do not affect address
 * translation; only update forms write base registers, by a few bytes each.
 */
#include "encode.h"
#include "generate.h"

/* Longest group, and the end. */
#define RESERVE		40
#define MAX_MARKS	8
/* Branches whose target is not known yet. */
#define MAX_BRANCHES	4
/* Together they stay within half of the data: 16 bytes an update, 64 a stmw. */
#define DISPLACEMENT	96
#define MAX_UPDATES	16

struct builder {
	struct sequence *s;
	u32 branch[MAX_BRANCHES];
	u32 branch_skip[MAX_BRANCHES];
	/* Words that self-modification may replace. */
	u32 mark[MAX_MARKS];
	u32 marks;
	u32 updates;
};

static u32 rnd(struct builder *b, u32 n)
{
	return random_below(&b->s->random, n);
}

#define PICK(b, array)	((array)[rnd(b, sizeof(array) / sizeof(*(array)))])

static int is_base(const struct sequence *s, u32 reg)
{
	return reg == s->base_code || reg == s->base_near || reg == s->base_far || reg == s->index ||
	       reg == s->raise;
}

/* A register to read: any. More often r11 and r12, which fragments use. */
static u32 source(struct builder *b)
{
	return rnd(b, 4) ? rnd(b, 32) : 11 + rnd(b, 2);
}

/*
 * A register to write: none that holds an address, and not r1. While r1 equals the
 * shared page's "critical" field, 0 without paravirt, KVM delays interrupts until some
 * later exit, whose time depends on the mode.
 */
static u32 target(struct builder *b)
{
	u32 reg;

	do
		reg = source(b);
	while (is_base(b->s, reg) || reg == 1);
	return reg;
}

static u32 data_base(struct builder *b)
{
	return rnd(b, 2) ? b->s->base_near : b->s->base_far;
}

static void patch_branch(struct sequence *s, u32 at, u32 to)
{
	s->words[at] |= (4 * (to - at)) & 0xfffc;
}

/* A word at which code may be entered, also by a branch. */
static void entry(struct builder *b, u32 word)
{
	struct sequence *s = b->s;
	u32 i;

	if (s->n_entries < MAX_ENTRIES)
		s->entries[s->n_entries++] = s->n;
	for (i = 0; i < MAX_BRANCHES; i++) {
		if (b->branch_skip[i] && !--b->branch_skip[i])
			patch_branch(s, b->branch[i], s->n);
	}
	s->words[s->n++] = word;
}

/* A word that is only reached from the word before it. */
static void inner(struct builder *b, u32 word)
{
	b->s->words[b->s->n++] = word;
}

static const u16 plain_sprs[] = {
	272, 273, 274, 275, 276, 277, 278, 279,	/* SPRG0 to 7 */
	61, 62,					/* DEAR, ESR */
	624, 625, 626, 627, 628, 630, 944,	/* MAS */
	58, 59,					/* CSRR0, CSRR1 */
};

static const u16 read_sprs[] = {
	272, 273, 274, 275, 61, 62, 624, 625, 626, 627, 628, 630, 944, 58, 59,
	260, 261, 262, 263,			/* SPRG4 to 7, by their numbers to read */
	287, 286, 48,				/* PVR, PIR, PID */
};

static u32 written_spr(struct builder *b)
{
	if (!b->s->noisy && !rnd(b, 5))
		return 26 + rnd(b, 2);
	return PICK(b, plain_sprs);
}

static u32 read_spr(struct builder *b)
{
	if (!b->s->noisy && !rnd(b, 5))
		return 26 + rnd(b, 2);
	return PICK(b, read_sprs);
}

/* One privileged instruction that continues at the next one. */
static u32 privileged(struct builder *b)
{
	if (b->s->raising && !rnd(b, 6))
		return MTSPR(SPR_TCR, b->s->raise);
	switch (rnd(b, 8)) {
	case 0:
	case 1:
		return MFMSR(target(b));
	case 2:
	case 3:
		return WRTEEI(rnd(b, 2));
	case 4:
		return WRTEE(source(b));
	case 5:
	case 6:
		return MTSPR(written_spr(b), source(b));
	default:
		return MFSPR(target(b), read_spr(b));
	}
}

static u32 arithmetic(struct builder *b)
{
	static const u16 three[] = {
		266, 266 | 512, 40, 10, 138, 8, 235, 136, 104, 202,	/* T, A, B */
	};
	static const u16 logical[] = { 28, 60, 316, 444, 124, 476, 24, 536, 792 };	/* S, A, B */
	static const u16 unary[] = { 26, 954, 922 };				/* S, A */
	u32 record = rnd(b, 3) == 0;

	switch (rnd(b, 9)) {
	case 0:
	case 1: {
		u32 form = PICK(b, three);

		/* neg and addze have no third register. */
		if (form == 104 || form == 202)
			return x(form, target(b), source(b), 0) | record;
		return x(form, target(b), source(b), source(b)) | record;
	}
	case 2:
	case 3: {
		u32 form = PICK(b, logical);

		return x(form, source(b), target(b), source(b)) | record;
	}
	case 4:
		return x(PICK(b, unary), source(b), target(b), 0) | record;
	case 5:
		return RLWINM(target(b), source(b), rnd(b, 32), rnd(b, 32), rnd(b, 32)) | record;
	case 6:
		return d(10 + rnd(b, 2), rnd(b, 8) << 2, source(b), rnd(b, 65536)); /* cmpli, cmpi */
	case 7:
		return d(12 + rnd(b, 4), target(b), source(b), rnd(b, 65536)); /* addic(.), addi(s) */
	default:
		switch (rnd(b, 4)) {
		case 0:
			return x(19, target(b), 0, 0);				/* mfcr */
		case 1:
			return x(144, source(b), 0, 0) | rnd(b, 256) << 12;	/* mtcrf */
		case 2:
			return MFSPR(target(b), 1);				/* mfxer */
		default:
			return d(24 + rnd(b, 4), source(b), target(b), rnd(b, 65536));
		}
	}
}

/* Loads and stores that leave the base register as it is. */
static u32 access(struct builder *b)
{
	static const u8 by_displacement[] = { 32, 34, 40, 42, 36, 38, 44 };
	static const u16 loads[] = { 23, 87, 279, 343, 534, 790 };
	static const u16 stores[] = { 151, 215, 407, 662, 918 };
	u32 base = data_base(b), opcode;

	switch (rnd(b, 4)) {
	case 0:
		return x(PICK(b, loads), target(b), base, b->s->index);
	case 1:
		return x(PICK(b, stores), source(b), base, b->s->index);
	default:
		opcode = PICK(b, by_displacement);
		return d(opcode, opcode < 36 || opcode == 40 || opcode == 42 ? target(b) : source(b),
			 base, rnd(b, 2 * DISPLACEMENT) - DISPLACEMENT);
	}
}

/* Base registers stay multiples of four, for lwarx. */
static u32 update(struct builder *b)
{
	static const u8 loads[] = { 33, 35, 41, 43 };
	static const u8 stores[] = { 37, 39, 45 };
	static const u16 indexed_loads[] = { 55, 119, 311, 375 };
	static const u16 indexed_stores[] = { 183, 247, 439 };
	u32 base = data_base(b), by = 4 * rnd(b, 9) - 16;

	switch (rnd(b, 4)) {
	case 0:
		return d(PICK(b, loads), target(b), base, by);
	case 1:
		return d(PICK(b, stores), source(b), base, by);
	case 2:
		return x(PICK(b, indexed_loads), target(b), base, b->s->index);
	default:
		return x(PICK(b, indexed_stores), source(b), base, b->s->index);
	}
}

static u32 multiple(struct builder *b)
{
	u32 base = data_base(b);

	if (rnd(b, 2))
		return LMW(28 + rnd(b, 4), base, 4 * rnd(b, DISPLACEMENT / 2) - DISPLACEMENT);
	return STMW(16 + rnd(b, 16), base, 4 * rnd(b, DISPLACEMENT / 2) - DISPLACEMENT);
}

static u32 cache(struct builder *b)
{
	static const u16 forms[] = { 1014, 1014, 54, 86, 278, 246, 982 };	/* dcbz first */

	return x(PICK(b, forms), 0, rnd(b, 2) ? b->s->index : 0, data_base(b));
}

/* A load of the code itself, before and after this point. */
static u32 self_read(struct builder *b)
{
	static const u8 forms[] = { 32, 34, 40, 42 };
	u32 base = b->s->base_code, at = rnd(b, 4 * (b->s->n + 24));

	switch (rnd(b, 8)) {
	case 0:
		return LMW(28 + rnd(b, 4), base, at & ~3u);
	case 1:
		return x(534, target(b), base, b->s->index);
	case 2:
		return x(23, target(b), base, b->s->index);
	case 3:
		return LWARX(target(b), base, b->s->index);
	default:
		return d(PICK(b, forms), target(b), base, at);
	}
}

static void reserve(struct builder *b)
{
	u32 base = rnd(b, 4) ? data_base(b) : b->s->base_code, t = target(b), from;
	u32 index = rnd(b, 2) ? b->s->index : 0, n;

	entry(b, NOP);
	from = b->s->n;
	inner(b, LWARX(t, index, base));
	/* Store to code the word that it has already. */
	if (base != b->s->base_code) {
		inner(b, ADDI(t, t, rnd(b, 65536)));
		if (b->s->between && !rnd(b, 4))
			for (n = 1 + rnd(b, 3); n; n--)
				inner(b, LWZ(target(b), data_base(b), 4 * rnd(b, 16)));
	}
	inner(b, STWCX(t, index, base));
	inner(b, BC(BO_FALSE, CR0_EQ, 4 * (from - b->s->n)));
}

/* mtmsr, changing only harmless bits. */
static void move_msr(struct builder *b)
{
	u32 t = target(b);

	entry(b, MFMSR(t));
	switch (rnd(b, 8)) {
	case 0:
		inner(b, XORI(t, t, rnd(b, 2) ? MSR_ME : MSR_FP));
		break;
	case 1:
		inner(b, XORIS(t, t, MSR_CE >> 16));
		break;
	case 2:
		break;
	default:
		inner(b, XORI(t, t, MSR_EE));
	}
	inner(b, MTMSR(t));
}

static void load_word(struct builder *b, u32 t, u32 value, int first)
{
	if (first)
		entry(b, LIS(t, value >> 16));
	else
		inner(b, LIS(t, value >> 16));
	inner(b, ORI(t, t, value));
}

static void return_from_interrupt(struct builder *b)
{
	struct sequence *s = b->s;
	u32 t = target(b), to, at;

	entry(b, WRTEEI(0));
	/* lis, ori, mtspr, mfmsr, xori, mtspr, rfi, one that is skipped */
	at = s->n;
	to = s->code + 4 * (at + 7 + rnd(b, 2));
	load_word(b, t, to, 0);
	inner(b, MTSPR(26, t));
	inner(b, MFMSR(t));
	inner(b, XORI(t, t, rnd(b, 4) ? MSR_EE : MSR_ME));
	inner(b, MTSPR(27, t));
	inner(b, RFI);
	inner(b, arithmetic(b));
}

static void loop(struct builder *b)
{
	u32 t = target(b), from, n = 1 + rnd(b, 3);

	entry(b, LI(t, 2 + rnd(b, 5)));
	inner(b, MTSPR(SPR_CTR, t));
	from = b->s->n;
	while (n--) {
		switch (rnd(b, 4)) {
		case 0:
			inner(b, arithmetic(b));
			break;
		case 1:
			inner(b, access(b));
			break;
		default:
			inner(b, privileged(b));
		}
	}
	inner(b, BC(BO_COUNT, 0, 4 * (from - b->s->n)));
}

/*
 * One place reads one word again and again, and the word is sometimes written in
 * between. Sometimes it reads another word.
 */
static void read_again(struct builder *b)
{
	static const u8 loads[] = { 32, 34, 40, 42 };
	static const u16 indexed[] = { 23, 87, 279, 343 };
	u32 base = rnd(b, 4) ? data_base(b) : b->s->base_code, t, sum, from, skip;
	u32 at = 4 * rnd(b, DISPLACEMENT / 4), size, opcode;

	do {
		t = target(b);
		sum = target(b);
	} while (t == sum);
	entry(b, LI(t, 3 + rnd(b, 6)));
	inner(b, MTSPR(SPR_CTR, t));
	from = b->s->n;
	if (rnd(b, 3)) {
		opcode = PICK(b, loads);
		size = opcode == 32 ? 4 : opcode == 34 ? 1 : 2;
		inner(b, d(opcode, t, base, at + (4 - size) * rnd(b, 2)));
	} else {
		inner(b, x(PICK(b, indexed), t, base, b->s->index));
	}
	inner(b, x(266, sum, sum, t));
	/* Rarely, and at varying times. */
	inner(b, RLWINM(0, sum, 0, 31 - rnd(b, 3), 31) | 1);
	skip = b->s->n;
	inner(b, BC(BO_FALSE, CR0_EQ, 0));
	if (base != b->s->base_code) {
		switch (rnd(b, 7)) {
		case 0:
			inner(b, STB(sum, base, at + rnd(b, 4)));
			break;
		case 1:
			inner(b, STH(sum, base, at + 2 * rnd(b, 2)));
			break;
		case 2:
			inner(b, STWX(sum, base, b->s->index));
			break;
		case 3:
			inner(b, x(1014, 0, 0, base)); /* dcbz */
			break;
		case 4:
			inner(b, STMW(28 + rnd(b, 4), base, at));
			break;
		case 5:
			inner(b, STW(sum, base, at - 2)); /* half of it */
			break;
		default:
			inner(b, STW(sum, base, at));
		}
	}
	if (!rnd(b, 3))
		inner(b, privileged(b));
	patch_branch(b->s, skip, b->s->n);
	inner(b, BC(BO_COUNT, 0, 4 * (from - b->s->n)));
}

static void branch(struct builder *b)
{
	u32 i;

	for (i = 0; i < MAX_BRANCHES; i++) {
		if (b->branch_skip[i])
			continue;
		entry(b, BC(rnd(b, 2) ? BO_TRUE : BO_FALSE, rnd(b, 32), 0));
		b->branch[i] = b->s->n - 1;
		b->branch_skip[i] = 1 + rnd(b, 6);
		return;
	}
}

static void link(struct builder *b)
{
	entry(b, BL(4));
	inner(b, MFSPR(target(b), SPR_LR));
}

/* A word that this or a later sequence may replace. */
static void mark(struct builder *b)
{
	if (b->marks < MAX_MARKS)
		b->mark[b->marks++] = b->s->n;
	entry(b, privileged(b));
}

static u32 swapped(u32 w)
{
	return w << 24 | (w & 0xff00) << 8 | (w >> 8 & 0xff00) | w >> 24;
}

static void self_modify(struct builder *b)
{
	u32 t, other, at, word, byte, c = b->s->base_code;

	if (!b->marks)
		return;
	do {
		t = target(b);
		other = target(b);
	} while (t == other);
	at = 4 * b->mark[rnd(b, b->marks)];
	word = rnd(b, 3) ? privileged(b) : arithmetic(b);
	switch (rnd(b, 7)) {
	case 0:
		load_word(b, t, word, 1);
		inner(b, STH(t, c, at + 2));
		inner(b, RLWINM(t, t, 16, 0, 31));
		inner(b, STH(t, c, at));
		break;
	case 1:
		load_word(b, t, word, 1);
		for (byte = 4; byte--;) {
			inner(b, STB(t, c, at + byte));
			inner(b, RLWINM(t, t, 24, 0, 31));
		}
		break;
	case 2:
		load_word(b, t, swapped(word), 1);
		inner(b, ADDI(other, c, at));
		inner(b, STWBRX(t, 0, other));
		break;
	case 3:
		load_word(b, 31, word, 1);
		inner(b, STMW(31, c, at));
		break;
	case 4: {
		u32 from;

		load_word(b, t, word, 1);
		inner(b, ADDI(other, c, at));
		from = b->s->n;
		/* The value read does not matter, only that the store succeeds. */
		inner(b, LWARX(31 == t || 31 == other ? 30 == t || 30 == other ? 29 : 30 : 31, 0, other));
		inner(b, STWCX(t, 0, other));
		inner(b, BC(BO_FALSE, CR0_EQ, 4 * (from - b->s->n)));
		break;
	}
	case 5:
		load_word(b, t, word, 1);
		inner(b, LI(other, at));
		inner(b, STWX(t, c, other));
		break;
	default:
		load_word(b, t, word, 1);
		inner(b, STW(t, c, at));
	}
	inner(b, ADDI(other, c, at));
	inner(b, DCBST(0, other));
	inner(b, SYNC);
	inner(b, ICBI(0, other));
	inner(b, ISYNC);
}

static void group(struct builder *b)
{
	switch (rnd(b, 26)) {
	case 24:
	case 25:
		read_again(b);
		break;
	case 0:
	case 1:
	case 2:
	case 3:
	case 4:
		entry(b, privileged(b));
		break;
	case 5:
	case 6:
		entry(b, arithmetic(b));
		break;
	case 7:
	case 8:
	case 9:
		entry(b, access(b));
		break;
	case 10:
		if (b->updates++ < MAX_UPDATES)
			entry(b, update(b));
		break;
	case 11:
		entry(b, multiple(b));
		break;
	case 12:
		entry(b, cache(b));
		break;
	case 13:
	case 14:
		entry(b, self_read(b));
		break;
	case 15:
		reserve(b);
		break;
	case 16:
	case 17:
		move_msr(b);
		break;
	case 18:
		return_from_interrupt(b);
		break;
	case 19:
		loop(b);
		break;
	case 20:
		branch(b);
		break;
	case 21:
		link(b);
		break;
	case 22:
		mark(b);
		self_modify(b);
		break;
	default:
		if (rnd(b, 2))
			entry(b, TLBSX(data_base(b)));
		else
			mark(b);
	}
}

/* Below r28: lmw of the last four registers leaves them alone. Not r0: it is no base. */
static u32 base_register(struct sequence *s)
{
	u32 reg;

	do
		reg = 1 + random_below(&s->random, 27);
	while (is_base(s, reg));
	return reg;
}

void generate(struct sequence *s)
{
	struct builder b = { .s = s };
	u32 i, groups;

	s->n = s->n_entries = 0;
	s->base_code = s->base_near = s->base_far = s->index = s->raise = 0;
	for (i = 0; i < 32; i++)
		s->gpr[i] = random_word(&s->random) | (i == 1);
	s->base_code = base_register(s);
	s->base_near = base_register(s);
	s->base_far = base_register(s);
	s->index = base_register(s);
	s->raise = base_register(s);
	s->gpr[s->raise] = TCR_DIE;
	s->gpr[s->base_code] = s->code;
	s->gpr[s->base_near] = s->near + 2 * DATA_WORDS;
	s->gpr[s->base_far] = s->far + 2 * DATA_WORDS;
	s->gpr[s->index] = 4 * random_below(&s->random, 5);

	for (i = s->dense ? 70 + rnd(&b, 50) : 0; i; i--)
		entry(&b, rnd(&b, 2) ? WRTEEI(rnd(&b, 2)) : WRTEE(source(&b)));
	groups = 8 + rnd(&b, 20);
	while (groups-- && s->n < MAX_WORDS - RESERVE)
		group(&b);
	/* Every branch without a target yet leads here. */
	for (i = 0; i < MAX_BRANCHES; i++) {
		if (b.branch_skip[i])
			patch_branch(s, b.branch[i], s->n);
	}
	inner(&b, B((u32)leave - (s->code + 4 * s->n)));
}
