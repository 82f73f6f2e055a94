// SPDX-License-Identifier: GPL-2.0-only
/*
 * Registers and instructions as the e500 core's manual and the EREF define them, on
 * the data page's documented fields (Documentation/virt/kvm/ppc-pv.rst): numbers are
 * in decimal, as printed there, and not from the kernel's headers. When to leave the
 * guest is the host's choice, as documented in e500_bt.h and the translator's comments:
 * for an enabled pending interrupt, for another bit of MSR than EE, and for each write of PID.
 */
#include <stdlib.h>
#include <asm/kvm_para.h>

#include "manual.h"

/* MSR[EE] and MSR[RI] are bits 48 and 62 of 64, counted from the left. */
static const u32 external_enable = 1 << (63 - 48);
static const u32 recoverable = 1 << (63 - 62);

/* A special purpose register: a field of 32 bits, or half of one of 64. */
struct place {
	u32 *whole;
	u64 *wide;
	bool high;
};

static struct place find(unsigned int spr, struct kvm_vcpu_arch_shared *page)
{
	switch (spr) {
	case 26:
		return (struct place){ .wide = &page->srr0 };
	case 27:
		return (struct place){ .wide = &page->srr1 };
	case 61:
		return (struct place){ .wide = &page->dar };
	case 62:
		return (struct place){ .whole = &page->esr };
	case 272:
		return (struct place){ .wide = &page->sprg0 };
	case 273:
		return (struct place){ .wide = &page->sprg1 };
	case 274:
		return (struct place){ .wide = &page->sprg2 };
	case 275:
		return (struct place){ .wide = &page->sprg3 };
	case 624:
		return (struct place){ .whole = &page->mas0 };
	case 625:
		return (struct place){ .whole = &page->mas1 };
	case 626:
		return (struct place){ .wide = &page->mas2 };
	case 627:
		return (struct place){ .wide = &page->mas7_3 };
	case 628:
		return (struct place){ .whole = &page->mas4 };
	case 630:
		return (struct place){ .whole = &page->mas6 };
	case 944:
		return (struct place){ .wide = &page->mas7_3, .high = true };
	}
	abort();
}

static u32 read_spr(struct place place)
{
	if (place.whole)
		return *place.whole;
	return place.high ? *place.wide >> 32 : *place.wide;
}

static void write_spr(struct place place, u32 value)
{
	if (place.whole)
		*place.whole = value;
	else if (place.high)
		*place.wide = (u64)value << 32 | (u32)*place.wide;
	else
		*place.wide = (*place.wide >> 32) << 32 | value;
}

static void write_msr(struct kvm_vcpu_arch_shared *page, u32 msr)
{
	write_spr((struct place){ .wide = &page->msr }, msr);
}

static enum ending with_interrupts(const struct kvm_vcpu_arch_shared *page, bool enabled)
{
	return page->int_pending && enabled ? EXIT_AFTER : DONE;
}

enum ending manual(const struct instruction *instruction, struct machine *machine,
		   struct kvm_vcpu_arch_shared *page)
{
	u32 *reg = &machine->gpr[instruction->reg];
	u32 msr = page->msr;

	switch (instruction->operation) {
	case MFSPR:
		/* MMUCSR0: bits that are set while a flush goes on. */
		if (instruction->value == 1012) {
			*reg = 0;
			return DONE;
		}
		*reg = read_spr(find(instruction->value, page));
		return DONE;
	case MTSPR:
		/* BUCSR: of the branch unit; it changes no result. */
		if (instruction->value == 1013)
			return DONE;
		/* PID: which entries of the TLB match. */
		if (instruction->value == MANUAL_PID)
			return EXIT_BEFORE;
		write_spr(find(instruction->value, page), *reg);
		return DONE;
	case MFMSR:
		*reg = msr;
		return DONE;
	case MTMSR:
		if ((msr ^ *reg) & ~(external_enable | recoverable))
			return EXIT_BEFORE;
		write_msr(page, *reg);
		return with_interrupts(page, *reg & external_enable);
	case WRTEE:
		write_msr(page, (msr & ~external_enable) | (*reg & external_enable));
		return with_interrupts(page, *reg & external_enable);
	case WRTEEI:
		write_msr(page, instruction->value ? msr | external_enable :
						     msr & ~external_enable);
		return with_interrupts(page, instruction->value);
	default:
		abort();
	}
}

u32 manual_address(const struct instruction *instruction, const struct machine *machine)
{
	u32 base = instruction->base ? machine->gpr[instruction->base] : 0;

	return base + (instruction->indexed ? machine->gpr[instruction->value] :
					      instruction->value);
}

void manual_load(const struct instruction *instruction, struct machine *machine, const u8 *bytes)
{
	u32 *reg = &machine->gpr[instruction->reg];
	u32 half = bytes[0] << 8 | bytes[1];

	switch (instruction->operation) {
	case LWZ:
		*reg = half << 16 | bytes[2] << 8 | bytes[3];
		return;
	case LBZ:
		*reg = bytes[0];
		return;
	case LHZ:
		*reg = half;
		return;
	case LHA:
		*reg = half & 0x8000 ? half - 0x10000 : half;
		return;
	default:
		abort();
	}
}
