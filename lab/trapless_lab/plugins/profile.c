// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * A QEMU plugin that counts executed instructions by address and by call
 * stack, between two markers that a program in the guest emits (profiled.h).
 *
 * Invariants:
 *
 * - Every instruction that begins between the markers is counted once, in one
 *   block and at one place of one stack. An instruction that faults begins
 *   twice: the sum is above the machine's own count by the number of faults.
 * - A block is straight-line code, so a prefix of it was executed. QEMU counts
 *   instructions inline; how many of a block ran is known when the next begins.
 * - Stacks are identified by the address at which calls push and returns pop, not
 *   guessed from return addresses. So every kernel stack has its own frames, a
 *   context switch only changes the stack in use, and frames that were left
 *   without a return are dropped by the next call or return above them. Xen's
 *   stack starts empty at each entry, the kernel's at each entry from user mode.
 *
 * An interrupt handler is attributed to the callers of the interrupted code, or
 * to none if it has a stack of its own. User code is one bucket.
 *
 * One CPU only. The reader of the output file (counts.py) resolves addresses to
 * names; only address ranges are known here.
 */
#define _GNU_SOURCE
#include <inttypes.h>
#include <search.h>

#include "code.h"

QEMU_PLUGIN_EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

/* Linux's THREAD_SIZE and Xen's STACK_SIZE, to which both align stacks. */
static const unsigned int stack_shift[KINDS] = { [KERNEL] = 14, [XEN] = 15 };

struct block {
	uint64_t at;
	enum kind kind;
	size_t length;
	size_t bytes;
	uint8_t *code;
	uint16_t *offset;
	uint64_t complete;
	uint64_t *cut; /* [i]: it ended after i instructions */
	uint64_t jump; /* where the direct jump at its end leads, or 0 */
	struct block *next;
};

struct leaf {
	const struct block *block;
	uint64_t runs;
	uint64_t count;
	struct leaf *next;
};

/* A place in the tree of call stacks: called from ``site`` by ``parent``. */
struct node {
	uint64_t site;
	const struct node *parent;
	unsigned int id;
	void *children;
	void *leaves;
	struct leaf *last; /* most blocks run again at the place of their last run */
	struct node *next;
};

struct frame {
	uint64_t pointer;
	struct node *node;
};

struct stack {
	uint64_t key;
	enum kind kind;
	size_t depth;
	size_t room;
	struct frame *frames;
	struct stack *next;
};

static struct counts executed;

static FILE *output;
static bool counting;
static uint64_t settled;
static uint64_t total;

static void *blocks;
static struct block *all_blocks;
static struct leaf *all_leaves;
static struct node *all_nodes;
static unsigned int nodes;
static void *stacks;
static struct stack *all_stacks;

static struct node *roots[KINDS];
static struct stack *in_use[KINDS]; /* none before the first call after an entry */
static enum kind guest;
static struct block user_code = { .kind = USER };
static struct block *running;
static struct node *place;

/* Returns the tree's element equal to ``*wanted``, or inserts what ``copy`` makes of it. */
static void *find(void **tree, const void *wanted, int (*order)(const void *a, const void *b),
		  void *(*copy)(const void *wanted))
{
	void *found = tfind(wanted, tree, order);

	if (!found) {
		void *fresh = copy(wanted);

		found = must(tsearch(fresh, tree, order));
	}
	return *(void **)found;
}

static int compare(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

/* Blocks: the same code at the same address is the same block, however often QEMU translates it. */

static int block_order(const void *a, const void *b)
{
	const struct block *x = a, *y = b;
	int by_address = compare(x->at, y->at);

	if (by_address)
		return by_address;
	if (x->bytes != y->bytes)
		return compare(x->bytes, y->bytes);
	return memcmp(x->code, y->code, x->bytes);
}

static void *block_copy(const void *wanted)
{
	struct block *fresh = must(malloc(sizeof(*fresh)));

	*fresh = *(const struct block *)wanted;
	fresh->code = must(malloc(fresh->bytes));
	memcpy(fresh->code, ((const struct block *)wanted)->code, fresh->bytes);
	fresh->offset = must(malloc(fresh->length * sizeof(*fresh->offset)));
	memcpy(fresh->offset, ((const struct block *)wanted)->offset,
	       fresh->length * sizeof(*fresh->offset));
	fresh->cut = must(calloc(fresh->length, sizeof(*fresh->cut)));
	fresh->next = all_blocks;
	all_blocks = fresh;
	return fresh;
}

/* The tree of stacks. */

static int node_order(const void *a, const void *b)
{
	return compare(((const struct node *)a)->site, ((const struct node *)b)->site);
}

static void *node_copy(const void *wanted)
{
	struct node *fresh = must(malloc(sizeof(*fresh)));

	*fresh = *(const struct node *)wanted;
	fresh->id = nodes++;
	fresh->next = all_nodes;
	all_nodes = fresh;
	return fresh;
}

static struct node *child(struct node *parent, uint64_t site)
{
	const struct node wanted = { .site = site, .parent = parent };

	return find(&parent->children, &wanted, node_order, node_copy);
}

static int leaf_order(const void *a, const void *b)
{
	return compare((uintptr_t)((const struct leaf *)a)->block,
		       (uintptr_t)((const struct leaf *)b)->block);
}

static void *leaf_copy(const void *wanted)
{
	struct leaf *fresh = must(malloc(sizeof(*fresh)));

	*fresh = *(const struct leaf *)wanted;
	fresh->next = all_leaves;
	all_leaves = fresh;
	return fresh;
}

static struct leaf *leaf_of(struct node *node, const struct block *block)
{
	const struct leaf wanted = { .block = block };

	if (!node->last || node->last->block != block)
		node->last = find(&node->leaves, &wanted, leaf_order, leaf_copy);
	return node->last;
}

/* The stacks in use. */

static int stack_order(const void *a, const void *b)
{
	const struct stack *x = a, *y = b;

	return x->kind == y->kind ? compare(x->key, y->key) : compare(x->kind, y->kind);
}

static void *stack_copy(const void *wanted)
{
	struct stack *fresh = must(malloc(sizeof(*fresh)));

	*fresh = *(const struct stack *)wanted;
	fresh->next = all_stacks;
	all_stacks = fresh;
	return fresh;
}

/* Selects the stack that contains ``pointer``, and drops its frames up to there. */
static struct stack *cut_at(enum kind kind, uint64_t pointer)
{
	const struct stack wanted = { .key = pointer >> stack_shift[kind], .kind = kind };
	struct stack *stack = in_use[kind];

	if (!stack || stack->key != wanted.key) {
		bool entered = !stack;

		stack = find(&stacks, &wanted, stack_order, stack_copy);
		in_use[kind] = stack;
		if (entered)
			stack->depth = 0;
	}
	while (stack->depth && stack->frames[stack->depth - 1].pointer <= pointer)
		stack->depth--;
	return stack;
}

static struct node *top(enum kind kind)
{
	const struct stack *stack = in_use[kind];

	return stack && stack->depth ? stack->frames[stack->depth - 1].node : roots[kind];
}

static void on_call(unsigned int vcpu, qemu_plugin_meminfo_t info, uint64_t pointer, void *site)
{
	struct stack *stack;
	struct node *callee;

	(void)vcpu;
	if (!counting || !crosses(info, true))
		return;
	stack = cut_at(running->kind, pointer);
	callee = child(top(running->kind), (uintptr_t)site);
	if (stack->depth == stack->room) {
		stack->room = stack->room ? 2 * stack->room : 64;
		stack->frames = must(realloc(stack->frames, stack->room * sizeof(*stack->frames)));
	}
	stack->frames[stack->depth++] = (struct frame){ pointer, callee };
}

static void on_return(unsigned int vcpu, qemu_plugin_meminfo_t info, uint64_t pointer, void *data)
{
	(void)vcpu;
	(void)data;
	if (counting && crosses(info, false))
		cut_at(running->kind, pointer);
}

/* Counting. */

/* Adds to the running block the instructions since it began. */
static void settle(void)
{
	uint64_t now = counted(&executed, 0), ran = now - settled;
	struct leaf *here;

	settled = now;
	if (!ran)
		return;
	total += ran;
	here = leaf_of(place, running);
	here->runs++;
	here->count += ran;
	if (running->kind == USER)
		return;
	if (ran > running->length)
		die("more instructions ran than a block has");
	if (ran == running->length)
		running->complete++;
	else
		running->cut[ran]++;
}

static void on_block(unsigned int vcpu, void *data)
{
	struct block *next = data;

	(void)vcpu;
	if (!counting)
		return;
	settle();
	if (next->kind != running->kind) {
		if (next->kind == XEN || guest == USER)
			in_use[next->kind] = NULL;
		if (next->kind != XEN)
			guest = next->kind;
	}
	running = next;
	place = top(next->kind);
}

static void on_start(unsigned int vcpu, void *data)
{
	(void)vcpu;
	(void)data;
	for (struct block *b = all_blocks; b; b = b->next) {
		b->complete = 0;
		memset(b->cut, 0, b->length * sizeof(*b->cut));
	}
	for (struct leaf *l = all_leaves; l; l = l->next)
		l->runs = l->count = 0;
	for (struct stack *s = all_stacks; s; s = s->next)
		s->depth = 0;
	total = 0;
	settled = counted(&executed, 0);
	memset(in_use, 0, sizeof(in_use));
	guest = USER;
	running = &user_code;
	place = roots[USER];
	counting = true;
}

static void print_leaf(const void *item, VISIT visit, void *node)
{
	const struct leaf *l = *(struct leaf *const *)item;

	if ((visit == postorder || visit == leaf) && l->count)
		fprintf(output, "leaf %u %" PRIx64 " %" PRIu64 " %" PRIu64 "\n",
			((struct node *)node)->id, l->block->at, l->runs, l->count);
}

static void print_block(const struct block *b)
{
	uint64_t count = b->complete;

	for (size_t i = b->length; i--;) {
		if (count)
			fprintf(output, "insn %" PRIx64 " %" PRIu64 "\n", b->at + b->offset[i],
				count);
		count += b->cut[i];
	}
	if (b->complete && b->jump)
		fprintf(output, "jump %" PRIx64 " %" PRIx64 "\n",
			b->at + b->offset[b->length - 1], b->jump);
}

static void on_stop(unsigned int vcpu, void *data)
{
	(void)vcpu;
	(void)data;
	if (!counting)
		return;
	settle();
	counting = false;
	fprintf(output, "begin\n");
	for (const struct block *b = all_blocks; b; b = b->next)
		print_block(b);
	for (struct node *n = all_nodes; n; n = n->next) {
		fprintf(output, "node %u %d %" PRIx64 "\n", n->id,
			n->parent ? (int)n->parent->id : -1, n->site);
		twalk_r(n->leaves, print_leaf, n);
	}
	fprintf(output, "end %" PRIu64 "\n", total);
	fflush(output);
}

/* Translation. */

/*
 * A call over a few bytes does not enter a function: retpolines and the code that
 * fills the return stack buffer make such calls, and the latter's never return.
 */
#define SHORT_CALL 16

static bool is_call(const uint8_t *code, size_t size)
{
	int32_t distance;

	if (*code == 0xff)
		return size > 1 && (code[1] >> 3 & 7) == 2;
	if (*code != 0xe8 || size != 5)
		return false;
	memcpy(&distance, code + 1, sizeof(distance));
	return distance < 0 || distance >= SHORT_CALL;
}

static void watch_stack(struct qemu_plugin_insn *insn)
{
	size_t size;
	const uint8_t *code = opcode(insn, &size);

	if (is_call(code, size))
		watch_crossing(insn, on_call, (void *)qemu_plugin_insn_vaddr(insn));
	else if (is_return(code))
		watch_crossing(insn, on_return, NULL);
}

/* The longest block that QEMU makes, and the longest instruction of x86. */
#define BLOCK_MAX 512
#define INSN_MAX 15

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb *tb)
{
	static uint8_t code[BLOCK_MAX * INSN_MAX];
	static uint16_t offset[BLOCK_MAX];
	struct block wanted = { .length = qemu_plugin_tb_n_insns(tb), .code = code, .offset = offset };
	struct block *block = &user_code;

	(void)id;
	if (!wanted.length)
		return;
	if (wanted.length > BLOCK_MAX)
		die("a block is longer than QEMU's limit");
	wanted.at = qemu_plugin_insn_vaddr(qemu_plugin_tb_get_insn(tb, 0));
	wanted.kind = kind_of(wanted.at);
	for (size_t i = 0; i < wanted.length; i++) {
		struct qemu_plugin_insn *insn = qemu_plugin_tb_get_insn(tb, i);

		count_insn(insn, &executed, 0);
		if (wanted.kind == USER) {
			watch_markers(insn, on_start, on_stop);
			continue;
		}
		watch_stack(insn);
		offset[i] = wanted.bytes;
		memcpy(code + wanted.bytes, insn_bytes(insn), qemu_plugin_insn_size(insn));
		wanted.bytes += qemu_plugin_insn_size(insn);
		wanted.jump = direct_target(insn, DIRECT_JUMP);
	}
	if (wanted.kind != USER)
		block = find(&blocks, &wanted, block_order, block_copy);
	qemu_plugin_register_vcpu_tb_exec_cb(tb, on_block, QEMU_PLUGIN_CB_NO_REGS, block);
}

int qemu_plugin_install(qemu_plugin_id_t id, const struct qemu_info *info, int argc, char **argv)
{
	static const char option[] = "output=";

	if (strcmp(info->target_name, "x86_64") || !info->system_emulation ||
	    info->system.max_vcpus != 1) {
		fprintf(stderr, "profile: not a machine with one x86-64 CPU\n");
		return 1;
	}
	if (argc != 1 || strncmp(argv[0], option, strlen(option))) {
		fprintf(stderr, "profile: give output=FILE\n");
		return 1;
	}
	output = fopen(argv[0] + strlen(option), "w");
	if (!output) {
		perror(argv[0]);
		return 1;
	}
	make(&executed, 1);
	for (int kind = 0; kind < KINDS; kind++)
		roots[kind] = node_copy(&(struct node){ .site = 0 });
	qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
	return 0;
}
