/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * In-place binary translation of a guest's privileged instructions, e500v2.
 *
 * A privileged instruction of the guest that exits repeatedly is replaced in the
 * guest's memory: by one load or store of the data page, where KVM keeps the guest's
 * emulated registers, or by a branch to a fragment in the guest's execute pages,
 * which ends in a branch back. The guest's driver provides both kinds of pages;
 * without the driver nothing is translated.
 *
 * Guarantees:
 *
 *  - Only words at patched sites differ from what the guest wrote. The host
 *    keeps the original; pages with sites are execute-only in the shadow TLB, so
 *    that every load sees the original and every store undoes the patch first.
 *  - A load of traced memory may be a site, too: its fragment reads a copy of what the
 *    guest wrote there, which is valid as long as every store to the data is
 *    intercepted (e500_bt_read.c).
 *  - The guest never sees a program counter inside a fragment: every exit that finds one,
 *    and is not short, moves it to the site or to the instruction after it. It is inside
 *    only if its memory still holds the fragment: a guest that executes code of its own
 *    in these pages is not moved, and no longer translated. Fragments exist only while
 *    the guest's TLB1 maps these pages as they were registered: else all sites are undone
 *    before it runs again.
 *  - The host's records of sites and fragments are in host memory. By writing to its
 *    execute pages or the data page, the guest changes only what it executes itself,
 *    never the host's records.
 *
 * Call graph. These files call each other in one direction only:
 *
 *	e500_bt_fast.c -> e500_bt.c -> trace -> read -> site -> tlb -> layout, level2 -> context
 *	e500_bt_fast.c -> shorten, context
 *
 * and e500_bt_translate.c calls none of them. So undoing a site never calls upwards: it
 * restores the guest's word and, if that makes shadow TLB entries stale, requests
 * KVM_REQ_BT_STALE. The top level then calls kvmppc_bt_before_entry() once before the
 * guest runs again.
 *
 * Locking: a VM has one struct kvmppc_bt, and struct bt_vcpu in it for each vcpu. Two
 * things must not happen: a site or a fragment changes while a processor executes it, and
 * the records change while a vcpu's thread relies on them. So there is one rule for both.
 *
 *  - A vcpu's thread is inside from before it enters the guest until it has handled the
 *    exit and returns to userspace, halts, or finds KVM_REQ_BT_STOP. While any vcpu is
 *    inside, no other thread changes anything here. So an exit is handled, and shadow TLB
 *    entries are made, with the records as they were when the guest was entered, and
 *    without a lock; interrupts may be off (e500_bt_fast.c).
 *  - To change something a thread stops the VM (stop() in e500_bt.c): it leaves, takes
 *    @changing, kicks the others with KVM_REQ_BT_STOP, and waits until none is inside.
 *    Then no vcpu runs until go(). What the thread knew before may have changed while it
 *    waited for @changing, so it is looked up again.
 *  - To go inside takes @changing for a moment, so nobody does while the VM is stopped.
 *  - Who leaves is moved out of fragments first (kvmppc_bt_settle()). So while the VM is
 *    stopped no vcpu is in a fragment, and any slot may be reused.
 *  - A change after which some shadow TLB entries are wrong sets bt_vcpu.stale of each
 *    vcpu, and requests KVM_REQ_BT_STALE of it. It is handled by a vcpu that is inside,
 *    so before it enters the guest.
 *
 * Order: a vcpu's mutex, @changing, then mmap_lock and mmu_lock. Nothing that a thread
 * inside waits for takes @changing. Inside, some words are written without order, because
 * any order is right: @decided (each writer writes the same), @readable_inside (only to
 * true), @esel and @random (hints), @stats (a few counts may be lost).
 *
 * What is a vcpu's own: the data page, at one address, mapped to another page by each
 * vcpu's shadow TLB; so fragments and single instructions are the same for all. The guest's
 * TLB, too. A vcpu that runs while its TLB1 does not map the execute pages is a misfit
 * (bt_vcpu.misfit): then there are no sites at all. A processor of the guest that is about
 * to start is one for a short time. Copies of data for loads are in the data page, so only a
 * VM with one vcpu has them (e500_bt_read.c).
 *
 * kvmppc_bt.claim serialises the driver's first call with the creation of vcpus: no vcpu is
 * created while translation is enabled, so @crowded says until it is disabled whether there
 * are several. (kvm->lock cannot be used: it is taken before a vcpu's own lock, which the
 * thread holds here.) The VM is destroyed after its last vcpu. The vcpus of a VM that is not
 * translated read only @nareas concurrently, which is 0.
 */
#ifndef __KVM_E500_BT_H
#define __KVM_E500_BT_H

#include <linux/hashtable.h>
#include <linux/kvm_host.h>
#include <linux/list.h>
#include <linux/mutex.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <linux/xarray.h>

#ifdef CONFIG_KVM_E500V2_BT

/* Words of a fragment's slot; no fragment is longer. */
#define BT_SLOT_WORDS		16
#define BT_SLOT_BYTES		(BT_SLOT_WORDS * 4)

/* Areas of execute pages that one guest may give, and pages of each. */
#define BT_MAX_AREAS		4
#define BT_MAX_AREA_PAGES	64

/*
 * The data page's lower half is struct kvm_vcpu_arch_shared. In the upper half are the
 * words where a fragment saves its scratch registers, one for what it is about to write into
 * PID, and behind them the data cache.
 */
#define BT_DATA_BYTES		0x1000
#define BT_SAVE_OFFSET		0x800
#define BT_SAVE2_OFFSET		(BT_SAVE_OFFSET + 4)
#define BT_PID_OFFSET		(BT_SAVE2_OFFSET + 4)
#define BT_CACHE_OFFSET		(BT_PID_OFFSET + 4)

/**
 * struct bt_cached - a slot of the data cache, for one load
 * @none: 0, added to an address that is not cached
 * @delta: added to the cached address, gives the address of @value
 * @value: the bytes at the cached address
 */
struct bt_cached {
	u32 none;
	u32 delta;
	u32 value;
};

#define BT_CACHE_SLOTS	((BT_DATA_BYTES - BT_CACHE_OFFSET) / sizeof(struct bt_cached))

enum bt_kind {
	BT_NONE,	/* not translated */
	BT_SINGLE,	/* replaced by one instruction */
	BT_FRAGMENT,	/* replaced by a branch to several */
};

/**
 * struct bt_code - the translation of an instruction
 * @insn: the instructions; the last one of a fragment is its branch back
 * @n: how many
 * @scratch: the register that a fragment saves, uses and restores
 * @commit: index of the one instruction that has an effect outside of the fragment
 * @restore: index of the load that restores @scratch
 * @scratch2: a second such register
 * @restore2: the index for it; 0 if there is none
 *
 * A fragment's instruction 0 saves @scratch, and 1 @scratch2 if there is one. Until
 * @commit has been executed the site can be restarted; after it only the scratch
 * registers have to be restored.
 */
struct bt_code {
	u32 insn[BT_SLOT_WORDS];
	u8 n;
	u8 scratch;
	u8 commit;
	u8 restore;
	u8 scratch2;
	u8 restore2;
};

enum bt_kind kvmppc_bt_translate(u32 inst, u32 data, struct bt_code *code);
enum bt_kind kvmppc_bt_translate_load(u32 inst, u32 data, unsigned int slot, u32 ea,
				      struct bt_code *code);
u32 kvmppc_bt_cached_ea(u32 data, unsigned int slot);
u32 kvmppc_bt_handover(u32 data);
bool kvmppc_bt_branch(u32 from, u32 to, u32 *inst);

/**
 * struct bt_area - execute pages of the guest
 * @ea: effective address of the first byte
 * @gpa: its guest-physical address
 * @slots: how many fragments it has room for
 * @next: the slot that is used next; those after it are the oldest
 * @site: for each slot the site whose fragment it holds, or NULL
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
 * @area: where its fragment is; NULL if it has none
 * @slot: which of the area's slots
 * @read: for a load, what it has cached; NULL for a privileged instruction
 * @insn: the fragment, as it was written to the guest's memory
 * @n: its words
 */
struct bt_site {
	struct hlist_node node;
	struct list_head in_page;
	gpa_t gpa;
	u32 ea;
	u32 original;
	u32 patched;
	struct bt_area *area;
	u32 slot;
	struct bt_read *read;
	u32 insn[BT_SLOT_WORDS];
	u8 n;
	u8 scratch;
	u8 commit;
	u8 restore;
	u8 scratch2;
	u8 restore2;
};

/**
 * struct bt_page - a page with sites, or one that is refused
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

/**
 * struct bt_read - a load that looks in the data cache first
 * @node: in bt_reads.by_word, by the guest-physical address of the data's word
 * @site: its site; NULL if this slot of the data cache is free
 * @gpa: guest-physical address of the data
 * @misses: traced loads of other data by this site
 * @round: how many loads, this one included, depend on each other for being traced
 */
struct bt_read {
	struct hlist_node node;
	struct bt_site *site;
	gpa_t gpa;
	u32 misses;
	u8 round;
};

/**
 * struct bt_load_heat - a load of traced data that is not a site
 * @pc: its address
 * @ea: an address that it reads
 * @loads: how many times more often it has read that address than others
 * @vain: how often a copy for it was useless
 */
struct bt_load_heat {
	u32 pc;
	u32 ea;
	u32 loads;
	u32 vain;
};

#define BT_LOAD_HEAT_BITS	8

/**
 * struct bt_reads - the data cache
 * @slot: as in the data page
 * @by_word: the slots in use
 * @n: how many are in use
 * @next: the slot that is used next; those after it are the oldest
 * @heat: by instruction, for the most frequent ones
 */
struct bt_reads {
	struct bt_read slot[BT_CACHE_SLOTS];
	DECLARE_HASHTABLE(by_word, 6);
	unsigned int n;
	unsigned int next;
	struct bt_load_heat heat[1 << BT_LOAD_HEAT_BITS];
};

/* Counters of a VM, in debugfs, for information only. */
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
	u64 stops;
	u64 reads_made;
	u64 reads_dropped;
	u64 reads_chained;
	u64 reads_rounds;
};

#define BT_HEAT_BITS	10
#define BT_BLOCKS	4

/* Larger than the largest page of a host. */
#define BT_LARGEST_TSIZE	BOOK3E_PAGESZ_256M

/**
 * struct bt_block - a huge page of the host, as last looked up; protected by mmu_lock
 * @valid: false until one was found
 * @seq: kvm->mmu_invalidate_seq at the lookup; if it differs now, the page may have moved
 * @generation: of the memory slots at the lookup
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
 * struct bt_layout - how large the entries over traced pages may be
 * @sizes: by guest-physical page, as in MAS1[TSIZE]: the smallest that was chosen
 * @fixed: the layout was set, and nothing is split
 * @incomplete: some page was not recorded, for lack of memory
 */
struct bt_layout {
	struct xarray sizes;
	bool fixed;
	bool incomplete;
};

/**
 * struct bt_vcpu - a vcpu of a VM that may be translated
 * @inside: see "Locking" above; written by the vcpu's thread, to true under @changing
 * @known: it has been inside
 * @misfit: it runs, and does not map the data page or the execute pages as registered
 * @stale: its shadow TLB has to be flushed
 * @larx_pc: the last lwarx that could not be finished
 * @larx_stops: how many times in a row
 * @access_pc: the last traced access
 * @access_repeats: how many times in a row it was the same one
 * @near_pc: a traced access
 * @near_repeats: how many in a row were close to it, including itself
 */
struct bt_vcpu {
	bool inside;
	bool known;
	bool misfit;
	bool stale;
	u32 larx_pc;
	u32 larx_stops;
	u32 access_pc;
	u32 access_repeats;
	u32 near_pc;
	u32 near_repeats;
};

/**
 * struct kvmppc_bt - a VM that is translated
 * @mode: what is translated; one of BT_MODE_*
 * @claim: protects @enabled and @crowded, and @layout while it is replaced
 * @enabled: the driver has enabled translation, or @mode is BT_MODE_EXITS
 * @crowded: a second vcpu was requested
 * @changing: held while the VM is stopped, or a vcpu goes inside
 * @left: where the thread that stops the VM waits for the others
 * @vcpu: by vcpu_idx
 * @shown: the counters are in debugfs
 * @data: effective address of the data page
 * @pages: struct bt_page by guest-physical page
 * @decided: for each guest-physical page the shadow TLB entry that covers it, cached
 *	until something changes
 * @ndecided: how many pages have room there
 * @layout: sizes of pages with sites, since the VM was made or beforehand
 * @layout_lock: held while the file's reader or writer uses @layout (e500_bt_layout.c)
 * @layout_shown: the file is in debugfs
 * @readable_inside: a traced block may contain a smaller shadow TLB entry that is not
 *	execute-only, because none of its own pages has sites
 * @heat_lock: protects @heat from vcpus that are inside
 * @heat: exits by instruction, for the most frequent unpatched ones; for each the
 *	instruction that had no translation
 * @reads: the data cache
 * @block: huge pages, so that splitting them costs no walk of the host's tables
 * @esel: the guest's TLB1 entry that was found last
 * @random: for the choice of victims in TLB1
 */
struct kvmppc_bt {
	unsigned int mode;
	spinlock_t claim;
	bool enabled;
	bool crowded;
	struct mutex changing;
	wait_queue_head_t left;
	struct bt_vcpu vcpu[KVM_MAX_VCPUS];
	bool shown;
	u32 data;
	unsigned int nareas;
	struct bt_area area[BT_MAX_AREAS];
	unsigned int nsites;
	DECLARE_HASHTABLE(sites, 10);
	struct xarray pages;
	u8 *decided;
	gfn_t ndecided;
	struct bt_layout *layout;
	struct mutex layout_lock;
	bool layout_shown;
	bool readable_inside;
	spinlock_t heat_lock;
	struct {
		u32 pc;
		u32 exits;
		u32 hopeless;
	} heat[1 << BT_HEAT_BITS];
	struct bt_reads reads;
	struct bt_block block[BT_BLOCKS];
	int esel;
	u32 random;
	struct bt_stats stats;
};

#define BT_MODE_OFF		0
#define BT_MODE_SINGLE		1
#define BT_MODE_FRAGMENTS	2
/*
 * For comparison: nothing is translated, but all else that is done for translated guests
 * is done, too: short exits, precise flushes, huge pages that are remembered.
 */
#define BT_MODE_EXITS		3

/* e500_bt.c: what stock code calls */
#define BT_PASS	(-1)

int kvmppc_bt_init_vm(struct kvm *kvm);
int kvmppc_bt_precreate_vcpu(struct kvm *kvm);
void kvmppc_bt_destroy_vm(struct kvm *kvm);
int kvmppc_bt_hypercall(struct kvm_vcpu *vcpu, unsigned int nr);
int kvmppc_bt_handle_exit(struct kvm_vcpu *vcpu, unsigned int exit_nr);
void kvmppc_bt_emulated(struct kvm_vcpu *vcpu, u32 inst);
bool kvmppc_bt_may_become_site(const struct kvmppc_bt *bt, u32 pc, u32 inst);
void kvmppc_bt_before_entry(struct kvm_vcpu *vcpu);
void kvmppc_bt_undo_sites(struct kvm_vcpu *vcpu);
void kvmppc_bt_enter(struct kvm_vcpu *vcpu);
void kvmppc_bt_leave(struct kvm_vcpu *vcpu);

/* Whether an address of the supervisor's is in the execute pages. */
static inline bool kvmppc_bt_in_fragments(const struct kvmppc_bt *bt, u32 ea)
{
	unsigned int i;

	for (i = 0; i < bt->nareas; i++)
		if (ea - bt->area[i].ea < bt->area[i].slots * BT_SLOT_BYTES)
			return true;
	return false;
}

/* Whether the guest's driver has enabled translation, or is not needed. */
static inline bool kvmppc_bt_enabled(struct kvm *kvm)
{
	return kvm->arch.bt && (kvm->arch.bt->nareas || kvm->arch.bt->mode == BT_MODE_EXITS);
}

/* Whether the guest's driver may enable translation, so that it is told of the hypercalls. */
static inline bool kvmppc_bt_offered(struct kvm *kvm)
{
	return kvm->arch.bt;
}

static inline struct bt_vcpu *kvmppc_bt_vcpu(struct kvm_vcpu *vcpu)
{
	return &vcpu->kvm->arch.bt->vcpu[vcpu->vcpu_idx];
}

/* e500_bt_shorten.c */
/* Bits of the MSR of which there is no other copy, and the mode. */
#define BT_HARMLESS_MSR	(MSR_CE | MSR_EE | MSR_ME | MSR_RI | MSR_PR)

extern const struct kvm_vcpu_arch_shared kvmppc_bt_nobody;

void kvmppc_bt_copy_short_exits(void);
void kvmppc_bt_use_short_exits(void);
void kvmppc_bt_use_pids(struct kvm_vcpu *vcpu);
void kvmppc_bt_find_mode(struct kvm_vcpu *vcpu);
void kvmppc_bt_begin_short_exits(struct kvm_vcpu *vcpu);
void kvmppc_bt_end_short_exits(struct kvm_vcpu *vcpu);

/* The shadow PIDs are about to change. */
static inline void kvmppc_bt_forget_pids(struct kvm_vcpu *vcpu)
{
	vcpu->arch.bt_pids_known = false;
	vcpu->arch.bt_short = &kvmppc_bt_nobody;
}

/* e500_bt_fast.c */
bool kvmppc_bt_fast_exit(struct kvm_vcpu *vcpu, unsigned int exit_nr);

/* e500_bt_short.S: copied, and never called where they are */
void kvmppc_bt_short_start(void);
void kvmppc_bt_short_data_miss(void);
void kvmppc_bt_short_fetch_miss(void);
void kvmppc_bt_short_syscall(void);
void kvmppc_bt_short_program(void);
void kvmppc_bt_short_end(void);

/* Of how many of a guest's PIDs the shadow PIDs are known. */
#define BT_CONTEXTS		16

/* e500_bt_context.c: the last two are called by the shadow TLB */
u32 kvmppc_bt_pids_begun(void);
void kvmppc_bt_begin_pids(void);
void kvmppc_bt_learn_pids(struct kvm_vcpu *vcpu);
void kvmppc_bt_forget_context(struct kvm_vcpu *vcpu, u32 pid);
void kvmppc_bt_forget_contexts(struct kvm_vcpu *vcpu);

/* e500_bt_level2.c: called by the shadow TLB */
struct kvm_book3e_206_tlb_entry;

void kvmppc_bt_note_entry(struct kvm_vcpu *vcpu, const struct kvm_book3e_206_tlb_entry *entry);
void kvmppc_bt_forget_entry(struct kvm_vcpu *vcpu, u32 ea, u32 pid);
void kvmppc_bt_forget_page(struct kvm_vcpu *vcpu, kvm_pfn_t pfn);
void kvmppc_bt_forget_copies(struct kvm_vcpu *vcpu);
void kvmppc_bt_pids_anew(struct kvm_vcpu *vcpu);
void kvmppc_bt_level2_load(struct kvm_vcpu *vcpu);
void kvmppc_bt_free_level2(struct kvm_vcpu *vcpu);

/* e500_bt_tlb.c: called by the shadow TLB */
unsigned int kvmppc_bt_next_victim(struct kvm *kvm, unsigned int last, unsigned int entries);
int kvmppc_bt_clamp_tsize(struct kvm *kvm, gfn_t gfn, int tsize);
bool kvmppc_bt_execute_only(struct kvm *kvm, gfn_t gfn, int tsize);
const struct bt_block *kvmppc_bt_block(struct kvm *kvm, gfn_t gfn, unsigned long seq);
void kvmppc_bt_note_block(struct kvm *kvm, const struct kvm_memory_slot *slot, gfn_t gfn,
			  kvm_pfn_t pfn, int tsize, unsigned int wimg, unsigned long seq);
bool kvmppc_bt_knows_block(struct kvm *kvm, gfn_t gfn);

/* e500_bt_tlb.c: for the other files */
/* Mark of pages with sites: those are traced. */
#define BT_HAS_SITES	XA_MARK_0

void kvmppc_bt_page_unused(struct kvmppc_bt *bt, gfn_t gfn);
int kvmppc_bt_init_tlb(struct kvm *kvm);
void kvmppc_bt_make_stale(struct kvm *kvm, const struct kvm_vcpu *except);
void kvmppc_bt_flush(struct kvm_vcpu *vcpu);
void kvmppc_bt_page_traced(struct kvm_vcpu *vcpu, gfn_t gfn);
struct bt_page *kvmppc_bt_page(struct kvmppc_bt *bt, gfn_t gfn);
struct bt_page *kvmppc_bt_make_page(struct kvmppc_bt *bt, gfn_t gfn);
void kvmppc_bt_page_empty(struct kvm_vcpu *vcpu, gfn_t gfn);
int kvmppc_bt_block_tsize(struct kvmppc_bt *bt, gfn_t gfn);
void kvmppc_bt_fault(struct kvm_vcpu *vcpu, gfn_t gfn);
bool kvmppc_bt_holds_cached(const struct kvmppc_bt *bt, gfn_t first, gfn_t pages);

/* e500_bt_layout.c */
bool kvmppc_bt_good_kb(unsigned int kb);
int kvmppc_bt_init_layout(struct kvmppc_bt *bt);
void kvmppc_bt_free_layout(struct kvmppc_bt *bt);
void kvmppc_bt_show_layout(struct kvm *kvm);
void kvmppc_bt_note_size(struct kvmppc_bt *bt, gfn_t gfn, int tsize);
int kvmppc_bt_first_size(struct kvmppc_bt *bt, gfn_t gfn, int otherwise);

/* e500_bt_site.c */

/**
 * enum bt_place - where kvmppc_bt_settle() found the guest
 * @BT_OUTSIDE: not where a fragment is
 * @BT_INSIDE: in a fragment; it is at the site now, or after it
 * @BT_FOREIGN: in code of its own where a fragment was; nothing was changed
 */
enum bt_place {
	BT_OUTSIDE,
	BT_INSIDE,
	BT_FOREIGN,
};

bool kvmppc_bt_find_code(struct kvm_vcpu *vcpu, u32 ea, gpa_t *gpa);
bool kvmppc_bt_maps_code(struct kvm_vcpu *vcpu, u32 ea, gpa_t gpa, u32 bytes);
bool kvmppc_bt_maps_area(struct kvm_vcpu *vcpu, const struct bt_area *area);
bool kvmppc_bt_in_area(const struct kvmppc_bt *bt, gpa_t gpa);
struct bt_site *kvmppc_bt_site(struct kvmppc_bt *bt, gpa_t gpa);
int kvmppc_bt_patch(struct kvm_vcpu *vcpu, u32 ea, gpa_t gpa, u32 inst);
int kvmppc_bt_patch_code(struct kvm_vcpu *vcpu, u32 ea, gpa_t gpa, u32 inst, enum bt_kind kind,
			 struct bt_code *code);
void kvmppc_bt_undo(struct kvm_vcpu *vcpu, struct bt_site *site);
void kvmppc_bt_undo_block(struct kvm_vcpu *vcpu, gfn_t gfn, bool refuse);
void kvmppc_bt_undo_all(struct kvm_vcpu *vcpu);
void kvmppc_bt_originals(struct kvm_vcpu *vcpu, gpa_t gpa, u8 *bytes, unsigned int len);
void kvmppc_bt_undo_range(struct kvm_vcpu *vcpu, gpa_t gpa, unsigned int len);
enum bt_place kvmppc_bt_settle(struct kvm_vcpu *vcpu, struct bt_site **found, unsigned int *index);

/* e500_bt_trace.c */
bool kvmppc_bt_is_traced_access(struct kvm_vcpu *vcpu);
int kvmppc_bt_traced_access(struct kvm_vcpu *vcpu);

/* e500_bt_read.c: what stock code calls */
void kvmppc_bt_remapped(struct kvm_vcpu *vcpu);
void kvmppc_bt_msr_changed(struct kvm_vcpu *vcpu);

/* e500_bt_read.c: for the other files */
struct instruction_op;

void kvmppc_bt_loaded(struct kvm_vcpu *vcpu, u32 pc, u32 inst, const struct instruction_op *op);
void kvmppc_bt_check_reads(struct kvm_vcpu *vcpu);
void kvmppc_bt_drop_reads_of(struct kvm_vcpu *vcpu, gpa_t gpa, unsigned int len);

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

static inline bool kvmppc_bt_offered(struct kvm *kvm)
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

static inline void kvmppc_bt_copy_short_exits(void)
{
}

static inline void kvmppc_bt_note_entry(struct kvm_vcpu *vcpu,
					const struct kvm_book3e_206_tlb_entry *entry)
{
}

static inline void kvmppc_bt_forget_entry(struct kvm_vcpu *vcpu, u32 ea, u32 pid)
{
}

static inline void kvmppc_bt_forget_context(struct kvm_vcpu *vcpu, u32 pid)
{
}

static inline void kvmppc_bt_forget_contexts(struct kvm_vcpu *vcpu)
{
}

static inline void kvmppc_bt_forget_copies(struct kvm_vcpu *vcpu)
{
}

static inline void kvmppc_bt_pids_anew(struct kvm_vcpu *vcpu)
{
}

static inline void kvmppc_bt_level2_load(struct kvm_vcpu *vcpu)
{
}

static inline void kvmppc_bt_free_level2(struct kvm_vcpu *vcpu)
{
}

static inline void kvmppc_bt_emulated(struct kvm_vcpu *vcpu, u32 inst)
{
}

static inline void kvmppc_bt_before_entry(struct kvm_vcpu *vcpu)
{
}

static inline void kvmppc_bt_undo_sites(struct kvm_vcpu *vcpu)
{
}

static inline void kvmppc_bt_enter(struct kvm_vcpu *vcpu)
{
}

static inline void kvmppc_bt_leave(struct kvm_vcpu *vcpu)
{
}

static inline void kvmppc_bt_remapped(struct kvm_vcpu *vcpu)
{
}

static inline void kvmppc_bt_msr_changed(struct kvm_vcpu *vcpu)
{
}

static inline unsigned int kvmppc_bt_next_victim(struct kvm *kvm, unsigned int last,
						 unsigned int entries)
{
	return last + 1 < entries ? last + 1 : 0;
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
