// SPDX-License-Identifier: GPL-2.0-only
/*
 * Writes through the kernel's own mapping of a page: process_vm_writev,
 * /proc/PID/mem, ptrace, direct I/O, registered buffers of io_uring, RDMA. They set
 * no dirty bit in an entry of the process, and no log has the process's address. But
 * each must first take a reference to the page (get_user_pages with FOLL_WRITE), by
 * one of two functions; a kretprobe watches both.
 *
 * Invariant: from the entry into such a function, every collect reports the range of
 * the write. The last to do so is the first one that finds that the function has
 * returned and that only mappings and caches still hold references to the pages: the
 * user reads the memory after that collect, so with all that was written. A reference
 * of unknown owner (a batch of the LRU) makes one more collect than needed report the
 * range. If a record cannot be kept, or a probe was missed, all pages are reported
 * from then on (`unnoted`).
 *
 * Pages that are referenced when a range is entered are reported in the same way: I/O
 * to them may have begun before.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/kprobes.h>
#include <linux/mm.h>
#include <linux/slab.h>

#include "series_memory.h"
#include "tracking.h"

/* Records of one process. With more, all of its pages are reported (unnoted). */
#define RECORDS_MAX	4096u
/* Calls that may be inside at one time: into one process, and into all tracked ones. */
#define INSIDE_MAX	64u
#define CALLS_MAX	8192

/**
 * struct kernel_write - a range that the kernel may be writing to
 * @node:   in memory->writes, or in orphans
 * @start:  page-aligned
 * @end:    page-aligned
 * @memory: whose, unless it is an orphan
 * @inside: the function that takes the references has not returned
 * @orphan: in orphans: the call frees it
 */
struct kernel_write {
	struct list_head node;
	struct tpd_memory *memory;
	unsigned long start;
	unsigned long end;
	bool inside;
	bool orphan;
};

/* Protects all records. No lock is taken outside of it; memory->lock is inside. */
static DEFINE_SPINLOCK(writes_lock);
/* Records whose memory is not tracked any more, but whose call has not returned. */
static LIST_HEAD(orphans);

/* Return: the record, with @inside set, or NULL: then memory->unnoted is set. */
static struct kernel_write *note(struct tpd_memory *memory, unsigned long start,
				 unsigned long end)
{
	struct kernel_write *record = NULL;
	unsigned long flags;

	spin_lock_irqsave(&writes_lock, flags);
	if (memory->ended)
		goto out;
	if (memory->write_count < RECORDS_MAX && memory->inside < INSIDE_MAX)
		record = kmalloc(sizeof(*record), GFP_NOWAIT | __GFP_NOWARN);
	if (!record) {
		memory->unnoted = true;
		goto out;
	}
	memory->write_count++;
	memory->inside++;
	record->memory = memory;
	record->start = start;
	record->end = end;
	record->inside = true;
	record->orphan = false;
	list_add(&record->node, &memory->writes);
out:
	spin_unlock_irqrestore(&writes_lock, flags);
	return record;
}

static void forget(struct kernel_write *record)
{
	list_del(&record->node);
	kfree(record);
}

/* Return: 0 if the end of the call is to be seen. */
static int call_begins(struct kretprobe_instance *instance, struct mm_struct *mm,
		       unsigned long start, unsigned long pages, unsigned int flags)
{
	struct kernel_write **record = (void *)instance->data;
	struct tpd_memory *memory;
	unsigned long end;

	if (!(flags & FOLL_WRITE) || !pages)
		return 1;
	memory = tpd_memory_of(mm);
	if (!memory)
		return 1;
	start &= PAGE_MASK;
	if (check_add_overflow(start, pages << PAGE_SHIFT, &end) || pages > ULONG_MAX >> PAGE_SHIFT)
		end = ULONG_MAX & PAGE_MASK;
	*record = note(memory, start, end);
	return !*record;
}

/* __get_user_pages(mm, start, nr_pages, gup_flags, ...) */
static int slow_begins(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	return call_begins(instance, (void *)regs->di, regs->si, regs->dx, regs->cx);
}

/* SERIES_GUP_FAST(start, nr_pages, gup_flags, pages), of the own mm */
static int fast_begins(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	return call_begins(instance, current->mm, regs->di, regs->si, regs->dx);
}

static int call_ends(struct kretprobe_instance *instance, struct pt_regs *regs)
{
	struct kernel_write *record = *(struct kernel_write **)instance->data;
	unsigned long flags;

	spin_lock_irqsave(&writes_lock, flags);
	record->inside = false;
	if (record->orphan)
		forget(record);
	else
		record->memory->inside--;
	spin_unlock_irqrestore(&writes_lock, flags);
	return 0;
}

static struct kretprobe slow = {
	.kp.symbol_name = "__get_user_pages",
	.entry_handler = slow_begins,
	.handler = call_ends,
	.data_size = sizeof(struct kernel_write *),
	.maxactive = CALLS_MAX,
};

static struct kretprobe fast = {
	.kp.symbol_name = SERIES_GUP_FAST,
	.entry_handler = fast_begins,
	.handler = call_ends,
	.data_size = sizeof(struct kernel_write *),
	.maxactive = CALLS_MAX,
};

static bool calls_missed(void)
{
	return slow.nmissed + slow.kp.nmissed + fast.nmissed + fast.kp.nmissed;
}

/* How many references mappings and caches hold. */
static long known_references(struct folio *folio)
{
	long known = series_mapcount(folio);

	if (folio_test_swapcache(folio) || !folio_test_anon(folio))
		known += folio_test_hugetlb(folio) ? 1 : folio_nr_pages(folio);
	if (folio_test_private(folio))
		known++;
	return known;
}

/* Whether the page is held by others than mappings and caches. */
static bool is_held(struct page *page)
{
	struct folio *folio = page_folio(page);
	long known = known_references(folio);
	long references = folio_ref_count(folio);

	/* A reference dropped between the two reads would hide one that stays. */
	smp_rmb();
	return folio_maybe_dma_pinned(folio) || references > known ||
	       known_references(folio) != known;
}

struct search {
	struct tpd_walk walk;
	struct tpd_memory *memory;
	struct kernel_write *last;
	unsigned long present;
	bool found;
};

static void search_held(struct tpd_walk *walk, const struct tpd_leaf *leaf)
{
	struct search *search = container_of(walk, struct search, walk);

	search->present += leaf->pages;
	/* A page that is swapped out may still be in the swap cache, with a reference. */
	if (!leaf->page ? !(*leaf->entry & _PAGE_PRESENT) : is_held(leaf->page))
		search->found = true;
}

static void pass_over(struct tpd_walk *walk, unsigned long start, unsigned long end)
{
}

static bool maps_file(struct mm_struct *mm, unsigned long start, unsigned long end)
{
	VMA_ITERATOR(vmi, mm, start);
	struct vm_area_struct *vma;

	for_each_vma_range(vmi, vma, end)
		if (vma->vm_file || vma->vm_flags & VM_MAYSHARE)
			return true;
	return false;
}

static bool goes_on(struct tpd_memory *memory, const struct kernel_write *record)
{
	struct search search = {
		.walk = {
			.wanted = _PAGE_PRESENT | _PAGE_PROTNONE,
			.absent = true,
			.leaf = search_held,
			.odd = pass_over,
		},
	};

	if (tpd_walk(&search.walk, memory->mm, record->start, record->end) || search.found)
		return true;
	/* A page that is not mapped now may still be referenced, and be mapped again. */
	return search.present < (record->end - record->start) / PAGE_SIZE &&
	       maps_file(memory->mm, record->start, record->end);
}

/**
 * tpd_kernel_writes_collect - mark the pages that the kernel may be writing to
 * @memory: whose; memory->harvest and mmap_lock are held
 */
void tpd_kernel_writes_collect(struct tpd_memory *memory)
{
	struct kernel_write *record, *next;
	LIST_HEAD(left);
	bool unnoted;

	spin_lock_irq(&writes_lock);
	/* Of a missed call, neither the process nor the end is known. */
	if (calls_missed())
		memory->unnoted = true;
	unnoted = memory->unnoted;
	list_for_each_entry_safe(record, next, &memory->writes, node) {
		/* At most INSIDE_MAX of these. */
		if (record->inside)
			tpd_found(memory, record->start, record->end);
		else
			list_move(&record->node, &left);
	}
	spin_unlock_irq(&writes_lock);
	if (unnoted)
		tpd_found(memory, 0, ULONG_MAX & PAGE_MASK);

	/* Nothing else uses these records: harvest is held, and the call has ended. */
	list_for_each_entry_safe(record, next, &left, node) {
		bool keep;

		tpd_found(memory, record->start, record->end);
		keep = goes_on(memory, record);
		spin_lock_irq(&writes_lock);
		if (keep) {
			list_move(&record->node, &memory->writes);
		} else {
			memory->write_count--;
			forget(record);
		}
		spin_unlock_irq(&writes_lock);
	}
}

static void note_held(struct tpd_walk *walk, const struct tpd_leaf *leaf)
{
	struct search *search = container_of(walk, struct search, walk);
	unsigned long end = leaf->address + leaf->pages * PAGE_SIZE;

	if (!leaf->page || !is_held(leaf->page))
		return;
	/* No collect sees the record change: harvest is held. */
	if (search->last && search->last->end == leaf->address) {
		search->last->end = end;
		return;
	}
	search->last = note(search->memory, leaf->address, end);
	if (!search->last)
		return;
	spin_lock_irq(&writes_lock);
	search->last->inside = false;
	search->memory->inside--;
	spin_unlock_irq(&writes_lock);
}

/**
 * tpd_kernel_writes_watch - record the pages of a range that are referenced already
 * @memory: whose; memory->harvest and mmap_lock are held
 * @start:  page-aligned
 * @end:    page-aligned
 *
 * Return: 0 or -EINTR.
 */
int tpd_kernel_writes_watch(struct tpd_memory *memory, unsigned long start, unsigned long end)
{
	struct search search = {
		.walk = {
			.wanted = _PAGE_PRESENT | _PAGE_PROTNONE,
			.leaf = note_held,
			.odd = pass_over,
		},
		.memory = memory,
	};

	return tpd_walk(&search.walk, memory->mm, start, end);
}

/**
 * tpd_kernel_writes_forget - drop all records of a memory that is not tracked any more
 * @memory: whose; any context
 */
void tpd_kernel_writes_forget(struct tpd_memory *memory)
{
	struct kernel_write *record, *next;
	unsigned long flags;

	spin_lock_irqsave(&writes_lock, flags);
	memory->ended = true;
	list_for_each_entry_safe(record, next, &memory->writes, node) {
		/* A call that has not returned still has a pointer to its record. */
		record->orphan = record->inside;
		if (record->inside)
			list_move(&record->node, &orphans);
		else
			forget(record);
	}
	spin_unlock_irqrestore(&writes_lock, flags);
}

static struct kretprobe *probes[] = { &slow, &fast };

int tpd_kernel_writes_init(void)
{
	int err;

	err = register_kretprobes(probes, ARRAY_SIZE(probes));
	if (err)
		pr_err("unknown kernel: no probe in get_user_pages (%d)\n", err);
	return err;
}

/* Nothing is tracked any more. */
void tpd_kernel_writes_exit(void)
{
	struct kernel_write *record, *next;

	unregister_kretprobes(probes, ARRAY_SIZE(probes));
	list_for_each_entry_safe(record, next, &orphans, node)
		forget(record);
}
