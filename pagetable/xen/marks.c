// SPDX-License-Identifier: GPL-2.0-only
/*
 * The map of marks: two bits a frame, indexed as the frame table is (PDX), and
 * a lock and counts for each domain.
 *
 * Invariants:
 *
 *  - The map is allocated once, at the first call that needs it, and published
 *    complete; it is freed when the payload is unloaded. It is not allocated when
 *    the payload is applied, because an application that times out runs no hook
 *    that could free it.
 *  - Only a valid frame of RAM has bits: the PDX of MMIO may alias a frame's.
 *  - The bits are read without a lock, hence atomic operations. They change
 *    under the lock of the frame's owner.
 *  - Domains share no lock and no cache line. A domain's lock is a ticket lock
 *    (FIFO); callers bound how long it is held. Its waiters spin, so a domain
 *    delays others only as far as its vCPUs keep physical CPUs busy.
 *  - A domain's entry is zero whenever its id is free. A mark and a hold refer
 *    to a frame, a domain with frames is not destroyed, and an id is given out
 *    again only when its domain is; so the counts are 0, the lock is free, and
 *    @scanned is 0, since a teardown sets it back as it ends. Only @domain may be
 *    stale then: it counts for nothing while no frame is marked.
 */
#include "marks.h"

static struct mark_map {
	struct domain_marks domains[XEN_DOMID_LAST + 1];
	u64 words;		/* of each of the two */
	u64 bits[];		/* word by word in turn: marked, held */
} *map;

/**
 * marks_init - make room for the marks, once
 *
 * Return: 0, or -ENOMEM.
 */
int marks_init(void)
{
	struct mark_map *new, *none = NULL;
	u64 words = (max_pdx + MARKS_PER_WORD - 1) / MARKS_PER_WORD;

	if (__atomic_load_n(&map, __ATOMIC_ACQUIRE))
		return 0;
	new = vzalloc(sizeof(*new) + words * NR_MARKS * sizeof(new->bits[0]));
	if (!new)
		return -ENOMEM;
	new->words = words;
	if (!__atomic_compare_exchange_n(&map, &none, new, false,
					 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		vfree(new);	/* another CPU was first */
	return 0;
}

/* Nothing may be marked and no CPU may be inside this file. */
void marks_exit(void)
{
	vfree(map);
	map = NULL;
}

/* Return: the entry of a domain's id; NULL before marks_init() and for Xen's own. */
struct domain_marks *marks_of_id(u32 id)
{
	struct mark_map *m = __atomic_load_n(&map, __ATOMIC_ACQUIRE);

	return m && id <= XEN_DOMID_LAST ? &m->domains[id] : NULL;
}

struct domain_marks *marks_of(const struct domain *d)
{
	return marks_of_id(domain_id(d));
}

void marks_lock(struct domain_marks *own)
{
	u32 ticket = __atomic_fetch_add(&own->next, 1, __ATOMIC_RELAXED);

	while (__atomic_load_n(&own->serving, __ATOMIC_ACQUIRE) != ticket)
		cpu_relax();
	block_speculation();	/* as in Xen's own locks since XSA-453 */
}

void marks_unlock(struct domain_marks *own)
{
	__atomic_store_n(&own->serving, own->serving + 1, __ATOMIC_RELEASE);
}

/* Return: whether another CPU waits for the lock that the caller holds. */
bool marks_waited_for(const struct domain_marks *own)
{
	return __atomic_load_n(&own->next, __ATOMIC_RELAXED) !=
	       own->serving + 1;
}

/* Return: whether the frame has bits; if not, its PDX may be that of another frame. */
bool mark_possible(u64 mfn)
{
	const struct mark_map *m = __atomic_load_n(&map, __ATOMIC_ACQUIRE);

	return m && __mfn_valid(mfn) &&
	       mfn_to_pdx(mfn) / MARKS_PER_WORD < m->words;
}

/* The map's words. This and what follows require that marks_init() succeeded. */
u64 marks_words(void)
{
	return map->words;
}

static u64 *word_of(u64 word, enum mark mark)
{
	return &map->bits[word * NR_MARKS + mark];
}

/* Return: the bits of the frames from @word * 64 on. */
u64 marks_word(u64 word, enum mark mark)
{
	return __atomic_load_n(word_of(word, mark), __ATOMIC_ACQUIRE);
}

bool mark_is_set(u64 pdx, enum mark mark)
{
	return marks_word(pdx / MARKS_PER_WORD, mark) >>
	       (pdx % MARKS_PER_WORD) & 1;
}

/* Return: whether the bit was set before. */
bool mark_test_and_set(u64 pdx, enum mark mark)
{
	u64 bit = 1UL << (pdx % MARKS_PER_WORD);

	return __atomic_fetch_or(word_of(pdx / MARKS_PER_WORD, mark), bit,
				 __ATOMIC_SEQ_CST) & bit;
}

/* Return: whether the bit was set before. */
bool mark_test_and_clear(u64 pdx, enum mark mark)
{
	u64 bit = 1UL << (pdx % MARKS_PER_WORD);

	return __atomic_fetch_and(word_of(pdx / MARKS_PER_WORD, mark), ~bit,
				  __ATOMIC_SEQ_CST) & bit;
}
