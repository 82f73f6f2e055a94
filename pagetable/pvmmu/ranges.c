// SPDX-License-Identifier: GPL-2.0-only
/*
 * Ranges of entries that the hypervisor's payload changes in one call (TPT_OP_PROTECT,
 * TPT_OP_MOVE). Without it callers use batches of updates (batch.h), so it may come and
 * go at any time.
 *
 * Invariants:
 *
 *  - No call is made before a payload of our ABI has said that it has the part. After a
 *    call that is refused, that is asked anew, once a second at most: a call in vain costs
 *    some hundred instructions.
 *  - What a call leaves as it was is no error. The caller's stock function, or its
 *    batches, do that.
 */
#include <linux/jiffies.h>
#include <linux/mm.h>

#include <asm/xen/hypercall.h>
#include <asm/xen/page.h>

#include "trapless_pagetable.h"
#include "ranges.h"

/* Both are written without a lock: a wrong value costs a call. */
static bool is_served;
static unsigned long ask_again = INITIAL_JIFFIES;

static long call(unsigned int op, void *argument)
{
	return _hypercall2(long, callback_op, op, argument);
}

static bool may_call(void)
{
	struct tpt_version version;

	if (READ_ONCE(is_served))
		return true;
	if (time_before(jiffies, READ_ONCE(ask_again)))
		return false;
	WRITE_ONCE(ask_again, jiffies + HZ);
	if (call(TPT_OP_VERSION, &version) || version.abi != TPT_ABI_VERSION ||
	    !(version.parts & TPT_SWITCH_RANGES))
		return false;
	WRITE_ONCE(is_served, true);
	return true;
}

static long ask(unsigned int op, void *argument)
{
	long rc = may_call() ? call(op, argument) : -EOPNOTSUPP;

	if (rc < 0 && READ_ONCE(is_served)) {
		WRITE_ONCE(ask_again, jiffies + HZ);
		WRITE_ONCE(is_served, false);
	}
	return rc;
}

static u64 table_of(const pte_t *entry)
{
	return virt_to_machine((void *)((unsigned long)entry & PAGE_MASK)).maddr >>
	       PAGE_SHIFT;
}

static u32 index_of(const pte_t *entry)
{
	return ((unsigned long)entry & ~PAGE_MASK) / sizeof(*entry);
}

/**
 * ranges_protect - take the write permission from entries, and keep all other bits
 * @first: the first, in a pinned table whose lock is held
 * @count: how many are looked at
 *
 * An entry that Xen does not know to be plain stays as it is.
 *
 * Return: how many entries were changed, or an error if none was looked at.
 */
long ranges_protect(const pte_t *first, unsigned int count)
{
	struct tpt_protect range = {
		.table = table_of(first),
		.first = index_of(first),
		.count = count,
	};

	return ask(TPT_OP_PROTECT, &range);
}

/**
 * ranges_move - move present entries into places that are empty
 * @to:    the first of these, in a pinned table whose lock is held
 * @from:  the first entry, likewise
 * @count: how many are looked at
 * @set:   software bits that each gets
 *
 * An entry that Xen does not know to be plain stays where it is.
 *
 * Return: how many entries were moved, or an error if none was looked at.
 */
long ranges_move(const pte_t *to, const pte_t *from, unsigned int count, pteval_t set)
{
	struct tpt_move move = {
		.from = table_of(from),
		.to = table_of(to),
		.from_first = index_of(from),
		.to_first = index_of(to),
		.count = count,
		.set = set,
	};

	return ask(TPT_OP_MOVE, &move);
}
