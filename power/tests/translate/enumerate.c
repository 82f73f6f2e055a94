// SPDX-License-Identifier: GPL-2.0-only
/*
 * Prints every instruction that the translator translates, a line each: the word,
 * and how many instructions it becomes. All words with primary opcode 31 are tried;
 * of the other opcodes every 31st word, so that all values of all fields occur. It is
 * an error if one of those is translated.
 *
 * "enumerate loads" prints what kvmppc_bt_translate_load() accepts, of all words with
 * primary opcode 31 and every LOAD_STRIDEth of all.
 */
#include <stdio.h>

#include "e500_bt.h"

#define STRIDE		31
#define LOAD_STRIDE	40961

static const u64 first = 31ULL << 26, end = 32ULL << 26;

static void load(u32 word)
{
	struct bt_code code;

	if (kvmppc_bt_translate_load(word, 0x1000, 0, 0, &code) == BT_FRAGMENT)
		printf("%08x %u\n", word, code.n);
}

static int loads(void)
{
	u64 word;

	for (word = first; word < end; word++)
		load(word);
	for (word = 0; word < 1ULL << 32; word += LOAD_STRIDE)
		if (word < first || word >= end)
			load(word);
	return 0;
}

int main(int argc, char **argv)
{
	struct bt_code code;
	u64 word;

	if (argc > 1 && !strcmp(argv[1], "loads"))
		return loads();
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
