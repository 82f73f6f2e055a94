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
 *    TLB entry over them is execute-only, also a small one by another address of the
 *    guest's (kvmppc_bt_holds_cached()), for which the shadow TLB is emptied then. When
 *    the traced blocks change, the copies of data that are in none any more are dropped
 *    before the guest runs again.
 *  - The address leads to the data. It does so by an entry of the guest's TLB1 with
 *    TID 0, so PID says nothing; when the guest, or who runs it, changes TLB1, or the
 *    host moves memory, all copies are dropped. They also are when the guest sets
 *    MSR[DS], which is another address space. No copy is made while it is set, nor of
 *    what the guest's supervisor must not read.
 *  - Code with such a load is the supervisor's alone: the guest's user could not execute
 *    the fragment.
 *
 * Writes of the VMM to the guest's memory are not traced, as for sites: a VMM that
 * writes must ensure that nothing there is cached, or make the guest disable translation.
 *
 * A copy is in the guest's own page: if the guest overwrites it, the guest's loads read
 * that. The host never reads it.
 *
 * The policy. A copy is worth it for data that one load reads often and that are written
 * rarely. What is counted is how often a load has read one address more than it has
 * read others, for most loads that are traced walk over strings and tables: those never
 * have one. After BT_MISSES traced loads of other data by a site it is undone, and if
 * this, or a store to what was copied, or that no site could be made, has happened BT_VAIN
 * times, the load stays as it is, for as long as it is remembered. Slots are a ring, the
 * oldest copy goes.
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
 * As is_hot() in e500_bt.c: where two share an entry, the more frequent one wins. So it
 * is for the addresses of one load.
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
 * kvmppc_bt_check_reads - drop copies of data that are in no traced block any more
 * @vcpu: the VM's vcpu, outside of the guest
 *
 * To drop one may make its own site's page untraced, which changes the blocks again:
 * call again while that is asked for.
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
	unsigned int i;

	for (i = 0; bt->reads.n && i < BT_CACHE_SLOTS; i++)
		if (bt->reads.slot[i].site)
			kvmppc_bt_undo(vcpu, bt->reads.slot[i].site);
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
 * kvmppc_bt_remapped - what the guest's TLB1 or the host's memory maps has changed
 * @vcpu: the VM's vcpu, outside of the guest
 */
void kvmppc_bt_remapped(struct kvm_vcpu *vcpu)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	struct bt_site *site;
	unsigned int index;
	int idx;

	if (!bt || !bt->reads.n)
		return;
	idx = srcu_read_lock(&vcpu->kvm->srcu);
	/* Not all ways to here come by kvmppc_bt_handle_exit(). */
	if (!(vcpu->arch.shared->msr & MSR_PR))
		kvmppc_bt_settle(vcpu, &site, &index);
	drop_reads(vcpu);
	srcu_read_unlock(&vcpu->kvm->srcu, idx);
}

/**
 * kvmppc_bt_msr_changed - the guest's MSR has changed by other means than a fragment
 * @vcpu: the VM's vcpu, outside of the guest; interrupts are on if MSR[DS] is
 */
void kvmppc_bt_msr_changed(struct kvm_vcpu *vcpu)
{
	if (vcpu->arch.shared->msr & MSR_DS)
		kvmppc_bt_remapped(vcpu);
}

/* An entry that all of the guest's processes have, and that stays until it is changed. */
static const struct kvm_book3e_206_tlb_entry *kernel_entry(struct kvm_vcpu *vcpu, int index)
{
	const struct kvm_book3e_206_tlb_entry *entry;

	if (index < 0 || tlbsel_of(index) != 1)
		return NULL;
	entry = get_entry(to_e500(vcpu), 1, esel_of(index));
	return get_tlb_tid(entry) ? NULL : entry;
}

/* Where the data are, if they may be cached. */
static bool find_data(struct kvm_vcpu *vcpu, u32 ea, unsigned int len, gpa_t *gpa)
{
	int index = kvmppc_mmu_dtlb_index(vcpu, ea);
	const struct kvm_book3e_206_tlb_entry *entry = kernel_entry(vcpu, index);

	/* One that is not aligned could be of two words, or of two pages. */
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

/* What the guest wrote, to where the fragment finds it. */
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

/* Make a load a site. False if it cannot be: it stays an instruction that is emulated. */
static bool make(struct kvm_vcpu *vcpu, u32 pc, gpa_t gpa, u32 inst,
		 const struct instruction_op *op)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	unsigned int len = GETSIZE(op->type), slot = bt->reads.next;
	struct bt_read *read = &bt->reads.slot[slot];
	struct bt_site *site;
	struct bt_code code;
	enum bt_kind kind;
	gpa_t data;

	kind = kvmppc_bt_translate_load(inst, bt->data, slot, op->ea, &code);
	if (kind == BT_NONE || len > sizeof(u32) || !find_data(vcpu, op->ea, len, &data))
		return false;
	bt->reads.next = (slot + 1) % BT_CACHE_SLOTS;
	if (read->site)
		kvmppc_bt_undo(vcpu, read->site);
	if (!copy(vcpu, slot, op->ea, data, len) ||
	    kvmppc_bt_patch_code(vcpu, pc, gpa, inst, kind, &code))
		return false;
	site = kvmppc_bt_site(bt, gpa);
	/* Its site may have changed the blocks, or a fragment that made room for it. */
	if (kvmppc_bt_block_tsize(bt, data >> PAGE_SHIFT) < 0) {
		kvmppc_bt_undo(vcpu, site);
		return false;
	}
	/* Entries by another address of these data may be there, and be no part of a block. */
	if (!kvmppc_bt_holds_cached(bt, data >> PAGE_SHIFT, 1))
		kvmppc_core_flush_tlb(vcpu);
	*read = (struct bt_read){ .site = site, .gpa = data };
	site->read = read;
	hash_add(bt->reads.by_word, &read->node, word_of(data));
	bt->reads.n++;
	bt->stats.reads_made++;
	return true;
}

/* A site has read something else than what it has cached. */
static void missed(struct kvm_vcpu *vcpu, struct bt_site *site)
{
	if (++site->read->misses < BT_MISSES)
		return;
	in_vain(&vcpu->kvm->arch.bt->reads, site->ea);
	kvmppc_bt_undo(vcpu, site);
}

/**
 * kvmppc_bt_loaded - consider a load that was emulated just now, as it is traced
 * @vcpu: the VM's vcpu, outside of the guest
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

	if (!threshold || bt->mode < BT_MODE_FRAGMENTS || vcpu->guest_debug ||
	    (vcpu->arch.shared->msr & (MSR_PR | MSR_IS | MSR_DS)) || !find_load(vcpu, pc, &gpa))
		return;
	site = kvmppc_bt_site(bt, gpa);
	if (site && site->read)
		missed(vcpu, site);
	else if (!site && is_hot(&bt->reads, pc, op->ea, threshold) &&
		 !make(vcpu, pc, gpa, inst, op))
		in_vain(&bt->reads, pc);
}
