// SPDX-License-Identifier: GPL-2.0-only
/*
 * Takes every domain's marks back, so that neither a guest nor a pool that is broken
 * can keep the payload from being reverted.
 *
 * Invariants:
 *
 *  - Once closed, no frame is marked: MARK looks under its domain's lock. A look at
 *    a domain's entry takes that lock too, so a MARK that found us open has counted
 *    its frames before, or has not begun.
 *  - Done means: since we were closed, each entry has been found without a mark, with
 *    no other work in between. So there is no mark, and none comes.
 *  - The owner's CPUs are stopped while its frames are released: a release takes a
 *    writable reference for a moment, and a pin that met it would be refused, which a
 *    guest does not expect. The lock is taken when they have stopped, so none of them
 *    holds it or waits for it.
 *  - What the owner does cannot prolong the work. It can make no new marks, and a frame
 *    in any state loses its mark. What stays, for a lack of memory, is tried again in
 *    the next round; meanwhile other domains have their turn.
 *  - The work of a call has a bound, not a time: FRAMES, WORDS and ENTRIES. In between
 *    the owner runs, and so does the caller.
 *  - A domain found through its entry stays in memory until our hypercall ends, even
 *    if it is destroyed meanwhile: Xen frees it after an RCU grace period, and we
 *    process no softirq. Of a dying domain Xen makes no mappings any more.
 */
#include "evict.h"
#include "marks.h"
#include "semi_writable.h"

/* In one call: frames released, words of the map seen, domains' entries seen. */
#define FRAMES	128
#define WORDS	16384
#define ENTRIES	1024

static bool closed;
static bool busy;	/* a CPU is inside evict_some(); it owns what follows */
static u32 id;		/* whose entry comes next */
static u64 word;	/* of the map, which comes next */
static u32 clean;	/* entries in a row without a mark, since we were closed */

/* Return: whether MARK is refused. */
bool evict_is_closed(void)
{
	return __atomic_load_n(&closed, __ATOMIC_SEQ_CST);
}

/* MARK is admitted again. */
void evict_undo(void)
{
	__atomic_store_n(&closed, false, __ATOMIC_SEQ_CST);
}

/* The domain of an entry, if it has marked frames. */
static struct domain *marked_domain(struct domain_marks *own)
{
	struct domain *d;

	marks_lock(own);
	d = own->frames[MARKED] ? own->domain : NULL;
	marks_unlock(own);
	return d;
}

static void next_entry(void)
{
	id = id < XEN_DOMID_LAST ? id + 1 : 0;
	word = 0;
}

/* Without the lock: what is found is looked at again under it. */
static u32 find_frames(const struct domain *d, u64 *mfns)
{
	u64 end = word + WORDS;
	u32 n = 0;

	for (; word < marks_words() && word < end; word++) {
		u64 set = marks_word(word, MARKED);

		if (set && n + MARKS_PER_WORD > FRAMES)
			break;
		for (; set; set &= set - 1) {
			u64 pdx = word * MARKS_PER_WORD + __builtin_ctzl(set);

			if (page_owner(pdx_to_page(pdx)) == d)
				mfns[n++] = pdx_to_mfn(pdx);
		}
	}
	return n;
}

static void take_back(struct domain *d, struct tpt_evict *report)
{
	u64 mfns[FRAMES];
	u64 from = word;
	u32 n = find_frames(d, mfns);

	report->domain = id;
	if (n) {
		/* Another CPU of the caller's domain stops CPUs: next time. */
		if (domain_pause_except_self(d)) {
			word = from;
			return;
		}
		report->moved = semi_writable_take_back(d, mfns, n,
							&report->error);
		domain_unpause_except_self(d);
	}
	if (word >= marks_words())
		next_entry();
}

/**
 * evict_some - refuse MARK from now on, and take some marks back
 * @report: out: see struct tpt_evict
 *
 * Return: 0 if no frame is marked any more, -EAGAIN if there is more to do.
 */
long evict_some(struct tpt_evict *report)
{
	long rc = -EAGAIN;
	u32 i;

	if (__atomic_exchange_n(&busy, true, __ATOMIC_ACQUIRE))
		goto out;
	if (!__atomic_exchange_n(&closed, true, __ATOMIC_SEQ_CST))
		clean = 0;
	for (i = 0; i < ENTRIES && rc; i++) {
		struct domain_marks *own = marks_of_id(id);
		struct domain *d = own ? marked_domain(own) : NULL;

		if (d) {
			clean = 0;
			take_back(d, report);
			break;
		}
		next_entry();
		/* Without a map there is no mark. */
		if (!own || ++clean > XEN_DOMID_LAST) {
			clean = XEN_DOMID_LAST;
			rc = 0;
		}
	}
	__atomic_store_n(&busy, false, __ATOMIC_RELEASE);
out:
	report->left = __atomic_load_n(&semi_writable_stats.semi_writable,
				       __ATOMIC_RELAXED);
	return rc;
}
