// SPDX-License-Identifier: GPL-2.0-only
/*
 * Writes to tables that are mapped read-only, in every form a guest could use.
 *
 * Xen emulates them if the page is a validated L1 table and the result is an
 * entry it accepts; otherwise the guest gets the page fault, which the
 * exception table turns into an answer here. Recorded: fault or not, what the
 * instruction read, its carry or zero flag, and what the entry became.
 */
#include <asm/asm.h>

#include "table_test.h"

struct outcome {
	u64 read;
	bool fault, flag;
};

/* A bit of an entry that is no part of a frame number. */
static unsigned int flag_bit(void)
{
	return tt_chance(4) ? 52 + tt_random(12) : tt_random(12);
}

#define STORE(_o, _insn, ...)						\
	asm volatile("movb $1, %[fault]\n"				\
		     "1: " _insn "\n"					\
		     "movb $0, %[fault]\n"				\
		     "2:\n"						\
		     _ASM_EXTABLE(1b, 2b)				\
		     : [fault] "=&qm" ((_o)->fault) : __VA_ARGS__ : "memory", "cc")

#define MODIFY(_o, _insn, _flag, _reg, ...)				\
	asm volatile("movb $1, %[fault]\n"				\
		     "1: " _insn "\n"					\
		     "set" _flag " %[flag]\n"				\
		     "movb $0, %[fault]\n"				\
		     "2:\n"						\
		     _ASM_EXTABLE(1b, 2b)				\
		     : [fault] "+&qm" ((_o)->fault), [flag] "+&qm" ((_o)->flag), \
		       _reg						\
		     : __VA_ARGS__ : "memory", "cc")

static void move(struct outcome *o, u64 *at, u64 value)
{
	void *p = at;

	switch (tt_random(9)) {
	case 0:		/* flags and the lower part of the address only */
		STORE(o, "movl %k[v], (%[p])", [v] "r" (value), [p] "r" (p));
		break;
	case 1:
		STORE(o, "movl %k[v], 4(%[p])", [v] "r" (value >> 32), [p] "r" (p));
		break;
	case 2:		/* the frame's bits stay what they are */
		value = (value & 0xfff) | (*at & 0xf000);
		STORE(o, "movw %w[v], (%[p])", [v] "r" (value), [p] "r" (p));
		break;
	case 3:
		STORE(o, "movb %b[v], (%[p])", [v] "q" (value), [p] "r" (p));
		break;
	case 4:		/* across two entries */
		STORE(o, "movq %[v], 4(%[p])", [v] "r" (value), [p] "r" (p));
		break;
	case 5:
		STORE(o, "movnti %[v], (%[p])", [v] "r" (value), [p] "r" (p));
		break;
	case 6:
		STORE(o, "movq $0, (%[p])", [p] "r" (p));
		break;
	default:
		STORE(o, "movq %[v], (%[p])", [v] "r" (value), [p] "r" (p));
	}
}

static void exchange(struct outcome *o, u64 *at, u64 value)
{
	u64 old = *at;

	switch (tt_random(6)) {
	case 0:
		o->read = value;
		MODIFY(o, "xchgl %k[r], (%[p])", "c", [r] "+r" (o->read),
			   [p] "r" (at));
		break;
	case 1:		/* what is there is not what is expected */
		o->read = old ^ _PAGE_ACCESSED;
		MODIFY(o, "lock cmpxchgq %[v], (%[p])", "z", "+a" (o->read),
			   [v] "r" (value), [p] "r" (at));
		break;
	case 2:
		o->read = old;
		MODIFY(o, "lock cmpxchgq %[v], (%[p])", "z", "+a" (o->read),
			   [v] "r" (value), [p] "r" (at));
		break;
	case 3:
		o->read = old;
		MODIFY(o, "lock cmpxchgl %k[v], (%[p])", "z", "+a" (o->read),
			   [v] "r" (value), [p] "r" (at));
		break;
	default:
		o->read = value;
		MODIFY(o, "xchgq %[r], (%[p])", "c", [r] "+r" (o->read),
			   [p] "r" (at));
	}
}

static void logic(struct outcome *o, u64 *at)
{
	u64 bit = flag_bit(), mask = 1ULL << bit;

	switch (tt_random(12)) {
	case 0:
		MODIFY(o, "lock btrq %[b], (%[p])", "c", "+m" (*at),
			   [b] "r" (bit), [p] "r" (at));
		break;
	case 1:
		MODIFY(o, "lock btsq %[b], (%[p])", "c", "+m" (*at),
			   [b] "r" (bit), [p] "r" (at));
		break;
	case 2:
		MODIFY(o, "lock btcq %[b], (%[p])", "c", "+m" (*at),
			   [b] "r" (bit), [p] "r" (at));
		break;
	case 3:		/* the kernel's own: young, dirty */
		MODIFY(o, "lock btrq $5, (%[p])", "c", "+m" (*at), [p] "r" (at));
		break;
	case 4:		/* the kernel's own: write-protect */
		STORE(o, "lock andb $0xfd, (%[p])", [p] "r" (at));
		break;
	case 5:
		STORE(o, "lock orb $0x02, (%[p])", [p] "r" (at));
		break;
	case 6:
		MODIFY(o, "lock andq %[m], (%[p])", "z", "+m" (*at),
			   [m] "r" (~mask), [p] "r" (at));
		break;
	case 7:
		MODIFY(o, "lock orq %[m], (%[p])", "z", "+m" (*at),
			   [m] "r" (mask), [p] "r" (at));
		break;
	case 8:
		MODIFY(o, "lock xorq %[m], (%[p])", "z", "+m" (*at),
			   [m] "r" (mask), [p] "r" (at));
		break;
	case 9:		/* without lock, which Xen must not treat as locked */
		MODIFY(o, "btrq $1, (%[p])", "c", "+m" (*at), [p] "r" (at));
		break;
	case 10:
		MODIFY(o, "btrw $1, (%[p])", "c", "+m" (*at), [p] "r" (at));
		break;
	default:
		MODIFY(o, "lock btrl $1, (%[p])", "c", "+m" (*at), [p] "r" (at));
	}
}

static void other(struct outcome *o, u64 *at, u64 value)
{
	u64 count = 2, delta = 1ULL << tt_random(6);
	void *p = at;

	switch (tt_random(3)) {
	case 0:		/* two entries, as long as they are on this page */
		if (tt_random(2) || !((unsigned long)(at + 1) & ~PAGE_MASK))
			count = 1;
		o->read = count;
		asm volatile("movb $1, %[fault]\n"
			     "1: rep stosq\n"
			     "movb $0, %[fault]\n"
			     "2:\n"
			     _ASM_EXTABLE(1b, 2b)
			     : [fault] "+&qm" (o->fault), "+c" (o->read), "+D" (p)
			     : "a" (value) : "memory");
		break;
	case 1:		/* no carry may reach the frame number */
		if ((*at & 0xfff) + delta > 0xfff)
			return;
		o->read = delta;
		MODIFY(o, "lock xaddq %[r], (%[p])", "c", [r] "+r" (o->read),
			   [p] "r" (at));
		break;
	default:
		if ((*at & 0xfff) < delta)
			return;
		MODIFY(o, "lock subq %[d], (%[p])", "z", "+m" (*at),
			   [d] "r" (delta), [p] "r" (at));
	}
}

static struct outcome trap(u64 *at, u64 value)
{
	struct outcome o = { };

	switch (tt_random(8)) {
	case 0:
	case 1:
	case 2:
		move(&o, at, value);
		break;
	case 3:
	case 4:
		exchange(&o, at, value);
		break;
	case 5:
	case 6:
		logic(&o, at);
		break;
	default:
		other(&o, at, value);
	}
	return o;
}

/* Return whether it was refused. */
bool tt_trap(unsigned int page, unsigned int slot, u64 value)
{
	return trap(&tt_pages[page].entry[slot], value).fault;
}

void tt_call_trap(void)
{
	unsigned int page = tt_random(4) ? tt_pick(1) : tt_pick_active(), slot;
	struct tt_page *p = &tt_pages[page];
	struct outcome o;
	u64 value;

	if (!p->read_only)
		return;
	slot = tt_slot(p->entry);
	value = tt_value(1, page, p->entry[slot]);

	tt_log_call(TT_TRAP);
	tt_log_what(0, 1, (u64)page << 16 | slot, value);
	o = trap(&p->entry[slot], value);
	if (!o.fault) {
		tt_log_out(tt_canonical(o.read));
		tt_log_out(o.flag);
	}
	tt_log_out(tt_changes(page));
	tt_log_end(o.fault, 0);
}
