/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * In-place binary translation of a guest's privileged instructions, e500v2.
 *
 * A privileged instruction of the guest that keeps exiting is replaced where it
 * stands, in the guest's memory: by one load or store of the data page, where
 * KVM keeps the guest's emulated registers, or by a branch to a fragment in the
 * guest's execute pages, which ends in a branch back. The guest's driver gives
 * both; without it nothing here does anything.
 *
 * What is promised:
 *
 *  - Only words at patched sites differ from what the guest wrote. The host
 *    keeps the original; pages with sites are execute-only in the shadow TLB, so
 *    that every load sees the original and every store undoes the patch first.
 *  - The guest never sees a program counter inside a fragment: every exit that
 *    finds one settles it, to before the site or after it.
 *  - What the host knows of sites and fragments is in the host's memory. The
 *    guest can write its execute pages and the data page as it likes: it changes
 *    what it executes itself, never what the host believes.
 *
 * Locking: a VM has one struct kvmppc_bt. Everything here runs on the one vcpu's
 * thread, outside of the guest, with interrupts on but for e500_bt_fast.c. So a VM
 * has either one vcpu or no translation, and kvmppc_bt.claim decides which: no second
 * one is made while it is enabled, and it is not enabled once a second one was asked
 * for. (kvm->lock would not do: it is taken before a vcpu's own lock, which the thread
 * holds here.) Destruction comes after the last vcpu.
 */
#ifndef __KVM_E500_BT_H
#define __KVM_E500_BT_H

#include <linux/hashtable.h>
#include <linux/kvm_host.h>
#include <linux/list.h>
#include <linux/spinlock.h>
#include <linux/xarray.h>

#ifdef CONFIG_KVM_E500V2_BT

/* Words of a fragment's slot; no fragment is longer. */
#define BT_SLOT_WORDS		16
#define BT_SLOT_BYTES		(BT_SLOT_WORDS * 4)

/* Areas of execute pages that one guest may give, and pages of each. */
#define BT_MAX_AREAS		4
#define BT_MAX_AREA_PAGES	64

/* Where a fragment saves its scratch register: the data page's upper half. */
#define BT_SAVE_OFFSET		0x800

enum bt_kind {
	BT_NONE,	/* not translated */
	BT_SINGLE,	/* one instruction instead of one */
	BT_FRAGMENT,	/* a branch to several */
};

/**
 * struct bt_code - what an instruction becomes
 * @insn: the instructions; the last one of a fragment is its branch back
 * @n: how many
 * @scratch: the register that a fragment saves, uses and restores
 * @commit: index of the one store that has an effect outside of the fragment
 * @restore: index of the load that restores @scratch
 *
 * A fragment's instruction 0 saves @scratch. Before @commit has been executed the
 * site can be started again; after it only the rest is to be undone.
 */
struct bt_code {
	u32 insn[BT_SLOT_WORDS];
	u8 n;
	u8 scratch;
	u8 commit;
	u8 restore;
};

enum bt_kind kvmppc_bt_translate(u32 inst, u32 data, struct bt_code *code);
bool kvmppc_bt_branch(u32 from, u32 to, u32 *inst);

/**
 * struct bt_area - execute pages of the guest
 * @ea: effective address of the first byte
 * @gpa: its guest-physical address
 * @slots: how many fragments have room
 * @next: the slot that is used next; those behind it are the oldest
 * @site: for each slot the site whose fragment is there, or NULL
 */
struct bt_area {
	u32 ea;
	gpa_t gpa;
	u32 slots;
	u32 next;
	struct bt_site **site;
};

/**
 * struct bt_site - a patched instruction
 * @node: in kvmppc_bt.sites, by guest-physical address
 * @in_page: in bt_page.sites
 * @first: the first instruction of its fragment
 * @area: where its fragment is; NULL if it has none
 * @slot: which of the area's slots
 */
struct bt_site {
	struct hlist_node node;
	struct list_head in_page;
	gpa_t gpa;
	u32 ea;
	u32 original;
	u32 patched;
	u32 first;
	struct bt_area *area;
	u32 slot;
	u8 scratch;
	u8 commit;
	u8 restore;
};

/**
 * struct bt_page - a page with sites, or one that shall have none
 * @tsize: largest size of a shadow TLB entry over it, as in MAS1[TSIZE]
 * @faults: traced accesses since @tsize was chosen
 * @refused: something here cannot be emulated: no more sites
 */
struct bt_page {
	struct list_head sites;
	u8 tsize;
	u32 faults;
	bool refused;
};

/* Counters of a VM, in debugfs. They say what happened; nothing depends on them. */
struct bt_stats {
	u64 patched;
	u64 fragments;
	u64 undone;
	u64 evicted;
	u64 untranslated;
	u64 out_of_range;
	u64 traced_loads;
	u64 traced_stores;
	u64 traced_cacheops;
	u64 reservations;
	u64 refused_pages;
	u64 splits;
	u64 settled;
	u64 fragment_traps;
};

#define BT_HEAT_BITS	10
#define BT_BLOCKS	4

/**
 * struct bt_block - where a huge page of the host's is, as found last
 * @valid: false until one was found
 * @seq: kvm->mmu_invalidate_seq when it was found; another one: it may have moved
 * @generation: of the memory slots, then
 * @gfn: its first guest-physical page
 * @pfn: its first host-physical page
 * @tsize: its size, as in MAS1[TSIZE]
 * @wimg: its memory attributes
 */
struct bt_block {
	bool valid;
	unsigned long seq;
	u64 generation;
	gfn_t gfn;
	kvm_pfn_t pfn;
	int tsize;
	unsigned int wimg;
};

/**
 * struct kvmppc_bt - a VM that is translated
 * @mode: what is translated; one of BT_MODE_*
 * @claim: protects @enabled and @crowded
 * @enabled: the driver has called
 * @crowded: the VM has more than one vcpu, or had been asked to
 * @shown: the counters are in debugfs
 * @data: effective address of the data page
 * @pages: struct bt_page by guest-physical page
 * @decided: for each guest-physical page the shadow TLB entry that covers it, once
 *	that was asked, until something changes
 * @ndecided: how many pages have room there
 * @readable_inside: inside of a traced block there may be a smaller shadow TLB entry
 *	that is not, for none of its own pages has sites
 * @heat: exits by instruction that is not patched yet, the most frequent ones; the
 *	instruction there that had no translation
 * @block: huge pages, so that splitting them costs no walk of the host's tables
 * @larx_pc: the last lwarx that could not be finished
 * @larx_stops: how often that was in a row
 * @access_pc: the last traced access
 * @access_repeats: how often it was the same one in a row
 * @esel: the guest's TLB1 entry that was found last
 */
struct kvmppc_bt {
	unsigned int mode;
	spinlock_t claim;
	bool enabled;
	bool crowded;
	bool shown;
	u32 data;
	unsigned int nareas;
	struct bt_area area[BT_MAX_AREAS];
	unsigned int nsites;
	DECLARE_HASHTABLE(sites, 10);
	struct xarray pages;
	u8 *decided;
	gfn_t ndecided;
	bool readable_inside;
	struct {
		u32 pc;
		u32 exits;
		u32 hopeless;
	} heat[1 << BT_HEAT_BITS];
	struct bt_block block[BT_BLOCKS];
	u32 larx_pc;
	u32 larx_stops;
	u32 access_pc;
	u32 access_repeats;
	int esel;
	struct bt_stats stats;
};

#define BT_MODE_OFF		0
#define BT_MODE_SINGLE		1
#define BT_MODE_FRAGMENTS	2

/* e500_bt.c: what stock code calls */
#define BT_PASS	(-1)

int kvmppc_bt_init_vm(struct kvm *kvm);
int kvmppc_bt_precreate_vcpu(struct kvm *kvm);
void kvmppc_bt_destroy_vm(struct kvm *kvm);
int kvmppc_bt_hypercall(struct kvm_vcpu *vcpu, unsigned int nr);
int kvmppc_bt_handle_exit(struct kvm_vcpu *vcpu, unsigned int exit_nr);
void kvmppc_bt_emulated(struct kvm_vcpu *vcpu, u32 inst);

/* Whether the guest's driver has asked, and so its entries may be split. */
static inline bool kvmppc_bt_enabled(struct kvm *kvm)
{
	return kvm->arch.bt && kvm->arch.bt->nareas;
}

/* The shadow PIDs are about to change. */
static inline void kvmppc_bt_forget_pids(struct kvm_vcpu *vcpu)
{
	vcpu->arch.bt_pids_known = false;
	vcpu->arch.bt_short = 0;
}

/* e500_bt_fast.c */
bool kvmppc_bt_fast_exit(struct kvm_vcpu *vcpu, unsigned int exit_nr);

/* e500_bt_tlb.c: what the shadow TLB asks */
int kvmppc_bt_clamp_tsize(struct kvm *kvm, gfn_t gfn, int tsize);
bool kvmppc_bt_execute_only(struct kvm *kvm, gfn_t gfn, int tsize);
const struct bt_block *kvmppc_bt_block(struct kvm *kvm, gfn_t gfn, unsigned long seq);
void kvmppc_bt_note_block(struct kvm *kvm, const struct kvm_memory_slot *slot, gfn_t gfn,
			  kvm_pfn_t pfn, int tsize, unsigned int wimg, unsigned long seq);

/* e500_bt_tlb.c: for the other files */
/* Mark of pages with sites: those are traced. */
#define BT_HAS_SITES	XA_MARK_0

void kvmppc_bt_page_unused(struct kvmppc_bt *bt, gfn_t gfn);
int kvmppc_bt_init_tlb(struct kvm *kvm);
void kvmppc_bt_retrace(struct kvm_vcpu *vcpu);
void kvmppc_bt_page_traced(struct kvm_vcpu *vcpu, gfn_t gfn);
struct bt_page *kvmppc_bt_page(struct kvmppc_bt *bt, gfn_t gfn);
struct bt_page *kvmppc_bt_make_page(struct kvmppc_bt *bt, gfn_t gfn);
void kvmppc_bt_page_empty(struct kvm_vcpu *vcpu, gfn_t gfn);
int kvmppc_bt_block_tsize(struct kvmppc_bt *bt, gfn_t gfn);
void kvmppc_bt_fault(struct kvm_vcpu *vcpu, gfn_t gfn);

/* e500_bt_site.c */
bool kvmppc_bt_find_code(struct kvm_vcpu *vcpu, u32 ea, gpa_t *gpa);
bool kvmppc_bt_in_fragments(const struct kvmppc_bt *bt, u32 ea);
struct bt_site *kvmppc_bt_site(struct kvmppc_bt *bt, gpa_t gpa);
int kvmppc_bt_patch(struct kvm_vcpu *vcpu, u32 ea, gpa_t gpa, u32 inst);
void kvmppc_bt_undo(struct kvm_vcpu *vcpu, struct bt_site *site);
void kvmppc_bt_undo_block(struct kvm_vcpu *vcpu, gfn_t gfn, bool refuse);
void kvmppc_bt_undo_all(struct kvm_vcpu *vcpu);
void kvmppc_bt_originals(struct kvm_vcpu *vcpu, gpa_t gpa, u8 *bytes, unsigned int len);
void kvmppc_bt_undo_range(struct kvm_vcpu *vcpu, gpa_t gpa, unsigned int len);
bool kvmppc_bt_settle(struct kvm_vcpu *vcpu, struct bt_site **site, unsigned int *index);

/* e500_bt_trace.c */
int kvmppc_bt_traced_access(struct kvm_vcpu *vcpu);

#else

#define BT_PASS	(-1)

static inline int kvmppc_bt_init_vm(struct kvm *kvm)
{
	return 0;
}

static inline int kvmppc_bt_precreate_vcpu(struct kvm *kvm)
{
	return 0;
}

static inline void kvmppc_bt_destroy_vm(struct kvm *kvm)
{
}

static inline int kvmppc_bt_hypercall(struct kvm_vcpu *vcpu, unsigned int nr)
{
	return EV_UNIMPLEMENTED;
}

static inline int kvmppc_bt_handle_exit(struct kvm_vcpu *vcpu, unsigned int exit_nr)
{
	return BT_PASS;
}

static inline bool kvmppc_bt_enabled(struct kvm *kvm)
{
	return false;
}

static inline void kvmppc_bt_forget_pids(struct kvm_vcpu *vcpu)
{
}

static inline bool kvmppc_bt_fast_exit(struct kvm_vcpu *vcpu, unsigned int exit_nr)
{
	return false;
}

static inline void kvmppc_bt_emulated(struct kvm_vcpu *vcpu, u32 inst)
{
}

static inline int kvmppc_bt_clamp_tsize(struct kvm *kvm, gfn_t gfn, int tsize)
{
	return tsize;
}

static inline bool kvmppc_bt_execute_only(struct kvm *kvm, gfn_t gfn, int tsize)
{
	return false;
}

struct bt_block {
	gfn_t gfn;
	kvm_pfn_t pfn;
	int tsize;
	unsigned int wimg;
};

static inline const struct bt_block *kvmppc_bt_block(struct kvm *kvm, gfn_t gfn, unsigned long seq)
{
	return NULL;
}

static inline void kvmppc_bt_note_block(struct kvm *kvm, const struct kvm_memory_slot *slot,
					gfn_t gfn, kvm_pfn_t pfn, int tsize, unsigned int wimg,
					unsigned long seq)
{
}

#endif /* CONFIG_KVM_E500V2_BT */
#endif /* __KVM_E500_BT_H */
