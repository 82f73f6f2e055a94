// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which tracked memory belongs to an mm, or to a tag in a log.
 *
 * Invariant: a lookup under RCU finds only memories that have trackers, or had them a
 * moment ago; the structure lives until a grace period after its removal. So probes,
 * interrupts and the scheduler can look up without a lock.
 */
#include <linux/hashtable.h>
#include <linux/idr.h>

#include "tracking.h"

#define TAGS	4096

static DEFINE_HASHTABLE(memory_hash, 8);
static DEFINE_IDR(tag_idr);
static struct tpd_memory __rcu *tags[TAGS];

struct tpd_memory *tpd_memory_of(struct mm_struct *mm)
{
	struct tpd_memory *memory;

	if (!mm)
		return NULL;
	hash_for_each_possible_rcu_notrace(memory_hash, memory, hash, (unsigned long)mm)
		if (memory->mm == mm)
			return memory;
	return NULL;
}

struct tpd_memory *tpd_memory_by_tag(unsigned int tag)
{
	/* Interrupts are read-side sections too, which lockdep does not know. */
	return tag < TAGS ? rcu_dereference_raw(tags[tag]) : NULL;
}

/**
 * tpd_lookup_add - make a memory findable, and give it a tag
 * @memory: which; additions and removals are serialised by the caller
 *
 * Return: 0, -ENOMEM, or -ENOSPC: every tag is in use.
 */
int tpd_lookup_add(struct tpd_memory *memory)
{
	/*
	 * Cyclic, so that a tag is not reused soon: a log may still have entries of its
	 * old memory. A node of the tree has the tags of many processes, so it is not
	 * charged to the cgroup of one.
	 */
	int tag = idr_alloc_cyclic(&tag_idr, memory, 1, TAGS, TPD_GFP & ~__GFP_ACCOUNT);

	if (tag < 0)
		return tag;
	memory->tag = tag;
	hash_add_rcu(memory_hash, &memory->hash, (unsigned long)memory->mm);
	rcu_assign_pointer(tags[tag], memory);
	return 0;
}

/**
 * tpd_lookup_remove - undo tpd_lookup_add()
 * @memory: which
 */
void tpd_lookup_remove(struct tpd_memory *memory)
{
	hash_del_rcu(&memory->hash);
	RCU_INIT_POINTER(tags[memory->tag], NULL);
	idr_remove(&tag_idr, memory->tag);
}

/* Nothing is tracked any more. */
void tpd_lookup_exit(void)
{
	idr_destroy(&tag_idr);
}
