// SPDX-License-Identifier: GPL-2.0-only
/*
 * Translation of privileged instructions (paper, section 4), and of loads of traced
 * memory (section 5.2).
 *
 * Invariant: a translation has the effect of the instruction on the guest's
 * registers and memory, and no other, whenever the guest is in supervisor mode;
 * it changes no condition register, no XER, no LR and no CTR. Other instructions are
 * not translated. A fragment has exactly one instruction with an effect, its commit,
 * which is a store, or for a load the load, or for a write of PID that instruction
 * itself. If it is interrupted before the commit, the site is executed again; after the
 * commit, the rest only restores the scratch registers.
 *
 * This file deals with encodings only, not with guests or memory, so it can be built
 * and tested on any host.
 */
#include <linux/kvm_host.h>
#include <asm/disassemble.h>
#include <asm/kvm_para.h>
#include <asm/ppc-opcode.h>
#include <asm/reg.h>

#include "e500_bt.h"

#define OP_ADDI			14
#define OP_31_XOP_MFMSR		83
#define OP_31_XOP_WRTEE		131
#define OP_31_XOP_MTMSR		146
#define OP_31_XOP_CNTLZW	26
#define OP_31_XOP_ADD		266
#define OP_31_XOP_WRTEEI	163

/* D-form with RA = 0: the displacement is the whole address. */
static u32 lwz(unsigned int rt, u32 address)
{
	return 0x80000000 | rt << 21 | (address & 0xffff);
}

static u32 stw(unsigned int rs, u32 address)
{
	return 0x90000000 | rs << 21 | (address & 0xffff);
}

static u32 rlwinm(unsigned int ra, unsigned int rs, unsigned int sh, unsigned int mb,
		  unsigned int me)
{
	return 0x54000000 | rs << 21 | ra << 16 | sh << 11 | mb << 6 | me << 1;
}

static u32 rlwimi(unsigned int ra, unsigned int rs, unsigned int sh, unsigned int mb,
		  unsigned int me)
{
	return 0x50000000 | rs << 21 | ra << 16 | sh << 11 | mb << 6 | me << 1;
}

static u32 ori(unsigned int ra, unsigned int rs, u32 immediate)
{
	return 0x60000000 | rs << 21 | ra << 16 | immediate;
}

static u32 and(unsigned int ra, unsigned int rs, unsigned int rb)
{
	return 0x7c000038 | rs << 21 | ra << 16 | rb << 11;
}

static u32 xor(unsigned int ra, unsigned int rs, unsigned int rb)
{
	return 0x7c000278 | rs << 21 | ra << 16 | rb << 11;
}

static u32 add(unsigned int rt, unsigned int ra, unsigned int rb)
{
	return 0x7c000000 | rt << 21 | ra << 16 | rb << 11 | OP_31_XOP_ADD << 1;
}

static u32 xori(unsigned int ra, unsigned int rs, u32 immediate)
{
	return 0x68000000 | rs << 21 | ra << 16 | (immediate & 0xffff);
}

static u32 xoris(unsigned int ra, unsigned int rs, u32 immediate)
{
	return 0x6c000000 | rs << 21 | ra << 16 | immediate >> 16;
}

static u32 cntlzw(unsigned int ra, unsigned int rs)
{
	return 0x7c000000 | rs << 21 | ra << 16 | OP_31_XOP_CNTLZW << 1;
}

/* D-form; RA = 0 is no register. */
static u32 based(u32 opcode, unsigned int rt, unsigned int ra, u32 displacement)
{
	return opcode << 26 | rt << 21 | ra << 16 | (displacement & 0xffff);
}

/* Traps if the register is not zero, without using a condition register. */
static u32 twnei0(unsigned int ra)
{
	return 0x0c000000 | 24 << 21 | ra << 16;
}

/* The numbers of MSR[EE] and MSR[RI] for rlwinm, in IBM's order. */
#define EE_BIT		16
#define EE_SHIFT	15
#define RI_BIT		30

#define SHARED(field)	offsetof(struct kvm_vcpu_arch_shared, field)
/* The low word of a field of 64 bits. */
#define SHARED_LOW(field)	(SHARED(field) + 4)

/*
 * Registers that are only a word of the data page: emulation, too, just reads or writes
 * that word. SPRG4 to 7 are not among them: the guest reads them by numbers that do not
 * trap. DEC, TSR, TCR and the configuration registers have side effects.
 */
static const struct {
	u16 sprn;
	u16 offset;
} words[] = {
	{ SPRN_SPRG0, SHARED_LOW(sprg0) },
	{ SPRN_SPRG1, SHARED_LOW(sprg1) },
	{ SPRN_SPRG2, SHARED_LOW(sprg2) },
	{ SPRN_SPRG3, SHARED_LOW(sprg3) },
	{ SPRN_SRR0, SHARED_LOW(srr0) },
	{ SPRN_SRR1, SHARED_LOW(srr1) },
	{ SPRN_DEAR, SHARED_LOW(dar) },
	{ SPRN_ESR, SHARED(esr) },
	{ SPRN_MAS0, SHARED(mas0) },
	{ SPRN_MAS1, SHARED(mas1) },
	{ SPRN_MAS2, SHARED_LOW(mas2) },
	{ SPRN_MAS3, SHARED_LOW(mas7_3) },
	{ SPRN_MAS4, SHARED(mas4) },
	{ SPRN_MAS6, SHARED(mas6) },
	{ SPRN_MAS7, SHARED(mas7_3) },
};

static enum bt_kind single(struct bt_code *code, u32 inst)
{
	code->insn[0] = inst;
	code->n = 1;
	return BT_SINGLE;
}

static void emit(struct bt_code *code, u32 inst)
{
	code->insn[code->n++] = inst;
}

/*
 * Only the host can change the shadow PIDs, so the instruction stays and exits, as the
 * commit. But the word before it has put the value where a short exit can find it
 * (e500_bt_short.S): no longer exit needs to know of it.
 */
static enum bt_kind write_pid(u32 inst, u32 data, struct bt_code *code)
{
	emit(code, stw(get_rs(inst), data + BT_PID_OFFSET));
	code->commit = code->n;
	emit(code, inst);
	emit(code, 0); /* the branch back */
	return BT_FRAGMENT;
}

/**
 * kvmppc_bt_handover - how a short exit knows such a fragment
 * @data: effective address of the data page
 *
 * Returns what the instruction and the word before it differ in, whatever the register is.
 */
u32 kvmppc_bt_handover(u32 data)
{
	return stw(0, data + BT_PID_OFFSET) ^ PPC_RAW_MTSPR(SPRN_PID, 0);
}

/*
 * A guest writes BUCSR to flush the branch predictor between its processes (Spectre v2).
 * Stock KVM ignores such a write and does not flush the predictor. The translation
 * ignores it, too: as without translation, the guest is not protected.
 */
static enum bt_kind spr(u32 inst, u32 data, bool write, struct bt_code *code)
{
	unsigned int i;

	if (write && get_sprn(inst) == SPRN_BUCSR)
		return single(code, PPC_RAW_NOP());
	if (write && get_sprn(inst) == SPRN_PID)
		return write_pid(inst, data, code);
	/* It says whether a flush has ended, as each has that KVM emulates. */
	if (!write && get_sprn(inst) == SPRN_MMUCSR0)
		return single(code, based(OP_ADDI, get_rt(inst), 0, 0));

	for (i = 0; i < ARRAY_SIZE(words); i++) {
		u32 address = data + words[i].offset;

		if (words[i].sprn == get_sprn(inst))
			return single(code, write ? stw(get_rs(inst), address) :
						    lwz(get_rt(inst), address));
	}
	return BT_NONE;
}

/* Scratch registers are volatile ones: every exit saves and restores them. */
static void begin(struct bt_code *code, u32 data, unsigned int other)
{
	code->n = 0;
	code->scratch = other == 12 ? 11 : 12;
	emit(code, stw(code->scratch, data + BT_SAVE_OFFSET));
	emit(code, lwz(code->scratch, data + SHARED_LOW(msr)));
}

static void commit_msr(struct bt_code *code, u32 data, unsigned int reg)
{
	code->commit = code->n;
	emit(code, stw(reg, data + SHARED_LOW(msr)));
}

static enum bt_kind end(struct bt_code *code, u32 data)
{
	code->restore = code->n;
	emit(code, lwz(code->scratch, data + BT_SAVE_OFFSET));
	emit(code, 0); /* the branch back; its target is known when there is a slot */
	return BT_FRAGMENT;
}

/* Exit if an interrupt is pending and @reg, the new MSR, enables it. */
static void exit_if_pending(struct bt_code *code, u32 data, unsigned int reg)
{
	unsigned int scratch = code->scratch;

	/* int_pending is 0 or 1: moved to EE's place. */
	emit(code, lwz(scratch, data + SHARED(int_pending)));
	emit(code, rlwinm(scratch, scratch, EE_SHIFT, 0, 31 - EE_SHIFT));
	emit(code, and(scratch, scratch, reg));
	emit(code, twnei0(scratch));
}

static enum bt_kind write_ee_now(bool enable, u32 data, struct bt_code *code)
{
	unsigned int scratch;

	begin(code, data, 0);
	scratch = code->scratch;
	if (enable)
		emit(code, ori(scratch, scratch, MSR_EE));
	else
		emit(code, rlwinm(scratch, scratch, 0, EE_BIT + 1, EE_BIT - 1));
	commit_msr(code, data, scratch);
	if (enable) {
		emit(code, lwz(scratch, data + SHARED(int_pending)));
		emit(code, twnei0(scratch));
	}
	return end(code, data);
}

static enum bt_kind write_ee(unsigned int rs, u32 data, struct bt_code *code)
{
	begin(code, data, rs);
	emit(code, rlwimi(code->scratch, rs, 0, EE_BIT, EE_BIT));
	commit_msr(code, data, code->scratch);
	exit_if_pending(code, data, rs);
	return end(code, data);
}

/*
 * Changing another bit than EE and RI has side effects: it traps before the commit. RI
 * is for software only; Linux sets it in each of its exception handlers.
 */
static enum bt_kind write_msr(unsigned int rs, u32 data, struct bt_code *code)
{
	unsigned int scratch;

	begin(code, data, rs);
	scratch = code->scratch;
	emit(code, xor(scratch, scratch, rs));
	emit(code, rlwinm(scratch, scratch, 0, EE_BIT + 1, EE_BIT - 1));
	emit(code, rlwinm(scratch, scratch, 0, RI_BIT + 1, RI_BIT - 1));
	emit(code, twnei0(scratch));
	commit_msr(code, data, rs);
	exit_if_pending(code, data, rs);
	return end(code, data);
}

/**
 * kvmppc_bt_translate - translate an instruction
 * @inst: the instruction
 * @data: effective address of the data page, in the first or last 32 KiB
 * @code: where the translation is put; its last branch is still to be made
 */
enum bt_kind kvmppc_bt_translate(u32 inst, u32 data, struct bt_code *code)
{
	memset(code, 0, sizeof(*code));
	/* Reserved bits must be zero: what they would mean is unknown. */
	if (get_op(inst) != 31 || (inst & 1))
		return BT_NONE;
	switch (get_xop(inst)) {
	case OP_31_XOP_MFSPR:
		return spr(inst, data, false, code);
	case OP_31_XOP_MTSPR:
		return spr(inst, data, true, code);
	case OP_31_XOP_MFMSR:
		if (inst & 0x001ff800)
			return BT_NONE;
		return single(code, lwz(get_rt(inst), data + SHARED_LOW(msr)));
	case OP_31_XOP_WRTEE:
		if (inst & 0x001ff800)
			return BT_NONE;
		return write_ee(get_rs(inst), data, code);
	case OP_31_XOP_WRTEEI:
		if (inst & 0x03ff7800)
			return BT_NONE;
		return write_ee_now(inst & MSR_EE, data, code);
	case OP_31_XOP_MTMSR:
		if (inst & 0x001ff800)
			return BT_NONE;
		return write_msr(get_rs(inst), data, code);
	}
	return BT_NONE;
}

/* Loads: the same with a displacement. Loads with update are not among them. */
static u32 load_opcode(u32 inst)
{
	switch (get_op(inst)) {
	case OP_LWZ:
	case OP_LBZ:
	case OP_LHZ:
	case OP_LHA:
		return get_op(inst);
	case 31:
		break;
	default:
		return 0;
	}
	if (inst & 1)
		return 0;
	switch (get_xop(inst)) {
	case OP_31_XOP_LWZX:
		return OP_LWZ;
	case OP_31_XOP_LBZX:
		return OP_LBZ;
	case OP_31_XOP_LHZX:
		return OP_LHZ;
	case OP_31_XOP_LHAX:
		return OP_LHA;
	}
	return 0;
}

/*
 * A volatile register that the load does not write. It may be one that it reads, as the
 * address is computed before it is overwritten.
 */
static unsigned int unwritten(u32 inst, unsigned int from)
{
	return from == get_rt(inst) ? from - 1 : from;
}

static u32 effective_address(unsigned int to, u32 inst)
{
	unsigned int ra = get_ra(inst), rb = get_rb(inst);

	if (get_op(inst) != 31)
		return based(OP_ADDI, to, ra, inst);
	return ra ? add(to, ra, rb) : ori(to, rb, 0);
}

/* The effective address of a slot's bytes in the data cache. */
u32 kvmppc_bt_cached_ea(u32 data, unsigned int slot)
{
	return data + BT_CACHE_OFFSET + slot * sizeof(struct bt_cached) +
	       offsetof(struct bt_cached, value);
}

/**
 * kvmppc_bt_translate_load - make a load look in the data cache first
 * @inst: the load
 * @data: effective address of the data page, in the first or last 32 KiB
 * @slot: of the data cache
 * @ea: the one address whose bytes that slot has
 * @code: where the translation is put; its last branch is still to be made
 *
 * The load's address is compared without a condition register: the difference of equal
 * words has 32 leading zeros, and only that count has the bit for 32 set. That bit,
 * moved to be 4, selects the word of the slot that is added to the address.
 *
 * Returns BT_FRAGMENT, or BT_NONE if it is not such a load.
 */
enum bt_kind kvmppc_bt_translate_load(u32 inst, u32 data, unsigned int slot, u32 ea,
				      struct bt_code *code)
{
	u32 opcode = load_opcode(inst);
	u32 chosen = kvmppc_bt_cached_ea(data, slot) - offsetof(struct bt_cached, value);
	unsigned int at, choice;

	memset(code, 0, sizeof(*code));
	if (!opcode)
		return BT_NONE;
	at = unwritten(inst, 12);
	choice = unwritten(inst, at - 1);
	code->scratch = at;
	code->scratch2 = choice;
	emit(code, stw(at, data + BT_SAVE_OFFSET));
	emit(code, stw(choice, data + BT_SAVE2_OFFSET));
	emit(code, effective_address(at, inst));
	emit(code, xoris(choice, at, ea));
	emit(code, xori(choice, choice, ea));
	emit(code, cntlzw(choice, choice));
	emit(code, rlwinm(choice, choice, 32 - 3, 29, 29));
	emit(code, based(OP_LWZ, choice, choice, chosen));
	emit(code, add(at, at, choice));
	code->restore2 = code->n;
	emit(code, lwz(choice, data + BT_SAVE2_OFFSET));
	code->commit = code->n;
	emit(code, based(opcode, get_rt(inst), at, 0));
	return end(code, data);
}

/**
 * kvmppc_bt_branch - make a direct branch
 * @from: its own effective address
 * @to: its target
 * @inst: the instruction
 *
 * Returns false if @to is out of reach: 32 MiB to either side.
 */
bool kvmppc_bt_branch(u32 from, u32 to, u32 *inst)
{
	s32 distance = to - from;

	if (distance < -0x2000000 || distance > 0x1fffffc || (distance & 3))
		return false;
	*inst = 0x48000000 | (distance & 0x03fffffc);
	return true;
}
