// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Runs random sequences of instructions and prints the state of all registers and of
 * the memory that they can reach, as a checksum every BLOCK sequences.
 *
 * Invariant: what it prints depends on its arguments alone. So if the lines differ, the
 * two hosts do not run the same machine. The number of interrupts, which depends on
 * time, is in a line of its own, after "time:".
 *
 * With two processors each runs as many sequences, of numbers of its own, in memory of
 * its own; only what the host writes is shared: the execute pages.
 *
 * Arguments: seed=, first=, count=: which sequences. cpus=2: on two processors. interrupts=0: none come.
 * between=0: no loads between lwarx and stwcx., whose exits once made a livelock.
 * dense=N: one in N sequences begins with more sites than an execute page has room for.
 * each=1: a checksum after each sequence.
 * trace=N: print the state after each run of sequence N. Negative controls, with which
 * the lines must differ from those of an untranslated run: corrupt=1 changes one word
 * of a live fragment in the execute pages after some runs; corrupt=2 changes copies in
 * the data cache, as if the host had missed a store.
 */
#include "board.h"
#include "encode.h"
#include "generate.h"

#define BLOCK		16
#define RUNS		6
#define NOISY_RUNS	12
/* One block in so many has interrupts at times set by the clock. */
#define TIMED_BLOCKS	4
#define PAGE		4096
#define ARENA_PAGES	16

#define FIRST_TICK	700

/* In context->spr: SRR0 and SRR1. */
#define SPR_OF_INTERRUPTS	2

#define SLOT_WORDS	16

/* The data cache, in the data page: three words a copy, the last one is the value. */
#define CACHE		(DATA_PAGE + 0x80c)
#define COPY_BYTES	12
#define COPIES		((0x1000 - 0x808) / COPY_BYTES)

static u8 arena[ARENA_PAGES * PAGE] __attribute__((section(".arena"), aligned(0x10000)));
static u8 elsewhere[ARENA_PAGES * PAGE] __attribute__((section(".arena"), aligned(0x10000)));

static u32 sum[2];

static void fold(u32 word)
{
	sum[0] = (sum[0] ^ word) * 0x01000193;
	sum[1] = (sum[1] << 7 | sum[1] >> 25) + (word ^ sum[0]);
}

/* Read memory as code would: with lmw, or word by word. */
static void fold_memory(u32 address, u32 words, int one_by_one)
{
	u32 i, row[8];

	for (; words >= 8 && !one_by_one; words -= 8, address += 32) {
		asm volatile("lmw %%r24, 0(%0); stmw %%r24, 0(%1)" : : "b" (address), "b" (row) :
			     "memory", "r24", "r25", "r26", "r27", "r28", "r29", "r30", "r31");
		for (i = 0; i < 8; i++)
			fold(row[i]);
	}
	for (; words; words--, address += 4)
		fold(word_at(address));
}

/* Stores of different kinds, where patched instructions may be. */
static void write_word(u32 address, u32 word, u32 kind)
{
	u32 i;

	switch (kind) {
	case 0:
		for (i = 4; i--; word >>= 8)
			*(volatile u8 *)(address + i) = word;
		break;
	case 1:
		*(volatile u16 *)address = word >> 16;
		*(volatile u16 *)(address + 2) = word;
		break;
	case 2:
		asm volatile("stwbrx %0, 0, %1" : : "r" (__builtin_bswap32(word)), "r" (address) :
			     "memory");
		break;
	default:
		word_at(address) = word;
	}
}

static void place(struct sequence *s)
{
	struct random *r = &s->random;
	u32 page = (u32)arena + random_below(r, ARENA_PAGES - 4) * PAGE;

	/* Code in the page's first half, or over its end, and data in the rest. */
	if (random_below(r, 3)) {
		s->code = page + 4 * random_below(r, 250);
		s->near = page + 3 * PAGE / 4;
	} else {
		s->code = page + 3200 + 4 * random_below(r, 224);
		s->near = page + 4 * random_below(r, 256);
	}
	switch (random_below(r, 3)) {
	case 0:
		s->far = page + 2 * PAGE + 4 * random_below(r, 768);
		break;
	case 1: /* over the end of a page */
		s->far = page + 3 * PAGE - 4 * random_below(r, DATA_WORDS);
		break;
	default:
		s->far = (u32)elsewhere + random_below(r, ARENA_PAGES - 1) * PAGE;
	}
}

/* Remove the previous sequence's code, which may be patched, or leave it there. */
static void wipe(struct sequence *s)
{
	u32 i, kind = random_below(&s->random, 6);

	switch (kind) {
	case 4:
		for (i = s->code & ~31u; i < s->code + 4 * s->n; i += 32)
			asm volatile("dcbz 0, %0" : : "r" (i) : "memory");
		break;
	case 5:
		break;
	default:
		for (i = 0; i < s->n; i++)
			write_word(s->code + 4 * i, NOP, kind);
	}
}

static void fill(struct sequence *s)
{
	u32 i;

	for (i = 0; i < DATA_WORDS; i++) {
		word_at(s->near + 4 * i) = random_word(&s->random);
		word_at(s->far + 4 * i) = random_word(&s->random);
	}
	for (i = 0; i < s->n; i++)
		write_word(s->code + 4 * i, s->words[i], random_below(&s->random, 8));
	synchronize(s->code, s->n);
}

/* The decrementer's event stays pending; TCR enables the interrupt. */
static void allow_raising(void)
{
	mtspr(SPR_TCR, 0);
	if (!(mfspr(SPR_TSR) & TSR_DIS))
		mtspr(SPR_DEC, 1);
	while (!(mfspr(SPR_TSR) & TSR_DIS))
		;
	word_at(TICK_RAISED) = 1;
}

static void start_interrupts(u32 seed)
{
	word_at(TICK_RAISED) = 0;
	word_at(TICK_NOISE) = seed | 1;
	mtspr(SPR_TSR, TSR_DIS);
	mtspr(SPR_DEC, FIRST_TICK);
	mtspr(SPR_TCR, TCR_DIE);
}

static void stop_interrupts(void)
{
	mtspr(SPR_TCR, 0);
	mtspr(SPR_DEC, 0x7fffffff);
}

/* The site that the branch back, the slot's last instruction, leads to. */
static u32 branches_to(u32 slot)
{
	u32 i, word, offset;

	for (i = SLOT_WORDS; i--;) {
		word = word_at(slot + 4 * i);
		if (word >> 26 != 18)
			continue;
		offset = word & 0x03fffffc;
		if (offset & 0x02000000)
			offset |= 0xfc000000;
		return slot + 4 * i + offset;
	}
	return 0;
}

/* In one fragment of this sequence, leave out the second store, which is its effect. */
static int corrupt(const struct sequence *s)
{
	u32 slot, i, stores;

	for (slot = (u32)execute_pages; slot < (u32)execute_end; slot += 4 * SLOT_WORDS) {
		if (branches_to(slot) - s->code >= 4 * s->n)
			continue;
		for (i = stores = 0; i < SLOT_WORDS; i++) {
			if (word_at(slot + 4 * i) >> 26 != 36 || !stores++)
				continue;
			word_at(slot + 4 * i) = NOP;
			synchronize(slot + 4 * i, 1);
			return 1;
		}
	}
	return 0;
}

static int corrupt_copies(void)
{
	u32 i, copy;
	int n = 0;

	for (i = 0; i < COPIES; i++) {
		copy = CACHE + i * COPY_BYTES;
		if (!word_at(copy + 4))
			continue;
		word_at(copy + 8) += 0x01010101;
		n++;
	}
	return n;
}

static void trace_run(const struct sequence *s, u32 run)
{
	u32 i;

	print("trace: run ");
	print_number(run);
	for (i = 0; i < sizeof(*context) / 4; i++) {
		print(i % 8 ? " " : "\ntrace: ");
		print_hex(((volatile u32 *)context)[i]);
	}
	print("\n");
	for (i = 0; i < s->n; i++) {
		if (word_at(s->code + 4 * i) == s->words[i])
			continue;
		print("trace: code ");
		print_hex(s->code + 4 * i);
		print(" ");
		print_hex(word_at(s->code + 4 * i));
		print("\n");
	}
}

static void trace_code(const struct sequence *s)
{
	u32 i;

	print("trace: code at ");
	print_hex(s->code);
	print(" near ");
	print_hex(s->near);
	print(" far ");
	print_hex(s->far);
	print(s->noisy ? " noisy" : s->raising ? " raising" : "");
	for (i = 0; i < s->n; i++) {
		print(i % 8 ? " " : "\ntrace: ");
		print_hex(s->words[i]);
	}
	print("\n");
}

struct options {
	u32 seed, interrupts, between, dense, trace, corrupt;
};

static u32 run_sequence(struct sequence *s, u32 index, const struct options *options)
{
	u32 run, runs, i, corrupted = 0;

	s->random = random_seeded(options->seed, index);
	wipe(s);
	s->noisy = s->raising = 0;
	if (options->interrupts && random_chance(&s->random, 2)) {
		s->noisy = index / BLOCK % TIMED_BLOCKS == TIMED_BLOCKS - 1;
		s->raising = !s->noisy;
	}
	s->between = options->between;
	s->dense = random_chance(&s->random, options->dense);
	place(s);
	generate(s);
	fill(s);
	if (options->trace == index)
		trace_code(s);
	runs = s->noisy ? NOISY_RUNS : RUNS;
	if (s->noisy)
		start_interrupts(options->seed ^ index);
	else if (s->raising)
		allow_raising();
	for (run = 0; run < runs; run++) {
		u32 at = run ? s->entries[random_below(&s->random, s->n_entries)] : 0;

		for (i = 0; i < 32; i++)
			context->gpr[i] = s->gpr[i];
		context->cr = random_word(&s->random);
		context->xer = random_word(&s->random) & 0xe0000000;
		context->lr = random_word(&s->random) & ~3u;
		context->ctr = random_word(&s->random);
		context->msr = random_chance(&s->random, 2) ? 0 : MSR_EE;
		context->pc = s->code + 4 * at;
		enter();
		for (i = s->noisy ? SPR_OF_INTERRUPTS : 0; i < CONTEXT_SPRS; i++)
			fold(context->spr[i]);
		for (i = 0; i < 32; i++)
			fold(context->gpr[i]);
		fold(context->cr);
		fold(context->xer);
		fold(context->lr);
		fold(context->ctr);
		fold(context->msr);
		if (options->trace == index)
			trace_run(s, run);
		if (options->corrupt == 1 && run == runs / 2)
			corrupted += corrupt(s);
		if (options->corrupt == 2)
			corrupted += corrupt_copies();
	}
	if (s->noisy || s->raising)
		stop_interrupts();
	if (s->raising)
		fold(word_at(TICK_SUM));
	fold_memory(s->code, MAX_WORDS, random_chance(&s->random, 8));
	fold_memory(s->near, DATA_WORDS, 0);
	fold_memory(s->far, DATA_WORDS, 0);
	return corrupted;
}

static void report(u32 from, u32 to)
{
	print("differ: ");
	print_number(from);
	print(" to ");
	print_number(to);
	print(": ");
	print_hex(sum[0]);
	print_hex(sum[1]);
	print("\n");
}

static void field(const char *name, u32 value)
{
	print(name);
	print_number(value);
}

static u32 corrupting;

/* Only the decrementer's interrupt is expected: another one shows a different machine. */
void trap(void)
{
	print("differ: unexpected interrupt ");
	print_number(trapped->vector);
	print(" at ");
	print_hex(trapped->pc);
	print(" msr ");
	print_hex(trapped->msr);
	print(" esr ");
	print_hex(trapped->esr);
	print(" dear ");
	print_hex(trapped->dear);
	print("\n");
	/* A corrupted fragment may trap: that is a difference, too. */
	if (corrupting)
		print("done\n");
	reset();
}

static struct options options;
static u32 first, count, each;

static void run_all(void)
{
	static struct sequence s;
	u32 i, corrupted = 0;

	/* What mapping has left, so that all begin alike. */
	mtspr(SPR_MAS0, 0);
	mtspr(SPR_MAS1, 0);
	mtspr(SPR_MAS2, 0);
	mtspr(SPR_MAS3, 0);
	mtspr(SPR_MAS7, 0);
	for (i = first; i < first + count; i++) {
		/* A host that has found a corrupted fragment no longer translates. */
		if (options.corrupt == 1)
			enable_translation(DATA_PAGE, (u32)execute_pages, EXECUTE_PAGES);
		corrupted += run_sequence(&s, i, &options);
		if (each || i % BLOCK == BLOCK - 1 || i == first + count - 1)
			report(i - i % BLOCK, i);
	}
	field("time: interrupts ", word_at(TICK_COUNT));
	field(" corrupted ", corrupted);
	print("\n");
	if (word_at(TICK_WRONG)) {
		field("differ: interrupts where none can be: ", word_at(TICK_WRONG));
		print(" pc ");
		print_hex(word_at(TICK_WRONG_PC));
		print(" msr ");
		print_hex(word_at(TICK_WRONG_MSR));
		print("\n");
	}
}

/* In a copy of the image, with the arguments that the first processor has read. */
void second(void)
{
	be_second();
	first += count;
	print("differ: processor 2\n");
	run_all();
	reset();
}

void main(const void *tree)
{
	u32 cpus = argument(tree, "cpus", 1), r;

	options = (struct options){
		.seed = argument(tree, "seed", 1),
		.interrupts = argument(tree, "interrupts", 1),
		.between = argument(tree, "between", 1),
		.dense = argument(tree, "dense", 32),
		.trace = argument(tree, "trace", ~0u),
		.corrupt = argument(tree, "corrupt", 0),
	};
	first = argument(tree, "first", 0);
	count = argument(tree, "count", BLOCK);
	each = argument(tree, "each", 0);
	corrupting = options.corrupt;
	map_devices();
	if (cpus > 1)
		start_second();
	r = enable_translation(DATA_PAGE, (u32)execute_pages, EXECUTE_PAGES);
	field("time: translation ", r);
	print("\n");
	run_all();
	if (cpus > 1)
		await_second();
	print("done\n");
	reset();
}
