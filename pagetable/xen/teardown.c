// SPDX-License-Identifier: GPL-2.0-only
/*
 * Drops the marks and held frames of a dead domain: they are references to its own
 * frames, and a domain with a frame in use would stay a zombie for ever.
 *
 * Invariants:
 *
 *  - domain_kill() gives 0 only when the domain is dead: its CPUs have stopped
 *    for good, so no MARK or RELEASE of it runs or will; its devices have been
 *    taken from it, with the IOTLB entries that they had; its IOMMU tables are
 *    gone, and Xen refuses to make new ones. Only then are references dropped.
 *    A frame that the guest had freed goes back to Xen's allocator with the
 *    last one: no device can reach it, not even a held frame, which a stale
 *    IOTLB entry may have reached before. Nothing is mapped or flushed.
 *  - domain_kill() can be called again for a dead domain, and then returns 0 at
 *    once: so its caller continues after our -ERESTART, which it handles like
 *    one of Xen's own. The domain still exists then, because it has a frame left.
 *  - A call scans at least 64 frames, and returns early if its CPU has other work.
 *    Scanned frames are not scanned again: no new marks can appear.
 *  - Nothing is done for a domain that has neither mark nor held frame, but that a
 *    scan that was interrupted is ended: its marks may be gone meanwhile (evict.c).
 *
 * Another domain may still map the dead one's frames. Xen then changes their types
 * and calls the device-mapping functions; that has no effect, as the dead domain
 * has no IOMMU tables.
 */
#include "semi_writable.h"
#include "livepatch.h"
#include "marks.h"
#include "original.h"

static bool any_left(const struct domain_marks *own)
{
	return own->frames[MARKED] || own->frames[HELD];
}

static void drop_mark(struct domain_marks *own, u64 pdx)
{
	if (!mark_test_and_clear(pdx, MARKED))
		return;
	own->frames[MARKED]--;
	semi_writable_count(&semi_writable_stats.semi_writable, -1);
	put_page(pdx_to_page(pdx));
}

static void drop_hold(struct domain_marks *own, u64 pdx)
{
	if (!mark_test_and_clear(pdx, HELD))
		return;
	own->frames[HELD]--;
	semi_writable_count(&semi_writable_stats.held, -1);
	put_page_type(pdx_to_page(pdx));
	put_page(pdx_to_page(pdx));
}

/* Other domains have bits in the word, and may clear them and free the frames meanwhile. */
static void drop_word(const struct domain *d, struct domain_marks *own,
		      u64 word)
{
	u64 set = marks_word(word, MARKED) | marks_word(word, HELD);

	for (; set; set &= set - 1) {
		u64 pdx = word * MARKS_PER_WORD + __builtin_ctzl(set);

		if (page_owner(pdx_to_page(pdx)) != d)
			continue;
		drop_mark(own, pdx);
		drop_hold(own, pdx);
	}
}

/* Return: 0 if nothing is left, or -ERESTART if the CPU has other work. */
static int drop_all(const struct domain *d, struct domain_marks *own)
{
	int rc = 0;

	marks_lock(own);
	while (any_left(own) && own->scanned < marks_words() && !rc) {
		drop_word(d, own, own->scanned++);
		if (any_left(own) && softirq_pending(smp_processor_id()))
			rc = -ERESTART;
	}
	if (!rc)
		own->scanned = 0;	/* for the id's next domain */
	marks_unlock(own);
	return rc;
}

static int new_domain_kill(struct domain *d)
{
	struct domain_marks *own;
	int rc = original_domain_kill(d);

	if (rc)
		return rc;
	/* Still there, though dead: our caller is in an RCU read section. */
	own = marks_of(d);
	return own && (any_left(own) || own->scanned) ? drop_all(d, own) : 0;
}

LIVEPATCH_FUNC(domain_kill);
