/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Workloads over a text, which is written once: words with spaces between, some far more
 * frequent than others.
 *
 * string-match makes a short-lived buffer a word: many dirty pages for little work.
 * word-count and reverse-index keep what they make, in a table that changes all the
 * time.
 */
#ifndef TEXT_H
#define TEXT_H

#include "memory.h"

#define VOCABULARY 6000
#define LONGEST_WORD 16

/* A text of so many bytes and a terminating zero. */
static char *make_text(size_t size)
{
	char *text = get_data(size + 1);
	size_t at = 0;

	while (at + LONGEST_WORD < size) {
		uint64_t rank = next_random() % VOCABULARY;

		rank = rank * rank / VOCABULARY;
		for (uint64_t code = rank * 40503 % 1000003 + 17; code; code /= 26)
			text[at++] = 'a' + code % 26;
		text[at++] = ' ';
	}
	memset(text + at, ' ', size - at);
	text[size] = '\0';
	return text;
}

/* The next word from *at on, which is moved behind it. Returns its length; 0: none. */
static size_t next_word(const char *text, const char **word, size_t *at)
{
	while (text[*at] == ' ')
		++*at;
	*word = text + *at;
	while (text[*at] && text[*at] != ' ')
		++*at;
	return text + *at - *word;
}

static char *encrypt(const char *word, size_t length)
{
	char *made = get_data(length + 1);

	for (size_t i = 0; i < length; i++)
		made[i] = word[i] + 5;
	made[length] = '\0';
	return made;
}

#define KEYS 4

/* How many words are one of four keys, compared encrypted; size: bytes of text. */
static uint64_t string_match(size_t size)
{
	char *text = make_text(size), *keys[KEYS];
	uint64_t found[KEYS] = { 0 }, sum = 0, key = 0;
	const char *word;
	size_t length, at = 0;

	/* The first words of the text are the keys. */
	while (key < KEYS && (length = next_word(text, &word, &at)))
		keys[key++] = encrypt(word, length);
	for (at = 0; (length = next_word(text, &word, &at));) {
		char *encrypted = encrypt(word, length);

		for (uint64_t i = 0; i < key; i++)
			found[i] += !strcmp(encrypted, keys[i]);
		let_go(encrypted);
	}
	for (uint64_t i = 0; i < key; i++) {
		sum = mix(sum, found[i]);
		let_go(keys[i]);
	}
	let_go(text);
	return sum;
}

/* Where a word occurs. */
struct place {
	struct place *next;
	size_t document;
};

struct entry {
	struct entry *next;
	struct place *places;
	char *word;
	size_t length;
	uint64_t count;
};

#define BUCKETS 4096

static struct entry *entry_of(struct entry **table, const char *word, size_t length)
{
	uint64_t hash = 0;
	struct entry **slot;

	for (size_t i = 0; i < length; i++)
		hash = mix(hash, word[i]);
	for (slot = &table[(hash >> 20) % BUCKETS]; *slot; slot = &(*slot)->next)
		if ((*slot)->length == length && !memcmp((*slot)->word, word, length))
			return *slot;
	*slot = get_node(sizeof(**slot));
	(*slot)->word = get_data(length);
	(*slot)->length = length;
	memcpy((*slot)->word, word, length);
	return *slot;
}

static uint64_t take_table_down(struct entry **table)
{
	struct entry *next_entry;
	struct place *next_place;
	uint64_t sum = 0;

	for (size_t i = 0; i < BUCKETS; i++)
		for (; table[i]; table[i] = next_entry) {
			struct entry *entry = table[i];

			sum = mix(sum, entry->count);
			for (size_t j = 0; j < entry->length; j++)
				sum = mix(sum, entry->word[j]);
			for (; entry->places; entry->places = next_place) {
				sum = mix(sum, entry->places->document);
				next_place = entry->places->next;
				let_go(entry->places);
			}
			next_entry = entry->next;
			let_go(entry->word);
			let_go(entry);
		}
	let_go(table);
	return sum;
}

/* How often each word occurs; size: bytes of text. */
static uint64_t word_count(size_t size)
{
	struct entry **table = get_node(BUCKETS * sizeof(*table));
	char *text = make_text(size);
	const char *word;
	size_t length, at = 0;

	while ((length = next_word(text, &word, &at)))
		entry_of(table, word, length)->count++;
	let_go(text);
	return take_table_down(table);
}

#define DOCUMENT_WORDS 100

/* In which documents, of a hundred words each, a word occurs; size: bytes of text. */
static uint64_t reverse_index(size_t size)
{
	struct entry **table = get_node(BUCKETS * sizeof(*table));
	char *text = make_text(size);
	size_t length, at = 0, words = 0;
	const char *word;

	while ((length = next_word(text, &word, &at))) {
		struct entry *entry = entry_of(table, word, length);
		size_t document = words++ / DOCUMENT_WORDS;

		if (!entry->places || entry->places->document != document) {
			struct place *place = get_node(sizeof(*place));

			place->document = document;
			place->next = entry->places;
			entry->places = place;
		}
		entry->count++;
	}
	let_go(text);
	return take_table_down(table);
}

#endif /* TEXT_H */
