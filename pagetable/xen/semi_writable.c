// SPDX-License-Identifier: GPL-2.0-only
/*
 * The semi-writable page type (PiBooster, sections 3.3 and 3.4): writable for
 * the owner's software, never for its devices.
 *
 * The paper borrows a bit of Xen's type reference count for the mark. Stock
 * code owns every bit of that word, so the mark lives beside it: one bit a
 * frame, indexed as the frame table is (PDX).
 *
 * Invariants:
 *
 *  I1  While a frame's bit is set and no call in this file is working on it,
 *      the frame has no mapping in its owner's IOMMU tables and none cached
 *      in an IOTLB.
 *  I2  A set bit owns one general reference (get_page). A marked frame is
 *      therefore never freed, never stolen, and never changes its owner.
 *  I3  A frame's bit changes only under this file's lock, and only while this
 *      file holds a *validated* type reference to the frame. The lock keeps
 *      other MARKs and RELEASEs away, which could map the frame between our bit
 *      and our flush: references to one type are shared. The type reference
 *      keeps Xen's typing away: it calls iommu_legacy_map/unmap for a frame
 *      only between changing its type and setting PGT_validated, so a bit never
 *      changes under one of those calls. The one other caller that can meet a
 *      marked frame is its owner mapping a grant to itself; for that, payload.c
 *      looks at the bit once more after the mapping is made.
 *  I4  MARK drops its type reference only after the IOTLB flush. Dropping it
 *      earlier would let the frame become a page table while a device can
 *      still write it through a stale IOTLB entry.
 *  I5  Every call leaves each frame of its list in exactly one of three
 *      states: as it was; moved, mapped or unmapped, and flushed; or, after a
 *      failed flush whose undoing failed too, held: unmarked, with a writable
 *      type reference and a general reference that are never dropped. A held
 *      frame can never become a page table, so what a stale IOTLB entry may
 *      still reach is a plain data page of the same owner.
 *
 * What a set bit saves: Xen's own typing asks for the device mapping to go
 * when a writable page becomes a page table and to come back when it becomes
 * writable again. By I1 there is nothing to remove, and by definition nothing
 * to restore; payload.c skips both, and the flush with them.
 *
 * Locking: one MARK or RELEASE at a time. Xen's typing reads the bits without
 * the lock, hence the atomic operations. The lock is taken before, and never
 * under, any of Xen's. The livepatch core applies and reverts only while no
 * CPU is inside a hypercall.
 */
#include "semi_writable.h"

/* Look for pending softirqs once in so many frames. */
#define PREEMPT_INTERVAL	64

struct tpt_stats semi_writable_stats;

static bool busy;

static void lock_marks(void)
{
	while (__atomic_exchange_n(&busy, true, __ATOMIC_ACQUIRE))
		cpu_relax();
}

static void unlock_marks(void)
{
	__atomic_store_n(&busy, false, __ATOMIC_RELEASE);
}

/* Published once, complete, and gone only when the payload is. */
static struct mark_map {
	u64 limit;		/* first PDX without a bit */
	unsigned long bits[];
} *marks;

/**
 * semi_writable_init - make room for one bit a frame, once
 *
 * Done at the first MARK and not when the payload is applied: an application
 * that times out runs no hook that could give the room back.
 *
 * Return: 0, or -ENOMEM.
 */
int semi_writable_init(void)
{
	struct mark_map *map, *none = NULL;
	u64 longs = (max_pdx + 63) / 64;

	if (__atomic_load_n(&marks, __ATOMIC_ACQUIRE))
		return 0;
	map = vzalloc(sizeof(*map) + longs * sizeof(map->bits[0]));
	if (!map)
		return -ENOMEM;
	map->limit = longs * 64;
	if (!__atomic_compare_exchange_n(&marks, &none, map, false,
					 __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		vfree(map);	/* another CPU was first */
	return 0;
}

/* No bit may be set and no CPU may be inside this file. */
void semi_writable_exit(void)
{
	vfree(marks);
	marks = NULL;
}

/**
 * semi_writable_serves - may this domain own semi-writable pages?
 * @d: any domain
 *
 * The hardware domain only: a domU with a device of its own would need its
 * references dropped when it dies, which nothing here does.
 */
bool semi_writable_serves(const struct domain *d)
{
	return d == hardware_domain && domain_is_pv(d);
}

/* MMIO and absent frames have no bit: their PDX may alias that of real RAM. */
static bool frame_has_mark(u64 mfn)
{
	const struct mark_map *map = __atomic_load_n(&marks, __ATOMIC_ACQUIRE);

	return map && __mfn_valid(mfn) && mfn_to_pdx(mfn) < map->limit;
}

static bool mark_is_set(u64 mfn)
{
	u64 pdx = mfn_to_pdx(mfn);

	return __atomic_load_n(&marks->bits[pdx / 64], __ATOMIC_ACQUIRE) >>
	       (pdx % 64) & 1;
}

/* Return: whether the bit was set before. */
static bool mark_test_and_set(u64 mfn)
{
	u64 pdx = mfn_to_pdx(mfn);
	unsigned long bit = 1UL << (pdx % 64);

	return __atomic_fetch_or(&marks->bits[pdx / 64], bit,
				 __ATOMIC_SEQ_CST) & bit;
}

static void mark_clear(u64 mfn)
{
	u64 pdx = mfn_to_pdx(mfn);

	__atomic_fetch_and(&marks->bits[pdx / 64], ~(1UL << (pdx % 64)),
			   __ATOMIC_SEQ_CST);
}

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
	return semi_writable_serves(d) && frame_has_mark(mfn) &&
	       mark_is_set(mfn);
}

static bool time_to_leave(u32 i)
{
	return i && i % PREEMPT_INTERVAL == 0 &&
	       softirq_pending(smp_processor_id());
}

static int flush_iotlb(struct domain *d, u32 flush_flags)
{
#ifdef TPT_NEGATIVE_CONTROL_NO_FLUSH
	/* A build that breaks I4 and I1, kept to prove that the tests see it. */
	return 0;
#endif
	if (!flush_flags)
		return 0;
	semi_writable_count(&semi_writable_stats.flushes, 1);
	return iommu_iotlb_flush_all(d, flush_flags);
}

/* On success the frame keeps one general and one writable type reference. */
static int mark_frame(struct domain *d, u64 mfn, u32 *flush_flags)
{
	struct page_info *page;
	int rc;

	if (!frame_has_mark(mfn))
		return -EINVAL;
	block_speculation();
	page = mfn_to_page(mfn);
	if (!get_page(page, d))
		return -EPERM;
	/* Xen's own pages, lent to the guest, are in no IOMMU table of its. */
	if ((page->count_info & PGC_special) ||
	    !get_page_type(page, PGT_writable_page)) {
		put_page(page);
		return -EBUSY;
	}
	if (mark_test_and_set(mfn)) {
		rc = -EEXIST;
		goto drop;
	}
	rc = iommu_unmap(d, mfn, 1, 0, flush_flags);
	if (!rc)
		return 0;
	mark_clear(mfn);
drop:
	put_page_type(page);
	put_page(page);
	return rc;
}

/*
 * The flush failed: devices may still reach these frames. Give every mapping
 * back, so that the tables say what the IOTLBs may say.
 */
static int undo_marks(struct domain *d, const u64 *mfns, u32 count, int error)
{
	u32 i, flush_flags = 0;

	for (i = 0; i < count; i++) {
		struct page_info *page = mfn_to_page(mfns[i]);

		mark_clear(mfns[i]);
		if (iommu_map(d, mfns[i], mfns[i], 1, IOMMUF_rw, &flush_flags)) {
			/* I5: held for ever, both references stay. */
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
 * @d:     the owner
 * @mfns:  the frames, in hypervisor memory
 * @count: how many
 * @done:  out: the first @done frames are semi-writable and flushed
 *
 * Return: 0, or the error of frame @done; see struct tpt_batch.
 */
int semi_writable_mark(struct domain *d, const u64 *mfns, u32 count, u32 *done)
{
	u32 i, n, flush_flags = 0;
	int rc = 0, flush_rc;

	lock_marks();
	for (n = 0; n < count && !time_to_leave(n); n++) {
		rc = mark_frame(d, mfns[n], &flush_flags);
		if (rc)
			break;
	}
	flush_rc = flush_iotlb(d, flush_flags);
	if (flush_rc) {
		*done = 0;
		rc = undo_marks(d, mfns, n, flush_rc);
		goto out;
	}
	/* I4: from here on the frames may become page tables. */
	for (i = 0; i < n; i++)
		put_page_type(mfn_to_page(mfns[i]));
	semi_writable_count(&semi_writable_stats.semi_writable, n);
	semi_writable_count(&semi_writable_stats.marked, n);
	*done = n;
out:
	unlock_marks();
	return rc;
}

/*
 * Xen's page_lock(), for live tables only. The reference it takes can never be
 * the last one: whoever would drop the last but one waits for page_unlock(). A
 * plain reference could be last, if the guest unpins meanwhile, and then the
 * table would be taken apart here, where Xen can neither preempt nor go on.
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
	return true;
}

static int release_frame(struct domain *d, u64 mfn, u32 *flush_flags)
{
	struct page_info *page;
	int rc = 0;

	if (!__mfn_valid(mfn))
		return -EINVAL;
	block_speculation();
	page = mfn_to_page(mfn);
	if (!get_page(page, d))
		return -EPERM;
	if (!frame_has_mark(mfn) || !mark_is_set(mfn)) {
		put_page(page);
		return -ENOENT;
	}
	if (lock_live_table(page)) {
		/* Stays out of reach: Xen maps it when it retypes it. */
		mark_clear(mfn);
		page_unlock(page);
	} else if (get_page_type(page, PGT_writable_page)) {
		mark_clear(mfn);
		rc = iommu_map(d, mfn, mfn, 1, IOMMUF_rw, flush_flags);
		if (rc)
			mark_test_and_set(mfn);
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
 * @d:     the owner
 * @mfns:  the frames, in hypervisor memory
 * @count: how many
 * @done:  out: the first @done frames are no longer marked
 *
 * A frame that is no live table gets a writable type reference for a moment. A
 * pin on another CPU that needs it just then is refused, as Xen refuses any pin
 * of a page that is in use otherwise: the caller keeps its CPUs from it.
 *
 * Return: 0, or the error of frame @done; see struct tpt_batch. A flush that
 * fails is reported too, with @done frames released all the same: mappings
 * were only added, so a stale IOTLB can refuse DMA but cannot let any through.
 */
int semi_writable_release(struct domain *d, const u64 *mfns, u32 count,
			  u32 *done)
{
	u32 n, flush_flags = 0;
	int rc = 0, flush_rc;

	lock_marks();
	for (n = 0; n < count && !time_to_leave(n); n++) {
		rc = release_frame(d, mfns[n], &flush_flags);
		if (rc)
			break;
	}
	semi_writable_count(&semi_writable_stats.semi_writable, -(long)n);
	semi_writable_count(&semi_writable_stats.released, n);
	flush_rc = flush_iotlb(d, flush_flags);
	*done = n;
	unlock_marks();
	return rc ? rc : flush_rc;
}
