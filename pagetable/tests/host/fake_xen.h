/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * A small model of Xen 4.17's page typing, of the IOMMU beneath it, and of a
 * PV guest that uses both. It is sequential; a second CPU is played by running
 * one of its operations whole at a chosen call of the first (struct race).
 *
 * The model's devices are the worst that can be: whatever the IOMMU's tables
 * say at any moment, present or absent, is in the IOTLB until a flush.
 */
#ifndef TRAPLESS_FAKE_XEN_H
#define TRAPLESS_FAKE_XEN_H

#include "original.h"
#include "under_test.h"

#define PGT_partial	0x0100000000000000UL

/*
 * Machine frames: three banks of RAM, 64 PDX apart and with a hole of address
 * bits between them. A frame with a bit of the hole set is MMIO, with the same
 * PDX as a frame of RAM. The last bank is shared with a domU and with MMIO that
 * has a struct page_info.
 */
#define BANK_FRAMES	64
#define HOLE_MASK	0x3c0UL
#define HOLE_SHIFT	4
#define NR_PDX		168
#define NR_MFN		0x828

#define DOM0_MFN(n)	((u64)((n) % BANK_FRAMES + (n) / BANK_FRAMES * 0x400))
#define NR_DOM0		136			/* DOM0_MFN(0 to 135) */
#define ALIAS_MFN(n)	(DOM0_MFN(n) | 0x40)	/* same PDX, no RAM */
#define DOMU_MFN(n)	((u64)(0x808 + (n)))
#define NR_DOMU		16
#define MMIO_MFN(n)	((u64)(0x818 + (n)))
#define NR_MMIO		16

#define IO_TABLE	1	/* the IOMMU's tables map the frame */
#define IO_TLB		2	/* an IOTLB may say that they do */
#define IO_TLB_ABSENT	4	/* an IOTLB may say that they do not */

enum life { ALIVE, DYING, DEAD };

struct domain {
	u32 id;
	bool pv, sync;
	enum life life;	/* DYING: its CPUs have stopped; DEAD: all else too */
	unsigned int paused;	/* its CPUs, but for the one that did it */
	u8 io[NR_MFN];
};

extern struct domain dom0, domu, dom_hvm;

/* The oracle's ledger: the guest's operations on a frame, which determine its references. */
struct ledger {
	u8 allocated;
	u8 level;	/* of the table that is pinned, partial or unpinning */
	u8 pinned;	/* one general and one type reference */
	u8 partial;	/* validation interrupted: the same */
	u8 unpinning;	/* invalidation interrupted: two general, one type */
	u8 writable;	/* writable mappings: one each */
	u8 segment;	/* descriptor table: one each */
	u8 marked;	/* one general reference */
	u8 held;	/* one of each while the domain is */
};

enum fault {
	FAULT_MALLOC, FAULT_VZALLOC, FAULT_GET_TYPE, FAULT_MAP, FAULT_UNMAP,
	FAULT_FLUSH, FAULT_COPY, FAULT_REVERT, FAULT_PAUSE, NR_FAULTS
};

/* The error of each failing IOMMU function; none is an error of the ABI. */
#define MAP_ERROR	(-ENXIO)
#define UNMAP_ERROR	(-ENODEV)
#define FLUSH_ERROR	(-ETIMEDOUT)

/* The other CPU: run(arg) at the @at'th call of Xen's functions from now. */
struct race {
	unsigned int at;
	struct domain *domain;	/* that runs there; NULL: dom0 */
	void (*run)(void *arg);
	void *arg;
	bool ran;	/* it did not have to wait for this CPU */
};

/* The state that a waiting CPU must not have changed. */
struct machine {
	struct page_info frames[NR_PDX];
	struct domain dom0, domu;
	struct ledger owed[NR_PDX];
};

struct fake {
	struct domain *current;
	unsigned int calls[NR_FAULTS];	/* since fake_begin() */
	unsigned int fail_at[NR_FAULTS];	/* which of them fails; 0: none */
	bool fail_on[NR_FAULTS];	/* and all after it */
	unsigned int pending_at;	/* softirq from this look on; 0: never */
	unsigned int looks;
	bool scribble;	/* the guest rewrites what Xen has just read */
	unsigned int flushes;
	unsigned int failed_maps;
	u64 failed_map[1024];
	struct race race;
	unsigned int originals;		/* calls of stock functions */
	int last_op;
	void *last_arg;
	u64 last_dfn, last_mfn;
	unsigned long last_count;
	u32 last_flags;
	bool interrupted;	/* the typing under way leaves partial */
	bool evicting;	/* Xen makes no mappings of a dead domain, and says nothing */
	u32 *queue;	/* of a lock: another CPU joins it at the next call */
	unsigned int unfinished;	/* calls in which Xen cannot end a domain */
};

extern struct fake fake;
extern u32 fake_parts;	/* that the payload was built with */
extern struct ledger owed[NR_PDX];

#define STOCK_CALLBACK	0x5afe

/* A broken promise. Must not return. */
void violation(const char *format, ...)
	__attribute__((noreturn, format(printf, 1, 2)));

/* A fresh machine: dom0's RAM is writable and mapped, as after boot. */
void fake_reset(void);
/* Forget faults, races and counts of the operation before. */
void fake_begin(void);
/* Drop the whole heap, as a machine that is switched off does. */
void fake_forget_heap(void);
unsigned int fake_heap_blocks(void);

struct page_info *fake_page(u64 mfn);
struct ledger *fake_owed(u64 mfn);
bool fake_is_ram(u64 mfn);
bool fake_owned(u64 mfn, const struct domain *d);
bool fake_is_live(u64 mfn);	/* in use as something that is not writable */
/* The payload's own bit, for states in which no device mapping depends on it. */
bool fake_bit(u64 mfn);

/* Every invariant that holds between operations, and those that always do. */
void fake_check(void);
void fake_check_tables(void);

/* The domain that the frame is given to, if any. */
struct domain *fake_home(u64 mfn);
/* Like the toolstack, repeat it until it is done, at most @calls times. */
void fake_kill(struct domain *d, unsigned int calls);
/* A new domain of the same id, with the frames that the old one had. */
void fake_create_domu(void);

/* What a PV guest can do; each returns whether Xen let it. */
bool guest_map_writable(u64 mfn);
bool guest_unmap_writable(u64 mfn);
bool guest_map_segment(u64 mfn);
bool guest_unmap_segment(u64 mfn);
bool guest_pin(u64 mfn, unsigned int level, bool interrupted);
bool guest_unpin(u64 mfn, bool interrupted);
bool guest_free(u64 mfn);
bool guest_alloc(u64 mfn);

/* Guest memory: two pages, one for each CPU; all else faults. */
#define GUEST_BYTES	8192
extern _Alignas(16) u8 guest_memory[2][GUEST_BYTES];
unsigned int fake_cpu(void);

#endif /* TRAPLESS_FAKE_XEN_H */
