// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Mappings of one address that follow each other, in TLB0: the host must not use what it
 * has kept of an earlier one, neither of this process nor of another.
 *
 * Invariant: its output is always the same. Each page has a word that says which one it
 * is. All mappings are of one address, so that nothing but what the guest changes tells
 * them apart.
 */
#include "board.h"

#define PAGE		4096
#define PAGES		16
#define WINDOW		0x01900000
/* Code for user mode, in a page that has its number at the start. */
#define USER		0x01a00000
#define USER_ENTRY	12
#define USER_CODE	8
#define SYSTEM_CALL	0x44000002
#define MSR_PR		0x4000
#define MAP_USER_EXECUTE	0x20

#define SPR_PID		48
#define SPR_MMUCSR0	1012
#define TLB0FI		4
#define PIDS		256
/* TLB0 has four ways; the other processes' entries are of TLB1. */
#define PROCESSES	12
#define WAYS		4
/* Of how many PIDs the host knows the shadow PIDs. */
#define KNOWN		16
#define FIRST_ENTRY	2
/* After so many others the processes' mappings are used again: not a divisor of PIDS. */
#define OTHERS		37

/* Reads of pages in the same set of a TLB as the window, so that its entry is replaced. */
#define SET_BYTES	0x80000
#define RAM_END		0x01000000

static u8 pages[PAGES][PAGE] __attribute__((section(".arena"), aligned(PAGE)));

static void *recovery[5];
static volatile u32 expected;

/* The only interrupt that is expected is a miss, of an address that is no longer mapped. */
void trap(void)
{
	if (!expected) {
		print("remap: unexpected interrupt\n");
		reset();
	}
	expected = 0;
	__builtin_longjmp(recovery, 1);
}

static void map_small(u32 entry, u32 pid, u32 page)
{
	mtspr(SPR_MAS0, entry);
	mtspr(SPR_MAS1, MAS1_VALID | pid << 16 | TSIZE_4K << 8);
	mtspr(SPR_MAS2, WINDOW);
	mtspr(SPR_MAS3, (u32)pages[page] | MAP_READ | MAP_WRITE);
	mtspr(SPR_MAS7, 0);
	asm volatile("isync; tlbwe; isync; sync" : : : "memory");
}

static u32 window(void)
{
	return *(volatile u32 *)WINDOW;
}

static void read_window(void)
{
	window();
}

/* Whether a function ends in an interrupt. */
static u32 interrupted(void (*called)(void))
{
	/* No inlining: the interrupt must come after what a return from it needs. */
	void (*volatile function)(void) = called;

	if (__builtin_setjmp(recovery))
		return 1;
	expected = 1;
	function();
	expected = 0;
	return 0;
}

/* Often enough to be translated. */
static __attribute__((noinline)) void set_pid(u32 pid)
{
	mtspr(SPR_PID, pid);
	asm volatile("isync" : : : "memory");
}

static void expect(const char *what, u32 good)
{
	print("remap: ");
	print(what);
	print(good ? ": right\n" : ": WRONG\n");
}

static void enter_user(void)
{
	mtspr(26, USER + USER_CODE);
	mtspr(27, MSR_PR);
	asm volatile("rfi" : : : "memory");
}

/*
 * User mode, and back by a system call. Of a guest that was never there the host does not know
 * what its MSR is in that mode, and makes no exit short but misses.
 */
static void visit_user(void)
{
	*(volatile u32 *)(pages[0] + USER_CODE) = SYSTEM_CALL;
	synchronize((u32)pages[0] + USER_CODE, 1);
	map(USER_ENTRY, USER, (u32)pages[0], TSIZE_4K, MAP_READ | MAP_EXECUTE | MAP_USER_EXECUTE, 1);
	expect("in user mode", interrupted(enter_user));
}

static void crowd(void)
{
	u32 at;

	for (at = WINDOW % SET_BYTES; at < RAM_END; at += SET_BYTES)
		(void)*(volatile u32 *)at;
}

static void one_process(void)
{
	u32 page, good = 1;

	for (page = 0; page < PAGES; page++) {
		map_small(0, 0, page);
		good &= window() == page;
		crowd();
		good &= window() == page;
	}
	expect("written over", good);
	for (page = 0, good = 1; page < PAGES; page++) {
		map_small(0, 0, page);
		good &= window() == page;
		crowd();
		asm volatile("tlbivax 0, %0; sync; isync" : : "r" (WINDOW) : "memory");
		good &= interrupted(read_window);
	}
	expect("invalidated", good);
}

/* The next of the others; if they are @distinct, one that the host knows beside the processes. */
static u32 next(u32 other, u32 processes, u32 distinct)
{
	do {
		if (++other == PIDS)
			other = processes + 1;
	} while (distinct && other % KNOWN - 1 < processes);
	return other;
}

/*
 * Each process keeps its mapping, while so many others come and go that the host, which
 * has 255 shadow PIDs, gives theirs to others. It knows those of the last PIDs by their last
 * bits: of some processes they are the same as those of others, of few @distinct they are not.
 */
static void in_turn(const char *what, u32 processes, u32 distinct, u32 rounds)
{
	u32 round, pid, other = processes, good = 1;

	for (pid = 1; pid <= processes; pid++)
		map_small(pid <= WAYS ? (pid - 1) << 16 : MAS0_TLB1 | (FIRST_ENTRY + pid - 1 - WAYS) << 16, pid, pid);
	for (round = 0; round < rounds; round++) {
		for (pid = 0; pid < OTHERS; pid++) {
			other = next(other, processes, distinct);
			set_pid(other);
		}
		for (pid = 1; pid <= processes; pid++) {
			set_pid(pid);
			good &= window() == pid;
		}
	}
	set_pid(0);
	expect(what, good);
}

static void flushed(u32 rounds)
{
	u32 round, i, pid, good = 1;

	for (round = 0; round < rounds; round++) {
		for (pid = 1; pid <= 2; pid++)
			map_small((pid - 1) << 16, pid, (round + pid) % PAGES);
		for (i = 0; i < 4; i++) {
			pid = 1 + i % 2;
			set_pid(pid);
			good &= window() == (round + pid) % PAGES;
		}
		mtspr(SPR_MMUCSR0, TLB0FI);
		asm volatile("isync" : : : "memory");
	}
	set_pid(0);
	expect("flushed", good);
}

/*
 * Writes of PID that look like those that the host has made, but for what is before them, and
 * that exit because they are new.
 */
asm(
"	.pushsection .text\n"
"	.balign	64\n"
"lookalikes:\n"
"	.rept	16\n"
"	.balign	64\n"
"	nop\n"
"	mtspr	48, 3\n"
"	isync\n"
"	blr\n"
"	.endr\n"
"	.popsection\n");

#define LOOKALIKES	16
#define LOOKALIKE_BYTES	64
#define lookalikes	({ u32 at_; asm("lis %0, lookalikes@ha; la %0, lookalikes@l(%0)" : "=b" (at_)); at_; })
/* Less than the host's default threshold. */
#define LOOKALIKE_TIMES	3

static void not_handed_over(void)
{
	u32 i, time, good = 1;

	map_small(0 << 16, 1, 1);
	map_small(1 << 16, 2, 2);
	for (i = 0; i < LOOKALIKES; i++) {
		void (*write_pid)(u32 pid) = (void (*)(u32 pid))(lookalikes + i * LOOKALIKE_BYTES);

		for (time = 0; time < LOOKALIKE_TIMES; time++) {
			set_pid(1);
			good &= window() == 1;
			write_pid(2);
			good &= window() == 2;
		}
	}
	set_pid(0);
	expect("not handed over", good);
}

void main(const void *tree)
{
	u32 page;

	map_devices();
	enable_translation(DATA_PAGE, (u32)execute_pages, EXECUTE_PAGES);
	for (page = 0; page < PAGES; page++)
		*(volatile u32 *)pages[page] = page;
	visit_user();
	one_process();
	flushed(argument(tree, "rounds", 400));
	not_handed_over();
	in_turn("of several processes", PROCESSES, 0, argument(tree, "rounds", 400));
	in_turn("of few processes", WAYS, 1, argument(tree, "rounds", 400));
	print("done\n");
	reset();
}
