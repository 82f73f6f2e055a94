/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * An adversarial guest kernel: the interfaces between the parts of table_test.
 *
 * The seed determines everything here. Frames are named by their place in the
 * pool and not by their number, so that two boots agree.
 */
#ifndef TRAPLESS_TABLE_TEST_H
#define TRAPLESS_TABLE_TEST_H

#include <linux/hashtable.h>
#include <linux/mm.h>
#include <linux/prandom.h>

#include <asm/xen/hypercall.h>
#include <asm/xen/page.h>
#include <xen/interface/xen.h>

#define TT_DATA		32
#define TT_L1		48
#define TT_L2		12
#define TT_L3		6
#define TT_L4		2
#define TT_PAGES	(TT_DATA + TT_L1 + TT_L2 + TT_L3 + TT_L4)
#define TT_WINDOW	32	/* slots of the live table that are ours */
#define TT_SLOTS	512
#define TT_LEVELS	5	/* level 0: data */

#define TT_FRAME_MASK	0x000ffffffffff000ULL
#define TT_NX		_BITULL(63)

/* Xen's own slots of a root table. */
#define TT_XEN_FIRST	256
#define TT_XEN_LAST	271

struct tt_page {
	struct hlist_node node;
	struct page *page;
	u64 *entry;
	u64 mfn;
	u8 level;
	u8 pinned;	/* level of the pin we hold, or 0 */
	bool active;	/* part of this round */
	bool read_only;	/* in the kernel's direct map */
};

extern struct tt_page tt_pages[TT_PAGES];
extern unsigned int tt_first[TT_LEVELS], tt_count[TT_LEVELS];

/* pool: the pages, their numbers, their mappings */
int tt_pool_init(void);
void tt_pool_exit(void);
u64 tt_canonical(u64 entry);
int tt_protect(unsigned int page, bool read_only);
u64 tt_changes(unsigned int page);
u64 tt_change(unsigned int page, unsigned int slot);
void tt_expect_contents(unsigned int page);
unsigned int tt_retire_typed(void);
u64 tt_data_typed(void);
void tt_pool_renew(bool count);
extern unsigned int tt_retired;

/* special: frames that are not the pool's */
enum tt_special {
	TT_FOREIGN_HIGH,
	TT_FOREIGN_LOW,
	TT_LOCAL_APIC,
	TT_IO_APIC,
	TT_HPET,
	TT_PCI_CONFIG,
	TT_IOMMU,
	TT_PCI_HOLE,
	TT_LOW_MEMORY,
	TT_VGA,
	TT_NO_RAM,
	TT_BEYOND,
	TT_GIVEN,
	/* From here on frames of the running kernel: mapped, never operated on. */
	TT_SHARED_INFO,
	TT_GDT,
	TT_LIVE_ROOT,
	TT_LIVE_L3,
	TT_SPECIALS,
	TT_HARMLESS = TT_SHARED_INFO,
};

void tt_special_init(void);
u64 tt_special_frame(enum tt_special special);
int tt_special_find(u64 mfn);
bool tt_special_given(void);

/* window: our slots of a table that the kernel runs on */
int tt_window_init(void);
void tt_window_exit(void);
unsigned long tt_window_address(unsigned int slot);
u64 *tt_window_entry(unsigned int slot);
int tt_window_close(void);

/* generate: the seed's stream, entries, tables */
u32 tt_random(u32 below);
void tt_seed(u32 seed, u32 round);
void tt_race_streams(bool race);
bool tt_chance(u32 in);
unsigned int tt_pick(unsigned int level);
unsigned int tt_pick_active(void);
u64 tt_no_ram(u32 below);
u64 tt_entry(unsigned int level, unsigned int self, unsigned int bad);
u64 tt_value(unsigned int level, unsigned int self, u64 old);
unsigned int tt_slot(const u64 *table);
void tt_fill(unsigned int page, unsigned int bad);

/* log: one record a call, their digest, comparison with another run */
enum tt_kind {
	TT_MAP,
	TT_MMUEXT,
	TT_UPDATE,
	TT_VA,
	TT_TRAP,
	TT_MULTICALL,
	TT_RANGE,
	TT_ROUND,
	TT_KINDS,
};

/* commands of TT_ROUND */
enum { TT_BEGIN = 1, TT_TYPES, TT_END };

void tt_log_begin_run(u32 seed);
void tt_log_begin_round(unsigned int round);
bool tt_log_end_round(bool is_void);
void tt_log_call(enum tt_kind kind);
void tt_log_what(unsigned int command, unsigned int count, u64 where,
		 u64 value);
void tt_log_in(u64 word);
void tt_log_out(u64 word);
void tt_log_end(long rc, u32 done);
bool tt_log_differs(void);
void tt_log_exit(void);
u64 tt_mix(u64 hash, u64 word);

/* calls: one random call each */
int tt_calls_init(void);
void tt_calls_exit(void);
void tt_call_mmuext(void);
void tt_call_update(void);
void tt_call_va(void);
void tt_call_multicall(void);
void tt_call_trap(void);
bool tt_trap(unsigned int page, unsigned int slot, u64 value);
long tt_pin(unsigned int page, unsigned int level);
long tt_unpin(unsigned int page);
void tt_settle(void);

/* range: the payload's operations on many entries */
void tt_call_range(void);
long tt_race_range(void);

/* preempt: interrupts in the middle of calls */
void tt_preempt_begin(void);
void tt_preempt_end(void);
void tt_preempt_call(void);

/* legal: may this table be validated at all? */
void tt_count_illegal(void);

/* race: all processors on the same tables */
int tt_race(u32 seed, unsigned int rounds);

#endif /* TRAPLESS_TABLE_TEST_H */
