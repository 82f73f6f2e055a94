/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Batches updates of the entries of one page table into few hypercalls.
 *
 * The caller holds the table's lock from batch_start() to batch_flush(). Stock
 * Linux makes one hypercall per update and ignores the results: a refused update
 * is not done, the others are. A batch behaves the same.
 */
#ifndef PVMMU_BATCH_H
#define PVMMU_BATCH_H

#include <linux/bug.h>
#include <linux/mm.h>

#include <asm/xen/hypercall.h>
#include <asm/xen/page.h>

#include <xen/interface/xen.h>

/* Enough to spread a hypercall's fixed cost, few enough for the stack. */
#define BATCH	32

/**
 * struct batch - pending updates
 * @update:  the requests to Xen
 * @count:   how many
 * @table:   first byte of the table, or any byte of it
 * @machine: its machine address
 */
struct batch {
	struct mmu_update update[BATCH];
	unsigned int count;
	unsigned long table;
	phys_addr_t machine;
};

static inline void batch_start(struct batch *batch, const pte_t *ptep)
{
	batch->count = 0;
	batch->table = (unsigned long)ptep & PAGE_MASK;
	batch->machine = virt_to_machine((void *)batch->table).maddr;
}

static inline void batch_flush(struct batch *batch)
{
	unsigned int i;

	/* Xen stops at the first refusal. Repeating what is done is harmless. */
	if (batch->count &&
	    HYPERVISOR_mmu_update(batch->update, batch->count, NULL, DOMID_SELF))
		for (i = 0; i < batch->count; i++)
			WARN_ON_ONCE(HYPERVISOR_mmu_update(batch->update + i, 1,
							   NULL, DOMID_SELF));
	batch->count = 0;
}

/**
 * batch_add - add an update
 * @batch:   the batch
 * @ptep:    the entry, in the batch's table
 * @value:   its new value, with a machine frame
 * @command: MMU_NORMAL_PT_UPDATE, or MMU_PT_UPDATE_PRESERVE_AD to keep the
 *           accessed and dirty bits that the hardware sets meanwhile
 */
static inline void batch_add(struct batch *batch, const pte_t *ptep,
			     pteval_t value, unsigned int command)
{
	struct mmu_update *update = batch->update + batch->count;

	update->ptr = (batch->machine + ((unsigned long)ptep - batch->table)) |
		      command;
	update->val = value;
	if (++batch->count == BATCH)
		batch_flush(batch);
}

#endif /* PVMMU_BATCH_H */
