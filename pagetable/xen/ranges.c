// SPDX-License-Identifier: GPL-2.0-only
/*
 * Two operations on a range of entries of a domain's own lowest-level tables: PROTECT
 * takes the write permission away, MOVE puts entries into other places. A guest can do
 * both by do_mmu_update(), one request an entry; here Xen is told the range.
 *
 * Invariants:
 *
 *  - Each entry ends as stock Xen's mod_l1_entry() would leave it, after an update that
 *    the guest could have asked for: PROTECT is MMU_PT_UPDATE_PRESERVE_AD without
 *    _PAGE_RW; MOVE is an update of the new place, then a clear of the old one.
 *  - Only plain entries (l1_entry.h) that name the domain's own pages are changed. All
 *    others stay as they are, and are no error.
 *  - PROTECT: of the two kinds of references the entry keeps the general one. The type's
 *    is dropped after the entry is written, so no writable entry is without one.
 *  - MOVE: for the new entry stock takes the references that it drops for the old one.
 *    They cancel out, so no count changes: the page keeps its owner, and its type if the
 *    entry may be written. The old entry is exchanged for zero, which keeps what the
 *    hardware has set in it to the last.
 *    The new one is written only where no entry is present, and nothing but accessed and
 *    dirty bits, as an entry cleared by MMU_PT_UPDATE_PRESERVE_AD may leave them.
 *  - Entries change under their tables' locks (l1_entry.h). Stock Xen never holds two
 *    pages' locks, and has no order of them. So MOVE waits for the first one only; the
 *    second is tried, and if somebody has it, nothing is moved.
 *  - TLBs are the guest's to flush, as after its updates. A page whose translations are
 *    stale keeps its general reference, or its type's last use is dated by put_page_type(),
 *    as in stock Xen, which flushes before the next use.
 *  - A call handles at most one table's entries without looking at pending events, as stock
 *    Xen's validation of a table does.
 */
#include "ranges.h"
#include "switches.h"
#include "l1_entry.h"
#include "../abi/trapless_pagetable.h"

#define ENTRIES		512U

static bool is_range(u32 first, u32 count)
{
	return count && first < ENTRIES && count <= ENTRIES - first;
}

static bool protect_entry(u64 *entry, const struct domain *d)
{
	u64 old = __atomic_load_n(entry, __ATOMIC_RELAXED);
	struct page_info *page;

	if (!(old & PTE_RW) || !is_plain(old))
		return false;
	/* The entry's reference keeps the page from leaving the domain. */
	page = own_page(old, d);
	if (!page)
		return false;
	__atomic_fetch_and(entry, ~PTE_RW, __ATOMIC_SEQ_CST);
	put_writable(page);
	return true;
}

/* Return: how many entries were changed, or -EINVAL or -EPERM with none changed. */
static long protect(struct domain *d, const struct tpt_protect *range)
{
	struct page_info *page;
	u64 *entries, *entry, *end;
	long changed = 0;

	if (!is_range(range->first, range->count))
		return -EINVAL;
	block_speculation();
	page = table_take(range->table, d);
	if (!page)
		return -EPERM;
	entries = map_domain_page(range->table);
	end = entries + range->first + range->count;
	for (entry = entries + range->first; entry < end; entry++)
		changed += protect_entry(entry, d);
	unmap_domain_page(entries);
	table_drop(page);
	return changed;
}

static bool move_entry(u64 *from, u64 *to, u64 set, const struct domain *d)
{
	u64 old = __atomic_load_n(from, __ATOMIC_RELAXED);

	if (!is_plain(old) ||
	    __atomic_load_n(to, __ATOMIC_RELAXED) & ~(PTE_ACCESSED | PTE_DIRTY) ||
	    !own_page(old, d))
		return false;
	old = __atomic_exchange_n(from, 0, __ATOMIC_SEQ_CST);
	__atomic_store_n(to, old | set, __ATOMIC_RELAXED);
	return true;
}

static long move_locked(const struct tpt_move *move, const struct domain *d)
{
	u64 *from = map_domain_page(move->from);
	u64 *to = map_domain_page(move->to);
	long moved = 0;
	u32 i;

	for (i = 0; i < move->count; i++)
		moved += move_entry(from + move->from_first + i,
				    to + move->to_first + i, move->set, d);
	unmap_domain_page(to);
	unmap_domain_page(from);
	return moved;
}

#define VALIDATED_L1	(PGT_l1_page_table | PGT_validated)

/*
 * The domain's own level 1 table in frame @mfn, referenced and locked as by table_take(),
 * but without waiting. Return: 0, -EPERM if it is none, or -EAGAIN if it is locked.
 */
static long table_try(u64 mfn, struct domain *d, struct page_info **table)
{
	struct page_info *page = valid_page(mfn);
	long rc = -EPERM;
	u64 old;

	if (!page || !get_own_page(page, d))
		return -EPERM;
	block_speculation();
	old = __atomic_load_n(&page->type_info, __ATOMIC_RELAXED);
	/* A count for the lock, as page_lock() takes: it is not the first, nor too many. */
	if ((old & (PGT_type_mask | PGT_validated)) == VALIDATED_L1 &&
	    (old & PGT_count_mask) &&
	    (old & PGT_count_mask) != PGT_count_mask) {
		rc = -EAGAIN;
		if (!(old & PGT_locked) &&
		    exchange_type(page, &old, old + (1 | PGT_locked)))
			rc = 0;
	}
	block_speculation();
	if (rc)
		put_page(page);
	else
		*table = page;
	return rc;
}

/* As page_unlock(), which in a debugging Xen wants no second lock to be held. */
static void table_let_go(struct page_info *page)
{
	__atomic_fetch_sub(&page->type_info, 1 | PGT_locked, __ATOMIC_SEQ_CST);
	put_page(page);
}

/* Return: how many entries were moved, or an error of struct tpt_move with none moved. */
static long move_range(struct domain *d, const struct tpt_move *move)
{
	struct page_info *from, *to = NULL;
	long rc = 0;

	if (!is_range(move->from_first, move->count) ||
	    !is_range(move->to_first, move->count) || move->reserved ||
	    move->set & ~PTE_AVAILABLE)
		return -EINVAL;
	block_speculation();
	from = table_take(move->from, d);
	if (!from)
		return -EPERM;
	if (move->to != move->from)
		rc = table_try(move->to, d, &to);
	if (!rc)
		rc = move_locked(move, d);
	if (to)
		table_let_go(to);
	table_drop(from);
	return rc;
}

static long op_protect(struct domain *d, const void *arg)
{
	struct tpt_protect range;

	if (copy_from_guest_pv(&range, arg, sizeof(range)))
		return -EFAULT;
	return protect(d, &range);
}

static long op_move(struct domain *d, const void *arg)
{
	struct tpt_move move;

	if (copy_from_guest_pv(&move, arg, sizeof(move)))
		return -EFAULT;
	return move_range(d, &move);
}

/**
 * ranges_call - a PROTECT or a MOVE
 * @d:   the caller, a PV domain
 * @op:  TPT_OP_PROTECT or TPT_OP_MOVE
 * @arg: the guest's struct tpt_protect or tpt_move
 *
 * Return: as these say.
 */
long ranges_call(struct domain *d, u32 op, const void *arg)
{
	if (!ranges_enabled || domain_paging_mode(d))
		return -EOPNOTSUPP;
	if (vcpu_old_guest_table(current_vcpu()))
		return -EAGAIN;
	return op == TPT_OP_PROTECT ? op_protect(d, arg) : op_move(d, arg);
}
