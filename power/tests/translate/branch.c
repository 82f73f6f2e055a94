// SPDX-License-Identifier: GPL-2.0-only
/*
 * Prints what kvmppc_bt_branch() makes at the limits of its reach, a line each: from,
 * to, and the instruction or "none". Branches are at consecutive addresses, and then
 * start over, so that a disassembler can read many at their addresses.
 */
#include <stdio.h>

#include "e500_bt.h"

#define WORDS	64

int main(void)
{
	static const u32 pages[] = {
		0x00000000, 0x01fff000, 0x02000000, 0x7ffff000, 0x80000000, 0xc0000000,
		0xfdfff000, 0xfe000000, 0xffffff00,
	};
	static const u32 distances[] = {
		0, 4, 0x00001000, 0x01fffff0, 0x02000000, 0x02000010, 0x03fffffc, 0x04000000,
		0x7ffffffc, 0x80000000, 0x80000004, 0xfbfffffc, 0xfc000000, 0xfdfffff0,
		0xfe000000, 0xfe000010, 0xfffff000, 0xfffffffc,
	};
	unsigned int i, j, n;
	int around;
	u32 inst;

	for (i = 0; i < ARRAY_SIZE(pages); i++) {
		n = 0;
		for (j = 0; j < ARRAY_SIZE(distances); j++)
			for (around = -8; around <= 8; around++) {
				u32 from = pages[i] + 4 * (n++ % WORDS);
				u32 to = from + distances[j] + around;

				if (kvmppc_bt_branch(from, to, &inst))
					printf("%08x %08x %08x\n", from, to, inst);
				else
					printf("%08x %08x none\n", from, to);
			}
	}
	return 0;
}
