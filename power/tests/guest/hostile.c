// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A guest that attacks its host's translator: forged registrations, garbage in the
 * registered pages, pages that are unmapped under translated code, jumps into fragments,
 * code of its own where fragments are.
 *
 * Invariant: after each attack it either continues or gets an interrupt of its own, and
 * once translation is set up correctly again, or is off, its code runs correctly. Its
 * output depends neither on time nor on whether the host translates, except for the
 * host's answers, in lines that begin with "answer: ".
 */
#include "board.h"
#include "encode.h"
#include "random.h"

#define PAGE		4096
#define MEMORY_END	0x40000000	/* beyond any guest's memory */
/* An alias of the execute pages, which can be unmapped. */
#define WINDOW		0x01800000
#define WINDOW_ENTRY	2
#define WINDOW_PAGES	16
#define HOT		8
#define JUMPS		512
#define TRAP_ALWAYS	0x7fe00008
#define SYSTEM_CALL	0x44000002

#define SPR_PID		48
#define SPR_IVOR10	410
#define WATCHDOG_TICKS	2000000

/* The host's slots, of which the probe takes the first ones. */
#define SLOT_WORDS	16
#define SLOT_BYTES	(SLOT_WORDS * 4)
#define SLOTS		4
#define WORDS		7
#define SPR_PVR		287

static u8 other_pages[WINDOW_PAGES * PAGE] __attribute__((section(".arena"), aligned(0x10000)));
static u8 code_pages[2 * PAGE] __attribute__((section(".arena"), aligned(0x10000)));

static void *recovery[5];
static volatile u32 traps;

static void field(const char *name, u32 value)
{
	print(name);
	print_number(value);
}

static void tell_answer(const char *what, u32 value)
{
	print("answer: ");
	print(what);
	field(" ", value);
	print("\n");
}

static void say(const char *what, u32 good)
{
	print("hostile: ");
	print(what);
	print(good ? ": right\n" : ": WRONG\n");
}

static void watchdog(int on)
{
	mtspr(SPR_DEC, on ? WATCHDOG_TICKS : 0x7fffffff);
	mtspr(SPR_TSR, TSR_DIS);
	mtspr(SPR_TCR, on ? TCR_DIE : 0);
}

/* After any interrupt: back to the caller of the guarded code, with a known machine state. */
void trap(void)
{
	u32 scratch;

	traps++;
	/* With nothing that is ever replaced by a branch: the fragments may be overwritten. */
	asm volatile("bl 1f; 1: mflr %0; addi %0, %0, 2f - 1b; mtspr 26, %0; li %0, 0; mtspr 27, %0; rfi; 2:"
		     : "=b" (scratch) : : "lr", "memory");
	watchdog(0);
	__builtin_longjmp(recovery, 1);
}

/* Call it; false if it ended in an interrupt. */
static int survives(void (*function)(void))
{
	/* An interrupt may come anywhere, so no value may stay in a register. */
	if (__builtin_setjmp(recovery))
		return 0;
	watchdog(1);
	function();
	watchdog(0);
	return 1;
}

/* In probe.S. Called as a function it returns what probe_is_right() expects. */
extern const u32 probe_code[], probe_end[];
#define PROBE_WORDS	((u32)(probe_end - probe_code))

static u32 call_probe(u32 argument)
{
	register u32 r3 asm("r3") = argument;

	asm volatile("mtctr %1; bctrl" : "+r" (r3) : "r" (code_pages) :
		     "r0", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12", "lr", "ctr",
		     "cc", "memory");
	return r3;
}

static void write_probe(void)
{
	u32 i;

	for (i = 0; i < PROBE_WORDS; i++)
		((volatile u32 *)code_pages)[i] = probe_code[i];
	synchronize((u32)code_pages, PROBE_WORDS);
}

static u32 msr(void)
{
	u32 value;

	asm volatile("mfmsr %0" : "=r" (value));
	return value;
}

/* Run it until it is translated; it must then work, and read as it was written. */
static int probe_is_right(void)
{
	u32 i, now = msr(), good = 1;

	for (i = 0; i < 2 * HOT; i++) {
		u32 expected = 2 * i + 1 + 3 * (now & ~MSR_EE) + 2 * (now | MSR_EE);

		good &= call_probe(i) == expected;
	}
	for (i = 0; i < PROBE_WORDS; i++)
		good &= ((volatile u32 *)code_pages)[i] == probe_code[i];
	return good;
}

static void probe_only(void)
{
	u32 i;

	for (i = 0; i < HOT; i++)
		call_probe(i);
}

/* lwz, lbz, lhz, lha, ori, oris, xori, xoris, mulli, cmpli, cmpi, addic, addi, addis, rlwinm, twi */
static const u32 harmless[16] = { 32, 34, 40, 42, 24, 25, 26, 27, 7, 10, 11, 12, 14, 15, 21, 3 };

static void clear(u32 address, u32 words)
{
	u32 i;

	for (i = 0; i < words; i++)
		word_at(address + 4 * i) = 0;
	synchronize(address, words);
}

static void fill(u32 address, u32 words, u32 seed)
{
	struct random r = random_seeded(seed, 0);
	u32 i;

	for (i = 0; i < words; i++) {
		u32 word = random_word(&r);

		switch (seed) {
		case 0:		/* not zeros: KVM ends a guest that executes one */
			word = TRAP_ALWAYS;
			break;
		case 1:		/* branches into the middle of other slots */
			word = word & 64 ? TRAP_ALWAYS : B(4 + 4 * (word & 15));
			break;
		case 2:		/* privileged instructions */
			word = word & 64 ? MFMSR(word & 31) : WRTEE(word & 31);
			break;
		case 3:
			word = word & 64 ? RFI : SYSTEM_CALL;
			break;
		default:	/* all kinds, except stores, endless loops and invalid words */
			word = harmless[word >> 26 & 15] << 26 | (word & 0x03ffffff);
			if (word >> 26 == 10 || word >> 26 == 11)
				word &= ~0x00600000u;
			if (i % 64 == 63)
				word = TRAP_ALWAYS;
		}
		word_at(address + 4 * i) = word;
	}
	synchronize(address, words);
}

static u32 enable(u32 ea, u32 pages)
{
	return enable_translation(DATA_PAGE, ea, pages);
}

static void forge(const char *what, u32 data, u32 ea, u32 pages)
{
	tell_answer(what, enable_translation(data, ea, pages));
}

static void forged_registrations(void)
{
	u32 at = (u32)execute_pages;

	forge("no page", DATA_PAGE, at, 0);
	forge("too many pages", DATA_PAGE, at, 65);
	forge("all pages", DATA_PAGE, at, 0xffffffff);
	forge("so many pages that their bytes wrap", DATA_PAGE, at, 0x00100001);
	forge("unaligned execute pages", DATA_PAGE, at + 4, 1);
	forge("unaligned data page", DATA_PAGE + 4, at, 1);
	forge("data page out of a displacement's reach", 0x12340000, at, 1);
	forge("execute pages that nothing maps", DATA_PAGE, MEMORY_END, 1);
	forge("execute pages up to the address space's end", DATA_PAGE, 0xfffff000, 1);
	forge("execute pages over the address space's end", DATA_PAGE, 0xfffff000, 2);
	forge("a device for execute pages", DATA_PAGE, 0xe0004000, 1);
	forge("execute pages that end where nothing is", DATA_PAGE, WINDOW + 15 * PAGE, 2);
	/* Memory that the guest's own TLB maps, but the guest does not have. */
	map(3, WINDOW + 0x100000, 0x3ff00000, TSIZE_64K, MAP_READ | MAP_WRITE | MAP_EXECUTE, 1);
	forge("memory that is not there", DATA_PAGE, WINDOW + 0x100000, 1);
	map(3, WINDOW + 0x100000, (u32)other_pages, TSIZE_64K, MAP_READ | MAP_WRITE, 1);
	forge("memory that is not executable", DATA_PAGE, WINDOW + 0x100000, 1);
	map(3, WINDOW + 0x100000, 0, TSIZE_64K, 0, 0);
	say("after what was refused", probe_is_right());
}

static void overlapping_registrations(void)
{
	/* Registering pages again starts anew, as after a guest's reset. */
	forge("four pages", DATA_PAGE, WINDOW, 4);
	forge("the same again", DATA_PAGE, WINDOW, 4);
	forge("an overlap", DATA_PAGE, WINDOW + 3 * PAGE, 2);
	forge("another data page", 0, WINDOW + 6 * PAGE, 1);
	say("with one area", probe_is_right());
	forge("the probe's own page", DATA_PAGE, (u32)code_pages, 1);
	forge("a second area", DATA_PAGE, WINDOW + 5 * PAGE, 1);
	forge("a third area", DATA_PAGE, WINDOW + 6 * PAGE, 2);
	forge("a fourth area", DATA_PAGE, WINDOW + 8 * PAGE, 1);
	forge("a fifth area", DATA_PAGE, WINDOW + 10 * PAGE, 1);
	say("with four areas", probe_is_right());
	forge("an alias of them", DATA_PAGE, (u32)execute_pages + 3 * PAGE, 1);
	say("with the alias", probe_is_right());
	tell_answer("disable", disable_translation());
	say("disabled", probe_is_right());
	tell_answer("disable again", disable_translation());
	say("disabled again", probe_is_right());
	/* Only registered, not used: this guest has memory of its own there. */
	forge("data page at 0", 0, WINDOW, 1);
	disable_translation();
	forge("data page at 0 again", 0, WINDOW, 1);
	disable_translation();
	say("after that", probe_is_right());
}

static void write_data_page(void)
{
	u32 i;

	for (i = 0; i < PAGE; i += 4)
		word_at(DATA_PAGE + i) = 0xffffffff;
	probe_only();
}

static void jump_into_fragments(void)
{
	static u32 at = WINDOW;

	/* Jump to each word of the first slots; the link register leads back. */
	while (at < WINDOW + JUMPS * 4) {
		u32 to = at;

		at += 4;
		/* KVM ends a guest that executes a zero word. */
		if (!word_at(to))
			continue;
		/* Zeros: a fragment's middle may take any register for the new MSR. */
		asm volatile("mtctr %0; li 0, 0; li 3, 0; li 4, 0; li 5, 0; li 6, 0; li 7, 0; li 8, 0;"
			     "li 9, 0; li 10, 0; li 11, 0; li 12, 0; bctrl" : : "r" (to) :
			     "r0", "r3", "r4", "r5", "r6", "r7", "r8", "r9", "r10", "r11", "r12", "lr",
			     "ctr", "cc", "memory");
	}
}

/* Translate the probe, fill the execute pages, run the probe; then all must be right again. */
static void spoil(const char *what, u32 seed)
{
	enable(WINDOW, WINDOW_PAGES);
	say(what, probe_is_right());
	fill((u32)execute_pages, WINDOW_PAGES * PAGE / 4, seed);
	survives(probe_only);
	disable_translation();
	clear((u32)execute_pages, WINDOW_PAGES * PAGE / 4);
	write_probe();
	say("and when it is over", probe_is_right());
}

/* Fill the pages with code that exits everywhere, and ends with a trap in the last word of a slot. */
static void write_own_code(u32 to, u32 exits)
{
	u32 i;

	for (i = 0; i < WINDOW_PAGES * PAGE / 4; i++)
		word_at(to + 4 * i) = (i + 1) % SLOT_WORDS ? exits : TRAP_ALWAYS;
	synchronize(to, i);
}

/* No value that would make the guest sleep if it got into MSR. */
static u32 pattern(u32 number)
{
	return (number + 1) << 20;
}

/* Run code that may change r3; false unless it ends at @end, with the registers that it had. */
static int runs_own_code(u32 at, u32 end, u32 msr_bits)
{
	u32 i, good;

	/* Code that returns has been left for the probe. */
	word_at(code_pages + PAGE) = TRAP_ALWAYS;
	synchronize((u32)code_pages + PAGE, 1);
	for (i = 0; i < 32; i++)
		context->gpr[i] = pattern(i);
	context->lr = (u32)code_pages + PAGE;
	/* The watchdog ends what does not come to an end. */
	context->msr = msr_bits | MSR_EE;
	context->pc = at;
	survives(enter);
	good = trapped->pc == end;
	for (i = 0; i < 32; i++)
		good &= i == 3 || trapped->gpr[i] == pattern(i);
	/* If the host has not noticed, sites still lead to that code. */
	if (!good)
		disable_translation();
	return good;
}

/*
 * Code of the guest's own at the addresses of fragments, with none of which it has to do:
 * where fragments were (as a kernel does that starts another one and does not tell the
 * host), in other pages, and in the other address space. In each case translation is on.
 */
static void own_code(void)
{
	static const u32 words[WORDS] = { 0, 1, 2, 3, 5, 8, SLOT_WORDS - 2 };
	const u32 exits = MFSPR(3, SPR_PVR), all = MAP_READ | MAP_WRITE | MAP_EXECUTE;
	u32 slot, i, written = 1, mapped = 1, space = 1, waits = 1, good = 1;

	write_own_code((u32)other_pages, exits);
	for (slot = 0; slot < SLOTS; slot++) {
		for (i = 0; i < WORDS; i++) {
			u32 begin = WINDOW + slot * SLOT_BYTES, at = begin + 4 * words[i];
			u32 end = begin + SLOT_BYTES - 4;

			enable(WINDOW, WINDOW_PAGES);
			good &= probe_is_right();
			write_own_code((u32)execute_pages, exits);
			written &= runs_own_code(at, end, 0);
			good &= probe_is_right();

			disable_translation();
			clear((u32)execute_pages, WINDOW_PAGES * PAGE / 4);
			enable(WINDOW, WINDOW_PAGES);
			good &= probe_is_right();
			map(WINDOW_ENTRY, WINDOW, (u32)other_pages, TSIZE_64K, all, 1);
			mapped &= runs_own_code(at, end, 0);
			map(WINDOW_ENTRY, WINDOW, (u32)execute_pages, TSIZE_64K, all, 1);
			good &= probe_is_right();

			enable(WINDOW, WINDOW_PAGES);
			good &= probe_is_right();
			map(3, WINDOW, (u32)other_pages, TSIZE_64K, all, MAP_IN_1);
			space &= runs_own_code(at, end, MSR_IS);
			map(3, WINDOW, 0, TSIZE_64K, 0, 0);
			good &= probe_is_right();
			disable_translation();
			clear((u32)execute_pages, WINDOW_PAGES * PAGE / 4);
		}
		/* Exits that are no fault of the code's: it waits for an interrupt. */
		enable(WINDOW, WINDOW_PAGES);
		good &= probe_is_right();
		write_own_code((u32)execute_pages, B(0));
		i = WINDOW + slot * SLOT_BYTES + 8;
		waits &= runs_own_code(i, i, 0);
		good &= probe_is_right();
		disable_translation();
		clear((u32)execute_pages, WINDOW_PAGES * PAGE / 4);
	}
	say("its own code, written over fragments", written);
	say("its own code, waiting there", waits);
	say("its own code, in other pages", mapped);
	say("its own code, in the other address space", space);
	say("and the probe", good);
}

/* A PID has eight bits. Nothing is mapped for a single one, so none may fault. */
static void long_pids(void)
{
	static const u32 pids[] = { 0x100, 0x101, 0x1ff, 0x80000000, 0xffffffff };
	u32 i;

	for (i = 0; i < sizeof(pids) / sizeof(*pids); i++) {
		mtspr(SPR_PID, pids[i]);
		asm volatile("isync" : : : "memory");
	}
	mtspr(SPR_PID, 0);
	asm volatile("isync" : : : "memory");
}

void main(const void *tree)
{
	u32 i, seeds = argument(tree, "seeds", 24), last = argument(tree, "last", 1);

	map_devices();
	/* Here the decrementer's interrupt is a watchdog, handled like any other. */
	mtspr(SPR_IVOR10, VECTORS + 11 * VECTOR_BYTES);
	map(WINDOW_ENTRY, WINDOW, (u32)execute_pages, TSIZE_64K, MAP_READ | MAP_WRITE | MAP_EXECUTE, 1);
	write_probe();
	say("before anything", probe_is_right());
	say("long PIDs", survives(long_pids) && probe_is_right());
	forged_registrations();
	overlapping_registrations();

	for (i = 0; i < seeds; i++)
		spoil("spoiled fragments", i);

	/* Unmap the pages, map them elsewhere, map them again. */
	enable(WINDOW, WINDOW_PAGES);
	say("mapped", probe_is_right());
	map(WINDOW_ENTRY, WINDOW, 0, TSIZE_64K, 0, 0);
	say("not mapped", probe_is_right());
	map(WINDOW_ENTRY, WINDOW, (u32)other_pages, TSIZE_64K, MAP_READ | MAP_WRITE | MAP_EXECUTE, 1);
	say("mapped elsewhere", probe_is_right());
	map(WINDOW_ENTRY, WINDOW, (u32)execute_pages, TSIZE_64K, MAP_READ | MAP_WRITE | MAP_EXECUTE, 1);
	say("mapped again", probe_is_right());
	tell_answer("registered again", enable(WINDOW, WINDOW_PAGES));
	say("translated again", probe_is_right());
	map(WINDOW_ENTRY, WINDOW, (u32)execute_pages, TSIZE_64K, MAP_READ | MAP_WRITE, 1);
	say("not executable", probe_is_right());
	map(WINDOW_ENTRY, WINDOW, (u32)execute_pages, TSIZE_64K, MAP_READ | MAP_WRITE | MAP_EXECUTE, 1);

	enable(WINDOW, WINDOW_PAGES);
	say("before the jumps", probe_is_right());
	for (i = 0; i < JUMPS; i++)
		survives(jump_into_fragments);
	disable_translation();
	write_probe();
	say("after the jumps", probe_is_right());

	own_code();

	if (last) {
		/* Last: nothing has to work after it. */
		enable(WINDOW, WINDOW_PAGES);
		probe_only();
		print("done\n");
		survives(write_data_page);
	}
	print("done\n");
	reset();
}
