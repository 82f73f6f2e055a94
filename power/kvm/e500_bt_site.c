// SPDX-License-Identifier: GPL-2.0-only
/*
 * Patched sites and their fragments: create, look up, replace, undo.
 *
 * Invariant: a site is in the table exactly while the guest's memory holds its
 * patch instead of its original. Its page is recorded as traced before the patch is
 * written and until after the original is restored; the shadow TLB matches whenever the
 * guest runs. A slot of the execute pages belongs to at most one site, and is written
 * only while no branch leads to it.
 *
 * Writing instructions takes more than a store: on a processor whose
 * instruction cache does not snoop, the data cache line must be written back
 * (dcbst, sync) before the instruction cache line is thrown away (icbi), and an
 * isync must come before the new word is fetched. flush_icache_range() does this
 * in this order, by the host's mapping: the e500's caches have physical tags and
 * 4 KB a way, so a line is found by whatever address it is named; icbi is broadcast to the
 * other processors, whose instruction caches have the line no longer either. The rfi that
 * enters the guest synchronises its context like the isync, on each processor: all vcpus
 * are outside of the guest when code is written (e500_bt.h).
 */
#include <linux/kvm_host.h>
#include <linux/slab.h>
#include <asm/cacheflush.h>
#include <asm/kvm_ppc.h>

#include "e500.h"
#include "e500_bt.h"

#define BT_MAX_SITES	8192

/* Write words of code into the guest's memory. False if it is no longer memory. */
static bool write_code(struct kvm_vcpu *vcpu, gpa_t gpa, const u32 *words, unsigned int n)
{
	struct kvm_host_map map;
	unsigned int i;
	u32 *to;

	if (kvm_vcpu_map(vcpu, gpa >> PAGE_SHIFT, &map))
		return false;
	to = map.hva + offset_in_page(gpa);
	for (i = 0; i < n; i++)
		WRITE_ONCE(to[i], words[i]);
	flush_icache_range((unsigned long)to, (unsigned long)(to + n));
	kvm_vcpu_unmap(vcpu, &map, true);
	return true;
}

static bool read_code(struct kvm_vcpu *vcpu, gpa_t gpa, u32 *word)
{
	return !kvm_read_guest(vcpu->kvm, gpa, word, sizeof(*word));
}

/* Sites are words: one is found by the address of its first byte. */
struct bt_site *kvmppc_bt_site(struct kvmppc_bt *bt, gpa_t gpa)
{
	struct bt_site *site;

	hash_for_each_possible(bt->sites, site, node, gpa)
		if (site->gpa == gpa)
			return site;
	return NULL;
}

/* In a little-endian page the same bytes are other instructions, which nothing here expects. */
static bool executable(const struct kvm_book3e_206_tlb_entry *entry, u32 permission)
{
	return (entry->mas7_3 & permission) && !(entry->mas2 & MAS2_E);
}

/* Translate an address, if it is memory that the guest may execute in its present mode. */
bool kvmppc_bt_find_code(struct kvm_vcpu *vcpu, u32 ea, gpa_t *gpa)
{
	int index = kvmppc_mmu_itlb_index(vcpu, ea);
	struct kvm_book3e_206_tlb_entry *entry;

	if (index < 0)
		return false;
	entry = get_entry(to_e500(vcpu), tlbsel_of(index), esel_of(index));
	if (!executable(entry, vcpu->arch.shared->msr & MSR_PR ? MAS3_UX : MAS3_SX))
		return false;
	*gpa = kvmppc_mmu_xlate(vcpu, index, ea);
	return kvm_is_visible_gfn(vcpu->kvm, *gpa >> PAGE_SHIFT);
}

/* The entry of TLB1 that maps code of the guest's supervisor, in each of its processes. */
static const struct kvm_book3e_206_tlb_entry *kernel_code(struct kvm_vcpu *vcpu, u32 ea)
{
	struct kvmppc_vcpu_e500 *vcpu_e500 = to_e500(vcpu);
	const struct kvm_book3e_206_tlb_entry *entry = get_entry(vcpu_e500, 1, 0);
	unsigned int i;

	for (i = 0; i < vcpu_e500->gtlb_params[1].entries; i++, entry++)
		if (get_tlb_v(entry) && !get_tlb_ts(entry) && !get_tlb_tid(entry) &&
		    ea >= get_tlb_eaddr(entry) && ea <= get_tlb_end(entry))
			return executable(entry, MAS3_SX) ? entry : NULL;
	return NULL;
}

/**
 * kvmppc_bt_maps_code - whether pages of code are mapped permanently
 * @vcpu: a vcpu that is inside, or has stopped the VM
 * @ea: the first byte's effective address, in the guest's supervisor mode
 * @gpa: the guest-physical address that it shall have
 * @bytes: how many, contiguous in both address spaces
 *
 * By TLB1, that is, whose changes kvmppc_bt_remapped() sees. Entries of TLB0 come and go.
 */
bool kvmppc_bt_maps_code(struct kvm_vcpu *vcpu, u32 ea, gpa_t gpa, u32 bytes)
{
	u64 end = (u64)ea + bytes, at;

	for (at = ea; at < end; ) {
		const struct kvm_book3e_206_tlb_entry *entry = kernel_code(vcpu, at);

		if (!entry || get_tlb_raddr(entry) + (at - get_tlb_eaddr(entry)) != gpa + (at - ea))
			return false;
		at = (u64)get_tlb_end(entry) + 1;
	}
	return true;
}

/* Whether the guest still maps an area as when it was registered. */
bool kvmppc_bt_maps_area(struct kvm_vcpu *vcpu, const struct bt_area *area)
{
	return kvmppc_bt_maps_code(vcpu, area->ea, area->gpa, area->slots * BT_SLOT_BYTES);
}

static gpa_t slot_gpa(const struct bt_area *area, u32 slot)
{
	return area->gpa + slot * BT_SLOT_BYTES;
}

static u32 slot_ea(const struct bt_area *area, u32 slot)
{
	return area->ea + slot * BT_SLOT_BYTES;
}

/* Whether memory still holds the site's fragment, all of it. */
static bool holds_fragment(struct kvm_vcpu *vcpu, const struct bt_site *site)
{
	unsigned int bytes = site->n * sizeof(u32);
	u32 found[BT_SLOT_WORDS];

	return !kvm_read_guest(vcpu->kvm, slot_gpa(site->area, site->slot), found, bytes) &&
	       !memcmp(found, site->insn, bytes);
}

/* Drop the copy of a load whose site is undone. */
static void forget_read(struct kvmppc_bt *bt, struct bt_read *read)
{
	hash_del(&read->node);
	read->site = NULL;
	bt->reads.n--;
	bt->stats.reads_dropped++;
}

/**
 * kvmppc_bt_undo - put the original instruction of a site back and forget the site
 * @vcpu: the vcpu that has stopped the VM
 * @site: freed
 *
 * No other site is touched. If its page no longer needs tracing, the shadow TLB is
 * updated before the guest runs again.
 *
 * Memory that no longer holds the patch was changed by the VMM, and a slot that no longer
 * holds the fragment by the VMM or the guest: both are left unchanged.
 */
void kvmppc_bt_undo(struct kvm_vcpu *vcpu, struct bt_site *site)
{
	static const u32 nothing[BT_SLOT_WORDS];
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	gfn_t gfn = site->gpa >> PAGE_SHIFT;
	struct bt_page *page = kvmppc_bt_page(bt, gfn);
	u32 found;

	if (read_code(vcpu, site->gpa, &found) && found == site->patched)
		write_code(vcpu, site->gpa, &site->original, 1);
	if (site->area) {
		site->area->site[site->slot] = NULL;
		if (holds_fragment(vcpu, site))
			write_code(vcpu, slot_gpa(site->area, site->slot), nothing, BT_SLOT_WORDS);
	}
	if (site->read)
		forget_read(bt, site->read);
	hash_del(&site->node);
	list_del(&site->in_page);
	bt->nsites--;
	bt->stats.undone++;
	kfree(site);
	if (list_empty(&page->sites))
		kvmppc_bt_page_empty(vcpu, gfn);
}

/* The slots of each area in reach are a ring: the oldest fragment is replaced. */
static struct bt_area *take_slot(struct kvm_vcpu *vcpu, u32 ea, u32 *slot)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	unsigned int i;
	u32 branch;

	for (i = 0; i < bt->nareas; i++) {
		struct bt_area *area = &bt->area[i];
		u32 next = area->next;

		if (!kvmppc_bt_maps_area(vcpu, area))
			continue;
		if (!kvmppc_bt_branch(ea, slot_ea(area, next), &branch) ||
		    !kvmppc_bt_branch(slot_ea(area, next) + BT_SLOT_BYTES - 4, ea + 4, &branch))
			continue;
		area->next = (next + 1) % area->slots;
		if (area->site[next]) {
			bt->stats.evicted++;
			kvmppc_bt_undo(vcpu, area->site[next]);
		}
		*slot = next;
		return area;
	}
	return NULL;
}

static bool write_fragment(struct kvm_vcpu *vcpu, struct bt_site *site, struct bt_code *code)
{
	u32 ea = slot_ea(site->area, site->slot);
	u32 last = code->n - 1;

	if (!kvmppc_bt_branch(ea + 4 * last, site->ea + 4, &code->insn[last]) ||
	    !kvmppc_bt_branch(site->ea, ea, &site->patched))
		return false;
	memcpy(site->insn, code->insn, code->n * sizeof(u32));
	site->n = code->n;
	return write_code(vcpu, slot_gpa(site->area, site->slot), site->insn, site->n);
}

/**
 * kvmppc_bt_patch - translate an instruction where it stands
 * @vcpu: the vcpu that has stopped the VM
 * @ea: its effective address, in the guest's supervisor mode
 * @gpa: its guest-physical address
 * @inst: the instruction
 *
 * Returns 0, or -EOPNOTSUPP if there is no translation for it, -ERANGE if no
 * execute page is in reach, -EBUSY if the page is refused, there are too many sites
 * or the memory is not what the guest executed, -ENOMEM. An error changes nothing
 * except the age of fragments.
 */
int kvmppc_bt_patch(struct kvm_vcpu *vcpu, u32 ea, gpa_t gpa, u32 inst)
{
	struct bt_code code;
	enum bt_kind kind = kvmppc_bt_translate(inst, vcpu->kvm->arch.bt->data, &code);

	return kvmppc_bt_patch_code(vcpu, ea, gpa, inst, kind, &code);
}

/**
 * kvmppc_bt_patch_code - replace an instruction by its translation
 * @vcpu: the vcpu that has stopped the VM
 * @ea: its effective address, in the guest's supervisor mode
 * @gpa: its guest-physical address
 * @inst: the instruction
 * @kind: what @code is
 * @code: its translation; a fragment's last branch is made here
 *
 * Returns as kvmppc_bt_patch().
 */
int kvmppc_bt_patch_code(struct kvm_vcpu *vcpu, u32 ea, gpa_t gpa, u32 inst, enum bt_kind kind,
			 struct bt_code *code)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	gfn_t gfn = gpa >> PAGE_SHIFT;
	struct bt_page *page;
	struct bt_site *site;
	bool traced;
	u32 found;

	if (kind == BT_NONE || (kind == BT_FRAGMENT && bt->mode < BT_MODE_FRAGMENTS))
		return -EOPNOTSUPP;
	if (bt->nsites >= BT_MAX_SITES || !read_code(vcpu, gpa, &found) || found != inst)
		return -EBUSY;
	page = kvmppc_bt_make_page(bt, gfn);
	if (!page)
		return -ENOMEM;
	if (page->refused)
		return -EBUSY;
	site = kzalloc(sizeof(*site), GFP_KERNEL_ACCOUNT);
	if (!site) {
		kvmppc_bt_page_unused(bt, gfn);
		return -ENOMEM;
	}
	site->gpa = gpa;
	site->ea = ea;
	site->original = inst;
	site->scratch = code->scratch;
	site->commit = code->commit;
	site->restore = code->restore;
	site->scratch2 = code->scratch2;
	site->restore2 = code->restore2;
	if (kind == BT_SINGLE) {
		site->patched = code->insn[0];
	} else {
		site->area = take_slot(vcpu, ea, &site->slot);
		if (!site->area || !write_fragment(vcpu, site, code)) {
			kfree(site);
			kvmppc_bt_page_unused(bt, gfn);
			return -ERANGE;
		}
	}
	/* Taking the slot may have undone the page's last site: look it up again. */
	page = kvmppc_bt_make_page(bt, gfn);
	if (!page) {
		kfree(site);
		return -ENOMEM;
	}
	traced = !list_empty(&page->sites);
	list_add(&site->in_page, &page->sites);
	xa_set_mark(&bt->pages, gfn, BT_HAS_SITES);
	hash_add(bt->sites, &site->node, gpa);
	bt->nsites++;
	if (!traced)
		kvmppc_bt_page_traced(vcpu, gfn);
	if (site->area) {
		site->area->site[site->slot] = site;
		bt->stats.fragments++;
	}
	bt->stats.patched++;
	write_code(vcpu, gpa, &site->patched, 1);
	return 0;
}

/**
 * kvmppc_bt_undo_block - undo all sites that share a shadow TLB entry with a page
 * @vcpu: the vcpu that has stopped the VM
 * @gfn: the page
 * @refuse: whether to have no more sites in these pages
 */
void kvmppc_bt_undo_block(struct kvm_vcpu *vcpu, gfn_t gfn, bool refuse)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	int tsize = kvmppc_bt_block_tsize(bt, gfn);
	struct bt_site *site, *next;
	struct bt_page *page;
	unsigned long at;
	gfn_t pages, first;

	if (tsize < 0)
		return;
	pages = 1UL << (tsize - BOOK3E_PAGESZ_4K);
	first = gfn & ~(pages - 1);
	xa_for_each_range(&bt->pages, at, page, first, first + pages - 1) {
		if (list_empty(&page->sites))
			continue;
		if (refuse) {
			page->refused = true;
			bt->stats.refused_pages++;
		}
		/* Undoing its last site may free the page, so it is not accessed again. */
		list_for_each_entry_safe(site, next, &page->sites, in_page) {
			bool last = list_is_last(&site->in_page, &page->sites);

			kvmppc_bt_undo(vcpu, site);
			if (last)
				break;
		}
	}
}

void kvmppc_bt_undo_all(struct kvm_vcpu *vcpu)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	struct hlist_node *next;
	struct bt_site *site;
	int bucket;

	hash_for_each_safe(bt->sites, bucket, next, site, node)
		kvmppc_bt_undo(vcpu, site);
}

static gpa_t first_word(gpa_t gpa)
{
	return gpa & ~3ULL;
}

/**
 * kvmppc_bt_originals - give bytes of memory the values that the guest wrote
 * @vcpu: a vcpu that is inside, or has stopped the VM
 * @gpa: where they were read, within one page
 * @bytes: what was read
 * @len: how many
 */
void kvmppc_bt_originals(struct kvm_vcpu *vcpu, gpa_t gpa, u8 *bytes, unsigned int len)
{
	gpa_t word, at;
	u32 found;

	for (word = first_word(gpa); word < gpa + len; word += 4) {
		struct bt_site *site = kvmppc_bt_site(vcpu->kvm->arch.bt, word);

		/* If it is not the patch, the VMM has written here. */
		if (!site || !read_code(vcpu, word, &found) || found != site->patched)
			continue;
		for (at = max(word, gpa); at < min(word + 4, gpa + len); at++)
			bytes[at - gpa] = site->original >> (24 - 8 * (at & 3));
	}
}

/* Undo the sites that a store is about to overwrite. */
void kvmppc_bt_undo_range(struct kvm_vcpu *vcpu, gpa_t gpa, unsigned int len)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	gpa_t word;

	for (word = first_word(gpa); word < gpa + len; word += 4) {
		struct bt_site *site = kvmppc_bt_site(bt, word);

		if (site)
			kvmppc_bt_undo(vcpu, site);
	}
}

/* Whether a guest-physical address is in execute pages. */
bool kvmppc_bt_in_area(const struct kvmppc_bt *bt, gpa_t gpa)
{
	unsigned int i;

	for (i = 0; i < bt->nareas; i++)
		if (gpa - bt->area[i].gpa < (gpa_t)bt->area[i].slots * BT_SLOT_BYTES)
			return true;
	return false;
}

/* Fragments are executed by a supervisor in address space 0 only. */
static bool runs_fragments(struct kvm_vcpu *vcpu)
{
	return !(vcpu->arch.shared->msr & (MSR_PR | MSR_IS));
}

/**
 * kvmppc_bt_settle - move the guest out of a fragment
 * @vcpu: a vcpu that is inside, its thread's own
 * @found: for BT_INSIDE, the fragment's site
 * @index: for BT_INSIDE, the fragment's instruction that was not executed yet
 *
 * The program counter alone does not tell that the guest is in a fragment: it may have
 * overwritten its execute pages, as a kernel does that starts another one there, and
 * execute code of its own. Then its registers are not changed. If the exit was a system
 * call, the program counter is after it; that makes no difference, because a fragment
 * contains none, and one in front of a fragment leads to its beginning.
 *
 * Scratch registers are volatile ones, which every exit saves and every entry loads.
 */
enum bt_place kvmppc_bt_settle(struct kvm_vcpu *vcpu, struct bt_site **found, unsigned int *index)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	u32 pc = kvmppc_get_pc(vcpu), *save;
	unsigned int i;

	for (i = 0; i < bt->nareas && runs_fragments(vcpu); i++) {
		struct bt_area *area = &bt->area[i];
		u32 offset = pc - area->ea, at = offset % BT_SLOT_BYTES / 4;
		struct bt_site *site;

		if (offset >= area->slots * BT_SLOT_BYTES)
			continue;
		/* Another area may have been at this address, in other pages. */
		site = area->site[offset / BT_SLOT_BYTES];
		if (!site)
			continue;
		if (at >= site->n || !holds_fragment(vcpu, site))
			return BT_FOREIGN;
		save = (void *)vcpu->arch.shared + BT_SAVE_OFFSET;
		if (at > 0 && at <= site->restore)
			kvmppc_set_gpr(vcpu, site->scratch, READ_ONCE(save[0]));
		if (at > 1 && at <= site->restore2)
			kvmppc_set_gpr(vcpu, site->scratch2, READ_ONCE(save[1]));
		kvmppc_set_pc(vcpu, site->ea + (at > site->commit ? 4 : 0));
		bt->stats.settled++;
		*found = site;
		*index = at;
		return BT_INSIDE;
	}
	return BT_OUTSIDE;
}
