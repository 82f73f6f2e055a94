/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Plain entries of a domain's lowest-level tables: which they are, the references that
 * they hold, and the lock under which they change. l1_update.c, plain_runs.c and ranges.c
 * have it in common.
 *
 * Invariants:
 *
 *  - Plain is an entry for which stock Xen takes one general reference to the page and,
 *    if it may be written, one of the type PGT_writable_page, and nothing more.
 *  - References are taken for such an entry, and dropped for any that is present, exactly as
 *    get_page_from_l1e() and put_page_from_l1e() do, or not at all: then they are stock Xen's
 *    to take, to refuse or to drop.
 *  - An entry changes only under the lock of its table's page, taken while that is a
 *    validated level 1 table, and that page cannot lose the type or be freed meanwhile.
 */
#ifndef TRAPLESS_XEN_L1_ENTRY_H
#define TRAPLESS_XEN_L1_ENTRY_H

#include "l1_bits.h"
#include "own_page.h"
#include "pte.h"

/* Xen's own mark, which a guest finds in its entries and may write back. */
#define PTE_GUEST_KERNEL		(XEN_L1_KERNEL_BITS & ~PTE_USER)

#define VALIDATED_WRITABLE		(PGT_writable_page | PGT_validated)

static inline bool is_plain(u64 entry)
{
	return (entry & l1_checked_bits) == PTE_PRESENT;
}

/*
 * The page that @entry names, if @d owns it. Without a reference to the page the
 * caller must ensure that it does not change its owner.
 */
static inline struct page_info *own_page(u64 entry, const struct domain *d)
{
	struct page_info *page = valid_page(pte_frame(entry));

	return page && page_is_of(page, d) ? page : NULL;
}

static inline bool is_writable(u64 type_info)
{
	return (type_info & (PGT_type_mask | PGT_validated | PGT_locked)) ==
	       VALIDATED_WRITABLE;
}

/*
 * Takes the type reference of a writable entry. Where the page has some already, as that of
 * the kernel's own mapping, stock Xen's _get_page_type() does no more than increment the
 * count; the first one, and any page that is locked or not of that type, is left to it.
 */
static inline bool get_writable(struct page_info *page)
{
	u64 old = __atomic_load_n(&page->type_info, __ATOMIC_RELAXED);
	u64 count;

	do {
		count = old & PGT_count_mask;
		if (!is_writable(old) || !count || count == PGT_count_mask)
			return get_page_type(page, PGT_writable_page);
	} while (!exchange_type(page, &old, old + 1));
	return true;
}

/* Drops it again, or leaves the last one to stock Xen's _put_page_type(), likewise. */
static inline void put_writable(struct page_info *page)
{
	u64 old = __atomic_load_n(&page->type_info, __ATOMIC_RELAXED);

	do {
		if (!is_writable(old) || (old & PGT_count_mask) < 2) {
			put_page_type(page);
			return;
		}
	} while (!exchange_type(page, &old, old - 1));
}

/* Takes the references of a plain entry. Return: whether it did; only for @d's own page. */
static inline bool take_references(u64 entry, struct domain *d)
{
	struct page_info *page = valid_page(pte_frame(entry));

	if (!page || !get_own_page(page, d))
		return false;
	if ((entry & PTE_RW) && !get_writable(page)) {
		put_page(page);
		return false;
	}
	return true;
}

/*
 * Drops the references of an entry that is present. They keep the page from leaving its
 * owner, so the owner read here does not change. Return: whether it did; only for @d's own
 * page.
 */
static inline bool drop_references(u64 entry, const struct domain *d)
{
	struct page_info *page = own_page(entry, d);

	if (!page)
		return false;
	if (entry & PTE_RW)
		put_writable(page);
	put_any_page(page);
	return true;
}

/* A plain entry as stock Xen writes it: marked as one of a PV guest's kernel, or of its users. */
static inline u64 marked(u64 entry)
{
	if (!(entry & PTE_USER))
		entry |= XEN_L1_KERNEL_BITS;
	if (!(entry & PTE_GUEST_KERNEL))
		entry |= XEN_L1_USER_BITS;
	return entry;
}

static inline void table_drop(struct page_info *page)
{
	page_unlock(page);
	put_page(page);
}

/* The domain's own level 1 table in frame @mfn, referenced and locked; or NULL. */
static inline struct page_info *table_take(u64 mfn, struct domain *d)
{
	struct page_info *page = valid_page(mfn);

	if (!page || !get_own_page(page, d))
		return NULL;
	if (!page_lock_unsafe(page)) {
		block_speculation();
		put_page(page);
		return NULL;
	}
	block_speculation();
	if ((__atomic_load_n(&page->type_info, __ATOMIC_RELAXED) &
	     PGT_type_mask) != PGT_l1_page_table) {
		table_drop(page);
		return NULL;
	}
	return page;
}

#endif /* TRAPLESS_XEN_L1_ENTRY_H */
