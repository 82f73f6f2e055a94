// SPDX-License-Identifier: GPL-2.0-only
/*
 * Memory that is also mapped by other page tables than the process's: those of a
 * virtual machine that it runs (KVM), of a device (RDMA with on-demand paging, GPUs,
 * shared virtual addressing). Writes by these set no dirty bit in an entry of the
 * process, and the processor's log does not have the process's address. A bit that is
 * cleared here leaves such a mapping writable.
 *
 * The kernel must be able to take any page back. So whoever maps pages of a process
 * without holding them has subscribed to the MMU notifier of its mm, before the first
 * page is mapped. (Pages that are held are kernel_writes.c's.)
 *
 * Invariant: a memory that has a subscriber besides us is not attached to. If one
 * comes later, every collect from then on reports all that is watched, also after the
 * subscriber has gone, and WATCH refuses.
 *
 * Seen are
 * - those before us: at ATTACH, under mmap_lock for writing, which every subscription
 *   takes too, our own must be alone in the list;
 * - those after us: by a probe in __mmu_notifier_register(), through which each
 *   subscription to the list goes, and the first one to a range of addresses (interval
 *   notifier), also if it is gone before the next collect. It is hit before there is a
 *   subscriber, so a write that ended before a collect began has been announced.
 *
 * Why such memory is not tracked by taking the pages away from all subscribers at each
 * collect (an invalidation of the watched range, as clear_refs does): KVM would have to
 * get hold of each page again, which kernel_writes.c sees. But others use
 * hmm_range_fault(), which takes a writable entry as it is and leaves no trace. And for
 * KVM it costs what soft-dirty costs, which is right there: a fault of the guest for
 * each page that it touches.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kprobes.h>

#include "tracking.h"

/*
 * How struct mmu_notifier_subscriptions of mm/mmu_notifier.c begins, in Linux 6.1 to
 * 6.12; no header has it. Should the list be elsewhere, we are never alone in it, and
 * every ATTACH is refused.
 */
struct subscriptions {
	struct hlist_head list;
	/* There is, or was, an interval notifier. */
	bool has_itree;
};

/* __mmu_notifier_register(subscription, mm), with mmap_lock held for writing */
static int on_register(struct kprobe *probe, struct pt_regs *regs)
{
	/* Not yet there while it is our own subscription that is made. */
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
