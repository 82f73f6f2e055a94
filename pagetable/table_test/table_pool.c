// SPDX-License-Identifier: GPL-2.0-only
/*
 * The pages that the calls name: data pages and tables of each level.
 *
 * Data pages are writable in the kernel's direct map all the time, tables are
 * made read-only for a round, by the hypercall that the kernel itself uses. A
 * page that Xen does not make writable again is retired: stock Xen leaves some
 * tables typed after some refused pins. The same pages must be retired at the
 * same call.
 *
 * A copy of each page shows what Xen, and nothing else, has changed.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/module.h>
#include <linux/vmalloc.h>

#include <asm/xen/hypercall.h>
#include <xen/interface/memory.h>
#include <xen/mem-reservation.h>

#include "table_test.h"

struct tt_page tt_pages[TT_PAGES];
unsigned int tt_first[TT_LEVELS];
unsigned int tt_count[TT_LEVELS] = { TT_DATA, TT_L1, TT_L2, TT_L3, TT_L4 };
unsigned int tt_retired;
module_param_named(retired, tt_retired, uint, 0444);
MODULE_PARM_DESC(retired, "tables that stayed typed");

static unsigned int kept_data, kept_l1, kept_tables;
module_param(kept_data, uint, 0444);
MODULE_PARM_DESC(kept_data, "data pages that Xen did not free");
module_param(kept_l1, uint, 0444);
MODULE_PARM_DESC(kept_l1, "L1 tables that Xen did not free");
module_param(kept_tables, uint, 0444);
MODULE_PARM_DESC(kept_tables, "tables of other levels that Xen did not free");

static u64 (*copies)[TT_SLOTS];
static DEFINE_HASHTABLE(by_mfn, 8);

/* Above all memory, so that no name of a frame is a real frame. */
#define NAMED		0x800000000ULL
/*
 * A write of half an entry can join the pool's frame number with what stood
 * above it. So the pool has frames below 4 GiB.
 */
#define MFN_BITS	0x000fffffULL
#define ADDRESS_BITS	32

static int find(u64 mfn)
{
	struct tt_page *page;
	int special;

	hash_for_each_possible(by_mfn, page, node, mfn)
		if (page->mfn == mfn)
			return page - tt_pages;
	special = tt_special_find(mfn);
	return special < 0 ? special : TT_PAGES + special;
}

/* An entry as in every boot: frames by name, all other bits kept. */
u64 tt_canonical(u64 entry)
{
	u64 frame = (entry & TT_FRAME_MASK) >> PAGE_SHIFT;
	int named = find(frame & MFN_BITS);

	if (named < 0)
		return entry;
	frame = (frame & ~MFN_BITS) ^ (NAMED + named);
	return (entry & ~TT_FRAME_MASK) | frame << PAGE_SHIFT;
}

/* Ignore what Xen writes into its own slots. */
static u64 canonical_slot(unsigned int slot, u64 entry)
{
	if (slot >= TT_XEN_FIRST && slot <= TT_XEN_LAST &&
	    (entry & _PAGE_PRESENT) &&
	    find((entry & TT_FRAME_MASK) >> PAGE_SHIFT) < 0)
		return _PAGE_PRESENT;
	return tt_canonical(entry);
}

/* The entry's new value if it changed since the copy was made, or 0. */
u64 tt_change(unsigned int page, unsigned int slot)
{
	u64 now = READ_ONCE(tt_pages[page].entry[slot]);
	u64 was = copies[page][slot];

	if (now == was)
		return 0;
	copies[page][slot] = now;
	now = canonical_slot(slot, now);
	if (now == canonical_slot(slot, was))
		return 0;
	return tt_mix(tt_mix(page << 16 | slot, 1), now);
}

u64 tt_changes(unsigned int page)
{
	unsigned int slot;
	u64 hash = 0;

	if (!memcmp(tt_pages[page].entry, copies[page], PAGE_SIZE))
		return 0;
	for (slot = 0; slot < TT_SLOTS; slot++) {
		u64 change = tt_change(page, slot);

		if (change)
			hash = tt_mix(hash, change);
	}
	return hash;
}

void tt_expect_contents(unsigned int page)
{
	memcpy(copies[page], tt_pages[page].entry, PAGE_SIZE);
}

static int map(const struct tt_page *page, u64 entry)
{
	return HYPERVISOR_update_va_mapping((unsigned long)page->entry,
					    __pte_ma(entry), UVMF_INVLPG);
}

static u64 mapping(const struct tt_page *page, bool read_only)
{
	u64 flags = _KERNPG_TABLE | TT_NX;

	if (read_only)
		flags &= ~(u64)_PAGE_RW;
	return page->mfn << PAGE_SHIFT | flags;
}

int tt_protect(unsigned int page, bool read_only)
{
	int rc = map(&tt_pages[page], mapping(&tt_pages[page], read_only));

	if (!rc)
		tt_pages[page].read_only = read_only;
	return rc;
}

static void adopt(struct tt_page *p, struct page *page)
{
	p->page = page;
	p->entry = page_address(page);
	p->mfn = pfn_to_mfn(page_to_pfn(page));
	p->pinned = 0;
	p->read_only = false;
	hash_add(by_mfn, &p->node, p->mfn);
}

/*
 * Make all tables of the round writable. Retire those that stay typed, whose
 * frames cannot be used for anything else. Return how many.
 */
unsigned int tt_retire_typed(void)
{
	unsigned int page, retired = 0;

	for (page = 0; page < TT_PAGES; page++) {
		struct tt_page *p = &tt_pages[page];
		struct page *fresh;

		if (!p->read_only || !tt_protect(page, false))
			continue;
		retired++;
		fresh = alloc_page(GFP_KERNEL | __GFP_ZERO);
		if (!fresh)
			continue;
		hash_del(&p->node);
		adopt(p, fresh);
	}
	tt_retired += retired;
	return retired;
}

/* A page's contents when a run begins. */
static void set_contents(unsigned int page)
{
	unsigned int slot;

	memset(tt_pages[page].entry, 0, PAGE_SIZE);
	for (slot = 0; page < TT_DATA && slot < 8; slot++)
		tt_pages[page].entry[slot] = (page + 1) << 8 | slot;
	tt_expect_contents(page);
}

/*
 * A data page with a type reference too many cannot become a table. One bit
 * for each such page. All data pages must be out of all tables.
 */
u64 tt_data_typed(void)
{
	unsigned int page;
	u64 typed = 0;

	for (page = 0; page < TT_DATA; page++) {
		struct tt_page *p = &tt_pages[page];

		memset(p->entry, 0, PAGE_SIZE);
		if (tt_protect(page, true) || tt_pin(page, 1))
			typed |= 1ULL << page;
		else
			tt_unpin(page);
		if (p->read_only && tt_protect(page, false))
			typed |= 1ULL << page;
		set_contents(page);
	}
	return typed;
}

static long reservation(void)
{
	domid_t self = DOMID_SELF;

	return HYPERVISOR_memory_op(XENMEM_current_reservation, &self);
}

/* A frame for a page without one, as xenmem_reservation_increase() does it, but low. */
static bool populate(xen_pfn_t *frame)
{
	struct xen_memory_reservation reservation = {
		.address_bits = ADDRESS_BITS,
		.nr_extents = 1,
		.domid = DOMID_SELF,
	};

	set_xen_guest_handle(reservation.extent_start, frame);
	return HYPERVISOR_memory_op(XENMEM_populate_physmap, &reservation) == 1;
}

/*
 * Flush a page's address from every TLB, as the balloon driver does before it gives a frame
 * back. Xen flushes only when it allocates a frame that was freed lately. If the page gets
 * another one, a stale translation would let us write to the frame that is no longer ours.
 */
static void flush_address(const struct tt_page *page)
{
	struct mmuext_op op = {
		.cmd = MMUEXT_INVLPG_ALL,
		.arg1.linear_addr = (unsigned long)page->entry,
	};

	BUG_ON(HYPERVISOR_mmuext_op(&op, 1, NULL, DOMID_SELF));
}

/*
 * Give every frame of the pool back to Xen and take new ones. Xen frees a frame
 * with its last reference, which shows in the size of the domain.
 */
void tt_pool_renew(bool count)
{
	unsigned int page;

	for (page = 0; page < TT_PAGES; page++) {
		struct tt_page *p = &tt_pages[page];
		xen_pfn_t frame = p->mfn;
		long before = reservation();

		if (p->read_only)
			continue;
		hash_del(&p->node);
		xenmem_reservation_va_mapping_reset(1, &p->page);
		flush_address(p);
		if ((xenmem_reservation_decrease(1, &frame) != 1 ||
		     reservation() != before - 1) && count)
			(*(p->level > 1 ? &kept_tables : p->level ? &kept_l1 : &kept_data))++;
		frame = page_to_pfn(p->page);
		/* As the balloon driver does: the page must not be used without memory. */
		BUG_ON(!populate(&frame));
		xenmem_reservation_va_mapping_update(1, &p->page, &frame);
		adopt(p, p->page);
		set_contents(page);
	}
	/* A frame without owner may be ours by now, and vice versa. */
	tt_special_init();
}

int tt_pool_init(void)
{
	unsigned int level, i, page = 0;

	copies = vzalloc(array_size(TT_PAGES, PAGE_SIZE));
	if (!copies)
		return -ENOMEM;
	for (level = 0; level < TT_LEVELS; level++) {
		tt_first[level] = page;
		for (i = 0; i < tt_count[level]; i++, page++) {
			struct page *fresh = alloc_page(GFP_KERNEL | __GFP_ZERO);

			if (!fresh) {
				tt_pool_exit();
				return -ENOMEM;
			}
			tt_pages[page].level = level;
			adopt(&tt_pages[page], fresh);
		}
	}
	return 0;
}

/* A page that is still a table stays what it is, and is never used again. */
void tt_pool_exit(void)
{
	unsigned int page;

	for (page = 0; page < TT_PAGES; page++) {
		struct tt_page *p = &tt_pages[page];

		if (p->page && !p->read_only)
			__free_page(p->page);
	}
	vfree(copies);
}
