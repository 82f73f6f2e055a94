// SPDX-License-Identifier: GPL-2.0-only
/*
 * One random call each: mmu_update, update_va_mapping, mmuext_op, multicall.
 *
 * The kernel we run in must survive, so nothing here loads a table as a root
 * that Xen could accept, or operates on frames of the running kernel. Anything
 * else is allowed.
 */
#include <linux/slab.h>
#include <linux/vmalloc.h>

#include "table_test.h"

#define MOST		33	/* requests a call */
#define MMU_UPDATE_PREEMPTED	(1U << 31)
#define PAD		0xdeadu	/* what "done" holds if Xen does not write it */

/* At the end of a page with nothing behind it: longer lists cannot be read. */
static void *list_page;
static unsigned int *done_at;
static u64 *cpus;

static void *list(unsigned int count, size_t size)
{
	return list_page + PAGE_SIZE - count * size;
}

int tt_calls_init(void)
{
	list_page = vmalloc(PAGE_SIZE);
	cpus = kzalloc(64, GFP_KERNEL);
	if (!list_page || !cpus) {
		tt_calls_exit();
		return -ENOMEM;
	}
	done_at = (unsigned int *)(cpus + 1);
	return 0;
}

void tt_calls_exit(void)
{
	vfree(list_page);
	kfree(cpus);
}

static domid_t some_domain(void)
{
	static const domid_t domains[] = {
		0, 1, 999, DOMID_IO, DOMID_XEN, DOMID_COW, DOMID_INVALID, DOMID_IDLE,
	};

	if (!tt_chance(24))
		return DOMID_SELF;
	return domains[tt_random(ARRAY_SIZE(domains))];
}

/* Addresses that are no guest's to read: where pointers are wanted. */
static u64 bad_pointer(void)
{
	switch (tt_random(5)) {
	case 0:
		return HYPERVISOR_VIRT_START;
	case 1:
		return 0x0000900000000000;	/* not canonical */
	case 2:
		return ~0ULL & ~7ULL;
	case 3:
		return (u64)list_page + PAGE_SIZE;
	default:
		return 0x1000;
	}
}

static u64 cpu_bitmap(void)
{
	if (tt_chance(4))
		return bad_pointer();
	*cpus = tt_chance(2) ? 1 : tt_random(4) ? ~0ULL : 0;
	return (u64)cpus;
}

/* The frame number of a page that an operation may name. */
static u64 target(unsigned int *page)
{
	*page = TT_PAGES;
	switch (tt_random(40)) {
	case 0:
	case 1:
		return tt_special_frame(tt_random(TT_HARMLESS));
	case 2:
		return tt_no_ram(1 << 4);
	case 3:
		return 1ULL << (28 + tt_random(24));
	case 4:
	case 5:
	case 6:
		*page = tt_pick(0);
		break;
	default:
		*page = tt_pick_active();
	}
	return tt_pages[*page].mfn;
}

/* Let Xen finish a teardown that it has interrupted. */
void tt_settle(void)
{
	struct mmuext_op op = { .cmd = MMUEXT_TLB_FLUSH_LOCAL };
	unsigned int i;

	for (i = 0; i < 3; i++)
		HYPERVISOR_mmuext_op(&op, 1, NULL, DOMID_SELF);
}

static long pin_op(unsigned int cmd, unsigned int page)
{
	struct mmuext_op op = { .cmd = cmd, .arg1.mfn = tt_pages[page].mfn };

	return HYPERVISOR_mmuext_op(&op, 1, NULL, DOMID_SELF);
}

long tt_pin(unsigned int page, unsigned int level)
{
	long rc = pin_op(MMUEXT_PIN_L1_TABLE + level - 1, page);

	if (!rc)
		tt_pages[page].pinned = level;
	return rc;
}

long tt_unpin(unsigned int page)
{
	long rc = pin_op(MMUEXT_UNPIN_TABLE, page);

	if (!rc)
		tt_pages[page].pinned = 0;
	return rc;
}

/* The page and the slot that a request names. */
struct aim {
	unsigned int page, slot;
};

static unsigned int request(struct mmu_update *req, struct aim *aim)
{
	static const u8 commands[] = {
		MMU_NORMAL_PT_UPDATE, MMU_NORMAL_PT_UPDATE, MMU_NORMAL_PT_UPDATE,
		MMU_NORMAL_PT_UPDATE, MMU_NORMAL_PT_UPDATE, MMU_NORMAL_PT_UPDATE,
		MMU_PT_UPDATE_PRESERVE_AD, MMU_PT_UPDATE_PRESERVE_AD,
		MMU_PT_UPDATE_PRESERVE_AD, MMU_PT_UPDATE_PRESERVE_AD,
		MMU_PT_UPDATE_NO_TRANSLATE,
	};
	unsigned int command = commands[tt_random(ARRAY_SIZE(commands))];
	u64 frame = target(&aim->page), old = 0;
	unsigned int level = 1;

	aim->slot = tt_random(TT_SLOTS);
	if (aim->page < TT_PAGES) {
		level = tt_pages[aim->page].level;
		aim->slot = tt_slot(tt_pages[aim->page].entry);
		old = tt_pages[aim->page].entry[aim->slot];
	} else {
		aim->page = tt_pick(1);
	}
	req->val = tt_value(level, aim->page, old);
	if (tt_chance(32))
		command = 4 + tt_random(4);
	if (tt_chance(32)) {
		command = MMU_MACHPHYS_UPDATE;
		aim->page = tt_pick(0);
		frame = tt_pages[aim->page].mfn;
		req->val = tt_random(1 << 20);
	}
	req->ptr = frame << PAGE_SHIFT | aim->slot * sizeof(u64) | command;
	tt_log_in(tt_canonical(req->ptr));
	tt_log_in(tt_canonical(req->val));
	return command;
}

/* The number that the kernel knows the frame by, as it must be again. */
static void check_machphys(const struct aim *aim)
{
	struct tt_page *p = &tt_pages[aim->page];
	struct mmu_update req = {
		.ptr = p->mfn << PAGE_SHIFT | MMU_MACHPHYS_UPDATE,
		.val = page_to_pfn(p->page),
	};

	if (machine_to_phys_mapping[p->mfn] == req.val)
		return;
	tt_log_out(machine_to_phys_mapping[p->mfn]);
	HYPERVISOR_mmu_update(&req, 1, NULL, DOMID_SELF);
}

static unsigned int some_count(unsigned int most)
{
	switch (tt_random(4)) {
	case 0:
		return 1 + tt_random(most);
	case 1:
		return 1 + tt_random(8);
	default:
		return 1;
	}
}

void tt_call_update(void)
{
	unsigned int count = some_count(MOST), asked = count, i;
	struct mmu_update *reqs = list(count, sizeof(*reqs));
	unsigned int domain = some_domain();
	unsigned int *done = done_at;
	struct aim aims[MOST];
	unsigned int first = 0;
	long rc;

	tt_log_call(TT_UPDATE);
	for (i = 0; i < count; i++) {
		unsigned int command = request(&reqs[i], &aims[i]);

		first = i ? first : command;
	}
	*done_at = PAD;
	if (tt_chance(2))
		done = NULL;
	if (tt_chance(64))
		done = (unsigned int *)bad_pointer();
	if (tt_chance(32))
		asked += 1 + tt_random(3);	/* more than can be read */
	if (tt_chance(64))
		asked = 0;
	if (tt_chance(64)) {
		asked |= MMU_UPDATE_PREEMPTED;	/* as if Xen had been here */
		*done_at = tt_random(100);
	}
	if (tt_chance(48))	/* the tables' owner, apart from the frames' */
		domain |= (1 + some_domain()) << 16;
	tt_log_in((u64)asked << 32 | domain);
	tt_log_what(first, count, (u64)aims[0].page << 16 | aims[0].slot,
		    reqs[0].val);

	tt_preempt_call();
	rc = _hypercall4(int, mmu_update, tt_chance(64) ? NULL : reqs, asked, done,
			 domain);
	for (i = 0; i < count; i++) {
		tt_log_out(tt_change(aims[i].page, aims[i].slot));
		check_machphys(&aims[i]);
	}
	tt_log_out(tt_changes(aims[0].page));
	tt_log_end(rc, *done_at);
}

/* A slot of the window, or an address that has no entry of ours. */
static unsigned long some_address(unsigned int *slot)
{
	*slot = tt_random(TT_WINDOW);
	switch (tt_random(32)) {
	case 0:
		return 0x1000;
	case 1:
		return 0x00006ffffffff000;
	case 2:
		return 0x0000800000000000 + tt_random(2) * PAGE_SIZE;
	case 3:
		return HYPERVISOR_VIRT_START + ((u64)tt_random(0x1000) << 30);
	case 4:
		return ~0UL & PAGE_MASK;
	case 5:
		return tt_window_address(*slot) + tt_random(PAGE_SIZE);
	default:
		return tt_window_address(*slot);
	}
}

static u64 some_flush(void)
{
	u64 type = tt_random(16) ? tt_random(3) : UVMF_FLUSHTYPE_MASK;

	switch (tt_random(4)) {
	case 0:
		return type | UVMF_ALL;
	case 1:
		return type | cpu_bitmap();
	default:
		return type | UVMF_LOCAL;
	}
}

/*
 * After a flush the address must lead to the entry's page. It was read before,
 * so without the flush the old translation would still be in the TLB.
 */
static u64 read_window(unsigned int slot)
{
	u64 entry = READ_ONCE(*tt_window_entry(slot));
	u64 frame = (entry & TT_FRAME_MASK) >> PAGE_SHIFT;
	unsigned int page;

	if (!(entry & _PAGE_PRESENT))
		return 0;
	for (page = 0; page < TT_PAGES; page++)
		if (tt_pages[page].mfn == frame)
			return tt_canonical(*(volatile u64 *)tt_window_address(slot));
	return 1;
}

void tt_call_va(void)
{
	unsigned int slot;
	unsigned long va = some_address(&slot);
	u64 old = *tt_window_entry(slot), flags = some_flush();
	u64 value = tt_value(1, tt_pick(1), old);
	domid_t domain = some_domain();
	bool named = domain != DOMID_SELF || tt_chance(8);
	long rc;

	tt_log_call(TT_VA);
	tt_log_in(tt_canonical(old));
	tt_log_in((flags & ~7ULL) == (u64)cpus ? *cpus : 0);
	tt_log_what(flags & 7, named, slot << 16 | domain, value);

	tt_preempt_call();
	if (named)
		rc = xen_single_call(__HYPERVISOR_update_va_mapping_otherdomain, va,
				     value, flags, domain, 0);
	else
		rc = HYPERVISOR_update_va_mapping(va, __pte_ma(value), flags);
	tt_log_out(tt_canonical(*tt_window_entry(slot)));
	/* Unless the flush was for no processor, or not for this one. */
	if (!rc && flags & UVMF_FLUSHTYPE_MASK && !(flags & 2 && flags & 1) &&
	    (flags < PAGE_SIZE || *cpus & 1))
		tt_log_out(read_window(slot));
	tt_log_end(rc, 0);
}

static u64 operand(unsigned int *page)
{
	u64 frame = target(page);

	tt_log_in(tt_canonical(frame << PAGE_SHIFT));
	return frame;
}

/* A root that Xen must refuse: data pages are always mapped writable. */
static u64 no_root(void)
{
	if (tt_chance(4))
		return tt_special_frame(tt_random(TT_HARMLESS));
	return tt_pages[tt_pick(0)].mfn;
}

static void operation(struct mmuext_op *op, unsigned int *page)
{
	static const u8 flushes[] = {
		MMUEXT_TLB_FLUSH_LOCAL, MMUEXT_INVLPG_LOCAL,
		MMUEXT_TLB_FLUSH_MULTI, MMUEXT_INVLPG_MULTI,
		MMUEXT_TLB_FLUSH_ALL, MMUEXT_INVLPG_ALL, MMUEXT_FLUSH_CACHE,
		MMUEXT_FLUSH_CACHE_GLOBAL,
	};
	u64 frame = operand(page);
	unsigned int level = 1 + tt_random(4), source;

	*op = (struct mmuext_op){ .arg1.mfn = frame };
	switch (tt_random(20)) {
	case 0:
		op->cmd = MMUEXT_CLEAR_PAGE;
		break;
	case 1:
		op->cmd = MMUEXT_COPY_PAGE;
		op->arg2.src_mfn = operand(&source);
		break;
	case 2:
	case 3:
		op->cmd = flushes[tt_random(ARRAY_SIZE(flushes))];
		op->arg1.linear_addr = tt_window_address(tt_random(TT_WINDOW));
		op->arg2.vcpumask = (void *)cpu_bitmap();
		break;
	case 4:
		op->cmd = tt_chance(2) ? MMUEXT_NEW_BASEPTR : MMUEXT_NEW_USER_BASEPTR;
		op->arg1.mfn = no_root();
		break;
	case 5:
		op->cmd = MMUEXT_SET_LDT;
		op->arg1.linear_addr = 1;
		op->arg2.nr_ents = tt_chance(2) ? 1 : 10000;
		break;
	case 6:
		op->cmd = tt_chance(2) ? MMUEXT_MARK_SUPER : MMUEXT_UNMARK_SUPER;
		break;
	case 7:
		op->cmd = tt_chance(2) ? 14 : 21 + tt_random(100);
		break;
	case 8:
	case 9:
	case 10:
	case 11:
	case 12:
		op->cmd = MMUEXT_UNPIN_TABLE;
		break;
	default:
		if (*page < TT_PAGES && tt_pages[*page].level && !tt_chance(4))
			level = tt_pages[*page].level;
		op->cmd = MMUEXT_PIN_L1_TABLE + level - 1;
	}
	tt_log_in(op->cmd);
}

/* Record what is pinned now. */
static void note(const struct mmuext_op *op, unsigned int page)
{
	if (page >= TT_PAGES)
		return;
	if (op->cmd <= MMUEXT_PIN_L4_TABLE)
		tt_pages[page].pinned = op->cmd - MMUEXT_PIN_L1_TABLE + 1;
	else if (op->cmd == MMUEXT_UNPIN_TABLE)
		tt_pages[page].pinned = 0;
}

void tt_call_mmuext(void)
{
	enum { MOST_OPS = 6 };
	unsigned int count = tt_random(3) ? 1 : 1 + tt_random(MOST_OPS), i;
	struct mmuext_op *ops = list(count, sizeof(*ops));
	unsigned int pages[MOST_OPS], asked = count;
	domid_t domain = some_domain();
	long rc;

	tt_log_call(TT_MMUEXT);
	for (i = 0; i < count; i++)
		operation(&ops[i], &pages[i]);
	if (tt_chance(32))
		asked += 1 + tt_random(3);
	*done_at = PAD;
	tt_log_in((u64)asked << 32 | domain);
	tt_log_what(ops[0].cmd, count, pages[0], 0);

	tt_preempt_call();
	rc = HYPERVISOR_mmuext_op(ops, asked, done_at, domain);
	/* Refused as a whole, and "done" not written: none of them. */
	for (i = 0; i < count && *done_at != PAD && i < *done_at; i++)
		note(&ops[i], pages[i]);
	for (i = 0; i < count; i++)
		if (pages[i] < TT_PAGES)
			tt_log_out(tt_changes(pages[i]));
	tt_log_end(rc, *done_at);
	if (rc)
		tt_settle();
}

/* A batch of one, on ourselves. */
static struct multicall_entry one(unsigned long op, void *request)
{
	return (struct multicall_entry){
		.op = op,
		.args = { (unsigned long)request, 1, 0, DOMID_SELF },
	};
}

void tt_call_multicall(void)
{
	enum { MOST_CALLS = 6 };
	unsigned int count = 1 + tt_random(MOST_CALLS), slot, i, updates = 0;
	struct multicall_entry *calls = list(count, sizeof(*calls));
	struct mmu_update reqs[MOST_CALLS];
	struct mmuext_op ops[MOST_CALLS];
	struct aim aims[MOST_CALLS];
	unsigned int pages[MOST_CALLS];
	u64 value;
	long rc;

	memset(calls, 0, count * sizeof(*calls));
	tt_log_call(TT_MULTICALL);
	for (i = 0; i < count; i++) {
		pages[i] = TT_PAGES;
		switch (tt_random(8)) {
		case 0:
		case 1:
		case 2:
			calls[i].args[0] = some_address(&slot);
			value = tt_value(1, tt_pick(1), *tt_window_entry(slot));
			calls[i].args[1] = value;
			calls[i].args[2] = some_flush() & (UVMF_FLUSHTYPE_MASK | UVMF_ALL);
			calls[i].op = __HYPERVISOR_update_va_mapping;
			tt_log_in(slot);
			tt_log_in(calls[i].args[2]);
			tt_log_in(tt_canonical(value));
			break;
		case 3:
		case 4:
		case 5:
			request(&reqs[i], &aims[updates]);
			calls[i] = one(__HYPERVISOR_mmu_update, &reqs[i]);
			updates++;
			break;
		case 6:
			operation(&ops[i], &pages[i]);
			calls[i] = one(__HYPERVISOR_mmuext_op, &ops[i]);
			break;
		default:
			calls[i].op = 56 + tt_random(1000);
		}
		tt_log_in(calls[i].op);
	}
	tt_log_what(calls[0].op, count, 0, 0);

	tt_preempt_call();
	rc = HYPERVISOR_multicall(calls, count);
	for (i = 0; i < count; i++) {
		tt_log_out(calls[i].result);
		if (pages[i] < TT_PAGES) {
			if (!calls[i].result)
				note(&ops[i], pages[i]);
			tt_log_out(tt_changes(pages[i]));
		}
	}
	for (i = 0; i < updates; i++) {
		tt_log_out(tt_change(aims[i].page, aims[i].slot));
		check_machphys(&aims[i]);
	}
	for (slot = 0; slot < TT_WINDOW; slot++)
		tt_log_out(tt_canonical(*tt_window_entry(slot)));
	tt_log_end(rc, 0);
}
