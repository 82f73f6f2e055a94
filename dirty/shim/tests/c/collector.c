// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A program that works its collector hard, in incremental mode, and knows what must still be there.
 *
 * Each thread has a tree of old nodes and changes them at random: hangs new lists, trees and strings on
 * them, much of which nothing else refers to. A collector that does not see the write to an old node frees what was
 * hung on it. What hangs where is known from numbers in memory that is not the collector's.
 *
 * collector THREADS CHANGES: exits 0 if all that is reachable is as it was made.
 */
#define GC_THREADS
#include <gc.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH 14
#define NODES (1 << DEPTH)
#define LIST 6

struct item {
	struct item *next;
	uint64_t number;
	char *text;
};

struct node {
	struct node *left, *right;
	struct item *items;
	uint64_t number;
};

struct job {
	unsigned int changes;
	uint64_t seed;
	size_t wrong;
};

static uint64_t next_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

static struct item *make_list(uint64_t number)
{
	struct item *list = NULL;

	for (uint64_t i = 0; i < LIST; i++) {
		struct item *item = GC_MALLOC(sizeof(*item));

		item->next = list;
		item->number = number * LIST + i;
		item->text = GC_MALLOC_ATOMIC(32);
		snprintf(item->text, 32, "item %llu", (unsigned long long)item->number);
		list = item;
	}
	return list;
}

static int is_list(const struct item *list, uint64_t number)
{
	char text[32];

	for (uint64_t i = LIST; i-- > 0; list = list->next) {
		if (!list || list->number != number * LIST + i || !list->text)
			return 0;
		snprintf(text, sizeof(text), "item %llu", (unsigned long long)list->number);
		if (strcmp(list->text, text))
			return 0;
	}
	return !list;
}

/* The nodes of a whole tree, in an array that the collector scans as well. */
static struct node *make_tree(int depth, struct node **nodes, size_t at)
{
	struct node *node = GC_MALLOC(sizeof(*node));

	nodes[at] = node;
	node->number = at;
	if (depth > 1) {
		node->left = make_tree(depth - 1, nodes, 2 * at);
		node->right = make_tree(depth - 1, nodes, 2 * at + 1);
	}
	return node;
}

static size_t count_wrong(const struct node *node, size_t at, const uint64_t *versions)
{
	if (!node || node->number != at)
		return 1;
	size_t wrong = versions[at] && !is_list(node->items, versions[at]);

	if (2 * at < NODES)
		wrong += count_wrong(node->left, 2 * at, versions) +
			 count_wrong(node->right, 2 * at + 1, versions);
	return wrong;
}

static void *work(void *argument)
{
	struct job *job = argument;
	uint64_t *versions = calloc(NODES, sizeof(*versions)), version = 0;
	struct node **nodes = GC_MALLOC(NODES * sizeof(*nodes));
	struct node *root = make_tree(DEPTH, nodes, 1);

	for (unsigned int change = 1; change <= job->changes; change++) {
		size_t at = 1 + next_random(&job->seed) % (NODES - 1);

		/* The old list, or a new node in place of the old one with all that hangs on it. */
		if (change % 16) {
			nodes[at]->items = make_list(++version);
			versions[at] = version;
		} else {
			struct node *node = GC_MALLOC(sizeof(*node));

			*node = *nodes[at];
			nodes[at] = node;
			if (at == 1)
				root = node;
			else if (at % 2)
				nodes[at / 2]->right = node;
			else
				nodes[at / 2]->left = node;
		}
		/* A collector may stop this thread in malloc, with its lock held. */
		if (change % 8 == 0)
			free(malloc(next_random(&job->seed) % 100000));
		if (change % (job->changes / 4) == 0)
			job->wrong += count_wrong(root, 1, versions);
	}
	free(versions);
	return NULL;
}

int main(int argc, char **argv)
{
	int threads = argc > 1 ? atoi(argv[1]) : 1;
	unsigned int changes = argc > 2 ? atoi(argv[2]) : 200000;
	pthread_t ids[16];
	struct job jobs[16];
	size_t wrong = 0;

	if (threads < 1 || threads > 16 || changes < 4)
		return 2;
	GC_INIT();
	GC_enable_incremental();
	for (int i = 0; i < threads; i++) {
		jobs[i] = (struct job){ changes, 0x9e3779b97f4a7c15 + i, 0 };
		if (pthread_create(&ids[i], NULL, work, &jobs[i]))
			return 2;
	}
	for (int i = 0; i < threads; i++) {
		pthread_join(ids[i], NULL);
		wrong += jobs[i].wrong;
	}
	printf("incremental %d, collections %lu, heap %zu KiB, wrong %zu\n", GC_is_incremental_mode(),
	       (unsigned long)GC_get_gc_no(), GC_get_heap_size() >> 10, wrong);
	return wrong != 0;
}
