// SPDX-License-Identifier: GPL-2.0-only
/*
 * The semi-writable page type (PiBooster, sections 3.3 and 3.4): writable for
 * the owner's software, never for its devices.
 *
 * The paper uses a bit of Xen's type reference count for the mark. Stock code
 * uses every bit of that word, so the mark is in a separate map (marks.c).
 *
 * Invariants:
 *
 *  I1  While a frame's mark is set and no call in this file is working on it,
 *      the frame has no mapping in its owner's IOMMU tables and none cached
 *      in an IOTLB.
 *  I2  A mark owns one general reference (get_page). A marked frame is
 *      therefore never freed, never stolen, and never changes its owner.
 *  I3  A frame's mark changes only under its owner's lock, and only while this
 *      file holds a *validated* type reference to the frame. The lock excludes
 *      other MARKs and RELEASEs, which could map the frame between our change of
 *      the bit and our flush: references to one type are shared. The type
 *      reference excludes Xen's typing, which calls iommu_legacy_map/unmap for a
 *      frame only between changing its type and setting PGT_validated, so a bit
 *      never changes during one of those calls. The only other caller that can
 *      encounter a marked frame is its owner mapping a grant to itself; for that,
 *      payload.c tests the bit again after the mapping is made. teardown.c
 *      handles the marks of a dead owner.
 *  I4  MARK drops its type reference only after the IOTLB flush. Dropping it
 *      earlier would let the frame become a page table while a device can
 *      still write it through a stale IOTLB entry.
 *  I5  Every call leaves each frame of its list in exactly one of three
 *      states: as it was; moved, mapped or unmapped, and flushed; or, after a
 *      failed flush whose undoing failed too, held: unmarked, never to be
 *      marked again, with a writable type reference and a general reference
 *      that stay until its owner is dead. A held frame can never become a page
 *      table, so a stale IOTLB entry can reach only a plain data page of the
 *      same owner.
 *  I6  A domain moves its own frames only, and can delay only itself. The
 *      caller is the owner: get_page() refuses any other, and an owner does not
 *      change while a reference is held. So two calls that work on one frame
 *      are calls of one domain, and one lock per domain is enough. A domain can
 *      hold only frames that it owns, and references to them. Only the hardware
 *      domain may take another's marks back (evict.c): under the owner's lock,
 *      and with the owner's CPUs stopped.
 *
 * What a mark saves: Xen's own typing removes the device mapping when a writable
 * page becomes a page table, and restores it when the page becomes writable
 * again. By I1 there is nothing to remove, and by definition nothing to restore;
 * payload.c skips both, and the flushes.
 *
 * Locking: one MARK or RELEASE of a domain at a time. Each handles at least 64
 * frames, and stops after that if another one of the same domain waits, or if
 * this CPU has other work. Xen's typing reads the bits without the lock. The lock is taken
 * before, and never under, any lock that these calls of Xen take. The livepatch
 * core applies and reverts only while no CPU is inside a hypercall.
 */
#include "semi_writable.h"
#include "evict.h"
#include "marks.h"

/* After so many frames, check for other work and for waiters of the lock. */
#define PREEMPT_INTERVAL	64

struct tpt_stats semi_writable_stats;

/**
 * semi_writable_test - is this frame semi-writable, or was it when it became
 *                      the page table it is?
 * @d:   the domain whose IOMMU tables are about to change
 * @mfn: any frame number
 *
 * Only the owner's tables are our concern: a foreign domain that maps the
 * frame through a grant holds a type reference of its own meanwhile.
 */
bool semi_writable_test(const struct domain *d, u64 mfn)
{
	return mark_possible(mfn) && mark_is_set(mfn_to_pdx(mfn), MARKED) &&
	       page_owner(mfn_to_page(mfn)) == d;
}

static bool time_to_leave(const struct domain_marks *own, u32 i)
{
	return i && i % PREEMPT_INTERVAL == 0 &&
	       (softirq_pending(smp_processor_id()) || marks_waited_for(own));
}

static int flush_iotlb(struct domain *d, u32 flush_flags)
{
	if (!flush_flags)
		return 0;
	semi_writable_count(&semi_writable_stats.flushes, 1);
	return iommu_iotlb_flush_all(d, flush_flags);
}

/* On success the frame keeps one general and one writable type reference. */
static int mark_frame(struct domain *d, u64 mfn, u32 *flush_flags)
{
	struct page_info *page;
	u64 pdx;
	int rc;

	if (!mark_possible(mfn))
		return -EINVAL;
	block_speculation();
	pdx = mfn_to_pdx(mfn);
	page = mfn_to_page(mfn);
	if (!get_page(page, d))
		return -EPERM;
	/* Xen's own pages, shared with the guest, are not in its IOMMU tables. */
	if ((page->count_info & PGC_special) ||
	    mark_is_set(pdx, HELD) ||
	    !get_page_type(page, PGT_writable_page)) {
		put_page(page);
		return -EBUSY;
	}
	if (mark_test_and_set(pdx, MARKED)) {
		rc = -EEXIST;
		goto drop;
	}
	rc = iommu_unmap(d, mfn, 1, 0, flush_flags);
	if (!rc)
		return 0;
	mark_test_and_clear(pdx, MARKED);
drop:
	put_page_type(page);
	put_page(page);
	return rc;
}

/*
 * The flush failed: devices may still reach these frames. Restore every mapping,
 * so that the tables match what the IOTLBs may contain.
 */
static int undo_marks(struct domain *d, struct domain_marks *own,
		      const u64 *mfns, u32 count, int error)
{
	u32 i, flush_flags = 0;

	for (i = 0; i < count; i++) {
		struct page_info *page = mfn_to_page(mfns[i]);

		mark_test_and_clear(mfn_to_pdx(mfns[i]), MARKED);
		if (iommu_map(d, mfns[i], mfns[i], 1, IOMMUF_rw, &flush_flags)) {
			/* I5: held, both references stay. */
			mark_test_and_set(mfn_to_pdx(mfns[i]), HELD);
			own->frames[HELD]++;
			semi_writable_count(&semi_writable_stats.held, 1);
			error = -EIO;
			continue;
		}
		put_page_type(page);
		put_page(page);
	}
	/* Mappings were only added: a failure here costs DMA, not isolation. */
	flush_iotlb(d, flush_flags);
	return error;
}

/**
 * semi_writable_mark - writable pages become semi-writable
 * @d:     the owner; marks_init() has succeeded
 * @mfns:  the frames, in hypervisor memory
 * @count: how many
 * @done:  out: the first @done frames are semi-writable and flushed
 *
 * Return: 0, or the error of frame @done; see struct tpt_batch.
 */
int semi_writable_mark(struct domain *d, const u64 *mfns, u32 count, u32 *done)
{
	struct domain_marks *own = marks_of(d);
	u32 i, n, flush_flags = 0;
	int rc = 0, flush_rc;

	marks_lock(own);
	/* Under the lock: evict.c takes it after it has closed. */
	if (evict_is_closed()) {
		*done = 0;
		rc = -EACCES;
		goto out;
	}
	own->domain = d;
	for (n = 0; n < count && !time_to_leave(own, n); n++) {
		rc = mark_frame(d, mfns[n], &flush_flags);
		if (rc)
			break;
	}
	flush_rc = flush_iotlb(d, flush_flags);
	if (flush_rc) {
		*done = 0;
		rc = undo_marks(d, own, mfns, n, flush_rc);
		goto out;
	}
	/* I4: from here on the frames may become page tables. */
	for (i = 0; i < n; i++)
		put_page_type(mfn_to_page(mfns[i]));
	own->frames[MARKED] += n;
	semi_writable_count(&semi_writable_stats.semi_writable, n);
	semi_writable_count(&semi_writable_stats.marked, n);
	*done = n;
out:
	marks_unlock(own);
	return rc;
}

/*
 * Xen's page_lock(), for live tables only. The reference it takes can never be
 * the last one: dropping the last but one waits for page_unlock(). A plain
 * reference could be the last, if the guest unpins meanwhile, and then the table
 * would be devalidated here, where Xen can neither preempt nor continue.
 */
static bool lock_live_table(struct page_info *page)
{
	unsigned long old = __atomic_load_n(&page->type_info, __ATOMIC_RELAXED);

	do {
		while (old & PGT_locked) {
			cpu_relax();
			old = __atomic_load_n(&page->type_info,
					      __ATOMIC_RELAXED);
		}
		if ((old & PGT_type_mask) == PGT_writable_page ||
		    !(old & PGT_validated) || !(old & PGT_count_mask) ||
		    !((old + 1) & PGT_count_mask))
			return false;
	} while (!__atomic_compare_exchange_n(&page->type_info, &old,
					      old + (1 | PGT_locked), false,
					      __ATOMIC_SEQ_CST,
					      __ATOMIC_RELAXED));
	block_speculation();	/* as in Xen's own locks since XSA-453 */
	return true;
}

static int release_frame(struct domain *d, u64 mfn, u32 *flush_flags)
{
	struct page_info *page;
	int rc = 0;
	u64 pdx;

	if (!mark_possible(mfn))
		return -EINVAL;
	block_speculation();
	pdx = mfn_to_pdx(mfn);
	page = mfn_to_page(mfn);
	if (!get_page(page, d))
		return -EPERM;
	if (!mark_is_set(pdx, MARKED)) {
		put_page(page);
		return -ENOENT;
	}
	if (lock_live_table(page)) {
		/* Stays out of reach: Xen maps it when it retypes it. */
		mark_test_and_clear(pdx, MARKED);
		page_unlock(page);
	} else if (get_page_type(page, PGT_writable_page)) {
		mark_test_and_clear(pdx, MARKED);
		rc = iommu_map(d, mfn, mfn, 1, IOMMUF_rw, flush_flags);
		if (rc)
			mark_test_and_set(pdx, MARKED);
		put_page_type(page);
	} else {
		rc = -EBUSY;
	}
	if (!rc)
		put_page(page);		/* the mark's own reference (I2) */
	put_page(page);
	return rc;
}

/**
 * semi_writable_release - semi-writable pages become writable again
 * @d:     the owner; marks_init() has succeeded
 * @mfns:  the frames, in hypervisor memory
 * @count: how many
 * @done:  out: the first @done frames are no longer marked
 *
 * A frame that is no live table briefly gets a writable type reference. A pin on
 * another CPU during that time is refused, as Xen refuses any pin of a page that
 * is used as another type: the caller must prevent that.
 *
 * Return: 0, or the error of frame @done; see struct tpt_batch. A flush that
 * fails is reported too, with @done frames released all the same: mappings
 * were only added, so a stale IOTLB can refuse DMA but cannot let any through.
 */
int semi_writable_release(struct domain *d, const u64 *mfns, u32 count,
			  u32 *done)
{
	struct domain_marks *own = marks_of(d);
	u32 n, flush_flags = 0;
	int rc = 0, flush_rc;

	marks_lock(own);
	for (n = 0; n < count && !time_to_leave(own, n); n++) {
		rc = release_frame(d, mfns[n], &flush_flags);
		if (rc)
			break;
	}
	own->frames[MARKED] -= n;
	semi_writable_count(&semi_writable_stats.semi_writable, -(long)n);
	semi_writable_count(&semi_writable_stats.released, n);
	flush_rc = flush_iotlb(d, flush_flags);
	*done = n;
	marks_unlock(own);
	return rc ? rc : flush_rc;
}

/*
 * Is the frame in use as something else than a writable page, validated or not? Then
 * no device mapping is missing, and Xen makes one when it is writable again.
 */
static bool is_other_type(const struct page_info *page)
{
	u64 old = __atomic_load_n(&page->type_info, __ATOMIC_SEQ_CST);

	return (old & PGT_count_mask) &&
	       (old & PGT_type_mask) != PGT_writable_page;
}

/*
 * A guest can leave a table half validated, or half torn down, for as long as it
 * likes: there is no reference to be had of such a frame. Its mark is forgotten like
 * that of a live table, as the frame is in use as one before and after. Only another
 * domain, the toolstack's, can end that use now: if it did, the mapping is made here,
 * whether Xen saw the mark and left it out or not.
 */
static int take_back_unvalidated(struct domain *d, u64 mfn, u32 *flush_flags)
{
	struct page_info *page = mfn_to_page(mfn);

	if (!is_other_type(page))
		return -EBUSY;
	mark_test_and_clear(mfn_to_pdx(mfn), MARKED);
	if (!is_other_type(page) && get_page_type(page, PGT_writable_page)) {
		/* A failure costs DMA, not isolation. */
		iommu_map(d, mfn, mfn, 1, IOMMUF_rw, flush_flags);
		put_page_type(page);
	}
	put_page(page);			/* the mark's own reference (I2) */
	return 0;
}

/**
 * semi_writable_take_back - release marks without the owner's help
 * @d:     the owner, whose CPUs are stopped, but for the one that we run on
 * @mfns:  frames that were marked a moment ago
 * @count: how many; all are tried, whatever happens to the ones before
 * @error: out: why a frame keeps its mark, or why the flush failed; else unchanged
 *
 * Return: how many marks are gone.
 */
u32 semi_writable_take_back(struct domain *d, const u64 *mfns, u32 count,
			    int *error)
{
	struct domain_marks *own = marks_of(d);
	u32 i, n = 0, flush_flags = 0;
	int rc;

	marks_lock(own);
	for (i = 0; i < count; i++) {
		rc = release_frame(d, mfns[i], &flush_flags);
		if (rc == -EBUSY)
			rc = take_back_unvalidated(d, mfns[i], &flush_flags);
		if (!rc)
			n++;
		/* Neither is marked: released meanwhile, and perhaps freed. */
		else if (rc != -ENOENT && rc != -EPERM)
			*error = rc;
	}
	own->frames[MARKED] -= n;
	semi_writable_count(&semi_writable_stats.semi_writable, -(long)n);
	semi_writable_count(&semi_writable_stats.released, n);
	rc = flush_iotlb(d, flush_flags);
	if (rc)
		*error = rc;
	marks_unlock(own);
	return n;
}

/**
 * semi_writable_owed - how many frames have references of ours to be dropped
 *
 * Exact while no CPU is inside a hypercall. The hardware domain's held frames
 * are not counted: it never dies, so their references are never dropped.
 */
u64 semi_writable_owed(void)
{
	const struct domain_marks *own = marks_of(hardware_domain);

	return semi_writable_stats.semi_writable + semi_writable_stats.held -
	       (own ? own->frames[HELD] : 0);
}
