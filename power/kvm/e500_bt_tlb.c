// SPDX-License-Identifier: GPL-2.0-only
/*
 * Which shadow TLB entries are execute-only, and how large they may be (paper,
 * section 5.1, "Adaptive TLB Resizing").
 *
 * Invariant: a shadow TLB entry that covers a page with sites, or with data that are
 * cached for loads (e500_bt_read.c), has no read and no write permission. Whenever the
 * set of such pages or their sizes change, all entries that would now be made differently
 * are invalidated before the guest runs again: at once, or KVM_REQ_BT_STALE is pending
 * until then, and the guest is not entered with a pending request.
 *
 * The policy. One guest entry of 256 MB covers the kernel's code and data. Small
 * shadow entries keep data away from traced code, but there are 16 large entries
 * in the hardware, and the 4 KB ones are shared with all else. So a page with
 * sites begins with entries of bt_first_kb, and each bt_faults_to_split accesses
 * to data inside its block reduce the block's size to a quarter, down to
 * bt_floor_kb. Blocks without sites take the largest size that
 * fits between the others. A page whose last site is undone is no longer traced, so
 * neighbours merge when their entries are made again. The chosen sizes are recorded;
 * if a layout was set instead, nothing is split (e500_bt_layout.c).
 *
 * Splitting leaves many small blocks around the one page where code and data meet.
 * With an entry of TLB1 for each, there are too few entries, and they evict each other:
 * a boot missed 22,000 times. So a block below 256 KB is made of 4 KB entries, of which
 * TLB0 has 512; it is still traced as a whole. A boot then misses 5,500 times, as often
 * as without translation.
 *
 * The paper's floor of 256 KB livelocks: an emulated lwarx makes no reservation, and
 * its stwcx. fails for ever. Here the floor is a page, and e500_bt_trace.c emulates
 * from a lwarx to its stwcx.
 */
#include <linux/kvm_host.h>
#include <linux/log2.h>
#include <linux/moduleparam.h>
#include <linux/prandom.h>
#include <linux/slab.h>
#include <asm/mmu.h>
#include <asm/kvm_ppc.h>

#include "e500_bt.h"

/* The smallest block that is worth one of TLB1's entries. */
#define BT_LARGE_TSIZE	BOOK3E_PAGESZ_256K

static unsigned int bt_first_kb = 4096;
static unsigned int bt_floor_kb = 4;
static unsigned int bt_faults_to_split = 32;

/* Half a MiB, which covers 2 GiB of guest memory. */
#define BT_MAX_DECIDED		(1UL << (31 - PAGE_SHIFT))

static int set_size(const char *text, const struct kernel_param *param)
{
	unsigned int kb;
	int r = kstrtouint(text, 0, &kb);

	if (r)
		return r;
	if (!kvmppc_bt_good_kb(kb))
		return -EINVAL;
	return param_set_uint(text, param);
}

static const struct kernel_param_ops size_ops = {
	.set = set_size,
	.get = param_get_uint,
};

module_param_cb(bt_first_kb, &size_ops, &bt_first_kb, 0644);
MODULE_PARM_DESC(bt_first_kb, "Size of the first TLB entry over a page with sites: 4, 16, 64, ... KB");
module_param_cb(bt_floor_kb, &size_ops, &bt_floor_kb, 0644);
MODULE_PARM_DESC(bt_floor_kb, "Size below which such an entry is not split");
module_param(bt_faults_to_split, uint, 0644);
MODULE_PARM_DESC(bt_faults_to_split, "Emulated accesses to such an entry before it is split; 0: never");

/* MAS1[TSIZE] of a size. */
static int kb_tsize(unsigned int kb)
{
	return ilog2(kb);
}

/* Sizes are powers of four of 1 KB; in pages: */
static gfn_t tsize_pages(int tsize)
{
	return 1UL << (tsize - BOOK3E_PAGESZ_4K);
}

static gfn_t block_start(gfn_t gfn, int tsize)
{
	return gfn & ~(tsize_pages(tsize) - 1);
}

/* The largest size that all traced pages of a block allow; -1 if there are none. */
static int block_limit(struct kvmppc_bt *bt, gfn_t gfn, int tsize)
{
	unsigned long first = block_start(gfn, tsize), last = first + tsize_pages(tsize) - 1;
	unsigned long at = first;
	struct bt_page *page;
	int limit = -1;

	for (page = xa_find(&bt->pages, &at, last, BT_HAS_SITES); page;
	     page = xa_find_after(&bt->pages, &at, last, BT_HAS_SITES)) {
		if (limit < 0 || page->tsize < limit)
			limit = page->tsize;
		/* A smaller limit makes no difference to the caller. */
		if (limit < tsize)
			break;
	}
	return limit;
}

/* An entry of bt->decided: a size, and whether it is traced. 0 is nothing. */
#define DECIDED_TSIZE	0x1f
#define DECIDED_TRACED	0x80

/*
 * The entry that covers a page if only tracing limits its size. A smaller entry is
 * always allowed: it covers no additional page.
 */
static u8 decide(struct kvmppc_bt *bt, gfn_t gfn)
{
	int tsize, limit;
	gfn_t first;
	u8 decided;

	if (gfn < bt->ndecided && bt->decided[gfn])
		return bt->decided[gfn];
	for (tsize = BT_LARGEST_TSIZE; ; tsize -= 2) {
		limit = block_limit(bt, gfn, tsize);
		if (limit < 0 || limit >= tsize || tsize == BOOK3E_PAGESZ_4K)
			break;
	}
	decided = tsize | (limit < 0 ? 0 : DECIDED_TRACED);
	first = block_start(gfn, tsize);
	if (first < bt->ndecided)
		memset(bt->decided + first, decided, min(tsize_pages(tsize), bt->ndecided - first));
	return decided;
}

/**
 * kvmppc_bt_init_tlb - make room to remember the sizes of shadow TLB entries
 * @kvm: the VM, its memory slots in place; srcu is held
 *
 * Returns 0 or -ENOMEM. For memory added later there is no room; it costs a search.
 */
int kvmppc_bt_init_tlb(struct kvm *kvm)
{
	struct kvmppc_bt *bt = kvm->arch.bt;
	struct kvm_memory_slot *slot;
	gfn_t end = 0;
	int bucket;

	if (bt->decided)
		return 0;
	kvm_for_each_memslot(slot, bucket, kvm_memslots(kvm))
		end = max_t(gfn_t, end, slot->base_gfn + slot->npages);
	end = min_t(gfn_t, end, BT_MAX_DECIDED);
	bt->decided = kvzalloc(end, GFP_KERNEL_ACCOUNT);
	if (!bt->decided)
		return -ENOMEM;
	bt->ndecided = end;
	return 0;
}

/**
 * kvmppc_bt_make_stale - have vcpus flush their shadow TLBs before they run again
 * @kvm: the VM, stopped
 * @except: one that need not, or NULL
 */
void kvmppc_bt_make_stale(struct kvm *kvm, const struct kvm_vcpu *except)
{
	struct kvm_vcpu *vcpu;
	unsigned long i;

	kvm_for_each_vcpu(i, vcpu, kvm) {
		if (vcpu == except)
			continue;
		kvmppc_bt_vcpu(vcpu)->stale = true;
		kvm_make_request(KVM_REQ_BT_STALE, vcpu);
	}
}

/*
 * The set of traced pages, or their sizes, have changed: kvmppc_bt_before_entry() updates
 * the shadow TLBs and the copies of data before the guest runs again.
 */
static void retrace(struct kvm_vcpu *vcpu)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;

	memset(bt->decided, 0, bt->ndecided);
	/* Entries that were made until now are not used again. */
	bt->readable_inside = false;
	kvmppc_bt_make_stale(vcpu->kvm, NULL);
}

/* Flush the shadow TLB: entries made from now on match the present sites. */
void kvmppc_bt_flush(struct kvm_vcpu *vcpu)
{
	kvmppc_bt_vcpu(vcpu)->stale = false;
	kvmppc_core_flush_tlb(vcpu);
}

/* Invalidate an entry of this processor's TLB1 or TLB0 if it maps a page for a guest. */
static void drop_entry(u32 mas0, u32 mas2, bool large, kvm_pfn_t pfn)
{
	kvm_pfn_t first, pages = 1;
	u32 mas1;

	mtspr(SPRN_MAS0, mas0);
	mtspr(SPRN_MAS2, mas2);
	asm volatile("isync; tlbre" : : : "memory");
	mas1 = mfspr(SPRN_MAS1);
	/* Guests run in address space 1, the host never does. */
	if (!(mas1 & MAS1_VALID) || !(mas1 & MAS1_TS))
		return;
	if (large)
		pages = tsize_pages((mas1 & MAS1_TSIZE_MASK) >> MAS1_TSIZE_SHIFT);
	first = ((u64)mfspr(SPRN_MAS7) << 32 | mfspr(SPRN_MAS3)) >> PAGE_SHIFT;
	if ((first ^ pfn) & ~(pages - 1))
		return;
	mtspr(SPRN_MAS1, mas1 & ~MAS1_VALID);
	asm volatile("isync; tlbwe" : : : "memory");
}

/*
 * Invalidate what this processor has of a guest-physical page, whatever it is mapped at:
 * entries made from now on match the present sites. False if it is not known which host
 * page that is. The other processors have nothing of this vcpu, for one that moves to another
 * flushes there; and were the page exchanged for another now, all would be flushed.
 */
static bool drop_page(struct kvm_vcpu *vcpu, gfn_t gfn)
{
	u32 small = mfspr(SPRN_TLB0CFG), large = mfspr(SPRN_TLB1CFG);
	u32 ways = (small & TLBnCFG_ASSOC) >> TLBnCFG_ASSOC_SHIFT;
	u32 sets = (small & TLBnCFG_N_ENTRY) / ways;
	struct kvm_host_map map;
	unsigned long flags;
	u32 set, way;

	if (kvm_vcpu_map(vcpu, gfn, &map))
		return false;
	preempt_disable();
	for (set = 0; set < sets; set++) {
		local_irq_save(flags);
		for (way = 0; way < ways; way++)
			drop_entry(MAS0_TLBSEL(0) | MAS0_ESEL(way), set << PAGE_SHIFT, false,
				   map.pfn);
		local_irq_restore(flags);
	}
	for (way = 0; way < (large & TLBnCFG_N_ENTRY); way++) {
		local_irq_save(flags);
		drop_entry(MAS0_TLBSEL(1) | MAS0_ESEL(way), 0, true, map.pfn);
		local_irq_restore(flags);
	}
	kvmppc_bt_forget_page(vcpu, map.pfn);
	preempt_enable();
	kvm_vcpu_unmap(vcpu, &map, false);
	return true;
}

/**
 * kvmppc_bt_page_traced - a page has its first site, which is not written yet
 * @vcpu: the vcpu that stopped the VM
 * @gfn: the page
 *
 * If its block is traced already because of another page, and need not become smaller,
 * the block's entries are right already, as for most pages. Entries inside of the block
 * may not be, if the guest's own entry or the host's page is smaller than the block: then
 * those that cover this page go, and no others. With 4 KB pages of the host that is so for
 * every page, and flushing all would cost a guest a miss for each page that it works on.
 * Other vcpus do flush all: their entries are in the TLBs of other processors.
 */
void kvmppc_bt_page_traced(struct kvm_vcpu *vcpu, gfn_t gfn)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	struct bt_page *page = kvmppc_bt_page(bt, gfn);
	u8 decided = gfn < bt->ndecided ? bt->decided[gfn] : 0;

	kvmppc_bt_note_size(bt, gfn, page->tsize);
	if (!(decided & DECIDED_TRACED) || (decided & DECIDED_TSIZE) > page->tsize ||
	    (bt->readable_inside && !drop_page(vcpu, gfn)))
		retrace(vcpu);
	else if (bt->readable_inside)
		kvmppc_bt_make_stale(vcpu->kvm, vcpu);
}

/**
 * kvmppc_bt_next_victim - choose the shadow entry of TLB1 that is replaced next
 * @kvm: the VM
 * @last: the one that is replaced now
 * @entries: how many there are
 *
 * Round robin is the worst policy for a workload that cycles through slightly more
 * entries than there are, as a pipe between two processes does. Chooses at random, but
 * never @last.
 */
unsigned int kvmppc_bt_next_victim(struct kvm *kvm, unsigned int last, unsigned int entries)
{
	struct kvmppc_bt *bt = kvm->arch.bt;
	u32 random;

	if (!bt || !bt->nsites || entries < 2)
		return last + 1 < entries ? last + 1 : 0;
	random = next_pseudo_random32(READ_ONCE(bt->random));
	WRITE_ONCE(bt->random, random);
	return (last + 1 + (random >> 16) % (entries - 1)) % entries;
}

/**
 * kvmppc_bt_clamp_tsize - choose the size of a shadow TLB entry
 * @kvm: the VM
 * @gfn: a guest-physical page that it shall cover
 * @tsize: the largest possible size, as in MAS1[TSIZE]
 *
 * Returns what fits into the page's block; of a small block one page.
 */
int kvmppc_bt_clamp_tsize(struct kvm *kvm, gfn_t gfn, int tsize)
{
	struct kvmppc_bt *bt = kvm->arch.bt;

	if (!bt || !bt->nsites)
		return tsize;
	tsize = min(tsize, decide(bt, gfn) & DECIDED_TSIZE);
	return tsize < BT_LARGE_TSIZE ? BOOK3E_PAGESZ_4K : tsize;
}

/**
 * kvmppc_bt_holds_cached - whether copies of some pages' data exist
 * @bt: the VM
 * @first: the first guest-physical page
 * @pages: how many
 */
bool kvmppc_bt_holds_cached(const struct kvmppc_bt *bt, gfn_t first, gfn_t pages)
{
	unsigned int i;

	for (i = 0; bt->reads.n && i < BT_CACHE_SLOTS; i++)
		if (bt->reads.slot[i].site &&
		    (bt->reads.slot[i].gpa >> PAGE_SHIFT) - first < pages)
			return true;
	return false;
}

/**
 * kvmppc_bt_execute_only - whether a shadow TLB entry shall be execute-only
 * @kvm: the VM
 * @gfn: a guest-physical page that it covers
 * @tsize: its size, as in MAS1[TSIZE], not above kvmppc_bt_clamp_tsize()
 */
bool kvmppc_bt_execute_only(struct kvm *kvm, gfn_t gfn, int tsize)
{
	struct kvmppc_bt *bt = kvm->arch.bt;
	u8 decided;

	if (!bt || !bt->nsites)
		return false;
	decided = decide(bt, gfn);
	if (!(decided & DECIDED_TRACED))
		return false;
	if (tsize == (decided & DECIDED_TSIZE) || (decided & DECIDED_TSIZE) < BT_LARGE_TSIZE ||
	    block_limit(bt, gfn, tsize) >= 0 ||
	    kvmppc_bt_holds_cached(bt, block_start(gfn, tsize), tsize_pages(tsize)))
		return true;
	WRITE_ONCE(bt->readable_inside, true);
	return false;
}

/* The size of the entry that covers a page now, if that is traced; or -1. */
int kvmppc_bt_block_tsize(struct kvmppc_bt *bt, gfn_t gfn)
{
	u8 decided = decide(bt, gfn);

	return decided & DECIDED_TRACED ? decided & DECIDED_TSIZE : -1;
}

/**
 * kvmppc_bt_block - look up a huge page of the host
 * @kvm: the VM; its mmu_lock and srcu are held
 * @gfn: a guest-physical page in it
 * @seq: kvm->mmu_invalidate_seq as it was read before this call
 *
 * A large entry of the guest becomes many here, and each would walk the host's tables to
 * find the same huge page. A lookup's result is valid until there is an invalidation or
 * the memory slots change; the caller checks for a concurrent invalidation as usual.
 * Returns NULL if the page is not known. The result must be used before mmu_lock is
 * released: another vcpu may then overwrite it.
 */
const struct bt_block *kvmppc_bt_block(struct kvm *kvm, gfn_t gfn, unsigned long seq)
{
	struct kvmppc_bt *bt = kvm->arch.bt;
	unsigned int i;

	lockdep_assert_held(&kvm->mmu_lock);
	if (!kvmppc_bt_enabled(kvm))
		return NULL;
	for (i = 0; i < BT_BLOCKS; i++) {
		const struct bt_block *block = &bt->block[i];

		if (block->valid && block->seq == seq &&
		    block->generation == kvm_memslots(kvm)->generation &&
		    block_start(gfn, block->tsize) == block->gfn)
			return block;
	}
	return NULL;
}

/* Whether a huge page is known, without waiting for a lock; false in case of doubt. */
bool kvmppc_bt_knows_block(struct kvm *kvm, gfn_t gfn)
{
	bool known;

	if (!spin_trylock(&kvm->mmu_lock))
		return false;
	known = kvmppc_bt_block(kvm, gfn, kvm->mmu_invalidate_seq);
	spin_unlock(&kvm->mmu_lock);
	return known;
}

/**
 * kvmppc_bt_note_block - remember a huge page of the host, if the VM is translated
 * @kvm: the VM; its mmu_lock is held and there was no invalidation since @seq
 * @slot: the memory slot, in which all of it must be
 * @gfn: a guest-physical page in it
 * @pfn: the host-physical page of @gfn
 * @tsize: its size, as in MAS1[TSIZE]
 * @wimg: its memory attributes
 * @seq: kvm->mmu_invalidate_seq
 */
void kvmppc_bt_note_block(struct kvm *kvm, const struct kvm_memory_slot *slot, gfn_t gfn,
			  kvm_pfn_t pfn, int tsize, unsigned int wimg, unsigned long seq)
{
	struct kvmppc_bt *bt = kvm->arch.bt;
	gfn_t first = block_start(gfn, tsize);

	lockdep_assert_held(&kvm->mmu_lock);
	/* If it is not aligned to the guest's addresses, one entry cannot map it. */
	if (!kvmppc_bt_enabled(kvm) || ((gfn ^ pfn) & (tsize_pages(tsize) - 1)) ||
	    first < slot->base_gfn ||
	    first + tsize_pages(tsize) > slot->base_gfn + slot->npages)
		return;
	bt->block[first / tsize_pages(tsize) % BT_BLOCKS] = (struct bt_block){
		.valid = true, .seq = seq, .generation = kvm_memslots(kvm)->generation,
		.gfn = first, .pfn = pfn - (gfn - first), .tsize = tsize, .wimg = wimg,
	};
}

struct bt_page *kvmppc_bt_page(struct kvmppc_bt *bt, gfn_t gfn)
{
	return xa_load(&bt->pages, gfn);
}

/* Returns the page's entry, made if there is none, or NULL without memory. */
struct bt_page *kvmppc_bt_make_page(struct kvmppc_bt *bt, gfn_t gfn)
{
	struct bt_page *page = xa_load(&bt->pages, gfn);

	if (page)
		return page;
	page = kzalloc(sizeof(*page), GFP_KERNEL_ACCOUNT);
	if (!page)
		return NULL;
	INIT_LIST_HEAD(&page->sites);
	page->tsize = kvmppc_bt_first_size(bt, gfn, kb_tsize(READ_ONCE(bt_first_kb)));
	if (xa_err(xa_store(&bt->pages, gfn, page, GFP_KERNEL_ACCOUNT))) {
		kfree(page);
		return NULL;
	}
	return page;
}

/* Forget a page without sites, unless it is refused: that must be remembered. */
void kvmppc_bt_page_unused(struct kvmppc_bt *bt, gfn_t gfn)
{
	struct bt_page *page = xa_load(&bt->pages, gfn);

	if (page && list_empty(&page->sites) && !page->refused) {
		xa_erase(&bt->pages, gfn);
		kfree(page);
	}
}

/* A page has lost its last site. */
void kvmppc_bt_page_empty(struct kvm_vcpu *vcpu, gfn_t gfn)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;

	xa_clear_mark(&bt->pages, gfn, BT_HAS_SITES);
	kvmppc_bt_page_unused(bt, gfn);
	retrace(vcpu);
}

/* An access to a traced block was emulated: split it if that happens often. */
void kvmppc_bt_fault(struct kvm_vcpu *vcpu, gfn_t gfn)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	unsigned int faults = READ_ONCE(bt_faults_to_split);
	int tsize = kvmppc_bt_block_tsize(bt, gfn);
	struct bt_page *page;
	unsigned long at;
	bool split = false;

	if (!faults || bt->layout->fixed || tsize <= kb_tsize(READ_ONCE(bt_floor_kb)))
		return;
	xa_for_each_range(&bt->pages, at, page, block_start(gfn, tsize),
			  block_start(gfn, tsize) + tsize_pages(tsize) - 1)
		if (++page->faults >= faults) {
			page->tsize = tsize - 2;
			page->faults = 0;
			split = true;
			if (!list_empty(&page->sites))
				kvmppc_bt_note_size(bt, at, page->tsize);
		}
	if (split) {
		bt->stats.splits++;
		retrace(vcpu);
	}
}
