// SPDX-License-Identifier: GPL-2.0-only
#include "fake_xen.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct domain dom0, domu, dom_hvm;
struct domain *hardware_domain = &dom0;
u64 max_pdx = NR_PDX;
struct fake fake;
u32 fake_parts;
struct ledger owed[NR_PDX];
_Alignas(16) u8 guest_memory[2][GUEST_BYTES];

static struct page_info frames[NR_PDX];
static unsigned int depth;	/* 1 while the other CPU runs */
static unsigned int typing;	/* inside Xen's own change of a type */
static jmp_buf waiting;

#define OWNER_NONE	0
#define OWNER_DOM0	1
#define OWNER_DOMU	2
#define OWNER_IO	3

unsigned int fake_cpu(void)
{
	return depth;
}

/* --- the heap: it knows every block, to find leaks and to undo a CPU's calls --- */

struct block {
	struct block *next;
	void *copy;
	size_t size;
	bool mapped;	/* from vzalloc */
	_Alignas(64) u8 data[];
};

static struct block *heap;

static void *heap_take(size_t size, bool mapped)
{
	struct block *b;

	if (posix_memalign((void **)&b, _Alignof(struct block),
			   sizeof(*b) + size))
		abort();
	b->next = heap;
	b->copy = NULL;
	b->size = size;
	b->mapped = mapped;
	memset(b->data, mapped ? 0 : 0xa5, size);
	heap = b;
	return b->data;
}

static void heap_give(void *p, bool mapped)
{
	struct block **at;

	if (!p)
		return;
	for (at = &heap; *at; at = &(*at)->next) {
		struct block *b = *at;

		if (b->data != p)
			continue;
		if (b->mapped != mapped)
			violation("freed with the wrong function");
		*at = b->next;
		free(b->copy);
		free(b);
		return;
	}
	violation("freed what was not allocated");
}

unsigned int fake_heap_blocks(void)
{
	unsigned int n = 0;

	for (struct block *b = heap; b; b = b->next)
		n++;
	return n;
}

void fake_forget_heap(void)
{
	while (heap)
		heap_give(heap->data, heap->mapped);
}

/* --- the other CPU --- */

extern char __start_payload_bss[], __stop_payload_bss[];
extern char __start_payload_data[] __attribute__((weak));
extern char __stop_payload_data[] __attribute__((weak));

__attribute__((no_sanitize("address")))
static void copy_variables(char *start, char *stop, char *to, bool save)
{
	/* Not by memcpy(): ASan's red zones lie between the variables. */
	for (; start && start < stop; start++, to++) {
		if (save)
			*to = *(volatile char *)start;
		else
			*(volatile char *)start = *to;
	}
}

struct variables {
	char bss[4096], data[4096];
};

static struct variables loaded, interrupted;

static void payload_variables(struct variables *v, bool save)
{
	if (__stop_payload_bss - __start_payload_bss > (long)sizeof(v->bss) ||
	    __stop_payload_data - __start_payload_data > (long)sizeof(v->data))
		violation("payload's variables outgrew the test");
	copy_variables(__start_payload_bss, __stop_payload_bss, v->bss, save);
	copy_variables(__start_payload_data, __stop_payload_data, v->data,
		       save);
}

/* Xen does not apply a reverted payload again: load it again. */
static void load_payload(void)
{
	static bool known;

	payload_variables(&loaded, !known);
	known = true;
}

/*
 * The other CPU has to wait for this one. It must not have changed anything
 * visible yet; its calls are undone, so that it can start again later.
 */
static void wait_for_other_cpu(const char *what)
{
	if (!depth)
		violation("CPU waits for ever: %s", what);
	longjmp(waiting, 1);
}

void cpu_relax(void)
{
	wait_for_other_cpu("spinning in the payload");
}

static void run_other_cpu(void)
{
	struct race *race = &fake.race;
	const struct domain *d = race->domain ? race->domain : &dom0;
	static struct machine before;
	struct fake fake_before = fake;
	unsigned int typing_before = typing;
	struct block *newest = heap;

	if (d->paused)
		return;
	memcpy(before.frames, frames, sizeof(frames));
	memcpy(before.owed, owed, sizeof(owed));
	before.dom0 = dom0;
	before.domu = domu;
	payload_variables(&interrupted, true);
	for (struct block *b = heap; b; b = b->next) {
		b->copy = realloc(b->copy, b->size);
		memcpy(b->copy, b->data, b->size);
	}

	depth = 1;
	typing = 0;
	memset(fake.fail_at, 0, sizeof(fake.fail_at));
	fake.scribble = fake.interrupted = false;
	fake.pending_at = 0;
	if (!setjmp(waiting)) {
		race->run(race->arg);
		fake_before.race.ran = true;
	} else {
		memcpy(frames, before.frames, sizeof(frames));
		memcpy(owed, before.owed, sizeof(owed));
		dom0 = before.dom0;
		domu = before.domu;
		payload_variables(&interrupted, false);
		while (heap != newest)
			heap_give(heap->data, heap->mapped);
		for (struct block *b = heap; b; b = b->next)
			memcpy(b->data, b->copy, b->size);
	}
	depth = 0;
	typing = typing_before;
	/* Do not count its work for the call under test. */
	fake = fake_before;
}

/* Every function of Xen starts here. */
static void entered(void)
{
	fake_check_tables();
	if (!depth && fake.race.at && --fake.race.at == 0) {
		run_other_cpu();
		/* Check before this call, maybe a flush, hides the effect. */
		fake_check_tables();
	}
}

static bool fails(enum fault which)
{
	unsigned int n;

	if (typing || depth)
		return false;
	n = ++fake.calls[which];
	return fake.fail_at[which] &&
	       (n == fake.fail_at[which] ||
		(n > fake.fail_at[which] && fake.fail_on[which]));
}

/* --- frames --- */

u64 mfn_to_pdx(u64 mfn)
{
	return (mfn & (BANK_FRAMES - 1)) |
	       ((mfn & ~(HOLE_MASK | (BANK_FRAMES - 1))) >> HOLE_SHIFT);
}

u64 pdx_to_mfn(u64 pdx)
{
	return pdx % BANK_FRAMES + pdx / BANK_FRAMES * 0x400;
}

static u64 page_to_mfn(const struct page_info *page)
{
	return pdx_to_mfn(page - frames);
}

bool __mfn_valid(u64 mfn)
{
	return mfn < NR_MFN && !(mfn & HOLE_MASK);
}

struct page_info *pdx_to_page(u64 pdx)
{
	if (pdx >= NR_PDX)
		violation("PDX %#lx has no struct page_info", pdx);
	return &frames[pdx];
}

struct page_info *mfn_to_page(u64 mfn)
{
	return pdx_to_page(mfn_to_pdx(mfn));
}

struct page_info *fake_page(u64 mfn)
{
	return mfn_to_page(mfn);
}

struct ledger *fake_owed(u64 mfn)
{
	return &owed[mfn_to_page(mfn) - frames];
}

bool fake_is_ram(u64 mfn)
{
	return __mfn_valid(mfn);
}

static u32 owner_id(const struct domain *d)
{
	return d->id;
}

u32 domain_id(const struct domain *d)
{
	return d->id;
}

struct domain *fake_home(u64 mfn)
{
	return mfn >= MMIO_MFN(0) ? NULL : mfn >= DOMU_MFN(0) ? &domu : &dom0;
}

struct domain *page_owner(const struct page_info *page)
{
	return page->owner == OWNER_DOM0 ? &dom0 :
	       page->owner == OWNER_DOMU ? &domu : NULL;
}

bool fake_owned(u64 mfn, const struct domain *d)
{
	return fake_is_ram(mfn) && mfn_to_page(mfn)->owner == owner_id(d) &&
	       mfn_to_page(mfn)->count_info;
}

bool fake_is_live(u64 mfn)
{
	u64 type = mfn_to_page(mfn)->type_info;

	return (type & PGT_count_mask) &&
	       (type & PGT_type_mask) != PGT_writable_page;
}

bool fake_bit(u64 mfn)
{
	return semi_writable_test(page_owner(mfn_to_page(mfn)), mfn);
}

static bool is_table(u64 type_info)
{
	u64 type = type_info & PGT_type_mask;

	return type >= PGT_l1_page_table && type <= PGT_l4_page_table;
}

/* --- IOMMU --- */

static void io_check(const struct domain *d, u64 dfn)
{
	if (dfn >= NR_MFN)
		violation("IOMMU asked for dfn %#lx", dfn);
	if (d != &dom0 && d != &domu)
		violation("IOMMU of a domain without one");
	if (d->life == DEAD)
		violation("IOMMU tables of a dead domain");
}

long iommu_map(struct domain *d, u64 dfn, u64 mfn, unsigned long page_count,
	       u32 flags, u32 *flush_flags)
{
	entered();
	if (fake.evicting && d->life == DEAD)
		return 0;
	io_check(d, dfn);
	if (page_count != 1 || dfn != mfn || flags != IOMMUF_rw)
		violation("odd iommu_map");
	if (fails(FAULT_MAP)) {
		if (fake.failed_maps < 1024)
			fake.failed_map[fake.failed_maps++] = mfn;
		return MAP_ERROR;
	}
	if (!(d->io[dfn] & IO_TABLE))
		*flush_flags |= 1;
	d->io[dfn] |= IO_TABLE | IO_TLB;
	return 0;
}

long iommu_unmap(struct domain *d, u64 dfn, unsigned long page_count,
		 u32 flags, u32 *flush_flags)
{
	entered();
	io_check(d, dfn);
	if (page_count != 1 || flags)
		violation("odd iommu_unmap");
	if (fails(FAULT_UNMAP))
		return UNMAP_ERROR;
	if (d->io[dfn] & IO_TABLE)
		*flush_flags |= 2;
	d->io[dfn] &= ~IO_TABLE;
	d->io[dfn] |= IO_TLB_ABSENT;
	return 0;
}

int iommu_iotlb_flush_all(struct domain *d, u32 flush_flags)
{
	entered();
	io_check(d, 0);
	if (!flush_flags)
		violation("flush of nothing");
	if (!typing && !depth)
		fake.flushes++;
	if (fails(FAULT_FLUSH))
		return FLUSH_ERROR;
	for (u64 i = 0; i < NR_MFN; i++)
		d->io[i] = d->io[i] & IO_TABLE ? IO_TABLE | IO_TLB :
						 IO_TLB_ABSENT;
	return 0;
}

static void note_call(u64 dfn, u64 mfn, unsigned long count, u32 flags)
{
	fake.originals++;
	fake.last_dfn = dfn;
	fake.last_mfn = mfn;
	fake.last_count = count;
	fake.last_flags = flags;
}

/* The stock functions. Only frames of RAM are modelled. */
int original_iommu_legacy_map(struct domain *d, u64 dfn, u64 mfn,
			      unsigned long page_count, u32 flags)
{
	u32 flush_flags = 0;

	note_call(dfn, mfn, page_count, flags);
	if (page_count != 1 || dfn != mfn || dfn >= NR_MFN || d->life == DEAD)
		return 0;
	typing++;
	iommu_map(d, dfn, mfn, 1, IOMMUF_rw, &flush_flags);
	if (flush_flags)
		iommu_iotlb_flush_all(d, flush_flags);
	typing--;
	return 0;
}

int original_iommu_legacy_unmap(struct domain *d, u64 dfn,
				unsigned long page_count)
{
	u32 flush_flags = 0;

	note_call(dfn, 0, page_count, 0);
	if (page_count != 1 || dfn >= NR_MFN || d->life == DEAD)
		return 0;
	typing++;
	iommu_unmap(d, dfn, 1, 0, &flush_flags);
	if (flush_flags)
		iommu_iotlb_flush_all(d, flush_flags);
	typing--;
	return 0;
}

long original_do_callback_op(int op, void *arg)
{
	fake.originals++;
	fake.last_op = op;
	fake.last_arg = arg;
	return STOCK_CALLBACK;
}

/* --- references: get_page to _put_page_type, after Xen 4.17's mm.c --- */

bool get_page(struct page_info *page, const struct domain *d)
{
	entered();
	if (fake.queue)
		++*fake.queue;
	fake.queue = NULL;
	if (!page->count_info || page->owner != owner_id(d))
		return false;
	page->count_info++;
	return true;
}

void put_page(struct page_info *page)
{
	struct domain *d = page_owner(page);
	u64 mfn = page_to_mfn(page);

	entered();
	if (!page->count_info)
		violation("mfn %#lx: general reference dropped twice", mfn);
	if (--page->count_info)
		return;
	if (page->type_info & PGT_count_mask)
		violation("mfn %#lx freed with type references", mfn);
	if ((page->type_info & PGT_type_mask) == PGT_writable_page && d->sync)
		payload_unmap(d, mfn, 1);
	if (d->io[mfn] & (IO_TABLE | IO_TLB))
		violation("mfn %#lx freed while devices reach it", mfn);
	page->type_info = 0;
	page->owner = OWNER_NONE;
}

/* The last part of _put_page_type for a page table. */
static int put_final(struct page_info *page, bool preemptible)
{
	page->type_info &= ~PGT_validated & ~PGT_partial;
	entered();
	if (preemptible && fake.interrupted) {
		page->count_info++;
		page->type_info |= PGT_partial;
		return -ERESTART;
	}
	page->type_info--;
	return 0;
}

static int drop_type(struct page_info *page, bool preemptible)
{
	u64 mfn = page_to_mfn(page);
	u64 type = page->type_info;

	entered();
	type = page->type_info;
	if (!(type & PGT_count_mask))
		violation("mfn %#lx: type reference dropped twice", mfn);
	if (!(type & PGT_validated))
		violation("mfn %#lx: type reference dropped unvalidated", mfn);
	if ((type & PGT_locked) && (type & PGT_count_mask) == 2)
		wait_for_other_cpu("page lock");
	if ((type & PGT_count_mask) == 1 && is_table(type)) {
		/* The caller has no way to continue it. */
		if (!preemptible && (type & PGT_type_mask) != PGT_l1_page_table)
			violation("mfn %#lx: last reference of a big table dropped where Xen cannot preempt",
				  mfn);
		return put_final(page, preemptible);
	}
	page->type_info--;
	return 0;
}

void put_page_type(struct page_info *page)
{
	drop_type(page, false);
}

void page_unlock(struct page_info *page)
{
	u64 type = page->type_info;

	if (!(type & PGT_locked) || (type & PGT_count_mask) < 2)
		violation("mfn %#lx unlocked wrongly", page_to_mfn(page));
	page->type_info -= PGT_locked | 1;
}

static int take_type(struct page_info *page, u64 type, bool interrupted)
{
	struct domain *d = page_owner(page);
	u64 mfn = page_to_mfn(page);
	u64 old, new;

	entered();
	old = page->type_info;
	new = old + 1;
	if (!(old & PGT_count_mask)) {
		if ((old & PGT_type_mask) != type)
			new = (new & ~(PGT_type_mask | PGT_validated)) | type;
	} else if ((old & PGT_type_mask) != type) {
		return -EINVAL;
	} else if (!(old & PGT_validated)) {
		if (!(old & PGT_partial))
			wait_for_other_cpu("validation");
		new = old & ~PGT_partial;
	}
	page->type_info = new;
	if (new & PGT_validated)
		return 0;

	/* Validate-locked: only we may continue with this frame. */
	entered();
	if (((old & PGT_type_mask) == PGT_writable_page) !=
	    (type == PGT_writable_page) && d && d->sync && d->pv) {
		if (type == PGT_writable_page)
			payload_map(d, mfn, mfn, 1, IOMMUF_rw);
		else
			payload_unmap(d, mfn, 1);
	}
	entered();
	if (interrupted) {
		page->count_info++;
		page->type_info |= PGT_partial;
	} else {
		page->type_info |= PGT_validated;
	}
	if (old & PGT_partial)
		put_page(page);
	return interrupted ? -ERESTART : 0;
}

int get_page_type(struct page_info *page, unsigned long type)
{
	if (fails(FAULT_GET_TYPE))
		return 0;
	return !take_type(page, type, false);
}

/* --- the guest --- */

static u64 level_type(unsigned int level)
{
	return PGT_l1_page_table * level;
}

static bool guest_take(u64 mfn, u64 type)
{
	struct page_info *page = mfn_to_page(mfn);

	if (!get_page(page, fake_home(mfn)))
		return false;
	if (take_type(page, type, false)) {
		put_page(page);
		return false;
	}
	return true;
}

static void guest_drop(u64 mfn)
{
	struct page_info *page = mfn_to_page(mfn);

	drop_type(page, true);
	put_page(page);
}

bool guest_map_writable(u64 mfn)
{
	struct ledger *l = fake_owed(mfn);

	if (l->writable > 3 || !guest_take(mfn, PGT_writable_page))
		return false;
	l->writable++;
	return true;
}

bool guest_unmap_writable(u64 mfn)
{
	struct ledger *l = fake_owed(mfn);

	if (!l->writable)
		return false;
	l->writable--;
	guest_drop(mfn);
	return true;
}

bool guest_map_segment(u64 mfn)
{
	struct ledger *l = fake_owed(mfn);

	if (l->segment > 3 || !guest_take(mfn, PGT_seg_desc_page))
		return false;
	l->segment++;
	return true;
}

bool guest_unmap_segment(u64 mfn)
{
	struct ledger *l = fake_owed(mfn);

	if (!l->segment)
		return false;
	l->segment--;
	guest_drop(mfn);
	return true;
}

bool guest_pin(u64 mfn, unsigned int level, bool interrupted)
{
	struct page_info *page = mfn_to_page(mfn);
	struct ledger *l = fake_owed(mfn);
	int rc;

	if (l->pinned || l->unpinning || !get_page(page, fake_home(mfn)))
		return false;
	rc = take_type(page, level_type(level), interrupted && level > 1);
	if (rc) {
		/* First, as another CPU may continue it from now on. */
		if (rc == -ERESTART) {
			l->partial = 1;
			l->level = level;
		}
		put_page(page);
		return false;
	}
	l->partial = 0;
	l->level = level;
	if (l->pinned) {	/* another CPU did meanwhile */
		guest_drop(mfn);
		return false;
	}
	l->pinned = 1;
	return true;
}

/* An interrupted unpin, of a table or a part of it, waits for another one. */
bool guest_unpin(u64 mfn, bool interrupted)
{
	struct page_info *page = mfn_to_page(mfn);
	struct ledger *l = fake_owed(mfn);
	int rc;

	if (!l->pinned && !l->unpinning && !l->partial)
		return false;
	fake.interrupted = interrupted && l->level > 1;
	if (l->pinned) {
		l->pinned = 0;
		rc = drop_type(page, true);
		fake.interrupted = false;
		if (rc) {
			l->unpinning = 1;
			return false;
		}
		put_page(page);
		return true;
	}
	/* PTF_partial_set: the flag's own reference goes with the flag. */
	if (!(page->type_info & PGT_partial))
		return false;
	rc = put_final(page, true);
	fake.interrupted = false;
	put_page(page);
	if (rc)
		return false;
	if (l->unpinning)
		put_page(page);
	l->unpinning = l->partial = 0;
	return true;
}

bool guest_free(u64 mfn)
{
	struct ledger *l = fake_owed(mfn);

	if (!l->allocated)
		return false;
	l->allocated = 0;
	put_page(mfn_to_page(mfn));
	return true;
}

bool guest_alloc(u64 mfn)
{
	struct page_info *page = mfn_to_page(mfn);

	if (page->owner != OWNER_NONE)
		return false;
	if (page->type_info || page->count_info)
		violation("mfn %#lx is free and in use", mfn);
	if (fake_home(mfn)->life != ALIVE)
		return false;
	page->owner = owner_id(fake_home(mfn));
	page->count_info = 1;
	fake_owed(mfn)->allocated = 1;
	if (!guest_take(mfn, PGT_writable_page))
		violation("fresh page refused");
	guest_drop(mfn);
	return true;
}

/* --- the end of a domain, and the next one --- */

int original_domain_kill(struct domain *d)
{
	entered();
	if (d == current_domain())
		return -EINVAL;
	if (d->life == DEAD)
		return 0;
	d->life = DYING;
	if (fake.unfinished) {
		fake.unfinished--;
		return -ERESTART;
	}
	/* Its devices are taken from it, then its memory, then the tables. */
	memset(d->io, 0, sizeof(d->io));
	for (unsigned int i = 0; i < NR_PDX; i++) {
		u64 mfn = page_to_mfn(&frames[i]);

		if (page_owner(&frames[i]) != d)
			continue;
		while (guest_unpin(mfn, false) || guest_unmap_writable(mfn) ||
		       guest_unmap_segment(mfn))
			;
		guest_free(mfn);
	}
	d->life = DEAD;
	return 0;
}

static bool owns_any(const struct domain *d)
{
	for (unsigned int i = 0; i < NR_PDX; i++)
		if (page_owner(&frames[i]) == d)
			return true;
	return false;
}

void fake_kill(struct domain *d, unsigned int calls)
{
	int rc;

	/* The payload drops its own references. */
	do {
		rc = payload_domain_kill(d);
		if (rc != (calls ? -ERESTART : 0) && rc)
			violation("domain_kill gave %d", rc);
		for (unsigned int i = 0; i < NR_PDX; i++) {
			if (fake_home(page_to_mfn(&frames[i])) == d &&
			    !frames[i].count_info)
				owed[i].marked = owed[i].held = 0;
		}
	} while (rc && calls--);
	if (rc)
		violation("domain_kill does not end");
	if (owns_any(d))
		violation("a zombie is left");
}

static void give_frames(struct domain *d)
{
	for (unsigned int i = 0; i < NR_PDX; i++) {
		u64 mfn = page_to_mfn(&frames[i]);

		if (fake_home(mfn) != d)
			continue;
		if (frames[i].type_info || frames[i].count_info)
			violation("mfn %#lx is free and in use", mfn);
		frames[i].count_info = 1;
		frames[i].owner = owner_id(d);
		frames[i].type_info = PGT_writable_page | PGT_validated;
		memset(&owed[i], 0, sizeof(owed[i]));
		owed[i].allocated = 1;
		d->io[mfn] = d->sync ? IO_TABLE | IO_TLB : 0;
	}
}

void fake_create_domu(void)
{
	memset(&domu, 0, sizeof(domu));
	domu.id = OWNER_DOMU;
	domu.pv = domu.sync = true;
	give_frames(&domu);
	for (u64 mfn = 0; mfn < NR_MFN; mfn++)
		domu.io[mfn] |= domu.io[mfn] ? 0 : IO_TLB_ABSENT;
}

/* --- the rest of Xen --- */

void *vzalloc(size_t size)
{
	entered();
	return fails(FAULT_VZALLOC) ? NULL : heap_take(size, true);
}

void vfree(void *va)
{
	heap_give(va, true);
}

void *_xmalloc(unsigned long size, unsigned long align)
{
	entered();
	if (align > 16)
		violation("odd alignment");
	return fails(FAULT_MALLOC) ? NULL : heap_take(size, false);
}

void xfree(void *p)
{
	heap_give(p, false);
}

static bool guest_range(const void *p, unsigned int len)
{
	u64 start = (u64)guest_memory[depth], at = (u64)p;

	return at >= start && at <= start + GUEST_BYTES &&
	       len <= start + GUEST_BYTES - at;
}

unsigned int copy_from_guest_pv(void *to, const void *from, unsigned int len)
{
	entered();
	if (!guest_range(from, len))
		return len;
	if (fails(FAULT_COPY)) {
		memcpy(to, from, len / 2);
		return len - len / 2;
	}
	memcpy(to, from, len);
	if (fake.scribble)
		memset((void *)from, 0xff, len);
	return 0;
}

unsigned int copy_to_guest_pv(void *to, const void *from, unsigned int len)
{
	entered();
	if (!guest_range(to, len) || fails(FAULT_COPY))
		return len;
	memcpy(to, from, len);
	return 0;
}

void printk(const char *format, ...)
{
	(void)format;
}

int revert_payload(struct payload *payload)
{
	(void)payload;
	return fails(FAULT_REVERT) ? -EINVAL : 0;
}

/* While its CPUs are stopped the other CPU does not run for the domain. */
int domain_pause_except_self(struct domain *d)
{
	entered();
	if (d != &dom0 && d != &domu)
		violation("paused what is no domain");
	if (fails(FAULT_PAUSE))
		return -ERESTART;
	if (marks_of(d)->next != marks_of(d)->serving)
		violation("waiting for CPUs that may wait for the lock");
	d->paused++;
	return 0;
}

void domain_unpause_except_self(struct domain *d)
{
	if (!d->paused--)
		violation("domain %u goes on twice", d->id);
}

struct domain *current_domain(void)
{
	return !depth ? fake.current :
	       fake.race.domain ? fake.race.domain : &dom0;
}

u32 smp_processor_id(void)
{
	return depth;
}

bool softirq_pending(u32 cpu)
{
	if (cpu != depth)
		violation("asked for another CPU's softirqs");
	if (depth)
		return false;
	fake.looks++;
	return fake.pending_at && fake.looks >= fake.pending_at;
}

void block_speculation(void)
{
}

bool domain_is_pv(const struct domain *d)
{
	return d->pv;
}

bool domain_needs_iommu_sync(const struct domain *d)
{
	return d->sync;
}

void fake_begin(void)
{
	struct domain *d = fake.current;

	memset(&fake, 0, sizeof(fake));
	fake.current = d;
}

void fake_reset(void)
{
	u32 flush_flags = 0;

	fake_forget_heap();
	load_payload();
	typing = depth = 0;
	memset(&fake, 0, sizeof(fake));
	memset(frames, 0, sizeof(frames));
	memset(owed, 0, sizeof(owed));
	memset(&dom0, 0, sizeof(dom0));
	memset(&domu, 0, sizeof(domu));
	memset(&dom_hvm, 0, sizeof(dom_hvm));
	dom0.id = OWNER_DOM0;
	dom_hvm.id = 7;
	dom0.pv = dom0.sync = true;
	fake.current = &dom0;
	fake_parts = TPT_SWITCH_ALL;
	give_frames(&dom0);
	for (unsigned int i = 0; i < NR_PDX; i++) {
		if (fake_home(page_to_mfn(&frames[i])))
			continue;
		frames[i].count_info = 1;
		frames[i].owner = OWNER_IO;
		owed[i].allocated = 1;
	}
	fake_create_domu();
	typing++;
	iommu_iotlb_flush_all(&dom0, 1 | flush_flags);
	typing--;
}

/* --- the oracle --- */

/* True at every moment, also in the middle of any call. */
void fake_check_tables(void)
{
	for (unsigned int i = 0; i < NR_PDX; i++) {
		u64 type = frames[i].type_info;
		u64 mfn = page_to_mfn(&frames[i]);

		const struct domain *d = page_owner(&frames[i]);

		if (is_table(type) && (type & PGT_validated) &&
		    (type & PGT_count_mask) && d &&
		    (d->io[mfn] & (IO_TABLE | IO_TLB)))
			violation("mfn %#lx: devices reach a page table", mfn);
	}
}

static void check_frame(unsigned int i)
{
	const struct ledger *l = &owed[i];
	u64 mfn = page_to_mfn(&frames[i]);
	u64 type = frames[i].type_info;
	u64 refs = l->allocated + l->pinned + l->partial + 2 * l->unpinning +
		   l->writable + l->segment + l->marked + l->held;
	u64 type_refs = l->pinned + l->partial + l->unpinning + l->writable +
			l->segment + l->held;
	const struct domain *d = page_owner(&frames[i]);
	bool reached = d && d->io[mfn] & (IO_TABLE | IO_TLB);
	bool bit = fake_bit(mfn);

	if (frames[i].count_info != refs)
		violation("mfn %#lx: %lu general references, not %lu", mfn,
			  frames[i].count_info, refs);
	if ((type & PGT_count_mask) != type_refs)
		violation("mfn %#lx: %lu type references, not %lu", mfn,
			  type & PGT_count_mask, type_refs);
	if ((type & PGT_locked) || (type & 0x0a80000000000000UL))
		violation("mfn %#lx: odd type %#lx", mfn, type);
	if (!(type & PGT_partial) != !(l->partial || l->unpinning))
		violation("mfn %#lx: partial flag", mfn);
	if (type_refs) {
		u64 expected = l->segment ? PGT_seg_desc_page :
			       l->writable || l->held ? PGT_writable_page :
			       level_type(l->level);

		if ((type & PGT_type_mask) != expected)
			violation("mfn %#lx: type %#lx", mfn, type);
		if (!(type & PGT_validated) != !!(l->partial || l->unpinning))
			violation("mfn %#lx: validated flag", mfn);
	}
	if (bit != l->marked)
		violation("mfn %#lx: mark is %d, not %d", mfn, bit, l->marked);
	if (payload_holds(mfn) != l->held)
		violation("mfn %#lx: hold is not %d", mfn, l->held);
	if (!d) {
		if (dom0.io[mfn] & (IO_TABLE | IO_TLB))
			violation("mfn %#lx: free, and devices reach it", mfn);
		return;
	}
	if (is_table(type) && (type & PGT_count_mask) && reached)
		violation("mfn %#lx: devices reach a page table", mfn);
	if (l->held)	/* plain data for ever: mapped or not */
		return;
	if (l->marked && reached)
		violation("mfn %#lx: devices reach a semi-writable frame", mfn);
	if (!l->marked && d->sync && d->life == ALIVE &&
	    (type & PGT_type_mask) == PGT_writable_page &&
	    !(d->io[mfn] & IO_TABLE))
		violation("mfn %#lx: writable and out of reach of devices", mfn);
}

static void check_domain(const struct domain *d)
{
	struct domain_marks own = payload_marks_of(d);
	u64 marked = 0, held = 0;

	for (unsigned int i = 0; i < NR_PDX; i++) {
		if (fake_home(page_to_mfn(&frames[i])) != d)
			continue;
		marked += owed[i].marked;
		held += owed[i].held;
	}
	if (own.frames[MARKED] != marked || own.frames[HELD] != held)
		violation("domain %u: %lu marked, %lu held, not %lu and %lu",
			  d->id, own.frames[MARKED], own.frames[HELD], marked,
			  held);
	if (d->paused)
		violation("domain %u is stopped", d->id);
	if (own.next != own.serving || own.scanned)
		violation("domain %u: locked, or in its teardown", d->id);
}

void fake_check(void)
{
	u64 marked = 0, held = 0;

	fake_check_tables();
	for (unsigned int i = 0; i < NR_PDX; i++) {
		check_frame(i);
		marked += owed[i].marked;
		held += owed[i].held;
	}
	check_domain(&dom0);
	check_domain(&domu);
	for (u64 mfn = 0; mfn < NR_MFN; mfn++)
		if (!__mfn_valid(mfn) && (dom0.io[mfn] & IO_TABLE))
			violation("MMIO %#lx was mapped", mfn);
	if (semi_writable_stats.semi_writable != marked)
		violation("%llu frames counted semi-writable, not %lu",
			  semi_writable_stats.semi_writable, marked);
	if (semi_writable_stats.held != held)
		violation("%llu frames counted held, not %lu",
			  semi_writable_stats.held, held);
	if (fake_heap_blocks() != payload_has_map())
		violation("%u blocks of the heap in use", fake_heap_blocks());
}
