// SPDX-License-Identifier: GPL-2.0-only
/*
 * The data cache: loads of traced memory that read a copy of it (paper, section 5.2).
 *
 * If a load of the guest's kernel is emulated repeatedly because its data are next to
 * traced code, it becomes a site like a privileged instruction. Its fragment compares
 * the load's address with the cached one. If they are equal it reads the copy in the
 * data page, otherwise the memory, which faults as before.
 *
 * Invariant: while a copy exists, it is what the guest's load would read. Therefore:
 *
 *  - It is what the guest wrote, not the patch (kvmppc_bt_originals()), so making or
 *    undoing sites among the data does not change it.
 *  - Every store of the guest to the data is emulated, and drops the copy before it
 *    is done. A copy is made only of data in a traced block. From then on every shadow
 *    TLB entry over them is execute-only, also a small one for another address of the
 *    guest (kvmppc_bt_holds_cached()); to ensure it, the shadow TLB is flushed then.
 *    When the traced blocks change, the copies of data that are no longer in one are
 *    dropped before the guest runs again.
 *  - The address translates to the data, by an entry of the guest's TLB1 with TID 0,
 *    so for every PID. All copies are dropped when the guest or the VMM changes TLB1,
 *    when the host moves memory, and when the guest sets MSR[DS], which selects another
 *    address space. No copy is made while MSR[DS] is set, nor of data that the guest's
 *    supervisor must not read.
 *  - Only the supervisor can execute code with such a load: the guest's user could not
 *    execute the fragment.
 *
 * A copy is in one vcpu's data page, and valid by that vcpu's TLB1. So a VM with several vcpus
 * has none, and where there are copies the only vcpu's thread need not stop the VM.
 *
 * Writes of the VMM to the guest's memory are not traced, as for sites: a VMM that
 * writes must ensure that nothing there is cached, or make the guest disable translation.
 *
 * A copy is in the guest's own page: if the guest overwrites it, only the guest's loads
 * are affected. The host never reads it.
 *
 * The policy. A copy pays off for data that one load reads often and that are written
 * rarely. Counted is how many times more often a load has read one address than others:
 * most traced loads walk over strings and tables and never get a copy. A site is undone
 * after BT_MISSES traced loads of other data. If BT_VAIN times a site was undone so, its
 * data were written, or no site could be made, the load is not translated again for as
 * long as it is remembered. Slots are a ring: the oldest copy is replaced.
 */
#include <linux/kvm_host.h>
#include <linux/module.h>
#include <asm/kvm_ppc.h>
#include <asm/sstep.h>

#include "booke.h"
#include "e500.h"
#include "e500_bt.h"

#define BT_MISSES	16
#define BT_VAIN		8

static unsigned int bt_read_cache;
module_param(bt_read_cache, uint, 0644);
MODULE_PARM_DESC(bt_read_cache, "Traced loads of one address by an instruction before it looks in the data cache first; 0: never");

static_assert(sizeof(struct kvm_vcpu_arch_shared) <= BT_SAVE_OFFSET);
static_assert(BT_DATA_BYTES == PAGE_SIZE);

static gpa_t word_of(gpa_t gpa)
{
	return gpa & ~3ULL;
}

static struct bt_load_heat *heat_of(struct bt_reads *reads, u32 pc)
{
	return &reads->heat[hash_32(pc, BT_LOAD_HEAT_BITS)];
}

/*
 * Like is_hot() in e500_bt.c: if two loads share an entry, the more frequent one wins. The
 * same holds for the addresses of one load.
 */
static bool is_hot(struct bt_reads *reads, u32 pc, u32 ea, unsigned int threshold)
{
	struct bt_load_heat *heat = heat_of(reads, pc);

	if (heat->loads && (heat->pc != pc || heat->ea != ea)) {
		heat->loads--;
		return false;
	}
	if (heat->pc != pc)
		heat->vain = 0;
	heat->pc = pc;
	heat->ea = ea;
	heat->loads = min(heat->loads + 1, threshold);
	return heat->loads >= threshold && heat->vain < BT_VAIN;
}

/* A load's copy was useless. */
static void in_vain(struct bt_reads *reads, u32 pc)
{
	struct bt_load_heat *heat = heat_of(reads, pc);

	if (heat->pc != pc)
		heat->vain = 0;
	heat->pc = pc;
	heat->loads = 0;
	heat->vain++;
}

/**
 * kvmppc_bt_check_reads - drop copies of data that are no longer in a traced block
 * @vcpu: outside of the guest
 *
 * Dropping a copy may make its site's page untraced, which changes the blocks again: call
 * this again while KVM_REQ_BT_STALE is requested.
 */
void kvmppc_bt_check_reads(struct kvm_vcpu *vcpu)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	unsigned int i;

	for (i = 0; bt->reads.n && i < BT_CACHE_SLOTS; i++) {
		const struct bt_read *read = &bt->reads.slot[i];

		if (read->site && kvmppc_bt_block_tsize(bt, read->gpa >> PAGE_SHIFT) < 0)
			kvmppc_bt_undo(vcpu, read->site);
	}
}

/* Drop all copies. */
static void drop_reads(struct kvm_vcpu *vcpu)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	struct bt_site *site;
	unsigned int i, index;
	int idx;

	if (!bt->reads.n)
		return;
	idx = srcu_read_lock(&vcpu->kvm->srcu);
	/* Not every caller has been through kvmppc_bt_handle_exit(). */
	kvmppc_bt_settle(vcpu, &site, &index);
	for (i = 0; bt->reads.n && i < BT_CACHE_SLOTS; i++)
		if (bt->reads.slot[i].site)
			kvmppc_bt_undo(vcpu, bt->reads.slot[i].site);
	srcu_read_unlock(&vcpu->kvm->srcu, idx);
}

static struct bt_read *cached(struct kvmppc_bt *bt, gpa_t word)
{
	struct bt_read *read;

	hash_for_each_possible(bt->reads.by_word, read, node, word)
		if (word_of(read->gpa) == word)
			return read;
	return NULL;
}

/* Drop the copies of what a store is about to change. */
void kvmppc_bt_drop_reads_of(struct kvm_vcpu *vcpu, gpa_t gpa, unsigned int len)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	struct bt_read *read;
	gpa_t word;

	for (word = word_of(gpa); bt->reads.n && word < gpa + len; word += 4)
		while ((read = cached(bt, word))) {
			in_vain(&bt->reads, read->site->ea);
			kvmppc_bt_undo(vcpu, read->site);
		}
}

/**
 * kvmppc_bt_remapped - what the guest's TLB1 or the host's memory maps is about to change
 * @vcpu: outside of the guest
 */
void kvmppc_bt_remapped(struct kvm_vcpu *vcpu)
{
	if (!kvmppc_bt_enabled(vcpu->kvm))
		return;
	drop_reads(vcpu);
	/* Whether the execute pages are still mapped is checked when it has changed. */
	kvm_make_request(KVM_REQ_BT_STALE, vcpu);
}

/**
 * kvmppc_bt_msr_changed - the guest's MSR has changed by other means than a fragment
 * @vcpu: outside of the guest; interrupts are on if MSR[DS] is
 */
void kvmppc_bt_msr_changed(struct kvm_vcpu *vcpu)
{
	if ((vcpu->arch.shared->msr & MSR_DS) && kvmppc_bt_enabled(vcpu->kvm))
		drop_reads(vcpu);
}

/* The TLB1 entry if it is valid for all of the guest's processes, or NULL. */
static const struct kvm_book3e_206_tlb_entry *kernel_entry(struct kvm_vcpu *vcpu, int index)
{
	const struct kvm_book3e_206_tlb_entry *entry;

	if (index < 0 || tlbsel_of(index) != 1)
		return NULL;
	entry = get_entry(to_e500(vcpu), 1, esel_of(index));
	return get_tlb_tid(entry) ? NULL : entry;
}

/* Find the data's guest-physical address. False if they must not be cached. */
static bool find_data(struct kvm_vcpu *vcpu, u32 ea, unsigned int len, gpa_t *gpa)
{
	int index = kvmppc_mmu_dtlb_index(vcpu, ea);
	const struct kvm_book3e_206_tlb_entry *entry = kernel_entry(vcpu, index);

	/* Unaligned data could be in two words, or in two pages. */
	if (!entry || !(entry->mas7_3 & MAS3_SR) || (ea & (len - 1)))
		return false;
	*gpa = kvmppc_mmu_xlate(vcpu, index, ea);
	return kvm_is_visible_gfn(vcpu->kvm, *gpa >> PAGE_SHIFT);
}

static bool find_load(struct kvm_vcpu *vcpu, u32 pc, gpa_t *gpa)
{
	const struct kvm_book3e_206_tlb_entry *entry =
		kernel_entry(vcpu, kvmppc_mmu_itlb_index(vcpu, pc));

	return entry && !(entry->mas7_3 & MAS3_UX) && kvmppc_bt_find_code(vcpu, pc, gpa) &&
	       !kvmppc_bt_in_area(vcpu->kvm->arch.bt, *gpa);
}

/* Copy what the guest wrote to the fragment's slot. */
static bool copy(struct kvm_vcpu *vcpu, unsigned int slot, u32 ea, gpa_t gpa, unsigned int len)
{
	struct bt_cached *cached = (void *)vcpu->arch.shared + BT_CACHE_OFFSET;
	u8 bytes[sizeof(cached->value)] = { 0 };

	if (kvm_read_guest(vcpu->kvm, gpa, bytes, len))
		return false;
	kvmppc_bt_originals(vcpu, gpa, bytes, len);
	cached += slot;
	cached->none = 0;
	cached->delta = kvmppc_bt_cached_ea(vcpu->kvm->arch.bt->data, slot) - ea;
	memcpy(&cached->value, bytes, sizeof(bytes));
	return true;
}

/*
 * The paper's chain effect: a load's site makes a page traced, loads of whose data are
 * translated, too, and so on. The round of a load is 1 if its data are traced because
 * of privileged instructions, 2 if because of loads of round 1.
 */
static unsigned int round_of(struct kvmppc_bt *bt, gpa_t data)
{
	int tsize = kvmppc_bt_block_tsize(bt, data >> PAGE_SHIFT);
	unsigned long pages = 1UL << (tsize - BOOK3E_PAGESZ_4K), at;
	unsigned long first = (data >> PAGE_SHIFT) & ~(pages - 1);
	unsigned int round = U8_MAX;
	struct bt_page *page;
	struct bt_site *site;

	xa_for_each_range(&bt->pages, at, page, first, first + pages - 1)
		list_for_each_entry(site, &page->sites, in_page) {
			if (!site->read)
				return 1;
			round = min_t(unsigned int, round, site->read->round);
		}
	return round + 1;
}

/* Make a load a site. False if that is impossible: it continues to be emulated. */
static bool make(struct kvm_vcpu *vcpu, u32 pc, gpa_t gpa, u32 inst,
		 const struct instruction_op *op)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	unsigned int len = GETSIZE(op->type), slot = bt->reads.next;
	struct bt_read *read = &bt->reads.slot[slot];
	struct bt_site *site;
	struct bt_code code;
	unsigned int round;
	enum bt_kind kind;
	gpa_t data;

	kind = kvmppc_bt_translate_load(inst, bt->data, slot, op->ea, &code);
	if (kind == BT_NONE || len > sizeof(u32) || !find_data(vcpu, op->ea, len, &data))
		return false;
	bt->reads.next = (slot + 1) % BT_CACHE_SLOTS;
	if (read->site)
		kvmppc_bt_undo(vcpu, read->site);
	if (kvmppc_bt_block_tsize(bt, data >> PAGE_SHIFT) < 0)
		return false;
	round = round_of(bt, data);
	if (!copy(vcpu, slot, op->ea, data, len) ||
	    kvmppc_bt_patch_code(vcpu, pc, gpa, inst, kind, &code))
		return false;
	site = kvmppc_bt_site(bt, gpa);
	/* Making the site, or evicting a fragment for it, may have changed the blocks. */
	if (kvmppc_bt_block_tsize(bt, data >> PAGE_SHIFT) < 0) {
		kvmppc_bt_undo(vcpu, site);
		return false;
	}
	/* There may be readable entries for another address of these data. */
	if (!kvmppc_bt_holds_cached(bt, data >> PAGE_SHIFT, 1))
		kvmppc_core_flush_tlb(vcpu);
	*read = (struct bt_read){
		.site = site,
		.gpa = data,
		.round = min(round, (unsigned int)U8_MAX - 1),
	};
	site->read = read;
	hash_add(bt->reads.by_word, &read->node, word_of(data));
	bt->reads.n++;
	bt->stats.reads_made++;
	bt->stats.reads_chained += round > 1;
	bt->stats.reads_rounds = max_t(u64, bt->stats.reads_rounds, round);
	return true;
}

/* A site has read an address that it has not cached. */
static void missed(struct kvm_vcpu *vcpu, struct bt_site *site)
{
	if (++site->read->misses < BT_MISSES)
		return;
	in_vain(&vcpu->kvm->arch.bt->reads, site->ea);
	kvmppc_bt_undo(vcpu, site);
}

/**
 * kvmppc_bt_loaded - consider a traced load that was emulated just now
 * @vcpu: the vcpu that has stopped the VM
 * @pc: where the load is
 * @inst: the load
 * @op: the same, analysed
 */
void kvmppc_bt_loaded(struct kvm_vcpu *vcpu, u32 pc, u32 inst, const struct instruction_op *op)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	unsigned int threshold = READ_ONCE(bt_read_cache);
	struct bt_site *site;
	gpa_t gpa;

	if (!threshold || bt->crowded || bt->mode < BT_MODE_FRAGMENTS || vcpu->guest_debug ||
	    (vcpu->arch.shared->msr & (MSR_PR | MSR_IS | MSR_DS)) || !find_load(vcpu, pc, &gpa))
		return;
	site = kvmppc_bt_site(bt, gpa);
	if (site && site->read)
		missed(vcpu, site);
	else if (!site && is_hot(&bt->reads, pc, op->ea, threshold) &&
		 !make(vcpu, pc, gpa, inst, op))
		in_vain(&bt->reads, pc);
}
