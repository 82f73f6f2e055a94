// SPDX-License-Identifier: GPL-2.0-only
/*
 * Runs of plain entries in lowest-level tables: where Xen validates a table, or tears one
 * down, consecutive entries take or drop their references here, without a call each.
 * zero_runs.S calls it at the head of Xen's loop, and advances the loop past the run.
 *
 * Invariants:
 *
 *  - Each entry of a run ends as a round of Xen's loop leaves it: validated, with the same
 *    references, and marked as the guest's kernel's or users'; or, torn down, with its
 *    references dropped and the entry as it was. A round changes nothing else but the index.
 *  - A run ends before an entry that is not the domain's own page's, or not plain (to be
 *    validated) or not present (to be torn down). For that one nothing has changed yet. So
 *    Xen finds and reports all errors, at an exact index, and its own code drops the
 *    references of the entries before that.
 *  - The table's last entry is left to Xen, and so the end of the loop.
 *  - Nobody else writes the table meanwhile: it has its type, and is not validated. What is
 *    checked is what was read, and what is written is made of that.
 *  - As in Xen, the owner of the table's page is the domain. The page is found by the
 *    address at which Xen has mapped it. If that is not in the map of all memory, as in a
 *    debugging Xen, there are no runs.
 */
#include "plain_runs.h"
#include "l1_entry.h"

#define LAST_ENTRY	0xff8UL

/* The owner of the table that is mapped around @entry, NULL if that is not to be found. */
static struct domain *table_owner(const u64 *entry)
{
	u64 pdx = ((u64)entry - XEN_DIRECTMAP) >> XEN_PAGE_SHIFT;

	return pdx < max_pdx ? page_owner(pdx_to_page(pdx)) : NULL;
}

/* A run from @entry on, of as many entries as @handle does. Return: how many. */
static inline __attribute__((always_inline)) u32
run(u64 *entry, bool (*handle)(u64 *entry, struct domain *d))
{
	struct domain *d = table_owner(entry);
	u64 *last = (u64 *)((u64)entry | LAST_ENTRY);
	u64 *next = entry;

	while (d && next < last && handle(next, d))
		next++;
	return next - entry;
}

static inline bool take_entry(u64 *entry, struct domain *d)
{
	u64 old = __atomic_load_n(entry, __ATOMIC_RELAXED);
	u64 new = marked(old);

	if (!is_plain(old) || !take_references(old, d))
		return false;
	if (new != old)
		__atomic_store_n(entry, new, __ATOMIC_RELAXED);
	return true;
}

static inline bool drop_entry(u64 *entry, struct domain *d)
{
	u64 old = __atomic_load_n(entry, __ATOMIC_RELAXED);

	return (old & PTE_PRESENT) && drop_references(old, d);
}

/**
 * plain_run_take - validate entries
 * @entry: the next one, mapped by Xen
 *
 * Return: how many were validated, from @entry on.
 */
u32 plain_run_take(u64 *entry)
{
	return run(entry, take_entry);
}

/**
 * plain_run_drop - drop the references of entries
 * @entry: the next one, mapped by Xen
 *
 * Return: how many have none any more, from @entry on.
 */
u32 plain_run_drop(u64 *entry)
{
	return run(entry, drop_entry);
}
