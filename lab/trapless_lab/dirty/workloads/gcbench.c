// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The well-known exercise of collectors with binary trees: one tree and an array live to
 * the end, ever deeper trees are made and dropped beside them; see memory.h for what it
 * prints.
 *
 * gcbench ARRAY LIVE STRETCH: numbers in the array, depth of the tree that lives, depth of
 * the deepest
 */
#include "memory.h"

struct node {
	struct node *left, *right;
	uint64_t number;
};

#define FIRST_DEPTH 4

/* Children first: new nodes point to old ones. */
static struct node *make_upwards(unsigned int depth)
{
	struct node *left = depth ? make_upwards(depth - 1) : NULL;
	struct node *right = depth ? make_upwards(depth - 1) : NULL;
	struct node *node = get_node(sizeof(*node));

	node->left = left;
	node->right = right;
	node->number = depth;
	return node;
}

/* Parents first: old nodes are changed, which is what a collector has to notice. */
static void make_downwards(struct node *node, unsigned int depth)
{
	node->number = depth;
	if (!depth)
		return;
	node->left = get_node(sizeof(*node));
	node->right = get_node(sizeof(*node));
	make_downwards(node->left, depth - 1);
	make_downwards(node->right, depth - 1);
}

static uint64_t take_down(struct node *node, uint64_t sum)
{
	if (!node)
		return mix(sum, 1);
	sum = mix(sum, node->number);
	sum = take_down(node->left, sum);
	sum = take_down(node->right, sum);
	let_go(node);
	return sum;
}

static struct node *new_tree(unsigned int depth)
{
	struct node *root = get_node(sizeof(*root));

	make_downwards(root, depth);
	return root;
}

static uint64_t run(size_t count, unsigned int live, unsigned int stretch)
{
	uint64_t sum = take_down(make_upwards(stretch), 0), *numbers = get_data(count * sizeof(*numbers));
	struct node *lives = new_tree(live);

	for (size_t i = 0; i < count; i++)
		numbers[i] = next_random();
	for (unsigned int depth = FIRST_DEPTH; depth <= live; depth += 2) {
		/* As many nodes at each depth. */
		for (unsigned int i = 0; i < 1u << (stretch - depth); i++) {
			sum = take_down(new_tree(depth), sum);
			sum = take_down(make_upwards(depth), sum);
		}
	}
	for (size_t i = 0; i < count; i++)
		sum = mix(sum, numbers[i]);
	let_go(numbers);
	return take_down(lives, sum);
}

int main(int argc, char **argv)
{
	size_t count, live, stretch;
	uint64_t start, sum;

	if (argc != 4)
		errx(2, "usage: gcbench ARRAY LIVE STRETCH");
	count = workload_number(argv[1]);
	live = workload_number(argv[2]);
	stretch = workload_number(argv[3]);
	if (live < FIRST_DEPTH || stretch < live || stretch > 26)
		errx(2, "%d <= LIVE <= STRETCH <= 26", FIRST_DEPTH);
	workload_begin();
	start = workload_ns();
	sum = run(count, live, stretch);
	workload_end("gcbench", sum, workload_ns() - start);
	return 0;
}
