// SPDX-License-Identifier: GPL-2.0-only
/*
 * A fast path for a domain's updates of lowest-level entries in its own tables
 * that map its own pages. It hooks do_mmu_update() and do_update_va_mapping(), and
 * get_page_from_l1e() and put_page_from_l1e() for the references that such entries take
 * and drop, also where Xen validates a table or tears it down. It makes the same checks
 * and takes the same references as stock Xen, for common cases only.
 *
 * Invariants:
 *
 *  - An update that is done here has the result of stock Xen's mod_l1_entry(): the
 *    entry's bits, the references of the pages that it named and names, the return
 *    value. l1_update() says for each case which of stock's steps are taken,
 *    and which cancel out.
 *  - All other updates are left to stock Xen before anything has changed, and so
 *    are all errors: stock Xen finds and reports them. So it is always correct to
 *    decline an update here, also in case of doubt.
 *  - As in stock Xen, an entry changes only under the lock of its table's page,
 *    taken while that is a validated level 1 table, and that page cannot lose
 *    the type or be freed meanwhile. One table's lock is held over consecutive
 *    updates of that table, one table at a time, and under it we wait only for
 *    what stock Xen waits for there.
 *  - A page's new reference is taken before its entry is written, and the old
 *    one dropped after, so no entry ever names a page it has no reference to.
 *  - Updates of a domain with a paging mode (log-dirty, shadow) are left to stock Xen.
 *  - A list of updates is copied from the guest once, before the first is done, where
 *    stock Xen copies each before it is done. What is checked is the copy. The two
 *    differ for a guest only whose list lies in memory that the list itself changes
 *    (in the very table, or behind an entry that it replaces).
 */
#include "switches.h"
#include "livepatch.h"
#include "original.h"
#include "l1_entry.h"

/* The guest's request, as in Xen's public/xen.h. */
struct mmu_update {
	u64 ptr;
	u64 val;
};

#define MMU_NORMAL_PT_UPDATE		0
#define MMU_PT_UPDATE_PRESERVE_AD	2
#define MMU_COMMAND_MASK		7
#define DOMID_SELF			0x7ff0

#define UVMF_NONE			0
#define UVMF_INVLPG_LOCAL		2

#define ENTRY_OFFSET			0xff8UL	/* of a table's address */

/* After so many updates stock Xen is called, which also checks for pending events. */
#define MOST_UPDATES			64

static bool is_served(const struct vcpu *v, const struct domain *d)
{
	return l1_update_enabled && domain_is_pv(d) &&
	       !domain_paging_mode(d) && !vcpu_old_guest_table(v);
}

static void write_entry(u64 *entry, u64 old, u64 new, bool preserve_ad)
{
	const u64 ad = PTE_ACCESSED | PTE_DIRTY;

	if (!preserve_ad) {
		__atomic_store_n(entry, new, __ATOMIC_RELAXED);
		return;
	}
	/* Only the hardware changes the entry meanwhile, and only these two bits. */
	while (!__atomic_compare_exchange_n(entry, &old, new | (old & ad), false,
					    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
		;
}

/* A reference to @page is taken. Apart, so that a read-only entry needs no stack frame. */
static __attribute__((noinline)) int
get_page_slowly(u64 entry, struct domain *d, struct page_info *page)
{
	if (page_is_of(page, d) && get_writable(page))
		return 0;
	put_page(page);
	return original_get_page_from_l1e(entry, d, d);
}

/*
 * An entry that is not written by l1_update(): of a table that is validated, or of an update
 * that is left to stock Xen. Xen calls it for other domains' pages too, and adjusts the
 * entry that it writes by the result, 0 for no change.
 */
static int new_get_page_from_l1e(u64 entry, struct domain *d,
				 struct domain *page_owner)
{
	struct page_info *page = NULL;

	if (l1_update_enabled && d == page_owner && is_plain(entry))
		page = valid_page(pte_frame(entry));
	if (!page || !get_any_page(page))
		return original_get_page_from_l1e(entry, d, page_owner);
	if (!page_is_of(page, d) || entry & PTE_RW)
		return get_page_slowly(entry, d, page);
	return 0;
}

/* The references of an entry that is gone, or whose table is torn down. */
static void new_put_page_from_l1e(u64 entry, struct domain *d)
{
	if (!(entry & PTE_PRESENT))
		return;
	if (!l1_update_enabled || !drop_references(entry, d))
		original_put_page_from_l1e(entry, d);
}

/*
 * The entry changes from one permission to the other, for the same page. Stock
 * takes a reference for the new entry and drops the old one's; the two cancel
 * out, and what remains is the type that only the writable one has.
 */
static bool change_permission(u64 *entry, u64 old, u64 new, bool preserve_ad,
			      struct domain *d)
{
	/* The old entry's reference keeps the page from leaving the domain. */
	struct page_info *page = own_page(new, d);

	if (!page)
		return false;
	if (new & PTE_RW) {
		if (!get_writable(page))
			return false;
		write_entry(entry, old, new, preserve_ad);
	} else {
		write_entry(entry, old, new, preserve_ad);
		put_writable(page);
	}
	return true;
}

/*
 * A plain entry where there was none, not even one that is not present: most of what a guest
 * asks for, and so apart. No bits are kept of 0, and the hardware sets none in it.
 */
static inline bool map_entry(u64 *entry, u64 new, struct domain *d)
{
	if (!is_plain(new) || __atomic_load_n(entry, __ATOMIC_RELAXED) ||
	    !take_references(new, d))
		return false;
	__atomic_store_n(entry, marked(new), __ATOMIC_RELAXED);
	return true;
}

/*
 * mod_l1_entry() for plain entries. Return: whether it is done; if not, nothing
 * has changed.
 */
static __attribute__((noinline)) bool
l1_update(u64 *entry, u64 new, bool preserve_ad, struct domain *d)
{
	u64 old = __atomic_load_n(entry, __ATOMIC_RELAXED);
	u64 changed;

	/*
	 * Cleared. An address of zero is what the mitigation of L1TF calls
	 * safe; stock asks it before it merges bits into the entry, too.
	 */
	if (!new) {
		write_entry(entry, old, new, preserve_ad);
		new_put_page_from_l1e(old, d);
		return true;
	}
	if (!is_plain(new))
		return false;

	new = marked(new);
	changed = (old ^ new) & XEN_L1_REVALIDATED;
	if (!changed) {
		/* The same page in the same way: no reference moves. */
		write_entry(entry, old, new, preserve_ad);
		return true;
	}
	if (!(old & PTE_PRESENT)) {
		if (!take_references(new, d))
			return false;
		write_entry(entry, old, new, preserve_ad);
		return true;	/* put_page_from_l1e() has nothing to drop */
	}
	if (changed == PTE_RW)
		return change_permission(entry, old, new, preserve_ad, d);
	return false;
}

/* The table of the update before, kept for the next one. */
struct table {
	struct page_info *page;
	u64 mfn;
	char *va;
};

static void batch_end(struct table *table)
{
	if (!table->page)
		return;
	unmap_domain_page(table->va);
	table_drop(table->page);
	table->page = NULL;
}

static bool batch_table(struct table *table, u64 mfn, struct domain *d)
{
	if (table->page && table->mfn == mfn)
		return true;
	batch_end(table);
	table->page = table_take(mfn, d);
	if (!table->page)
		return false;
	table->mfn = mfn;
	table->va = map_domain_page(mfn);
	return true;
}

static bool batch_update(struct table *table, const struct mmu_update *req,
			 struct domain *d)
{
	u64 command = req->ptr & MMU_COMMAND_MASK;
	u64 *entry;

	if (command != MMU_NORMAL_PT_UPDATE &&
	    command != MMU_PT_UPDATE_PRESERVE_AD)
		return false;
	if (!batch_table(table, req->ptr >> XEN_PAGE_SHIFT, d))
		return false;
	entry = (u64 *)(table->va + (req->ptr & ENTRY_OFFSET));
	return map_entry(entry, req->val, d) ||
	       l1_update(entry, req->val, command == MMU_PT_UPDATE_PRESERVE_AD, d);
}

/*
 * Do updates until the first one that is left to stock Xen, or until this CPU has
 * other work. Return: how many are done. The copy is off the stack again before
 * stock Xen is called.
 */
static __attribute__((noinline)) u32
update_list(const struct mmu_update *updates, u32 count, struct domain *d)
{
	struct mmu_update requests[MOST_UPDATES];
	struct table table = { };
	u32 cpu = smp_processor_id();
	u32 i = 0;

	/* Like stock Xen, check the address of the list's start only. */
	if (copy_from_guest_pv(requests, updates, count * sizeof(*requests)))
		return 0;
	while (i < count && !(i && softirq_pending(cpu)) &&
	       batch_update(&table, requests + i, d))
		i++;
	batch_end(&table);
	return i;
}

/*
 * Stock Xen does what is left, as it would after a continuation. Only if @done is given
 * does it report how many it has done.
 */
static long new_do_mmu_update(const struct mmu_update *updates, u32 count,
			      u32 *done, u32 foreigndom)
{
	struct vcpu *v = current_vcpu();
	struct domain *d = vcpu_domain(v);
	u32 i = 0;

	if (is_served(v, d) && !done && foreigndom == DOMID_SELF && count &&
	    count <= MOST_UPDATES) {
		i = update_list(updates, count, d);
		if (i == count)
			return 0;
	}
	return original_do_mmu_update(updates + i, count - i, done, foreigndom);
}

static bool va_update(u64 va, u64 value, struct domain *d)
{
	struct page_info *page;
	bool is_done = false;
	u64 mfn, *entry;

	entry = map_guest_l1e(va, &mfn);
	if (!entry)
		return false;
	page = table_take(mfn, d);
	if (page) {
		is_done = l1_update(entry, value, false, d);
		table_drop(page);
	}
	unmap_domain_page(entry);
	return is_done;
}

static long new_do_update_va_mapping(u64 va, u64 value, u64 flags)
{
	struct vcpu *v = current_vcpu();
	struct domain *d = vcpu_domain(v);

	if ((flags != UVMF_NONE && flags != UVMF_INVLPG_LOCAL) ||
	    !is_served(v, d) || !va_update(va, value, d))
		return original_do_update_va_mapping(va, value, flags);
	if (flags == UVMF_INVLPG_LOCAL)
		paging_invlpg(v, va);
	return 0;
}

LIVEPATCH_FUNC(do_mmu_update);
LIVEPATCH_FUNC(do_update_va_mapping);
LIVEPATCH_FUNC(get_page_from_l1e);
LIVEPATCH_FUNC(put_page_from_l1e);
