// SPDX-License-Identifier: GPL-2.0-only
/*
 * Executes translations, on a processor that has the instructions of which they
 * consist; they must leave all registers and the whole data page as the manual says.
 *
 *   execute INSTRUCTIONS LOADS SEED
 *
 * INSTRUCTIONS has one per line, as read by the disassembler: word, operation,
 * register, SPR or E. Each is made into a site and, if it needs one, a fragment, as
 * e500_bt_site.c makes them, for data pages at both ends of the addresses that a
 * displacement reaches. Then:
 *
 *  - it is executed with random registers. If it traps, kvmppc_bt_settle() must move
 *    the guest to before the instruction, with nothing changed, or to after it, with
 *    all of its effect. The manual says which of the two it must be, or no trap;
 *  - it is interrupted before each of the fragment's instructions. The settled state
 *    must again be one of these two; without a trap it may be after the site only once
 *    the effect is complete. A guest before the site executes it again, with garbage
 *    in the save area of scratch registers, and is interrupted once more.
 *
 * LOADS has loads: word, operation, register, base, and an index register ("r5") or a
 * displacement. Each is run with a data cache that has another value for its address
 * than memory, which it must read, and with one for an address that differs in one bit.
 *
 * Signals arrive while all registers are the guest's. Their handler has its own stack,
 * uses no thread-local data, and returns to machine_leave() with the interrupted
 * registers.
 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <asm/kvm_para.h>

#include "e500_bt.h"
#include "manual.h"

#define PAGE		4096
#define SLOT		3	/* any, but not the first: its number is to be found */
#define BRANCH		0x48000000
#define ABSOLUTE	2
#define TRAP		0x7fe00008
#define NOWHERE		(~0U)

/* The part before it holds the guest's registers. */
_Static_assert(BT_SAVE_OFFSET >= PAGE / 2 && BT_SAVE_OFFSET < PAGE, "in the upper half");

union page {
	struct kvm_vcpu_arch_shared shared;
	u32 words[PAGE / 4];
};

static struct machine *const machine = (void *)MACHINE;
static u32 *const site_code = (void *)SITE;
static u32 *const fragment_code = (void *)(AREA + SLOT * BT_SLOT_BYTES);

/* Where the last run was stopped, and by which signal; 0 if it ended by itself. */
static volatile sig_atomic_t stopped_by;
static volatile u32 stopped_at;

static u64 random_state;
static unsigned long runs;

static u32 random_word(void)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return random_state >> 16;
}

static void stopped(int number, siginfo_t *info, void *context)
{
	unsigned long *registers = ((ucontext_t *)context)->uc_mcontext.uc_regs->gregs;

	(void)info;
	stopped_by = number;
	stopped_at = registers[32]; /* PT_NIP */
	registers[32] = (unsigned long)machine_leave;
}

/* A test case, with all that a failure's message needs. */
struct trial {
	struct instruction instruction;
	u32 data;
	struct bt_code code;
	enum bt_kind kind;
	struct bt_area area;
	struct bt_site site;
	struct bt_site *slots[SLOT + 1];
	struct kvmppc_bt bt;
	struct kvm kvm;
	/* before; and afterwards according to the manual */
	struct machine before, after;
	union page page_before, page_after;
	enum ending ending;
	/* for a load: the slot of the data cache, and the cached address */
	bool load;
	unsigned int slot;
	u32 cached;
};

static __attribute__((noreturn, format(printf, 2, 3)))
void fail(const struct trial *t, const char *format, ...)
{
	va_list arguments;

	fprintf(stderr, "%08x, data page %08x, MSR %08x, r%u %08x, int_pending %u: ",
		t->instruction.word, t->data, (u32)t->page_before.shared.msr, t->instruction.reg,
		t->before.gpr[t->instruction.reg], t->page_before.shared.int_pending);
	va_start(arguments, format);
	vfprintf(stderr, format, arguments);
	va_end(arguments);
	fputc('\n', stderr);
	exit(1);
}

static void write_code(u32 *to, u32 word)
{
	*to = word;
	__builtin___clear_cache((char *)to, (char *)(to + 1));
}

/* The instruction's site and fragment, as kvmppc_bt_patch() makes them. */
static void build(struct trial *t)
{
	struct bt_code *code = &t->code;
	u32 fragment = (u32)fragment_code, last, patched;
	unsigned int i;

	if (t->load)
		t->kind = kvmppc_bt_translate_load(t->instruction.word, t->data, t->slot,
						   t->cached, code);
	else
		t->kind = kvmppc_bt_translate(t->instruction.word, t->data, code);
	if (t->kind == BT_NONE)
		fail(t, "not translated");
	t->area = (struct bt_area){ .ea = AREA, .slots = SLOT + 1, .site = t->slots };
	t->site = (struct bt_site){
		.ea = SITE,
		.area = t->kind == BT_FRAGMENT ? &t->area : NULL,
		.slot = SLOT,
		.scratch = code->scratch,
		.commit = code->commit,
		.restore = code->restore,
		.scratch2 = code->scratch2,
		.restore2 = code->restore2,
	};
	t->slots[SLOT] = &t->site;
	t->bt.nareas = 1;
	t->bt.area[0] = t->area;
	t->kvm.arch.bt = &t->bt;
	if (t->kind == BT_SINGLE) {
		patched = code->insn[0];
	} else {
		last = code->n - 1;
		if (!kvmppc_bt_branch(fragment + 4 * last, SITE + 4, &code->insn[last]) ||
		    !kvmppc_bt_branch(SITE, fragment, &patched))
			fail(t, "out of reach");
		for (i = 0; i < code->n; i++)
			write_code(fragment_code + i, code->insn[i]);
		memcpy(t->site.insn, code->insn, sizeof(code->insn));
		t->site.n = code->n;
	}
	write_code(site_code, patched);
	write_code(site_code + 1, BRANCH | (u32)machine_leave | ABSOLUTE);
}

static union page *data_page(const struct trial *t)
{
	return (union page *)t->data;
}

static bool writes_pid(const struct trial *t)
{
	return t->instruction.operation == MTSPR && t->instruction.value == MANUAL_PID;
}

/* The fragment's own write of PID, unless it was replaced to interrupt it there. */
static bool stopped_by_pid(const struct trial *t)
{
	return writes_pid(t) && stopped_at == (u32)(fragment_code + 1) &&
	       fragment_code[1] == t->instruction.word;
}

/* Run from the site. The program counter where the guest was stopped, or NOWHERE. */
static u32 run(struct trial *t)
{
	runs++;
	stopped_by = 0;
	machine_enter();
	if (!stopped_by)
		return NOWHERE;
	if (stopped_by != (stopped_by_pid(t) ? SIGILL : SIGTRAP))
		fail(t, "signal %d at %08x", stopped_by, stopped_at);
	if (stopped_at - (u32)fragment_code >= t->code.n * 4 || stopped_at & 3)
		fail(t, "trap at %08x, outside of the fragment", stopped_at);
	return stopped_at;
}

static void load(const struct trial *t)
{
	*machine = t->before;
	*data_page(t) = t->page_before;
}

/* Take the guest out of the fragment. Returns whether it is after the site. */
static bool settle(struct trial *t, u32 pc)
{
	struct kvm_vcpu vcpu = { .kvm = &t->kvm, .arch = { .shared = data_page(t), .pc = pc } };
	struct bt_site *site;
	unsigned int index;

	memcpy(vcpu.arch.gpr, machine->gpr, sizeof(vcpu.arch.gpr));
	if (kvmppc_bt_settle(&vcpu, &site, &index) != BT_INSIDE || site != &t->site ||
	    index != (pc - (u32)fragment_code) / 4)
		fail(t, "the host did not find the fragment at %08x", pc);
	memcpy(machine->gpr, vcpu.arch.gpr, sizeof(vcpu.arch.gpr));
	if (vcpu.arch.pc != SITE && vcpu.arch.pc != SITE + 4)
		fail(t, "settled at %08x to %08x", pc, vcpu.arch.pc);
	return vcpu.arch.pc == SITE + 4;
}

static void expect(const struct trial *t, bool after, const char *when)
{
	const struct machine *registers = after ? &t->after : &t->before;
	const union page *page = after ? &t->page_after : &t->page_before;
	const u32 *wanted = (const u32 *)registers, *found = (const u32 *)machine;
	unsigned int i;

	for (i = 0; i < sizeof(*machine) / 4; i++)
		if (wanted[i] != found[i])
			fail(t, "%s, %s: %s %u is %08x instead of %08x", when,
			     after ? "after it" : "before it",
			     i < 32 ? "register" : "CR, XER, LR, CTR from 32:", i, found[i],
			     wanted[i]);
	for (i = 0; i < PAGE / 4; i++) {
		/* The fragment's save area; nothing else may use it. */
		if (t->kind == BT_FRAGMENT && i == BT_SAVE_OFFSET / 4)
			continue;
		if (t->load && i == BT_SAVE2_OFFSET / 4)
			continue;
		if (writes_pid(t) && i == BT_PID_OFFSET / 4)
			continue;
		if (page->words[i] != data_page(t)->words[i])
			fail(t, "%s, %s: the data page at %03x is %08x instead of %08x", when,
			     after ? "after it" : "before it", i * 4, data_page(t)->words[i],
			     page->words[i]);
	}
}

/* Execute it to its end, from the state before it. */
static void whole(struct trial *t, const char *when)
{
	u32 pc = run(t);
	bool after;

	if (pc == NOWHERE) {
		if (t->ending != DONE)
			fail(t, "%s: no trap", when);
		expect(t, true, when);
		return;
	}
	if (t->ending == DONE)
		fail(t, "%s: a trap at %08x", when, pc);
	after = settle(t, pc);
	if (after != (t->ending == EXIT_AFTER))
		fail(t, "%s: a trap at %08x, which is %s", when, pc, after ? "after" : "before");
	expect(t, after, when);
}

/* Execute the first @index instructions only. False if the site is to be executed again. */
static bool interrupted(struct trial *t, unsigned int index, const char *when)
{
	u32 at = (u32)(fragment_code + index), pc;
	bool after;

	write_code(fragment_code + index, TRAP);
	pc = run(t);
	write_code(fragment_code + index, t->code.insn[index]);
	if (pc == NOWHERE)
		fail(t, "%s: instruction %u is not executed", when, index);
	after = settle(t, pc);
	/* Its own trap came first. */
	if (pc != at && t->ending == DONE)
		fail(t, "%s %u: a trap at %08x", when, index, pc);
	if (after && t->ending == EXIT_BEFORE)
		fail(t, "%s %u: after the site, which has no effect", when, index);
	expect(t, after, when);
	data_page(t)->words[BT_SAVE_OFFSET / 4] = random_word();
	if (t->load)
		data_page(t)->words[BT_SAVE2_OFFSET / 4] = random_word();
	return after;
}

static void interruptions(struct trial *t)
{
	unsigned int i;

	for (i = 0; i < t->code.n; i++) {
		load(t);
		if (interrupted(t, i, "interrupted") ||
		    interrupted(t, random_word() % t->code.n, "interrupted again"))
			continue;
		whole(t, "restarted");
	}
}

static void fill(void *words, unsigned int n)
{
	u32 *word = words;

	while (n--)
		*word++ = random_word();
}

static void random_machine(struct trial *t)
{
	fill(&t->before, sizeof(t->before) / 4);
	t->before.xer &= 0xe000007f; /* the bits that exist */
	fill(&t->page_before, PAGE / 4);
	t->page_before.shared.int_pending &= 1;
}

static void try(struct trial *t)
{
	t->after = t->before;
	t->page_after = t->page_before;
	t->ending = manual(&t->instruction, &t->after, &t->page_after.shared);
	load(t);
	whole(t, "executed");
	if (t->kind == BT_FRAGMENT)
		interruptions(t);
}

/* Each EE before and after, with and without a pending interrupt; each other bit of MSR. */
static void try_fragment(struct trial *t)
{
	unsigned int i;

	for (i = 0; i < 8; i++) {
		u32 ee = i & 1 ? 0x8000 : 0;

		random_machine(t);
		t->page_before.shared.int_pending = i >> 1 & 1;
		if (t->instruction.operation == MTMSR)
			t->before.gpr[t->instruction.reg] = t->page_before.shared.msr ^ ee;
		else
			t->before.gpr[t->instruction.reg] ^= ee;
		try(t);
	}
	if (t->instruction.operation != MTMSR)
		return;
	for (i = 0; i < 32; i++) {
		random_machine(t);
		t->before.gpr[t->instruction.reg] = t->page_before.shared.msr ^ 1U << i;
		t->after = t->before;
		t->page_after = t->page_before;
		t->ending = manual(&t->instruction, &t->after, &t->page_after.shared);
		load(t);
		whole(t, "executed");
	}
}

/* The host finds the value in the data page, and knows the fragment; and may emulate it there. */
static void try_handover(struct trial *t)
{
	random_machine(t);
	load(t);
	run(t);
	if (data_page(t)->words[BT_PID_OFFSET / 4] != t->before.gpr[t->instruction.reg])
		fail(t, "the data page has %08x", data_page(t)->words[BT_PID_OFFSET / 4]);
	if ((t->code.insn[0] ^ t->code.insn[1]) != kvmppc_bt_handover(t->data))
		fail(t, "the host does not know %08x %08x", t->code.insn[0], t->code.insn[1]);
	if (!settle(t, (u32)(fragment_code + 2)))
		fail(t, "before the site after the write");
}

static void try_single(struct trial *t)
{
	unsigned int i;

	for (i = 0; i < 4; i++) {
		random_machine(t);
		try(t);
	}
}

/* Set registers so that the load's address is in mapped memory. */
static u32 aim(struct trial *t)
{
	const struct instruction *load = &t->instruction;
	u32 *gpr = t->before.gpr, ea = LOADED + 4 * (random_word() % (PAGE / 4));

	if (!load->indexed && load->base)
		gpr[load->base] = ea - load->value;
	else if (load->indexed && !load->base)
		gpr[load->value] = ea;
	else if (load->indexed && load->base == load->value)
		gpr[load->base] = ea / 2;
	else if (load->indexed)
		gpr[load->base] = ea - gpr[load->value];
	ea = manual_address(load, &t->before);
	if (ea - LOADED >= PAGE && ea - LOADED_LOW >= PAGE)
		fail(t, "address %08x", ea);
	return ea;
}

/* Whether @hit, or the cache is for an address that differs in one bit. */
static void try_load(struct trial *t, bool hit)
{
	struct bt_cached *cache;
	u32 ea;

	random_machine(t);
	ea = aim(t);
	t->slot = random_word() % BT_CACHE_SLOTS;
	t->cached = hit ? ea : ea ^ 1U << random_word() % 32;
	cache = (void *)&t->page_before.words[BT_CACHE_OFFSET / 4];
	cache += t->slot;
	cache->none = 0;
	cache->delta = t->data + ((u8 *)&cache->value - (u8 *)&t->page_before) - t->cached;
	build(t);
	if (t->kind != BT_FRAGMENT)
		fail(t, "a load is no fragment");
	t->after = t->before;
	t->page_after = t->page_before;
	t->ending = DONE;
	manual_load(&t->instruction, &t->after, hit ? (u8 *)&cache->value : (u8 *)ea);
	load(t);
	whole(t, hit ? "cached" : "not cached");
	interruptions(t);
}

static void *map(u32 address, int protection)
{
	void *mapped = mmap((void *)address, PAGE, protection,
			    MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);

	if (mapped != (void *)address) {
		perror("execute: mmap");
		exit(1);
	}
	return mapped;
}

static void catch_signals(void)
{
	static const int numbers[] = { SIGTRAP, SIGILL, SIGSEGV, SIGBUS };
	struct sigaction action = { .sa_sigaction = stopped, .sa_flags = SA_SIGINFO | SA_ONSTACK };
	stack_t stack = { .ss_size = 65536 };
	unsigned int i;

	stack.ss_sp = malloc(stack.ss_size);
	if (!stack.ss_sp || sigaltstack(&stack, NULL)) {
		perror("execute: sigaltstack");
		exit(1);
	}
	for (i = 0; i < ARRAY_SIZE(numbers); i++)
		sigaction(numbers[i], &action, NULL);
}

static enum operation operation_of(const char *name)
{
	static const char *const names[] = {
		[MFSPR] = "mfspr", [MTSPR] = "mtspr", [MFMSR] = "mfmsr",
		[MTMSR] = "mtmsr", [WRTEE] = "wrtee", [WRTEEI] = "wrteei",
		[LWZ] = "lwz", [LBZ] = "lbz", [LHZ] = "lhz", [LHA] = "lha",
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(names); i++)
		if (!strcmp(names[i], name))
			return i;
	fprintf(stderr, "execute: no such operation: %s\n", name);
	exit(1);
}

static const u32 pages[] = { 0x00001000, 0x00007000, 0xffff8000, 0xffffe000 };

static unsigned int try_loads(FILE *file)
{
	static struct trial t = { .load = true };
	char operation[16], other[16], *end;
	unsigned int i, count = 0;

	while (fscanf(file, "%x %15s %u %u %15s", &t.instruction.word, operation,
		      &t.instruction.reg, &t.instruction.base, other) == 5) {
		t.instruction.operation = operation_of(operation);
		t.instruction.indexed = other[0] == 'r';
		t.instruction.value = strtol(other + t.instruction.indexed, &end, 10);
		if (*end)
			return 0;
		for (i = 0; i < 4; i++) {
			t.data = pages[random_word() % ARRAY_SIZE(pages)];
			try_load(&t, i & 1);
		}
		count++;
	}
	return feof(file) ? count : 0;
}

int main(int argc, char **argv)
{
	static struct trial t;
	unsigned int i, count = 0, loads;
	char operation[16];
	FILE *file, *load_file;

	file = argc == 4 ? fopen(argv[1], "r") : NULL;
	load_file = file ? fopen(argv[2], "r") : NULL;
	if (!load_file) {
		fprintf(stderr, "usage: execute INSTRUCTIONS LOADS SEED\n");
		return 1;
	}
	random_state = strtoull(argv[3], NULL, 0) * 2 + 1; /* anything but 0 */
	for (i = 0; i < ARRAY_SIZE(pages); i++)
		map(pages[i], PROT_READ | PROT_WRITE);
	map(MACHINE, PROT_READ | PROT_WRITE);
	map(SITE, PROT_READ | PROT_WRITE | PROT_EXEC);
	map(AREA, PROT_READ | PROT_WRITE | PROT_EXEC);
	fill(map(LOADED, PROT_READ | PROT_WRITE), PAGE / 4);
	fill(map(LOADED_LOW, PROT_READ | PROT_WRITE), PAGE / 4);
	catch_signals();
	while (fscanf(file, "%x %15s %u %u", &t.instruction.word, operation, &t.instruction.reg,
		      &t.instruction.value) == 4) {
		t.instruction.operation = operation_of(operation);
		for (i = 0; i < ARRAY_SIZE(pages); i++) {
			t.data = pages[i];
			build(&t);
			if (t.kind == BT_SINGLE)
				try_single(&t);
			else
				try_fragment(&t);
			if (writes_pid(&t))
				try_handover(&t);
		}
		count++;
	}
	if (!feof(file) || !count) {
		fprintf(stderr, "execute: %s: line %u is none\n", argv[1], count + 1);
		return 1;
	}
	loads = try_loads(load_file);
	if (!loads) {
		fprintf(stderr, "execute: %s is no list of loads\n", argv[2]);
		return 1;
	}
	printf("%u instructions and %u loads as the manual has them, in %lu runs\n", count, loads,
	       runs);
	return 0;
}
