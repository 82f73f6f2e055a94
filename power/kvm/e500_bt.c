// SPDX-License-Identifier: GPL-2.0-only
/*
 * In-place binary translation of a guest's privileged instructions, e500v2: the
 * functions that stock code calls, and the guest driver's hypercalls.
 *
 * Invariant: a VM is translated from the driver's first successful call, in the
 * mode that was selected when the VM was created, and never otherwise. Pages that
 * the guest gives are checked against the VM's own memory before they are used; a
 * call that fails has changed nothing. The guarantee of e500_bt.h about program
 * counters is kept here: every exit of a translated VM that is not short goes through
 * kvmppc_bt_handle_exit() before any other code reads the guest's state. Sites are made and
 * undone only while the VM is stopped, which is done here; e500_bt.h has the rule.
 */
#include <linux/debugfs.h>
#include <linux/kvm_host.h>
#include <linux/module.h>
#include <linux/slab.h>
#include <asm/kvm_para.h>
#include <asm/kvm_ppc.h>

#include "booke.h"
#include "e500.h"
#include "e500_bt.h"

static unsigned int bt_mode;
module_param(bt_mode, uint, 0644);
MODULE_PARM_DESC(bt_mode, "In-place translation in VMs made from now on: 0 off, 1 single instructions, 2 fragments, too, 3 none, only short exits");

static unsigned int bt_threshold = 4;
module_param(bt_threshold, uint, 0644);
MODULE_PARM_DESC(bt_threshold, "Exits of an instruction before it is translated");

static unsigned int bt_cache_pages = BT_MAX_AREA_PAGES;
module_param(bt_cache_pages, uint, 0644);
MODULE_PARM_DESC(bt_cache_pages, "Execute pages used of each area that a guest gives");

/**
 * kvmppc_bt_init_vm - prepare a VM for translation, if that is selected
 * @kvm: the VM, being made
 *
 * Returns 0 or -ENOMEM.
 */
int kvmppc_bt_init_vm(struct kvm *kvm)
{
	unsigned int mode = READ_ONCE(bt_mode);
	struct kvmppc_bt *bt;

	if (mode == BT_MODE_OFF || mode > BT_MODE_EXITS)
		return 0;
	bt = kzalloc(sizeof(*bt), GFP_KERNEL_ACCOUNT);
	if (!bt)
		return -ENOMEM;
	if (kvmppc_bt_init_layout(bt)) {
		kfree(bt);
		return -ENOMEM;
	}
	bt->mode = mode;
	bt->enabled = mode == BT_MODE_EXITS;
	spin_lock_init(&bt->claim);
	spin_lock_init(&bt->heat_lock);
	mutex_init(&bt->changing);
	init_waitqueue_head(&bt->left);
	hash_init(bt->sites);
	hash_init(bt->reads.by_word);
	xa_init(&bt->pages);
	kvm->arch.bt = bt;
	kvmppc_bt_use_short_exits();
	return 0;
}

/**
 * kvmppc_bt_precreate_vcpu - whether a VM may have one more vcpu
 * @kvm: the VM; kvm->lock is held
 *
 * Returns 0, or -EBUSY while it is translated.
 */
int kvmppc_bt_precreate_vcpu(struct kvm *kvm)
{
	struct kvmppc_bt *bt = kvm->arch.bt;
	int r = 0;

	if (!bt)
		return 0;
	if (!kvm->created_vcpus) {
		kvmppc_bt_show_layout(kvm);
		return 0;
	}
	spin_lock(&bt->claim);
	if (bt->enabled)
		r = -EBUSY;
	else
		bt->crowded = true;
	spin_unlock(&bt->claim);
	return r;
}

/**
 * kvmppc_bt_destroy_vm - free the translator's data of a VM
 * @kvm: the VM, whose vcpus are gone; its memory is not touched
 */
void kvmppc_bt_destroy_vm(struct kvm *kvm)
{
	struct kvmppc_bt *bt = kvm->arch.bt;
	struct hlist_node *next;
	struct bt_site *site;
	struct bt_page *page;
	unsigned long at;
	unsigned int i;
	int bucket;

	if (!bt)
		return;
	hash_for_each_safe(bt->sites, bucket, next, site, node)
		kfree(site);
	xa_for_each(&bt->pages, at, page)
		kfree(page);
	xa_destroy(&bt->pages);
	kvfree(bt->decided);
	kvmppc_bt_free_layout(bt);
	for (i = 0; i < bt->nareas; i++)
		kfree(bt->area[i].site);
	kfree(bt);
	kvm->arch.bt = NULL;
}

static void show_stats(struct kvm *kvm, struct kvmppc_bt *bt)
{
	const struct {
		const char *name;
		u64 *value;
	} stats[] = {
		{ "bt_patched", &bt->stats.patched },
		{ "bt_fragments", &bt->stats.fragments },
		{ "bt_undone", &bt->stats.undone },
		{ "bt_evicted", &bt->stats.evicted },
		{ "bt_untranslated", &bt->stats.untranslated },
		{ "bt_out_of_range", &bt->stats.out_of_range },
		{ "bt_traced_loads", &bt->stats.traced_loads },
		{ "bt_traced_stores", &bt->stats.traced_stores },
		{ "bt_traced_cacheops", &bt->stats.traced_cacheops },
		{ "bt_reservations", &bt->stats.reservations },
		{ "bt_refused_pages", &bt->stats.refused_pages },
		{ "bt_splits", &bt->stats.splits },
		{ "bt_settled", &bt->stats.settled },
		{ "bt_fragment_traps", &bt->stats.fragment_traps },
		{ "bt_stops", &bt->stats.stops },
		{ "bt_reads_made", &bt->stats.reads_made },
		{ "bt_reads_dropped", &bt->stats.reads_dropped },
		{ "bt_reads_chained", &bt->stats.reads_chained },
		{ "bt_reads_rounds", &bt->stats.reads_rounds },
	};
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(stats); i++)
		debugfs_create_u64(stats[i].name, 0444, kvm->debugfs_dentry, stats[i].value);
	debugfs_create_u32("bt_sites", 0444, kvm->debugfs_dentry, &bt->nsites);
	debugfs_create_u32("bt_read_sites", 0444, kvm->debugfs_dentry, &bt->reads.n);
}

/* A displacement alone must reach a data page: in the first or last 32 KiB, not 0. */
static bool good_data(u32 ea)
{
	return ea && !offset_in_page(ea) && (u32)(s16)ea == ea;
}

/* Whether the pages are the guest's code, contiguous in both address spaces, and stay mapped. */
static bool good_area(struct kvm_vcpu *vcpu, u32 ea, u32 pages, gpa_t *gpa)
{
	u32 i;

	if (offset_in_page(ea) || !pages || pages > BT_MAX_AREA_PAGES ||
	    ea + pages * PAGE_SIZE < ea || !kvmppc_bt_find_code(vcpu, ea, gpa) ||
	    !kvmppc_bt_maps_code(vcpu, ea, *gpa, pages * PAGE_SIZE))
		return false;
	for (i = 1; i < pages; i++)
		if (!kvm_is_visible_gfn(vcpu->kvm, (*gpa >> PAGE_SHIFT) + i))
			return false;
	return true;
}

/* Whether pages belong to an area already. */
static bool overlaps(const struct kvmppc_bt *bt, gpa_t gpa, u32 pages)
{
	u32 i;

	for (i = 0; i < pages; i++)
		if (kvmppc_bt_in_area(bt, gpa + i * PAGE_SIZE))
			return true;
	return false;
}

/* Whether pages have sites, or are refused because something was not emulated. */
static bool has_sites(struct kvmppc_bt *bt, gpa_t gpa, u32 pages)
{
	u32 i;

	for (i = 0; i < pages; i++)
		if (kvmppc_bt_page(bt, (gpa >> PAGE_SHIFT) + i))
			return true;
	return false;
}

/* Make sure that the VM gets no more vcpus until unclaim(). */
static void claim(struct kvmppc_bt *bt)
{
	spin_lock(&bt->claim);
	bt->enabled = true;
	spin_unlock(&bt->claim);
}

static void unclaim(struct kvmppc_bt *bt)
{
	spin_lock(&bt->claim);
	bt->enabled = false;
	spin_unlock(&bt->claim);
}

/**
 * kvmppc_bt_enter - go inside: from now on no other thread changes what the guest executes
 * @vcpu: outside; interrupts are on
 *
 * Waits until a thread that has stopped the VM is done.
 */
void kvmppc_bt_enter(struct kvm_vcpu *vcpu)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	struct bt_vcpu *mine;

	if (!bt)
		return;
	mine = kvmppc_bt_vcpu(vcpu);
	mutex_lock(&bt->changing);
	mine->inside = true;
	mutex_unlock(&bt->changing);
	/* Translation may have been enabled before this vcpu was online. */
	if (!mine->known)
		kvm_make_request(KVM_REQ_BT_STALE, vcpu);
	mine->known = true;
}

/**
 * kvmppc_bt_leave - let others change what the guest executes
 * @vcpu: inside; interrupts are on
 *
 * kvmppc_bt_enter() must come before the guest runs again.
 */
void kvmppc_bt_leave(struct kvm_vcpu *vcpu)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	struct bt_site *site;
	unsigned int index;
	int idx;

	if (!bt)
		return;
	/* Not every exit goes through kvmppc_bt_handle_exit(). */
	idx = srcu_read_lock(&vcpu->kvm->srcu);
	kvmppc_bt_settle(vcpu, &site, &index);
	srcu_read_unlock(&vcpu->kvm->srcu, idx);
	/* is_inside() */
	smp_store_release(&kvmppc_bt_vcpu(vcpu)->inside, false);
	wake_up(&bt->left);
}

static bool is_inside(struct kvm_vcpu *vcpu)
{
	/* Who left has done all that it did inside. */
	return smp_load_acquire(&kvmppc_bt_vcpu(vcpu)->inside);
}

/*
 * Stop the VM: until go() no other vcpu runs, is in a fragment, or relies on the records.
 * They may change before this returns.
 */
static void stop(struct kvm_vcpu *vcpu)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	struct kvm_vcpu *other;
	unsigned long i;

	kvmppc_bt_leave(vcpu);
	mutex_lock(&bt->changing);
	/* A vcpu that is not in this list yet waits for @changing before it runs. */
	kvm_for_each_vcpu(i, other, vcpu->kvm) {
		if (!is_inside(other))
			continue;
		kvm_make_request(KVM_REQ_BT_STOP, other);
		kvm_vcpu_kick(other);
		bt->stats.stops++;
	}
	kvm_for_each_vcpu(i, other, vcpu->kvm)
		wait_event(bt->left, !is_inside(other));
}

static void go(struct kvm_vcpu *vcpu)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;

	kvmppc_bt_vcpu(vcpu)->inside = true;
	mutex_unlock(&bt->changing);
}

static void drop_areas(struct kvm_vcpu *vcpu)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;

	kvmppc_bt_undo_all(vcpu);
	while (bt->nareas)
		kfree(bt->area[--bt->nareas].site);
}

/* The data page stays: the guest may be between two instructions that use it. */
static void disable(struct kvm_vcpu *vcpu)
{
	stop(vcpu);
	drop_areas(vcpu);
	unclaim(vcpu->kvm->arch.bt);
	go(vcpu);
}

/* Whether all vcpus can have the data page at an address. */
static bool free_for_data(struct kvm *kvm, u32 data)
{
	struct kvm_vcpu *vcpu;
	unsigned long i;

	kvm_for_each_vcpu(i, vcpu, kvm)
		if (vcpu->arch.magic_page_ea && vcpu->arch.magic_page_ea != data)
			return false;
	return true;
}

/* Returns 0 or -ENOMEM, with nothing changed. The VM is claimed. */
static int add_area(struct kvm_vcpu *vcpu, u32 ea, gpa_t gpa, u32 pages)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	bool anew = overlaps(bt, gpa, pages);
	struct bt_site **site;
	struct bt_area *area;
	u32 slots;

	if ((bt->nareas == BT_MAX_AREAS && !anew) || kvmppc_bt_init_tlb(vcpu->kvm))
		return -ENOMEM;
	slots = min(pages, clamp(bt_cache_pages, 1U, (unsigned int)BT_MAX_AREA_PAGES)) *
		(PAGE_SIZE / BT_SLOT_BYTES);
	site = kcalloc(slots, sizeof(*site), GFP_KERNEL_ACCOUNT);
	if (!site)
		return -ENOMEM;
	/*
	 * A new kernel calls, in the memory of an old one that did not disable
	 * translation: drop the registration of the old one.
	 */
	if (anew)
		drop_areas(vcpu);
	area = &bt->area[bt->nareas++];
	*area = (struct bt_area){ .ea = ea, .gpa = gpa, .slots = slots, .site = site };
	return 0;
}

/* The VM is stopped. */
static int enable(struct kvm_vcpu *vcpu, u32 data, u32 ea, u32 pages)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	gpa_t gpa;

	if (!good_data(data) || !free_for_data(vcpu->kvm, data) ||
	    !good_area(vcpu, ea, pages, &gpa) || has_sites(bt, gpa, pages))
		return EV_EINVAL;
	claim(bt);
	if (add_area(vcpu, ea, gpa, pages)) {
		if (!bt->nareas)
			unclaim(bt);
		return EV_ENOMEM;
	}
	if (!bt->shown)
		show_stats(vcpu->kvm, bt);
	bt->shown = true;
	bt->data = data;
	/* Before a vcpu runs again, it is checked, and gets the data page (fits()). */
	kvmppc_bt_make_stale(vcpu->kvm, NULL);
	/* Instructions that were out of reach may be in reach now. */
	memset(bt->heat, 0, sizeof(bt->heat));
	return EV_SUCCESS;
}

/**
 * kvmppc_bt_hypercall - handle a hypercall of the guest's driver
 * @vcpu: the caller, in supervisor mode
 * @nr: the call's number, as in r11
 *
 * KVM_HC_PPC_BT_ENABLE: r3 data page, r4 first execute page, r5 how many. The guest
 * must have nothing else at the data page's address, and must map the execute pages by
 * TLB1 with TID 0, on each processor that runs: while it does not, it has no sites. Pages
 * that overlap earlier ones replace all earlier ones. KVM_HC_PPC_BT_DISABLE: every site is undone.
 *
 * Returns EV_SUCCESS, EV_EINVAL for pages that are not the guest's own executable
 * memory, not mapped so, have sites of their own, are not aligned or out of range,
 * EV_ENOMEM for too many, EV_UNIMPLEMENTED if this VM is not to be translated.
 */
int kvmppc_bt_hypercall(struct kvm_vcpu *vcpu, unsigned int nr)
{
	int idx, r;

	if (!vcpu->kvm->arch.bt || vcpu->kvm->arch.bt->mode == BT_MODE_EXITS)
		return EV_UNIMPLEMENTED;
	idx = srcu_read_lock(&vcpu->kvm->srcu);
	switch (nr) {
	case KVM_HCALL_TOKEN(KVM_HC_PPC_BT_ENABLE):
		stop(vcpu);
		r = enable(vcpu, kvmppc_get_gpr(vcpu, 3), kvmppc_get_gpr(vcpu, 4),
			   kvmppc_get_gpr(vcpu, 5));
		go(vcpu);
		break;
	case KVM_HCALL_TOKEN(KVM_HC_PPC_BT_DISABLE):
		disable(vcpu);
		r = EV_SUCCESS;
		break;
	default:
		r = EV_UNIMPLEMENTED;
	}
	srcu_read_unlock(&vcpu->kvm->srcu, idx);
	return r;
}

/*
 * The first exits of an instruction are cheaper than its translation. If two
 * instructions share an entry, the more frequent one wins: the other's exits count
 * against it. Instructions without an in-place translation are remembered and not
 * retried.
 */
static bool counts_as_hot(struct kvmppc_bt *bt, u32 pc, u32 inst)
{
	typeof(*bt->heat) *heat = &bt->heat[hash_32(pc, BT_HEAT_BITS)];

	if (heat->pc != pc) {
		if (heat->exits) {
			heat->exits--;
			return false;
		}
		heat->pc = pc;
		heat->hopeless = 0;
	}
	if (heat->hopeless == inst)
		return false;
	heat->exits = min(heat->exits + 1, bt_threshold);
	return heat->exits >= bt_threshold;
}

/**
 * kvmppc_bt_may_become_site - whether an instruction's exits are to be counted
 * @bt: the VM
 * @pc: the instruction's address
 * @inst: the instruction, which is not a site
 *
 * False once it was found that it cannot be translated there. Without @heat_lock: one exit more
 * or less does not matter.
 */
bool kvmppc_bt_may_become_site(const struct kvmppc_bt *bt, u32 pc, u32 inst)
{
	const typeof(*bt->heat) *heat = &bt->heat[hash_32(pc, BT_HEAT_BITS)];

	return READ_ONCE(heat->pc) != pc || READ_ONCE(heat->hopeless) != inst;
}

static bool is_hot(struct kvmppc_bt *bt, u32 pc, u32 inst)
{
	bool hot;

	spin_lock(&bt->heat_lock);
	hot = counts_as_hot(bt, pc, inst);
	spin_unlock(&bt->heat_lock);
	return hot;
}

/*
 * Whether sites can be made at all: no vcpu is without the pages that they need, and none is
 * debugged.
 */
static bool ready(struct kvm *kvm)
{
	struct kvm_vcpu *vcpu;
	unsigned long i;

	kvm_for_each_vcpu(i, vcpu, kvm)
		if (kvmppc_bt_vcpu(vcpu)->misfit || READ_ONCE(vcpu->guest_debug))
			return false;
	return kvm->arch.bt->nareas;
}

/* Whether an instruction may become a site, and where it is. */
static bool may_patch(struct kvm_vcpu *vcpu, u32 pc, gpa_t *gpa)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;

	return ready(vcpu->kvm) && kvmppc_bt_find_code(vcpu, pc, gpa) &&
	       !kvmppc_bt_in_area(bt, *gpa) && !kvmppc_bt_site(bt, *gpa);
}

/* The VM is stopped. */
static void patch(struct kvm_vcpu *vcpu, u32 pc, gpa_t gpa, u32 inst)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	int r = kvmppc_bt_patch(vcpu, pc, gpa, inst);

	if (r == -ERANGE)
		bt->stats.out_of_range++;
	else if (r)
		bt->stats.untranslated++;
	/* Else each of its exits would stop the VM again. */
	if (r && r != -ENOMEM)
		bt->heat[hash_32(pc, BT_HEAT_BITS)].hopeless = inst;
}

/**
 * kvmppc_bt_emulated - consider an instruction that was emulated just now
 * @vcpu: its program counter still at the instruction
 * @inst: the instruction
 */
void kvmppc_bt_emulated(struct kvm_vcpu *vcpu, u32 inst)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	u32 pc = kvmppc_get_pc(vcpu);
	gpa_t gpa;
	int idx;

	if (!bt || !bt->nareas || (vcpu->arch.shared->msr & (MSR_PR | MSR_IS | MSR_DS)) ||
	    !is_hot(bt, pc, inst))
		return;
	idx = srcu_read_lock(&vcpu->kvm->srcu);
	if (may_patch(vcpu, pc, &gpa)) {
		stop(vcpu);
		if (may_patch(vcpu, pc, &gpa))
			patch(vcpu, pc, gpa, inst);
		go(vcpu);
	}
	srcu_read_unlock(&vcpu->kvm->srcu, idx);
}

/*
 * The guest fetched from its execute pages and missed the shadow TLB. If TLB0 maps something
 * else there, too, the guest has broken the driver's contract: all sites are undone, and the
 * original instruction is executed.
 */
static int fragment_unmapped(struct kvm_vcpu *vcpu, u32 pc, struct bt_site *site)
{
	int index = kvmppc_mmu_itlb_index(vcpu, pc);
	gpa_t expected = site->area->gpa + (pc - site->area->ea), gpa;

	if (index >= 0 && kvmppc_bt_find_code(vcpu, pc, &gpa) && gpa == expected) {
		kvmppc_mmu_map(vcpu, pc, gpa, index);
		kvmppc_account_exit(vcpu, ITLB_VIRT_MISS_EXITS);
		return RESUME_GUEST;
	}
	disable(vcpu);
	return RESUME_GUEST;
}

static int traced_access(struct kvm_vcpu *vcpu)
{
	int r;

	if (!kvmppc_bt_is_traced_access(vcpu))
		return BT_PASS;
	stop(vcpu);
	r = kvmppc_bt_traced_access(vcpu);
	go(vcpu);
	kvmppc_account_exit(vcpu, DSI_EXITS);
	return r;
}

/* Undo a site, unless another vcpu has done so. */
static void undo_at(struct kvm_vcpu *vcpu, gpa_t gpa)
{
	struct bt_site *site;

	stop(vcpu);
	site = kvmppc_bt_site(vcpu->kvm->arch.bt, gpa);
	if (site)
		kvmppc_bt_undo(vcpu, site);
	go(vcpu);
}

/* Handle an exit inside a fragment; the guest's state was settled already. */
static int fragment_exit(struct kvm_vcpu *vcpu, unsigned int exit_nr, u32 pc, struct bt_site *site,
			 unsigned int index)
{
	switch (exit_nr) {
	case BOOKE_INTERRUPT_ITLB_MISS:
	case BOOKE_INTERRUPT_INST_STORAGE:
		return fragment_unmapped(vcpu, pc, site);
	case BOOKE_INTERRUPT_DTLB_MISS:
		/*
		 * Either an access to the data page, whose address the guest chose and which
		 * stock code maps, or a translated load's own access, maybe to a device.
		 */
		if (site->read)
			vcpu->arch.last_inst = site->original;
		return BT_PASS;
	case BOOKE_INTERRUPT_DATA_STORAGE:
		/* A load of data that are not cached: handle it as at the site. */
		if (!site->read || index != site->commit)
			return BT_PASS;
		vcpu->arch.last_inst = site->original;
		return traced_access(vcpu);
	case BOOKE_INTERRUPT_PROGRAM:
		vcpu->kvm->arch.bt->stats.fragment_traps++;
		if (index > site->commit) {
			/* An interrupt is pending and enabled: delivered at the next entry. */
			kvmppc_account_exit_stat(vcpu, EMULATED_INST_EXITS);
			return RESUME_GUEST;
		}
		/* The fragment does not handle this case: emulate the instruction. */
		vcpu->arch.last_inst = site->original;
		return BT_PASS;
	case BOOKE_INTERRUPT_DEBUG:
		/* A single step must pass the instruction, not stop before it for ever. */
		if (index > site->commit)
			return BT_PASS;
		undo_at(vcpu, site->gpa);
		return RESUME_GUEST;
	}
	return BT_PASS;
}

/* Whether the instruction at the program counter caused the exit, and causes it again. */
static bool repeats(unsigned int exit_nr)
{
	switch (exit_nr) {
	case BOOKE_INTERRUPT_DATA_STORAGE:
	case BOOKE_INTERRUPT_INST_STORAGE:
	case BOOKE_INTERRUPT_ALIGNMENT:
	case BOOKE_INTERRUPT_PROGRAM:
	case BOOKE_INTERRUPT_DTLB_MISS:
	case BOOKE_INTERRUPT_ITLB_MISS:
		return true;
	}
	return false;
}

static int translated_exit(struct kvm_vcpu *vcpu, unsigned int exit_nr)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	u32 pc = kvmppc_get_pc(vcpu);
	struct bt_site *site;
	unsigned int index;
	enum bt_place place = kvmppc_bt_settle(vcpu, &site, &index);

	/*
	 * The guest has moved its magic page, so that patches no longer find the data page, or
	 * has broken the driver's contract. From now on it executes what it wrote.
	 */
	if (vcpu->arch.magic_page_ea != bt->data || place == BT_FOREIGN) {
		disable(vcpu);
		return repeats(exit_nr) ? RESUME_GUEST : BT_PASS;
	}
	if (place == BT_INSIDE)
		return fragment_exit(vcpu, exit_nr, pc, site, index);
	if (exit_nr == BOOKE_INTERRUPT_DATA_STORAGE && bt->nsites)
		return traced_access(vcpu);
	return BT_PASS;
}

/**
 * kvmppc_bt_handle_exit - handle an exit before stock code does
 * @vcpu: just out of the guest
 * @exit_nr: why, as BOOKE_INTERRUPT_*
 *
 * Returns what kvmppc_handle_exit() shall return, or BT_PASS if it is to go on.
 */
int kvmppc_bt_handle_exit(struct kvm_vcpu *vcpu, unsigned int exit_nr)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	int r, idx;

	if (!bt || !bt->nareas)
		return BT_PASS;
	/* Most exits end here, without a memory barrier. */
	if (exit_nr != BOOKE_INTERRUPT_DATA_STORAGE && vcpu->arch.magic_page_ea == bt->data &&
	    !kvmppc_bt_in_fragments(bt, kvmppc_get_pc(vcpu)))
		return BT_PASS;
	idx = srcu_read_lock(&vcpu->kvm->srcu);
	r = translated_exit(vcpu, exit_nr);
	srcu_read_unlock(&vcpu->kvm->srcu, idx);
	return r;
}

/*
 * Whether a vcpu finds what sites lead to: its data page and the execute pages. Here it gets
 * the data page, if it had none yet.
 */
static bool fits(struct kvm_vcpu *vcpu)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	unsigned int i;

	if (!bt->nareas)
		return true;
	if (!vcpu->arch.magic_page_ea) {
		vcpu->arch.magic_page_ea = bt->data;
		kvmppc_core_flush_tlb(vcpu);
	}
	for (i = 0; i < bt->nareas; i++)
		if (!kvmppc_bt_maps_area(vcpu, &bt->area[i]))
			return false;
	return vcpu->arch.magic_page_ea == bt->data;
}

/* A vcpu that does not fit must not find a site. */
static void check_fit(struct kvm_vcpu *vcpu)
{
	struct bt_vcpu *mine = kvmppc_bt_vcpu(vcpu);

	if (fits(vcpu) == !mine->misfit)
		return;
	stop(vcpu);
	mine->misfit = !fits(vcpu);
	if (mine->misfit)
		kvmppc_bt_undo_all(vcpu);
	go(vcpu);
}

/**
 * kvmppc_bt_before_entry - make sites match the guest's TLB1, and the shadow TLB the sites
 * @vcpu: inside, about to enter the guest; KVM_REQ_BT_STALE was made
 *
 * Drops copies of data that are no longer traced. That may change the set of traced
 * pages, so it is repeated until nothing changes. It ends, as the number of copies
 * decreases each time.
 */
void kvmppc_bt_before_entry(struct kvm_vcpu *vcpu)
{
	int idx = srcu_read_lock(&vcpu->kvm->srcu);

	check_fit(vcpu);
	while (kvmppc_bt_vcpu(vcpu)->stale) {
		kvmppc_bt_flush(vcpu);
		kvmppc_bt_check_reads(vcpu);
	}
	/* No other vcpu makes this request while this one is inside. */
	kvm_clear_request(KVM_REQ_BT_STALE, vcpu);
	srcu_read_unlock(&vcpu->kvm->srcu, idx);
}

/**
 * kvmppc_bt_undo_sites - restore the guest's original instructions at all sites
 * @vcpu: outside of the guest; about to be debugged, so no new site will be made
 *
 * A debugger saves the word under a breakpoint and restores it later. It must not save
 * a patch, whose fragment may be gone by then.
 */
void kvmppc_bt_undo_sites(struct kvm_vcpu *vcpu)
{
	int idx;

	if (!vcpu->kvm->arch.bt)
		return;
	kvmppc_bt_enter(vcpu);
	stop(vcpu);
	idx = srcu_read_lock(&vcpu->kvm->srcu);
	kvmppc_bt_undo_all(vcpu);
	srcu_read_unlock(&vcpu->kvm->srcu, idx);
	go(vcpu);
	kvmppc_bt_leave(vcpu);
}
