// SPDX-License-Identifier: GPL-2.0-only
/*
 * References from a domain's top-level tables to level 3 tables that are long
 * validated. Every top-level table of a Linux guest has some 74 entries for its
 * kernel, the same ones in each process, and stock Xen takes and drops each of
 * their references by way of the code that validates and tears down. A guest with
 * trapless_pvmmu leaves most of them out (kernel_half.c), others do not.
 *
 * Invariants:
 *
 *  - A reference is taken here only to a page that is the domain's own and at
 *    that moment a validated level 3 table with a count above 0: the case in which
 *    _get_page_type() only increments the count. The general reference is taken
 *    first, so the page cannot be freed meanwhile.
 *  - One is dropped here only if others remain, enough that even stock Xen's
 *    rule for locked pages does not apply: the case in which _put_page_type() only
 *    decrements the count. The last references, and with them all teardown,
 *    are left to stock Xen.
 *  - The two pages' types differ, so stock Xen's counts of linear page tables
 *    (a table that refers to one of its own level) are not concerned.
 *  - All other cases, and all errors, are left to stock Xen before anything has
 *    changed.
 */
#include "switches.h"
#include "livepatch.h"
#include "original.h"
#include "own_page.h"
#include "pte.h"

/* No bit that a processor may reserve: such entries are left to stock Xen. */
#define L4_PLAIN	(PTE_PRESENT | PTE_RW | PTE_USER | PTE_ACCESSED | \
			 PTE_DIRTY | PTE_AVAILABLE | PTE_FRAME)

/* Below this count a reference is dropped by stock Xen. */
#define LEAST_COUNT	3

#define VALIDATED_L3	(PGT_l3_page_table | PGT_validated)

static bool is_validated_l3(u64 type_info)
{
	return (type_info & (PGT_type_mask | PGT_validated)) == VALIDATED_L3;
}

static bool take(struct page_info *page, struct domain *d)
{
	u64 old = __atomic_load_n(&page->type_info, __ATOMIC_RELAXED);

	if (!is_validated_l3(old) || !get_own_page(page, d))
		return false;
	do {
		u64 count = old & PGT_count_mask;

		if (!is_validated_l3(old) || !count ||
		    count == PGT_count_mask) {
			put_page(page);
			return false;
		}
	} while (!exchange_type(page, &old, old + 1));
	return true;
}

static int new_get_page_from_l4e(u64 l4e, u64 l4mfn, struct domain *d,
				 u32 flags)
{
	struct page_info *page;

	/* The other flags say what to do with a reference that is not complete. */
	if (table_refs_enabled && !(flags & PTF_partial_set) &&
	    !(l4e & ~L4_PLAIN)) {
		page = valid_page(pte_frame(l4e));
		if (page && take(page, d))
			return 0;
	}
	return original_get_page_from_l4e(l4e, l4mfn, d, flags);
}

static int new_put_pt_page(struct page_info *page, struct page_info *table,
			   u32 flags)
{
	u64 old = __atomic_load_n(&page->type_info, __ATOMIC_RELAXED);

	if (!table_refs_enabled || flags ||
	    (table->type_info & PGT_type_mask) != PGT_l4_page_table)
		return original_put_pt_page(page, table, flags);
	do {
		if (!is_validated_l3(old) ||
		    (old & PGT_count_mask) < LEAST_COUNT)
			return original_put_pt_page(page, table, flags);
	} while (!exchange_type(page, &old, old - 1));
	put_page(page);
	return 0;
}

LIVEPATCH_STATIC_FUNC(get_page_from_l4e, "arch/x86/mm.c");
LIVEPATCH_STATIC_FUNC(put_pt_page, "arch/x86/mm.c");
