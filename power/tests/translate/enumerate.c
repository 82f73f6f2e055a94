// SPDX-License-Identifier: GPL-2.0-only
/*
 * Prints every instruction that the translator translates, a line each: the word,
 * and how many instructions it becomes. All words with primary opcode 31 are tried;
 * of the other opcodes every 31st word, so that all values of all fields come. One
 * of those that is translated is an error.
 */
#include <stdio.h>

#include "e500_bt.h"

#define STRIDE	31

int main(void)
{
	const u64 first = 31ULL << 26, end = 32ULL << 26;
	struct bt_code code;
	u64 word;

	for (word = 0; word < 1ULL << 32; word += STRIDE) {
		if (word >= first && word < end)
			continue;
		if (kvmppc_bt_translate(word, 0, &code) != BT_NONE) {
			fprintf(stderr, "%08x: translated, and is no instruction of opcode 31\n",
				(u32)word);
			return 1;
		}
	}
	for (word = first; word < end; word++) {
		enum bt_kind kind = kvmppc_bt_translate(word, 0, &code);

		if (kind == BT_NONE)
			continue;
		if ((kind == BT_SINGLE) != (code.n == 1) || code.n > BT_SLOT_WORDS) {
			fprintf(stderr, "%08x: kind %d with %u instructions\n", (u32)word, kind,
				code.n);
			return 1;
		}
		printf("%08x %u\n", (u32)word, code.n);
	}
	return 0;
}
