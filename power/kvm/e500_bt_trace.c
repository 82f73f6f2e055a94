// SPDX-License-Identifier: GPL-2.0-only
/*
 * Accesses of the guest to traced memory, emulated (paper, section 5).
 *
 * Invariant: an instruction is emulated wholly or not at all. A load yields the
 * bytes that the guest wrote, whatever is patched; a store undoes the patches that
 * it hits, then stores. If the guest's own TLB does not allow the access, the
 * guest gets the fault, as on hardware, and nothing was done. For an instruction that
 * this file cannot emulate, all sites that share its block are undone, their
 * pages get no more sites, and the guest executes it itself.
 *
 * lwarx is special. Emulated, it makes no reservation in the hardware, so the
 * stwcx. after it would fail for ever, usually without an exit. Therefore the
 * emulation continues from a lwarx, instruction by instruction, through the stwcx.,
 * which it does as a compare and exchange with what the lwarx read. The VM is stopped, so
 * no other guest code can intervene, whichever vcpu's. A reservation that another vcpu holds
 * of this memory is from before it was traced, and its stwcx. comes here and fails. If the
 * emulation stops early (a fault, an instruction that is not simple), the guest continues
 * there; its stwcx. fails and it retries.
 * If that happens BT_LARX_STOPS times in a row at one lwarx, all sites of the block
 * are undone. The same is done for traced accesses between a lwarx and a stwcx. to
 * memory that is not traced: their exits clear the hardware's reservation.
 *
 * To the MMU, cache maintenance of traced code is a load. It is done for the guest,
 * at the host's address of the same line: dcbst and icbi act on physical lines.
 */
#include <linux/kvm_host.h>
#include <asm/cache.h>
#include <asm/disassemble.h>
#include <asm/inst.h>
#include <asm/kvm_ppc.h>
#include <asm/sstep.h>

#include "booke.h"
#include "e500.h"
#include "e500_bt.h"

/* The longest access: lmw and stmw of 32 registers. */
#define BT_MAX_ACCESS		128
/* Only a few instructions lie between a lwarx and its stwcx.; more are an error. */
#define BT_LARX_STEPS		32
#define BT_LARX_STOPS		16
/* The same for several alternating accesses, which usually are not such a loop. */
#define BT_LARX_TURNS		256

#define OP_31_XOP_LWARX		20

enum outcome {
	DONE,		/* the instruction has had its effect */
	GUEST_FAULT,	/* an exception is queued for the guest; no effect */
	UNKNOWN_INST,	/* not emulated; no effect */
};

static bool allowed(struct kvm_vcpu *vcpu, const struct kvm_book3e_206_tlb_entry *entry,
		    bool store)
{
	bool user = vcpu->arch.shared->msr & MSR_PR;

	if (store)
		return entry->mas7_3 & (user ? MAS3_UW : MAS3_SW);
	return entry->mas7_3 & (user ? MAS3_UR : MAS3_SR);
}

/* Translate an address by the guest's own TLB; on failure queue the guest's fault. */
static enum outcome find(struct kvm_vcpu *vcpu, u32 ea, bool store, gpa_t *gpa)
{
	const struct kvm_book3e_206_tlb_entry *entry;
	int index = kvmppc_mmu_dtlb_index(vcpu, ea);
	u32 esr = store ? ESR_ST : 0;

	/* No TLB entry of the guest maps the data page; the hardware must do the access. */
	if (!(vcpu->arch.shared->msr & MSR_PR) && (ea & PAGE_MASK) == vcpu->arch.magic_page_ea)
		return UNKNOWN_INST;
	if (index < 0) {
		vcpu->arch.fault_dear = ea;
		vcpu->arch.fault_esr = esr;
		kvmppc_core_queue_dtlb_miss(vcpu, ea, esr);
		kvmppc_mmu_dtlb_miss(vcpu);
		return GUEST_FAULT;
	}
	entry = get_entry(to_e500(vcpu), tlbsel_of(index), esel_of(index));
	if (!allowed(vcpu, entry, store)) {
		kvmppc_core_queue_data_storage(vcpu, 0, ea, esr);
		return GUEST_FAULT;
	}
	/* A little-endian page: the processor, not the instruction, would reverse the bytes. */
	if (entry->mas2 & MAS2_E)
		return UNKNOWN_INST;
	*gpa = kvmppc_mmu_xlate(vcpu, index, ea);
	/* A device next to traced code: half an access has an unknown effect. */
	return kvm_is_visible_gfn(vcpu->kvm, *gpa >> PAGE_SHIFT) ? DONE : UNKNOWN_INST;
}

/* An access of the guest, in two parts if it crosses a page boundary. */
struct access {
	gpa_t gpa[2];
	unsigned int len[2];
};

static enum outcome prepare(struct kvm_vcpu *vcpu, u32 ea, unsigned int len, bool store,
			    struct access *access)
{
	enum outcome outcome;

	access->len[0] = min_t(unsigned int, len, PAGE_SIZE - offset_in_page(ea));
	access->len[1] = len - access->len[0];
	outcome = find(vcpu, ea, store, &access->gpa[0]);
	if (outcome == DONE && access->len[1])
		outcome = find(vcpu, ea + access->len[0], store, &access->gpa[1]);
	return outcome;
}

static enum outcome load(struct kvm_vcpu *vcpu, u32 ea, u8 *bytes, unsigned int len)
{
	struct access access;
	enum outcome outcome = prepare(vcpu, ea, len, false, &access);
	unsigned int i;

	for (i = 0; outcome == DONE && i < 2 && access.len[i]; i++) {
		if (kvm_read_guest(vcpu->kvm, access.gpa[i], bytes, access.len[i]))
			return UNKNOWN_INST;
		kvmppc_bt_originals(vcpu, access.gpa[i], bytes, access.len[i]);
		bytes += access.len[i];
	}
	return outcome;
}

static enum outcome store(struct kvm_vcpu *vcpu, u32 ea, const u8 *bytes, unsigned int len)
{
	struct access access;
	enum outcome outcome = prepare(vcpu, ea, len, true, &access);
	unsigned int i;

	for (i = 0; outcome == DONE && i < 2 && access.len[i]; i++) {
		kvmppc_bt_undo_range(vcpu, access.gpa[i], access.len[i]);
		kvmppc_bt_drop_reads_of(vcpu, access.gpa[i], access.len[i]);
		if (kvm_write_guest(vcpu->kvm, access.gpa[i], bytes, access.len[i]))
			return UNKNOWN_INST;
		bytes += access.len[i];
	}
	return outcome;
}

/* The i-th byte of a register's low @size bytes, as it lies in memory. */
static unsigned int byte_shift(const struct instruction_op *op, unsigned int size, unsigned int i)
{
	return 8 * (op->type & BYTEREV ? i : size - 1 - i);
}

static enum outcome load_register(struct kvm_vcpu *vcpu, const struct instruction_op *op)
{
	unsigned int size = GETSIZE(op->type), i;
	u8 bytes[4];
	u32 value = 0;
	enum outcome outcome;

	if (size > sizeof(bytes))
		return UNKNOWN_INST;
	outcome = load(vcpu, op->ea, bytes, size);
	if (outcome != DONE)
		return outcome;
	for (i = 0; i < size; i++)
		value |= bytes[i] << byte_shift(op, size, i);
	if (op->type & SIGNEXT)
		value = sign_extend32(value, 8 * size - 1);
	vcpu->arch.regs.gpr[op->reg] = value;
	return DONE;
}

static enum outcome store_register(struct kvm_vcpu *vcpu, const struct instruction_op *op)
{
	unsigned int size = GETSIZE(op->type), i;
	u32 value = vcpu->arch.regs.gpr[op->reg];
	u8 bytes[4];

	if (size > sizeof(bytes))
		return UNKNOWN_INST;
	for (i = 0; i < size; i++)
		bytes[i] = value >> byte_shift(op, size, i);
	return store(vcpu, op->ea, bytes, size);
}

/* lmw and stmw, lswi and lswx, stswi and stswx: registers in a row. */
static enum outcome load_multiple(struct kvm_vcpu *vcpu, const struct instruction_op *op)
{
	unsigned int size = GETSIZE(op->type), i;
	u8 bytes[BT_MAX_ACCESS];
	enum outcome outcome;

	if (size > sizeof(bytes))
		return UNKNOWN_INST;
	outcome = load(vcpu, op->ea, bytes, size);
	if (outcome != DONE)
		return outcome;
	for (i = 0; i < size; i += 4) {
		unsigned int k;
		u32 value = 0;

		for (k = i; k < min(i + 4, size); k++)
			value |= bytes[k] << (24 - 8 * (k - i));
		vcpu->arch.regs.gpr[(op->reg + i / 4) % 32] = value;
	}
	return DONE;
}

static enum outcome store_multiple(struct kvm_vcpu *vcpu, const struct instruction_op *op)
{
	unsigned int size = GETSIZE(op->type), i;
	u8 bytes[BT_MAX_ACCESS];

	if (size > sizeof(bytes))
		return UNKNOWN_INST;
	for (i = 0; i < size; i++)
		bytes[i] = vcpu->arch.regs.gpr[(op->reg + i / 4) % 32] >> (24 - 8 * (i & 3));
	return store(vcpu, op->ea, bytes, size);
}

/*
 * dcbst and dcbf: dcbst writes the line back. dcbf also invalidates it, which only
 * accesses that bypass the cache can observe; sync orders those. icbi needs the data
 * cache's line written back first, which the guest has done by its own dcbst; the
 * guest executes sync and isync itself. The hints have no effect that could be missed.
 */
static enum outcome cache_operation(struct kvm_vcpu *vcpu, const struct instruction_op *op)
{
	static const u8 zero[L1_CACHE_BYTES];
	u32 line = op->ea & ~(L1_CACHE_BYTES - 1);
	unsigned int what = op->type & CACHEOP_MASK;
	struct kvm_host_map map;
	enum outcome outcome;
	gpa_t gpa;

	switch (what) {
	case DCBZ:
		return store(vcpu, line, zero, sizeof(zero));
	case DCBT:
	case DCBTST:
		return DONE;
	case DCBST:
	case DCBF:
	case ICBI:
		break;
	default:
		return UNKNOWN_INST;
	}
	outcome = find(vcpu, line, false, &gpa);
	if (outcome != DONE)
		return outcome;
	if (kvm_vcpu_map(vcpu, gpa >> PAGE_SHIFT, &map))
		return UNKNOWN_INST;
	if (what == ICBI)
		icbi(map.hva + offset_in_page(gpa));
	else
		dcbst(map.hva + offset_in_page(gpa));
	mb(); /* sync: the line is out, or gone, before the guest's own barriers */
	kvm_vcpu_unmap(vcpu, &map, false);
	return DONE;
}

/* What a load, store or cache instruction does to memory and its own registers. */
static enum outcome emulate_access(struct kvm_vcpu *vcpu, const struct instruction_op *op)
{
	struct pt_regs *regs = &vcpu->arch.regs;
	enum outcome outcome;

	switch (GETTYPE(op->type)) {
	case LOAD:
		outcome = load_register(vcpu, op);
		break;
	case LOAD_MULTI:
		outcome = load_multiple(vcpu, op);
		break;
	case STORE:
		outcome = store_register(vcpu, op);
		break;
	case STORE_MULTI:
		outcome = store_multiple(vcpu, op);
		break;
	case CACHEOP:
		outcome = cache_operation(vcpu, op);
		break;
	default:
		return UNKNOWN_INST;
	}
	if (outcome != DONE)
		return outcome;
	if (OP_IS_LOAD_STORE(GETTYPE(op->type)) && (op->type & UPDATE))
		regs->gpr[op->update_reg] = op->ea;
	regs->nip += 4;
	return DONE;
}

/* The next instruction as the guest would execute it, if it is in its memory. */
static bool fetch(struct kvm_vcpu *vcpu, u32 *inst)
{
	struct bt_site *site;
	gpa_t gpa;

	if (!kvmppc_bt_find_code(vcpu, kvmppc_get_pc(vcpu), &gpa) ||
	    kvm_read_guest(vcpu->kvm, gpa, inst, sizeof(*inst)))
		return false;
	site = kvmppc_bt_site(vcpu->kvm->arch.bt, gpa);
	if (!site)
		return true;
	/* Only a load's patch can be continued from; a privileged instruction is not simple. */
	if (!site->read || *inst != site->patched)
		return false;
	*inst = site->original;
	return true;
}

static void set_cr0(struct pt_regs *regs, bool equal)
{
	u32 cr0 = (equal ? 0x20000000 : 0) | (regs->xer & 0x80000000 ? 0x10000000 : 0);

	regs->ccr = (regs->ccr & 0x0fffffff) | cr0;
}

/* A stwcx. without an emulated lwarx just before it: there is no reservation. */
static enum outcome lost_reservation(struct kvm_vcpu *vcpu)
{
	set_cr0(&vcpu->arch.regs, false);
	vcpu->arch.regs.nip += 4;
	return DONE;
}

static enum outcome store_conditional(struct kvm_vcpu *vcpu, const struct instruction_op *op,
				      u32 reserved_ea, u32 reserved_value)
{
	struct pt_regs *regs = &vcpu->arch.regs;
	enum outcome outcome;
	bool same = false;
	u8 bytes[4];

	if (op->ea == reserved_ea) {
		outcome = load(vcpu, op->ea, bytes, sizeof(bytes));
		if (outcome != DONE)
			return outcome;
		same = !memcmp(bytes, &reserved_value, sizeof(bytes));
	}
	if (same) {
		u32 value = regs->gpr[op->reg];

		outcome = store(vcpu, op->ea, (u8 *)&value, sizeof(value));
		if (outcome != DONE)
			return outcome;
	}
	set_cr0(regs, same);
	regs->nip += 4;
	return DONE;
}

/* Emulate from a lwarx to its stwcx.; unfinished ones are counted. */
static enum outcome reservation(struct kvm_vcpu *vcpu, const struct instruction_op *larx)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	struct bt_vcpu *mine = kvmppc_bt_vcpu(vcpu);
	struct pt_regs *regs = &vcpu->arch.regs;
	u32 larx_pc = regs->nip, ea = larx->ea, value, inst;
	enum outcome outcome;
	unsigned int step;

	if (GETSIZE(larx->type) != sizeof(value) || (ea & 3))
		return UNKNOWN_INST;
	if (mine->larx_pc == larx_pc && mine->larx_stops >= BT_LARX_STOPS) {
		mine->larx_stops = 0;
		return UNKNOWN_INST;
	}
	outcome = load(vcpu, ea, (u8 *)&value, sizeof(value));
	if (outcome != DONE)
		return outcome;
	regs->gpr[larx->reg] = value;
	regs->nip += 4;
	for (step = 0; step < BT_LARX_STEPS && fetch(vcpu, &inst); step++) {
		struct instruction_op op;
		int known = analyse_instr(&op, regs, ppc_inst(inst));

		if (known < 0)
			break;
		if (known > 0) {
			emulate_update_regs(regs, &op);
			continue;
		}
		if (GETTYPE(op.type) == STCX && GETSIZE(op.type) == sizeof(value)) {
			if (store_conditional(vcpu, &op, ea, value) != DONE)
				break;
			mine->larx_stops = 0;
			bt->stats.reservations++;
			return DONE;
		}
		if (emulate_access(vcpu, &op) != DONE)
			break;
	}
	/* The lwarx and the instructions after it are done, without a reservation. */
	mine->larx_stops = mine->larx_pc == larx_pc ? mine->larx_stops + 1 : 1;
	mine->larx_pc = larx_pc;
	return DONE;
}

/* The word that the guest wrote at an address of its code. */
static bool read_code(struct kvm_vcpu *vcpu, u32 ea, u32 *inst)
{
	gpa_t gpa;

	if (!kvmppc_bt_find_code(vcpu, ea, &gpa) ||
	    kvm_read_guest(vcpu->kvm, gpa, inst, sizeof(*inst)))
		return false;
	kvmppc_bt_originals(vcpu, gpa, (u8 *)inst, sizeof(*inst));
	return true;
}

/*
 * Whether plain accesses repeatedly clear a reservation: for some time a single access, or
 * for longer a few close together, are the only traced accesses, and a lwarx precedes
 * them. A false positive costs some sites.
 */
static bool breaks_reservation(struct kvm_vcpu *vcpu, u32 pc)
{
	struct bt_vcpu *mine = kvmppc_bt_vcpu(vcpu);
	unsigned int step;
	u32 inst;

	if (mine->access_pc != pc) {
		mine->access_pc = pc;
		mine->access_repeats = 0;
	}
	if (pc - mine->near_pc + 4 * BT_LARX_STEPS > 8 * BT_LARX_STEPS) {
		mine->near_pc = pc;
		mine->near_repeats = 0;
	}
	mine->access_repeats++;
	mine->near_repeats++;
	if (mine->access_repeats % BT_LARX_STOPS && mine->near_repeats % BT_LARX_TURNS)
		return false;
	for (step = 1; step <= BT_LARX_STEPS && read_code(vcpu, pc - 4 * step, &inst); step++)
		if (get_op(inst) == 31 && get_xop(inst) == OP_31_XOP_LWARX)
			return true;
	return false;
}

static void count(struct kvmppc_bt *bt, const struct instruction_op *op)
{
	if (GETTYPE(op->type) == CACHEOP)
		bt->stats.traced_cacheops++;
	else if (OP_IS_STORE(GETTYPE(op->type)))
		bt->stats.traced_stores++;
	else
		bt->stats.traced_loads++;
}

/* Where the guest's own TLB allows the access that had a data storage interrupt. */
static bool allowed_at(struct kvm_vcpu *vcpu, gfn_t *gfn)
{
	u32 ea = vcpu->arch.fault_dear;
	int index = kvmppc_mmu_dtlb_index(vcpu, ea);

	if (index < 0 || !allowed(vcpu, get_entry(to_e500(vcpu), tlbsel_of(index), esel_of(index)),
				  vcpu->arch.fault_esr & ESR_ST))
		return false;
	*gfn = kvmppc_mmu_xlate(vcpu, index, ea) >> PAGE_SHIFT;
	return true;
}

/**
 * kvmppc_bt_is_traced_access - whether tracing has forbidden an access
 * @vcpu: inside, after a data storage interrupt
 *
 * If not, the guest's own TLB forbids the access, or nothing there is traced.
 */
bool kvmppc_bt_is_traced_access(struct kvm_vcpu *vcpu)
{
	gfn_t gfn;

	return allowed_at(vcpu, &gfn) && kvmppc_bt_block_tsize(vcpu->kvm->arch.bt, gfn) >= 0;
}

/**
 * kvmppc_bt_traced_access - emulate an access that tracing has forbidden
 * @vcpu: after a data storage interrupt, its instruction and address known; it has
 *	stopped the VM
 *
 * Returns RESUME_GUEST_NV, or RESUME_GUEST if the access is no longer forbidden, because
 * another vcpu has undone the sites.
 */
int kvmppc_bt_traced_access(struct kvm_vcpu *vcpu)
{
	struct kvmppc_bt *bt = vcpu->kvm->arch.bt;
	struct pt_regs *regs = &vcpu->arch.regs;
	struct instruction_op op;
	u32 pc = regs->nip;
	enum outcome outcome;
	bool again = false;
	ppc_inst_t inst;
	gfn_t gfn;

	if (!allowed_at(vcpu, &gfn) || kvmppc_bt_block_tsize(bt, gfn) < 0)
		return RESUME_GUEST;
	if (kvmppc_get_last_inst(vcpu, INST_GENERIC, &inst) != EMULATE_DONE)
		return RESUME_GUEST;

	regs->msr = vcpu->arch.shared->msr;
	if (analyse_instr(&op, regs, inst) < 0)
		op.type = UNKNOWN;
	count(bt, &op);
	switch (GETTYPE(op.type)) {
	case LARX:
		outcome = reservation(vcpu, &op);
		break;
	case STCX:
		outcome = lost_reservation(vcpu);
		break;
	default:
		outcome = emulate_access(vcpu, &op);
		again = breaks_reservation(vcpu, pc);
	}
	if (outcome == UNKNOWN_INST || again)
		kvmppc_bt_undo_block(vcpu, gfn, true);
	else
		kvmppc_bt_fault(vcpu, gfn);
	if (outcome == DONE && GETTYPE(op.type) == LOAD)
		kvmppc_bt_loaded(vcpu, pc, ppc_inst_val(inst), &op);
	return RESUME_GUEST_NV;
}
