// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The machine, for a guest without an operating system.
 *
 * Invariant: entry 0 of TLB1, which the VMM made, is not changed; of the device tree
 * only the command line is read, within the tree's bounds. The second processor writes
 * what it has said, and then that it has ended.
 */
#include "board.h"

#define SERIAL		0xe0004500
#define GUTS		0xe00e0000
#define GUTS_RSTCR	(GUTS + 0xb0)
#define SPIN		0xe00f0000
#define COPY_ENTRY	12
#define SPIN_ENTRY	13
#define SERIAL_ENTRY	14
#define GUTS_ENTRY	15

#define MAS2_DEVICE	0x0a

#define FDT_BEGIN_NODE	1
#define FDT_END_NODE	2
#define FDT_PROP	3
#define FDT_NOP		4

#define HYPERCALL_MAGIC		0x4b564d21
#define HYPERCALL_ENABLE	((42 << 16) | 0x100)
#define HYPERCALL_DISABLE	((42 << 16) | 0x101)

/* The compiler calls it to clear memory. */
void *memset(void *to, int byte, unsigned long n)
{
	volatile u8 *at = to;

	while (n--)
		*at++ = byte;
	return to;
}

/* In the spin table: the second processor's address, and its r3. */
#define SPIN_ADDRESS	(SPIN + 32 + 4)
#define SPIN_ARGUMENT	(SPIN + 32 + 12)
/* Where its copy of the image is. */
#define COPY		0x1000000

static struct {
	volatile u32 ended, length;
	volatile char text[0x8000];
} said __attribute__((section(".shared")));

static int is_second;

/* The VMM's serial port is always ready for a byte. */
static void put(char c)
{
	if (!is_second)
		*(volatile u8 *)SERIAL = c;
	else if (said.length < sizeof(said.text))
		said.text[said.length++] = c;
}

void print(const char *text)
{
	while (*text)
		put(*text++);
}

void print_hex(u32 value)
{
	int shift;

	for (shift = 28; shift >= 0; shift -= 4)
		put("0123456789abcdef"[(value >> shift) & 15]);
}

void print_number(u32 value)
{
	char digits[10];
	int n = 0;

	do
		digits[n++] = '0' + value % 10;
	while (value /= 10);
	while (n)
		put(digits[--n]);
}

static int same(const char *a, const char *b)
{
	while (*a && *a == *b)
		a++, b++;
	return *a == *b;
}

/* The command line; the only property of this name is that of /chosen. */
static const char *command_line(const void *tree)
{
	const u32 *header = tree;
	const u32 *at = (const void *)((const char *)tree + header[2]);
	const char *names = (const char *)tree + header[3];
	const u32 *end = at + header[9] / 4;

	while (at < end) {
		switch (*at++) {
		case FDT_BEGIN_NODE: {
			const char *name = (const char *)at;
			u32 length = 0;

			while (name[length])
				length++;
			at += length / 4 + 1;
			break;
		}
		case FDT_PROP:
			if (same(names + at[1], "bootargs"))
				return (const char *)(at + 2);
			at += 2 + (at[0] + 3) / 4;
			break;
		case FDT_END_NODE:
		case FDT_NOP:
			break;
		default:
			return "";
		}
	}
	return "";
}

static u32 number(const char *text)
{
	u32 value = 0;

	while (*text >= '0' && *text <= '9')
		value = value * 10 + (u32)(*text++ - '0');
	return value;
}

u32 argument(const void *tree, const char *name, u32 otherwise)
{
	const char *text = command_line(tree);

	while (*text) {
		const char *a = text, *b = name;

		while (*b && *a == *b)
			a++, b++;
		if (!*b && *a == '=')
			return number(a + 1);
		while (*text && *text != ' ')
			text++;
		while (*text == ' ')
			text++;
	}
	return otherwise;
}

static u32 hypercall(u32 nr, u32 a, u32 b, u32 c)
{
	register u32 r0 asm("r0") = HYPERCALL_MAGIC;
	register u32 r3 asm("r3") = a;
	register u32 r4 asm("r4") = b;
	register u32 r5 asm("r5") = c;
	register u32 r11 asm("r11") = nr;

	asm volatile("sc" : "+r" (r0), "+r" (r3), "+r" (r4), "+r" (r5), "+r" (r11) : :
		     "memory", "cc", "xer", "ctr", "lr", "r6", "r7", "r8", "r9", "r10", "r12");
	return r3;
}

u32 enable_translation(u32 data, u32 execute, u32 pages)
{
	return hypercall(HYPERCALL_ENABLE, data, execute, pages);
}

u32 disable_translation(void)
{
	return hypercall(HYPERCALL_DISABLE, 0, 0, 0);
}

void map(u32 entry, u32 ea, u32 pa, u32 tsize, u32 attributes, u32 valid)
{
	u32 space = valid == MAP_IN_1 ? MAS1_TS : 0;

	mtspr(SPR_MAS0, MAS0_TLB1 | entry << 16);
	mtspr(SPR_MAS1, (valid ? MAS1_VALID : 0) | space | tsize << 8);
	mtspr(SPR_MAS2, ea | (ea >= 0xe0000000 ? MAS2_DEVICE : 0));
	mtspr(SPR_MAS3, pa | attributes);
	mtspr(SPR_MAS7, 0);
	asm volatile("isync; tlbwe; isync; sync" : : : "memory");
}

void synchronize(u32 address, u32 words)
{
	u32 line, first = address & ~31u, end = address + 4 * words;

	for (line = first; line < end; line += 32)
		asm volatile("dcbst 0, %0" : : "r" (line) : "memory");
	asm volatile("sync" : : : "memory");
	for (line = first; line < end; line += 32)
		asm volatile("icbi 0, %0" : : "r" (line) : "memory");
	asm volatile("sync; isync" : : : "memory");
}

void map_devices(void)
{
	map(SERIAL_ENTRY, SERIAL & ~0xfffu, SERIAL & ~0xfffu, TSIZE_4K, MAP_READ | MAP_WRITE, 1);
	map(GUTS_ENTRY, GUTS, GUTS, TSIZE_4K, MAP_READ | MAP_WRITE, 1);
}

void start_second(void)
{
	u32 at;

	map(COPY_ENTRY, COPY, COPY, TSIZE_1M, MAP_READ | MAP_WRITE, 1);
	for (at = 0; at < (u32)private_end; at += 4)
		word_at(COPY + at) = word_at(at);
	synchronize(COPY, (u32)private_end / 4);
	map(COPY_ENTRY, COPY, COPY, TSIZE_1M, 0, 0);
	map(SPIN_ENTRY, SPIN, SPIN, TSIZE_4K, MAP_READ | MAP_WRITE, 1);
	word_at(SPIN_ARGUMENT) = COPY;
	asm volatile("sync" : : : "memory");
	word_at(SPIN_ADDRESS) = COPY + (u32)second_entry;
}

void be_second(void)
{
	is_second = 1;
	map_devices();
}

void await_second(void)
{
	u32 i;

	while (!said.ended)
		;
	asm volatile("isync; sync" : : : "memory");
	for (i = 0; i < said.length; i++)
		put(said.text[i]);
}

void reset(void)
{
	if (is_second) {
		asm volatile("sync" : : : "memory");
		said.ended = 1;
		for (;;)
			;
	}
	word_at(GUTS_RSTCR) = 2;
	for (;;)
		;
}
