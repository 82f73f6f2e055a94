/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * The page of a frame number that a guest has given, and a reference to it if it is the
 * guest's own: what Xen's __mfn_valid(), get_page() and put_page() do, inline. Xen does them for
 * each entry of a table that it validates or tears down, and half of the instructions were calls.
 *
 * Invariants:
 *
 *  - A number is accepted exactly if __mfn_valid() accepts it. Nothing that depends on it
 *    is executed speculatively before the number is known to be within bounds.
 *  - A reference is taken only where get_page() takes one: not to a free page, and not if
 *    the count would wrap or use what Xen keeps in reserve. As there, the owner is
 *    compared while the reference is held, with which a page cannot leave its owner.
 *  - A reference is dropped here only if others are left. put_page() drops the last one.
 */
#ifndef TRAPLESS_XEN_OWN_PAGE_H
#define TRAPLESS_XEN_OWN_PAGE_H

#include "frame_table.h"

#define GROUPS_PER_WORD			64

/* References that Xen does not give: to a free page, and the last two. */
#define RESERVED_REFERENCES		2

static inline bool pdx_is_valid(u64 pdx)
{
	u64 group = pdx >> XEN_PDX_GROUP_SHIFT;

	return pdx_group_valid[group / GROUPS_PER_WORD] >>
	       (group % GROUPS_PER_WORD) & 1;
}

/* The page of any number, NULL if that is no frame of RAM. Takes no reference. */
static inline struct page_info *valid_page(u64 mfn)
{
	u64 pdx = mfn;

	if (mfn >= max_page)
		return NULL;
	if (frame_is_pdx) {
		block_speculation();
	} else {
		if (mfn_in_hole(mfn))
			return NULL;
		block_speculation();
		pdx = mfn_to_pdx(mfn);
	}
	return pdx_is_valid(pdx) ? pdx_to_page(pdx) : NULL;
}

/* Takes a general reference, whoever owns the page. Return: whether it did. */
static inline bool get_any_page(struct page_info *page)
{
	u64 old = __atomic_load_n(&page->count_info, __ATOMIC_RELAXED);

	do {
		if (((old + RESERVED_REFERENCES) & PGC_count_mask) <=
		    RESERVED_REFERENCES)
			return false;
	} while (!__atomic_compare_exchange_n(&page->count_info, &old, old + 1, false,
					      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
	return true;
}

/* Takes a general reference if @d owns the page. Return: whether it did. */
static inline bool get_own_page(struct page_info *page, const struct domain *d)
{
	if (!get_any_page(page))
		return false;
	if (page_is_of(page, d))
		return true;
	put_page(page);
	return false;
}

/* Drops a general reference; the last one is left to put_page(), which frees the page. */
static inline void put_any_page(struct page_info *page)
{
	u64 old = __atomic_load_n(&page->count_info, __ATOMIC_RELAXED);

	do {
		if ((old & PGC_count_mask) == 1) {
			put_page(page);
			return;
		}
	} while (!__atomic_compare_exchange_n(&page->count_info, &old, old - 1, false,
					      __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST));
}

/* One try to change the type and its count. If it fails, *@old is what is there. */
static inline bool exchange_type(struct page_info *page, u64 *old, u64 new)
{
	return __atomic_compare_exchange_n(&page->type_info, old, new, false,
					   __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

#endif /* TRAPLESS_XEN_OWN_PAGE_H */
