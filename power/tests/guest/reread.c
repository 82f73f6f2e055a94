// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * Loads for which a host may keep a copy of the data, after each event that makes such a
 * copy wrong: the data are written, through this address or another one; the address is
 * mapped elsewhere; the load is in the other address space. And loads of code at once
 * after the host has replaced some of it.
 *
 * Invariant: its output is always the same. Each event has a load of its own, all in one
 * block of 64 KiB with translated code, and that load has read the data HOT times before.
 */
#include "board.h"
#include "encode.h"

#define PAGE		4096
#define BLOCK		0x10000
#define HOT		12
#define LOAD_BYTES	64

/* Where the block, or only its page with data, is mapped a second time. */
#define WINDOW		0x01800000
#define ALIAS		0x01810000
#define WINDOW_ENTRY	2
#define ALIAS_ENTRY	3
#define SPACE_ENTRY	4
#define SPACE_WINDOW_ENTRY	5

#define READ_WRITE	(MAP_READ | MAP_WRITE)
#define MAS1_TS		0x1000
#define MSR_IS_DS	0x30
#define TSIZE_16M	7

static u8 block[BLOCK] __attribute__((section(".arena"), aligned(BLOCK)));
static u8 other[BLOCK] __attribute__((section(".arena"), aligned(BLOCK)));

/* Offsets of pages in the block: sites, loads, and data without code. */
#define SITES		((u32)block)
#define LOADS		((u32)block + PAGE)
#define DATA		(4 * PAGE)
#define DATA_ALONE	(5 * PAGE)
#define FRESH		(8 * PAGE)
#define FRESH_PAGES	4

static u32 loads;

/* No interrupt is expected. */
void trap(void)
{
	print("reread: unexpected interrupt\n");
	reset();
}

static void put_code(u32 address, const u32 *words, u32 n)
{
	u32 i;

	for (i = 0; i < n; i++)
		word_at(address + 4 * i) = words[i];
	synchronize(address, n);
}

/* Run privileged instructions in a page until they are translated. */
static void trace_page(u32 page)
{
	const u32 words[] = { MTSPR(272, 3), MFSPR(3, 272), 0x4e800020 /* blr */ };
	u32 i;

	put_code(page, words, 3);
	for (i = 0; i < HOT; i++)
		((u32 (*)(u32))page)(i);
}

/* Write a new load. */
static u32 new_load(void)
{
	const u32 words[] = { LWZ(3, 3, 0), 0x4e800020 /* blr */ };
	u32 address = LOADS + LOAD_BYTES * ++loads;

	put_code(address, words, 2);
	return address;
}

static u32 read(u32 load, u32 address)
{
	return ((u32 (*)(u32))load)(address);
}

static u32 hot(u32 address)
{
	u32 load = new_load(), i;

	for (i = 0; i < HOT; i++)
		read(load, address);
	return load;
}

/* The same, with a store elsewhere before each load. */
static u32 hot_after(u32 address, u32 written)
{
	u32 load = new_load(), i;

	for (i = 0; i < HOT; i++) {
		word_at(written) = i;
		read(load, address);
	}
	return load;
}

static void expect(const char *what, u32 load, u32 address, u32 value)
{
	u32 got = read(load, address), again = read(load, address);

	print("reread: ");
	print(what);
	print(got == value && again == value ? ": right " : ": WRONG ");
	print_hex(got);
	print(" ");
	print_hex(again);
	print("\n");
}

static void window(u32 pa, int valid)
{
	map(WINDOW_ENTRY, WINDOW, pa, TSIZE_64K, READ_WRITE, valid);
}

static void written(void)
{
	u32 at = (u32)block + DATA, load = hot(at), i;

	for (i = 0; i < 4; i++) {
		word_at(at) = 0x11110000 + i;
		expect("a word", load, at, 0x11110000 + i);
	}
	load = hot(at);
	*(volatile u8 *)(at + 3) = 0x77;
	expect("a byte", load, at, 0x11110077);
	load = hot(at);
	word_at(at - 2) = 0xaaaabbbb;
	expect("a word that is half of it", load, at, 0xbbbb0077);
	load = hot(at);
	asm volatile("dcbz 0, %0" : : "r" (at + 16) : "memory");
	expect("its line", load, at, 0);
}

/* The second mapping of the data's page is small, and there is no code in it. */
static void written_by_another_address(void)
{
	u32 at = (u32)block + DATA_ALONE, load;

	map(ALIAS_ENTRY, ALIAS, at, TSIZE_4K, READ_WRITE, 1);
	word_at(at) = 0x22220000;
	load = hot_after(at, ALIAS + 64);
	word_at(ALIAS) = 0x22220001;
	expect("an alias from before", load, at, 0x22220001);
	map(ALIAS_ENTRY, ALIAS, at, TSIZE_4K, READ_WRITE, 0);
	load = hot(at);
	map(ALIAS_ENTRY, ALIAS, at, TSIZE_4K, READ_WRITE, 1);
	hot(at);
	word_at(ALIAS) = 0x22220002;
	expect("an alias from afterwards", load, at, 0x22220002);
	map(ALIAS_ENTRY, ALIAS, at, TSIZE_4K, READ_WRITE, 0);
}

static void mapped_elsewhere(void)
{
	u32 at = WINDOW + DATA, load;

	window((u32)block, 1);
	word_at((u32)block + DATA) = 0x33330000;
	word_at((u32)other + DATA) = 0x33330001;
	load = hot(at);
	expect("mapped", load, at, 0x33330000);
	window((u32)other, 1);
	expect("mapped elsewhere", load, at, 0x33330001);
	window((u32)block, 1);
	expect("mapped back", load, at, 0x33330000);
}

/*
 * Read data of the other address space, with code in that space, too: KVM does not run a
 * guest with only one of MSR[IS] and MSR[DS] set.
 */
static u32 read_in_other_space(u32 load, u32 address)
{
	register u32 r3 asm("r3") = address;
	u32 msr, there, pc;

	asm volatile("mfmsr %0" : "=r" (msr));
	there = msr | MSR_IS_DS;
	asm volatile("mtctr %4; lis %1, 1f@h; ori %1, %1, 1f@l; mtspr 26, %1; mtspr 27, %2; rfi\n"
		     "1:	bctrl\n"
		     "	lis %1, 2f@h; ori %1, %1, 2f@l; mtspr 26, %1; mtspr 27, %3; rfi\n"
		     "2:"
		     : "+r" (r3), "=&r" (pc) : "r" (there), "r" (msr), "r" (load)
		     : "memory", "lr", "ctr");
	return r3;
}

static void map_space(u32 entry, u32 ea, u32 pa, u32 tsize, int valid)
{
	mtspr(624, 0x10000000 | entry << 16);
	mtspr(625, (valid ? 0x80000000 : 0) | MAS1_TS | tsize << 8);
	mtspr(626, ea);
	mtspr(627, pa | READ_WRITE | MAP_EXECUTE);
	mtspr(944, 0);
	asm volatile("isync; tlbwe; isync; sync" : : : "memory");
}

static void other_space(void)
{
	u32 at = WINDOW + DATA, load, got;

	window((u32)block, 1);
	map_space(SPACE_ENTRY, 0, 0, TSIZE_16M, 1);
	map_space(SPACE_WINDOW_ENTRY, WINDOW, (u32)other, TSIZE_64K, 1);
	word_at((u32)block + DATA) = 0x44440000;
	word_at((u32)other + DATA) = 0x44440001;
	load = hot(at);
	got = read_in_other_space(load, at);
	print("reread: in the other space");
	print(got == 0x44440001 ? ": right " : ": WRONG ");
	print_hex(got);
	print("\n");
	expect("back from there", load, at, 0x44440000);
	map_space(SPACE_ENTRY, 0, 0, TSIZE_16M, 0);
	map_space(SPACE_WINDOW_ENTRY, WINDOW, (u32)other, TSIZE_64K, 0);
	window((u32)block, 0);
}

/* The load is replaced by another one; a load of a site reads what was written there. */
static void code(void)
{
	const u32 words[] = { LWZ(3, 3, 4) };
	u32 at = (u32)block + DATA, load;

	word_at(at) = 0x55550000;
	word_at(at + 4) = 0x55550001;
	load = hot(at);
	put_code(load, words, 1);
	expect("another load", load, at, 0x55550001);
	load = hot(SITES);
	expect("a patched site", load, SITES, MTSPR(272, 3));
	word_at(SITES) = NOP;
	expect("a site no more", load, SITES, NOP);
	load = hot(load);
	expect("a load of itself", load, load, LWZ(3, 3, 0));
}

/* Each page is executed, and so it can be read, before its first site. */
static void pages_that_become_traced(void)
{
	u32 page = (u32)block + FRESH, i;

	for (i = 0; i < FRESH_PAGES; i++, page += PAGE) {
		u32 load = new_load();

		trace_page(page);
		expect("a page of code", load, page, MTSPR(272, 3));
	}
}

void main(const void *tree)
{
	(void)tree;
	map_devices();
	enable_translation(DATA_PAGE, (u32)execute_pages, EXECUTE_PAGES);
	/* With other sites in their page, loads do not change which pages are traced. */
	trace_page(SITES);
	trace_page(LOADS);
	pages_that_become_traced();
	written();
	written_by_another_address();
	mapped_elsewhere();
	other_space();
	code();
	print("done\n");
	reset();
}
