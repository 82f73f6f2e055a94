// SPDX-License-Identifier: GPL-2.0-only
/*
 * xen_set_pte() asks Xen to write each entry, even of a table that is not pinned
 * yet: to Xen that is a page like any other, which the guest may write itself.
 * fork fills the child's tables that way. Stock Linux does so for the three
 * upper levels (xen_set_pmd and its kin); here it is done for the lowest.
 *
 * Invariant: an entry is written directly only if its table's page is not marked
 * pinned (PagePinned). xen_pin_page() and xen_unpin_page() change the mark first
 * and take the table's lock then, which callers of set_pte() on a live table hold:
 *
 *  - Pinning: a writer that saw no mark has written under the lock, before Xen
 *    validates the table. A writer that sees the mark early makes the hypercall,
 *    by which Xen writes ordinary pages, too.
 *  - Unpinning: a writer that sees no mark while the table is still pinned in Xen
 *    writes to a page that is mapped read-only. That traps, and Xen emulates the
 *    write: slow, but correct. Entries that are still in a batch are issued before
 *    the unpinning, in the same queue.
 */
#include <linux/mm.h>
#include <linux/pgtable.h>

#include "pvmmu.h"

/*
 * Called by entry.S with the arguments of xen_set_pte(). Return: whether the
 * entry is written; if it is not, the stock function follows.
 */
long pvmmu_set_pte(pte_t *ptep, pte_t pte);
long pvmmu_set_pte(pte_t *ptep, pte_t pte)
{
	if (PagePinned(virt_to_page(ptep)))
		return false;
	native_set_pte(ptep, pte);
	return true;
}
