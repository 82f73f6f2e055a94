/* SPDX-License-Identifier: GPL-2.0-only OR MIT */
/*
 * trapless pagetable: the hypercall interface between the guest's page-table
 * cache and the hypervisor's semi-writable page type (PiBooster, section 3.4).
 *
 * Every operation is a sub-operation of callback_op (hypercall 30), in a range
 * Xen never uses; every other sub-operation number keeps its stock meaning.
 * Until ABI 2 it was xenoprof_op (31), which Xen drops: either half refuses the
 * other of another ABI as one that is not there.
 * Without the payload stock Xen answers these numbers with an error, which is
 * how a guest learns that the hypervisor half is missing.
 *
 * An unknown number inside the range gets -ENOSYS. Any PV domain may ask for the
 * VERSION, and change entries of its own tables by PROTECT and MOVE. Pages are marked
 * and released for a domain whose IOMMU mappings follow page types: a strict hardware
 * domain, or a guest that may be given devices. What is said or set of the whole host
 * is the hardware domain's; others get -EPERM.
 *
 * EVICT, by the hardware domain, takes every mark back without its owner's help, so
 * that nobody can keep the payload from being reverted. A guest need not be told: a
 * page whose mark is gone is an ordinary page, and right, only slower.
 *
 * States of a page, and who may move it:
 *
 *   writable --MARK--> semi-writable --(Xen's own typing)--> page table
 *   writable <-RELEASE- semi-writable <-(Xen's own typing)-- page table
 *
 * A semi-writable page is writable for the guest's software and never for its
 * devices, and so is a page table; only the outer step touches the IOMMU.
 * RELEASE of a page that is about to become a page table on another CPU can make
 * that fail: a caller releases what it may be using only while its other CPUs
 * are kept from it. RELEASE of a page that is a live page table only forgets the mark: the page
 * regains its device mapping when Xen retypes it to writable, as in stock Xen.
 */
#ifndef TRAPLESS_PAGETABLE_H
#define TRAPLESS_PAGETABLE_H

#ifdef __KERNEL__
#include <linux/types.h>
typedef __u32 tpt_u32;
typedef __u64 tpt_u64;
typedef __s32 tpt_s32;
#else
typedef unsigned int tpt_u32;
typedef unsigned long long tpt_u64;
typedef int tpt_s32;
#endif

/* "TP" in the upper half: far outside callback_op's own range of 0 to 4. */
#define TPT_OP_BASE		0x54500000u
#define TPT_OP_MASK		0xffff0000u

/* argument: struct tpt_version, written */
#define TPT_OP_VERSION		(TPT_OP_BASE + 1)
/* argument: struct tpt_batch; writable -> semi-writable */
#define TPT_OP_MARK		(TPT_OP_BASE + 2)
/* argument: struct tpt_batch; semi-writable (or live table) -> writable */
#define TPT_OP_RELEASE		(TPT_OP_BASE + 3)
/* hardware domain only; argument: struct tpt_stats, written */
#define TPT_OP_STATS		(TPT_OP_BASE + 4)

/*
 * hardware domain only;
 * argument: tpt_u32, written: the TPT_SWITCH_ bits of the parts in force
 */
#define TPT_OP_GET_SWITCHES	(TPT_OP_BASE + 5)
/* the same; argument: tpt_u32, read: exactly these parts are to be in force */
#define TPT_OP_SET_SWITCHES	(TPT_OP_BASE + 6)

/*
 * hardware domain only; argument: struct tpt_evict, written. From the first call on
 * MARK is refused; each call takes some marks back. -EAGAIN: call again
 */
#define TPT_OP_EVICT		(TPT_OP_BASE + 7)
/* hardware domain only; no argument: MARK is admitted again */
#define TPT_OP_ADMIT		(TPT_OP_BASE + 8)

/* argument: struct tpt_protect, read; takes the write permission from a range of entries */
#define TPT_OP_PROTECT		(TPT_OP_BASE + 9)
/* argument: struct tpt_move, read; moves a range of entries */
#define TPT_OP_MOVE		(TPT_OP_BASE + 10)

#define TPT_ABI_VERSION		3
#define TPT_MAX_BATCH		512	/* pages a call */

/* tpt_version.features */
#define TPT_FEAT_SYNC		0x1	/* caller's IOMMU follows page types: marks pay */
#define TPT_FEAT_EVICTED	0x2	/* MARK is refused, and marks are taken back */

/*
 * Parts of the payload that serve every PV domain, and that the hardware domain
 * turns on and off (all are on once the payload is applied). SET_SWITCHES with
 * any other bit is -EINVAL and changes nothing. A payload is built without the
 * parts that are not proven for its build of Xen: see tpt_version.parts. To turn
 * one of those on is -EOPNOTSUPP and changes nothing.
 */
#define TPT_SWITCH_ZERO_RUNS	0x1	/* empty entries passed eight at a time */
#define TPT_SWITCH_L1_UPDATE	0x2	/* plain L1 updates without the detours */
#define TPT_SWITCH_TABLE_REFS	0x4	/* references to validated tables likewise */
#define TPT_SWITCH_RANGES	0x8	/* PROTECT and MOVE are served */
#define TPT_SWITCH_ALL		0xf

/**
 * struct tpt_version - what the hypervisor half is and whether it serves us
 * @abi:       TPT_ABI_VERSION of the payload
 * @max_batch: most pages one MARK or RELEASE accepts
 * @features:  TPT_FEAT_* bits
 * @parts:     TPT_SWITCH_* bits of the parts that this payload was built with
 */
struct tpt_version {
	tpt_u32 abi;
	tpt_u32 max_batch;
	tpt_u32 features;
	tpt_u32 parts;
};

/**
 * struct tpt_batch - pages to mark or release
 * @count: number of machine frame numbers at @mfns, 1 to TPT_MAX_BATCH
 * @done:  out: frames [0, done) are in their new state, flushed and final
 * @mfns:  guest virtual address of @count 64-bit machine frame numbers
 *
 * Returns 0 with @done == @count when all is done, or with @done < @count when
 * the hypervisor was needed elsewhere: call again for the rest (@done is never
 * 0 then). On an error frames [0, done) are final, frame @done is the one that
 * was refused, it and all after it are as they were:
 *
 *   -EFAULT     the argument or the list cannot be read, or @done not written
 *               (if the caller takes the argument away during the call, frames
 *               may have moved unknown to it)
 *   -E2BIG      @count above TPT_MAX_BATCH
 *   -EINVAL     @count 0, or a number that is no frame of RAM
 *   -EPERM      the frame is not the caller's
 *   -EBUSY      MARK: the frame is in use as something else, or is one of the
 *               hypervisor's own that the caller may only use, or is held after
 *               an -EIO; RELEASE: the frame changes type at this moment, try
 *               again
 *   -EEXIST     MARK: already semi-writable (a live table is -EBUSY)
 *   -ENOENT     RELEASE: not semi-writable; after an EVICT an ordinary page
 *   -EACCES     MARK: refused since an EVICT, until there is an ADMIT
 *   -ENOMEM     no memory for the call's own bookkeeping, or for the IOMMU's
 *   -EOPNOTSUPP the caller's IOMMU mappings do not follow page types
 *   -EIO        the IOTLB flush failed and so did its undoing: frames from
 *               @done on may be out of reach of devices and are held by the
 *               hypervisor for as long as the domain lives; never give them to
 *               a device
 *   other       the IOMMU's own error; after a failed flush MARK was undone,
 *               while RELEASE of the frames before @done holds
 *
 * One IOTLB flush is issued a call, however many frames it moves.
 */
struct tpt_batch {
	tpt_u32 count;
	tpt_u32 done;
	tpt_u64 mfns;
};

/**
 * struct tpt_stats - counts since the payload was applied, of all domains
 * @semi_writable: frames that carry the mark now, live page tables included
 * @held:          frames held now after a double fault (see -EIO)
 * @marked:        frames ever marked
 * @released:      frames ever released or taken back; not those whose domain died
 * @flushes:       IOTLB flushes issued for MARK and RELEASE
 * @skipped_map:   IOMMU maps that Xen's typing asked for and the mark saved
 * @skipped_unmap: IOMMU unmaps (each with its flush) saved likewise
 */
struct tpt_stats {
	tpt_u64 semi_writable;
	tpt_u64 held;
	tpt_u64 marked;
	tpt_u64 released;
	tpt_u64 flushes;
	tpt_u64 skipped_map;
	tpt_u64 skipped_unmap;
};

/**
 * struct tpt_evict - how far an eviction is
 * @left:   frames of all domains that are still marked
 * @domain: the domain whose marks this call took back, if @moved or @error
 * @error:  why one of its frames keeps its mark until a later call tries it again; 0
 *          if none does. In a guest the IOMMU's own error ends the guest, as always
 * @moved:  marks that this call took back
 *
 * Return: 0 if no frame of any domain is marked, which stays so until ADMIT;
 * -EAGAIN if there is more to do: call again, for as long as @left falls. A call
 * stops one domain's CPUs (if it is the caller's own domain, the other CPUs) for at
 * most 128 frames and one IOTLB flush; between two calls it runs. What the domain does
 * then cannot prolong the eviction. -EFAULT: @domain and all else is as before.
 *
 * Held frames (see -EIO) are not given up: they stay until their domain ends.
 */
struct tpt_evict {
	tpt_u64 left;
	tpt_u32 domain;
	tpt_s32 error;
	tpt_u64 moved;
};

/**
 * struct tpt_protect - entries that lose the write permission
 * @table: machine frame number of a level 1 table of the caller's, in use as one
 * @first: its first entry that is looked at, 0 to 511
 * @count: how many are looked at, 1 to 512 - @first
 *
 * Each of them that is plain and writable becomes read-only; its accessed and dirty bits
 * are kept, whatever the hardware does meanwhile. The others stay as they are. TLBs are
 * not flushed. Plain is an entry that is present, names a page of the caller's, and has
 * of all other bits only RW, US, A, D, G, 9 to 11, 52, and NX where the processor has it.
 *
 * Returns how many became read-only. On an error nothing has changed:
 *
 *   -EFAULT     the argument cannot be read
 *   -EINVAL     @first and @count are no range of a table
 *   -EPERM      @table is not a level 1 table of the caller's, in use
 *   -EAGAIN     a teardown of this vCPU's was interrupted; any mmuext_op continues it.
 *               Of MOVE also: another vCPU is changing @to at this moment
 *   -EOPNOTSUPP the part is off (TPT_SWITCH_RANGES) or not built in, or the caller has
 *               log-dirty or shadow paging
 *
 * Where it is not served a guest can do the same by mmu_update. The number keeps its
 * meaning in every later ABI, so a guest need not ask for the version each time.
 */
struct tpt_protect {
	tpt_u64 table;
	tpt_u32 first;
	tpt_u32 count;
};

/**
 * struct tpt_move - entries that move
 * @from:       machine frame number of a level 1 table of the caller's, in use as one
 * @to:         another one, or the same
 * @from_first: first entry of @from that is looked at, 0 to 511
 * @to_first:   the entry of @to that it becomes, 0 to 511
 * @count:      how many are looked at, 1 to 512 less the larger of the two
 * @reserved:   0
 * @set:        bits for software (0xe00) that a moved entry gets beside its own
 *
 * One after the other, from the lowest on, each plain entry (see struct tpt_protect) of
 * @from is put into its new place, with the accessed and dirty bits that the hardware has
 * set to the last, and its old place is zero then; unless in the new place anything but
 * accessed and dirty bits is set. The others stay where they are. TLBs are not flushed.
 * So within one table, by one place up, the lowest entry moves @count times if there is
 * room: this is no memmove().
 *
 * Returns how often an entry was moved. Errors are those of struct tpt_protect, with
 * -EINVAL also for any other bit in @set, and for @reserved.
 */
struct tpt_move {
	tpt_u64 from;
	tpt_u64 to;
	tpt_u32 from_first;
	tpt_u32 to_first;
	tpt_u32 count;
	tpt_u32 reserved;
	tpt_u64 set;
};

#endif /* TRAPLESS_PAGETABLE_H */
