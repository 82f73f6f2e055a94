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
 *  - Pinning: who saw no mark has written under the lock, before Xen is asked to
 *    validate. Who sees the mark early asks Xen, which writes an ordinary page too.
 *  - Unpinning: who sees no mark while the table is still Xen's writes to a page
 *    that is mapped read-only. Xen takes that trap and does the write: slow, and
 *    right. The last entries that waited in a batch go out before the unpinning,
 *    in the same queue.
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
