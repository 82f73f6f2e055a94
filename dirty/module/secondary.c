// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory that is also mapped by other page tables than the process's: those of a
 * virtual machine that it runs (KVM), or of a device (RDMA with on-demand paging, GPUs,
 * shared virtual addressing). Writes through these set no dirty bit in an entry of the
 * process, the processor's log does not have the process's address, and clearing the
 * dirty bit here leaves such a mapping writable.
 *
 * The kernel must be able to take any page back. So a user that maps pages of a process
 * without holding references to them subscribes to the MMU notifier of its mm before it
 * maps the first page. (kernel_writes.c handles pages that are held by a reference.)
 *
 * Invariant: ATTACH refuses a memory that has a subscriber besides us. If one comes
 * later, every collect from then on reports all that is watched, also after the
 * subscriber has gone, and WATCH refuses.
 *
 * How subscribers are found:
 * - earlier ones: at ATTACH our own must be the only one in the list; this is checked
 *   under mmap_lock for writing, which every subscription takes too;
 * - later ones: by a probe in __mmu_notifier_register(). Each subscription to the list
 *   goes through it, and the first one to a range of addresses (interval notifier), also
 *   if it is gone before the next collect. The probe is hit before the subscription
 *   exists, so before any write through the new mapping.
 *
 * Why such memory is not tracked by taking the pages away from all subscribers at each
 * collect (an invalidation of the watched range, as clear_refs does): it would work for
 * KVM, which would have to take a reference to each page again, and kernel_writes.c sees
 * that. But others use hmm_range_fault(), which takes a writable entry as it is and
 * leaves no trace. And for KVM it would cost a guest fault for each page touched, as
 * soft-dirty does, which tracks such memory correctly.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kprobes.h>

#include "tracking.h"

/*
 * The beginning of struct mmu_notifier_subscriptions of mm/mmu_notifier.c, in Linux 6.1
 * to 6.12; no header has it. If the list were elsewhere, we would never be alone in it,
 * and every ATTACH would be refused.
 */
struct subscriptions {
	struct hlist_head list;
	/* There is, or was, an interval notifier. */
	bool has_itree;
};

/* __mmu_notifier_register(subscription, mm), with mmap_lock held for writing */
static int on_register(struct kprobe *probe, struct pt_regs *regs)
{
	/* NULL while our own subscription is being made. */
	struct tpd_memory *memory = tpd_memory_of((struct mm_struct *)regs->si);

	if (memory)
		WRITE_ONCE(memory->secondary, true);
	return 0;
}

static struct kprobe registration = {
	.symbol_name = "__mmu_notifier_register",
	.pre_handler = on_register,
};

/**
 * tpd_secondary_alone - whether an mm has no other subscriber to its notifications
 * @memory: subscribed; mmap_lock is held for writing
 */
bool tpd_secondary_alone(struct tpd_memory *memory)
{
	const struct subscriptions *all = (void *)memory->mm->notifier_subscriptions;
	const struct hlist_node *own = &memory->notifier.hlist;

	return own->pprev == &all->list.first && !own->next && !all->has_itree &&
	       !READ_ONCE(memory->secondary);
}

/**
 * tpd_secondary_came - whether there was another subscriber since the first tracker
 * @memory: whose
 */
bool tpd_secondary_came(struct tpd_memory *memory)
{
	/* Which process a missed call was about is unknown. */
	if (registration.nmissed)
		WRITE_ONCE(memory->secondary, true);
	return READ_ONCE(memory->secondary);
}

int tpd_secondary_init(void)
{
	int err = register_kprobe(&registration);

	if (err)
		pr_err("unknown kernel: no probe in %s (%d)\n", registration.symbol_name, err);
	return err;
}

/* Nothing is tracked any more. */
void tpd_secondary_exit(void)
{
	unregister_kprobe(&registration);
}
