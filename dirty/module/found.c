// SPDX-License-Identifier: GPL-2.0-only
/*
 * What a tracker watches, and which pages of it were found written.
 *
 * Found pages are kept by chunks (1 GiB), in each by blocks (2 MiB). A slot of
 * either level holds nothing, the next level, or FOUND_ALL: every page of it. A
 * range that is cut in pieces shares its tpd_found with them: each page belongs
 * to the piece that covers it; bits that no piece covers are garbage.
 *
 * Invariant: a found page stays found until it is taken, forgotten with its range,
 * or dropped right after the range is entered, when the user knows the content.
 * Finding needs no memory: if the next level cannot be allocated, the slot becomes
 * FOUND_ALL. That costs precision, never a page.
 */
#include <linux/refcount.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "tracking.h"

/*
 * Limit for one process, all trackers together: so many ranges may be marked in one
 * go with interrupts off. By default a process cannot have more mappings anyway
 * (vm.max_map_count).
 */
#define RANGES_MAX	65536u

#define CHUNK_BLOCKS	512
#define CHUNK_SIZE	(TPD_BLOCK_SIZE * CHUNK_BLOCKS)

struct block {
	DECLARE_BITMAP(pages, TPD_BLOCK_PAGES);
};

struct chunk {
	struct block *blocks[CHUNK_BLOCKS];
};

/**
 * struct tpd_found - what was found in a range, and in those that it was cut into
 * @users:  how many ranges
 * @first:  index of the first chunk: its address by CHUNK_SIZE
 * @count:  how many chunks
 * @chunks: the slots
 */
struct tpd_found {
	refcount_t users;
	unsigned long first;
	unsigned long count;
	struct chunk *chunks[];
};

#define FOUND_ALL		((void *)1UL)
#define IS_TABLE(slot)		((unsigned long)(slot) > 1UL)
/* Pages are marked under spinlocks, in interrupts, and during memory reclaim. */
#define FOUND_GFP		(GFP_NOWAIT | __GFP_NOMEMALLOC | __GFP_NOWARN | __GFP_ZERO | \
				 __GFP_ACCOUNT)

static void free_chunk(struct chunk *chunk)
{
	unsigned int i;

	if (!IS_TABLE(chunk))
		return;
	for (i = 0; i < CHUNK_BLOCKS; i++)
		if (IS_TABLE(chunk->blocks[i]))
			kfree(chunk->blocks[i]);
	kfree(chunk);
}

static void free_range(struct tpd_range *range)
{
	unsigned long i;

	if (refcount_dec_and_test(&range->found->users)) {
		for (i = 0; i < range->found->count; i++)
			free_chunk(range->found->chunks[i]);
		kvfree(range->found);
	}
	kfree(range);
}

static struct tpd_range *new_range(unsigned long start, unsigned long end)
{
	struct tpd_range *range = kzalloc(sizeof(*range), TPD_GFP);
	unsigned long first = start / CHUNK_SIZE;
	unsigned long count = (end - 1) / CHUNK_SIZE - first + 1;

	if (!range)
		return NULL;
	range->start = start;
	range->end = end;
	range->found = kvzalloc(struct_size(range->found, chunks, count), TPD_GFP);
	if (!range->found) {
		kfree(range);
		return NULL;
	}
	refcount_set(&range->found->users, 1);
	range->found->first = first;
	range->found->count = count;
	return range;
}

static struct chunk **chunk_slot(struct tpd_found *found, unsigned long address)
{
	return &found->chunks[address / CHUNK_SIZE - found->first];
}

static struct block **block_slot(struct chunk *chunk, unsigned long address)
{
	return &chunk->blocks[address / TPD_BLOCK_SIZE % CHUNK_BLOCKS];
}

/* Get or make the block of an address. NULL: it is, or has become, FOUND_ALL. */
static struct block *block_to_mark(struct tpd_found *found, unsigned long address)
{
	struct chunk **chunk = chunk_slot(found, address);
	struct block **block;

	if (!*chunk) {
		*chunk = kmalloc(sizeof(**chunk), FOUND_GFP);
		if (!*chunk)
			*chunk = FOUND_ALL;
	}
	if (!IS_TABLE(*chunk))
		return NULL;
	block = block_slot(*chunk, address);
	if (!*block) {
		*block = kmalloc(sizeof(**block), FOUND_GFP);
		if (!*block)
			*block = FOUND_ALL;
	}
	return IS_TABLE(*block) ? *block : NULL;
}

static unsigned long next_block(unsigned long address)
{
	return (address / TPD_BLOCK_SIZE + 1) * TPD_BLOCK_SIZE;
}

static unsigned long next_chunk(unsigned long address)
{
	return (address / CHUNK_SIZE + 1) * CHUNK_SIZE;
}

static void mark(struct tpd_range *range, unsigned long start, unsigned long end)
{
	start = max(start, range->start);
	end = min(end, range->end);
	while (start < end) {
		unsigned long next = min(end, next_block(start));
		struct block *block;

		if (IS_ALIGNED(start, CHUNK_SIZE) && end - start >= CHUNK_SIZE) {
			struct chunk **chunk = chunk_slot(range->found, start);

			free_chunk(*chunk);
			*chunk = FOUND_ALL;
			start += CHUNK_SIZE;
			continue;
		}
		block = block_to_mark(range->found, start);
		if (block)
			bitmap_set(block->pages, start / PAGE_SIZE % TPD_BLOCK_PAGES,
				   (next - start) / PAGE_SIZE);
		start = next;
	}
}

/*
 * The block of an address, of which only a part is to be cleared. NULL: nothing was
 * found in it, or there is no memory to split it; then all of it stays found.
 */
static struct block *block_to_cut(struct tpd_found *found, unsigned long address)
{
	struct chunk **chunk = chunk_slot(found, address);
	struct block **block;
	unsigned int i;

	if (*chunk == FOUND_ALL) {
		struct chunk *split = kmalloc(sizeof(*split), FOUND_GFP);

		if (!split)
			return NULL;
		for (i = 0; i < CHUNK_BLOCKS; i++)
			split->blocks[i] = FOUND_ALL;
		*chunk = split;
	}
	if (!*chunk)
		return NULL;
	block = block_slot(*chunk, address);
	if (*block == FOUND_ALL) {
		struct block *split = kmalloc(sizeof(*split), FOUND_GFP);

		if (!split)
			return NULL;
		bitmap_fill(split->pages, TPD_BLOCK_PAGES);
		*block = split;
	}
	return *block;
}

/* Pages to report, joined where they touch. */
struct output {
	struct trapless_dirty_range *ranges;
	unsigned int capacity;
	unsigned int count;
};

/* Return: false if there is no room for them. */
static bool put(struct output *output, unsigned long start, unsigned long end)
{
	if (!output->capacity)
		return true;
	if (output->count && output->ranges[output->count - 1].end == start) {
		output->ranges[output->count - 1].end = end;
		return true;
	}
	if (output->count == output->capacity)
		return false;
	output->ranges[output->count++] = (struct trapless_dirty_range){ start, end };
	return true;
}

/*
 * Report and clear the pages of a block from one bit to another. By words: a collect
 * of scattered pages is mostly this. Return: the bit for which there was no room, or
 * @last.
 */
static unsigned long take_bits(unsigned long *pages, unsigned long base, unsigned long first,
			       unsigned long last, struct output *output)
{
	unsigned long at = first;

	while (at < last) {
		unsigned long *word = &pages[at / BITS_PER_LONG];
		unsigned long begin = at / BITS_PER_LONG * BITS_PER_LONG;
		unsigned long next = min(last, begin + BITS_PER_LONG);
		unsigned long left = *word & GENMASK(next - 1 - begin, at - begin);

		while (left) {
			unsigned long from = __ffs(left);
			unsigned long above = ~(left >> from);
			unsigned long count = above ? __ffs(above) : BITS_PER_LONG;
			unsigned long run = GENMASK(from + count - 1, from);
			unsigned long start = base + (begin + from) * PAGE_SIZE;

			if (!put(output, start, start + count * PAGE_SIZE))
				return begin + from;
			*word &= ~run;
			left &= ~run;
		}
		at = next;
	}
	return last;
}

/*
 * Report and clear the found pages of one chunk, from an address to the end of the
 * range. Return: where to continue: the end, the next chunk, or the first page for
 * which there was no room.
 */
static unsigned long take_chunk(struct tpd_range *range, unsigned long at, struct output *output,
				bool *full)
{
	struct chunk **chunk = chunk_slot(range->found, at);
	unsigned long end = min(range->end, next_chunk(at));

	if (!*chunk)
		return end;
	if (*chunk == FOUND_ALL && end - at == CHUNK_SIZE) {
		if (!put(output, at, end))
			goto full;
		*chunk = NULL;
		return end;
	}
	while (at < end) {
		unsigned long next = min(end, next_block(at));
		unsigned long base = at / TPD_BLOCK_SIZE * TPD_BLOCK_SIZE;
		unsigned long last = (next - base) / PAGE_SIZE;
		unsigned long bit = (at - base) / PAGE_SIZE;
		unsigned long stopped;
		struct block *block;

		if (IS_TABLE(*chunk) && next - at == TPD_BLOCK_SIZE &&
		    *block_slot(*chunk, at) == FOUND_ALL) {
			if (!put(output, at, next))
				goto full;
			*block_slot(*chunk, at) = NULL;
			at = next;
			continue;
		}
		block = block_to_cut(range->found, at);
		if (!block) {
			/* FOUND_ALL that cannot be split: reported, but not cleared. */
			if ((*chunk == FOUND_ALL || *block_slot(*chunk, at)) &&
			    !put(output, at, next))
				goto full;
			at = next;
			continue;
		}
		stopped = take_bits(block->pages, base, bit, last, output);
		if (stopped != last) {
			at = base + stopped * PAGE_SIZE;
			goto full;
		}
		at = next;
	}
	return at;
full:
	*full = true;
	return at;
}

/* Index of the first range that ends behind an address. */
static unsigned int first_behind(const struct tpd_tracker *tracker, unsigned long address)
{
	unsigned int low = 0, high = tracker->count;

	while (low < high) {
		unsigned int middle = (low + high) / 2;

		if (tracker->ranges[middle]->end > address)
			high = middle;
		else
			low = middle + 1;
	}
	return low;
}

static void mark_ranges(struct tpd_tracker *tracker, unsigned long start, unsigned long end)
{
	unsigned int i;

	for (i = first_behind(tracker, start);
	     i < tracker->count && tracker->ranges[i]->start < end; i++)
		mark(tracker->ranges[i], start, end);
}

/**
 * tpd_found_locked - as tpd_found(), with memory->lock held
 * @memory: whose
 * @start:  the first address, page-aligned
 * @end:    behind the last
 */
void tpd_found_locked(struct tpd_memory *memory, unsigned long start, unsigned long end)
{
	struct tpd_tracker *tracker;

	list_for_each_entry(tracker, &memory->trackers, node)
		mark_ranges(tracker, start, end);
}

/**
 * tpd_found - pages were written, or may have been: for trackers of all mechanisms
 * @memory: whose
 * @start:  the first address, page-aligned
 * @end:    behind the last
 */
void tpd_found(struct tpd_memory *memory, unsigned long start, unsigned long end)
{
	unsigned long flags;

	spin_lock_irqsave(&memory->lock, flags);
	tpd_found_locked(memory, start, end);
	spin_unlock_irqrestore(&memory->lock, flags);
}

/**
 * tpd_found_by - mark pages again that were taken
 * @tracker: for this tracker only
 * @start:   the first address, page-aligned
 * @end:     behind the last
 */
void tpd_found_by(struct tpd_tracker *tracker, unsigned long start, unsigned long end)
{
	spin_lock_irq(&tracker->memory->lock);
	mark_ranges(tracker, start, end);
	spin_unlock_irq(&tracker->memory->lock);
}

/**
 * tpd_found_page - a page was written
 * @memory:    whose
 * @address:   any in it
 * @mechanism: whose trackers note it
 *
 * Return: whether one of them watches it.
 */
bool tpd_found_page(struct tpd_memory *memory, unsigned long address,
		    const struct tpd_mechanism *mechanism)
{
	struct tpd_tracker *tracker;
	unsigned long flags;
	bool watched = false;

	address &= PAGE_MASK;
	spin_lock_irqsave(&memory->lock, flags);
	list_for_each_entry(tracker, &memory->trackers, node) {
		unsigned int i = first_behind(tracker, address);

		if (tracker->mechanism != mechanism || i == tracker->count ||
		    tracker->ranges[i]->start > address)
			continue;
		mark(tracker->ranges[i], address, address + PAGE_SIZE);
		watched = true;
	}
	spin_unlock_irqrestore(&memory->lock, flags);
	return watched;
}

/**
 * tpd_found_block - pages of one block were written
 * @memory:    whose
 * @base:      the block's first address
 * @pages:     TPD_BLOCK_PAGES bits
 * @mechanism: whose trackers note it
 *
 * Return: whether one of them watches a part of the block.
 */
bool tpd_found_block(struct tpd_memory *memory, unsigned long base,
		     const unsigned long *pages, const struct tpd_mechanism *mechanism)
{
	struct tpd_tracker *tracker;
	unsigned long flags;
	bool watched = false;

	spin_lock_irqsave(&memory->lock, flags);
	list_for_each_entry(tracker, &memory->trackers, node) {
		unsigned int i = first_behind(tracker, base);

		if (tracker->mechanism != mechanism)
			continue;
		/* Bits outside of ranges are garbage and never read. */
		for (; i < tracker->count && tracker->ranges[i]->start < base + TPD_BLOCK_SIZE;
		     i++) {
			struct block *block = block_to_mark(tracker->ranges[i]->found, base);

			watched = true;
			if (block)
				bitmap_or(block->pages, block->pages, pages, TPD_BLOCK_PAGES);
		}
	}
	spin_unlock_irqrestore(&memory->lock, flags);
	return watched;
}

/**
 * tpd_found_all - the log has run over: all that is watched
 * @memory:    whose
 * @mechanism: whose trackers note it
 */
void tpd_found_all(struct tpd_memory *memory, const struct tpd_mechanism *mechanism)
{
	struct tpd_tracker *tracker;
	unsigned long flags;

	spin_lock_irqsave(&memory->lock, flags);
	list_for_each_entry(tracker, &memory->trackers, node) {
		if (tracker->mechanism != mechanism)
			continue;
		mark_ranges(tracker, 0, ULONG_MAX);
		tracker->overrun = true;
		tracker->stats.overruns++;
	}
	spin_unlock_irqrestore(&memory->lock, flags);
}

/* Make room for one more range. */
static int make_room(struct tpd_tracker *tracker)
{
	unsigned int room = max(8U, 2 * tracker->room);
	struct tpd_range **ranges, **old = tracker->ranges;

	if (tracker->memory->ranges == RANGES_MAX)
		return -ENOSPC;
	if (tracker->count < tracker->room)
		return 0;
	ranges = kvcalloc(room, sizeof(*ranges), TPD_GFP);
	if (!ranges)
		return -ENOMEM;
	spin_lock_irq(&tracker->memory->lock);
	if (old)
		memcpy(ranges, old, tracker->count * sizeof(*ranges));
	tracker->ranges = ranges;
	tracker->room = room;
	spin_unlock_irq(&tracker->memory->lock);
	kvfree(old);
	return 0;
}

static void insert(struct tpd_tracker *tracker, unsigned int at, struct tpd_range *range)
{
	memmove(&tracker->ranges[at + 1], &tracker->ranges[at],
		(tracker->count - at) * sizeof(*tracker->ranges));
	tracker->ranges[at] = range;
	tracker->count++;
	tracker->memory->ranges++;
}

static void take_out(struct tpd_tracker *tracker, unsigned int at)
{
	tracker->count--;
	tracker->memory->ranges--;
	memmove(&tracker->ranges[at], &tracker->ranges[at + 1],
		(tracker->count - at) * sizeof(*tracker->ranges));
}

/**
 * tpd_watch - enter a range, with no page marked
 * @tracker: whose
 * @start:   page-aligned
 * @end:     page-aligned, greater
 *
 * Return: 0, -EEXIST if a part of it is watched already, -ENOMEM, -ENOSPC for one
 * range more than RANGES_MAX.
 */
int tpd_watch(struct tpd_tracker *tracker, unsigned long start, unsigned long end)
{
	unsigned int at = first_behind(tracker, start);
	struct tpd_range *range;
	int err;

	if (at < tracker->count && tracker->ranges[at]->start < end)
		return -EEXIST;
	err = make_room(tracker);
	if (err)
		return err;
	range = new_range(start, end);
	if (!range)
		return -ENOMEM;
	spin_lock_irq(&tracker->memory->lock);
	insert(tracker, at, range);
	spin_unlock_irq(&tracker->memory->lock);
	return 0;
}

/**
 * tpd_unwatch - forget a range and what was found there
 * @tracker: whose
 * @start:   page-aligned
 * @end:     page-aligned, greater
 *
 * Return: 0; or -ENOMEM or -ENOSPC, with nothing forgotten, which can happen only
 * when it is cut out of the middle of a range.
 */
int tpd_unwatch(struct tpd_tracker *tracker, unsigned long start, unsigned long end)
{
	unsigned int at = first_behind(tracker, start);
	struct tpd_range *rest = NULL;
	int err;

	if (at < tracker->count && tracker->ranges[at]->start < start &&
	    tracker->ranges[at]->end > end) {
		err = make_room(tracker);
		if (err)
			return err;
		rest = kzalloc(sizeof(*rest), TPD_GFP);
		if (!rest)
			return -ENOMEM;
		rest->start = end;
		rest->end = tracker->ranges[at]->end;
		rest->found = tracker->ranges[at]->found;
		refcount_inc(&rest->found->users);
	}
	while (at < tracker->count && tracker->ranges[at]->start < end) {
		struct tpd_range *range = tracker->ranges[at];
		bool whole = range->start >= start && range->end <= end;

		spin_lock_irq(&tracker->memory->lock);
		if (whole)
			take_out(tracker, at);
		else if (range->start < start)
			range->end = start;
		else
			range->start = end;
		if (rest)
			insert(tracker, at + 1, rest);
		spin_unlock_irq(&tracker->memory->lock);
		if (rest)
			return 0;
		if (whole)
			free_range(range);
		else
			at++;
	}
	return 0;
}

/**
 * tpd_unwatch_all - forget everything
 * @tracker: whose
 */
void tpd_unwatch_all(struct tpd_tracker *tracker)
{
	struct tpd_range **ranges = tracker->ranges;
	unsigned int i, count = tracker->count;

	spin_lock_irq(&tracker->memory->lock);
	tracker->ranges = NULL;
	tracker->count = 0;
	tracker->room = 0;
	tracker->memory->ranges -= count;
	spin_unlock_irq(&tracker->memory->lock);
	for (i = 0; i < count; i++) {
		free_range(ranges[i]);
		cond_resched();
	}
	kvfree(ranges);
}

/**
 * tpd_take - report and forget found pages
 * @tracker:  whose
 * @ranges:   out: found pages from *@from on, sorted, none adjacent to the next
 * @capacity: how many fit; 0: report nothing, forget all
 * @from:     in: where to begin; out: where to continue
 * @to:       where to end
 *
 * Return: how many were stored; fewer than @capacity: that was all.
 */
unsigned int tpd_take(struct tpd_tracker *tracker, struct trapless_dirty_range *ranges,
		      unsigned int capacity, unsigned long *from, unsigned long to)
{
	struct output output = { .ranges = ranges, .capacity = capacity };
	unsigned int i = first_behind(tracker, *from);
	bool full = false;

	for (; i < tracker->count && !full && *from < to; i++) {
		/* A copy that ends at @to at the latest. */
		struct tpd_range range = *tracker->ranges[i];

		range.end = min(range.end, to);
		*from = max(*from, range.start);
		while (*from < range.end && !full) {
			spin_lock_irq(&tracker->memory->lock);
			*from = take_chunk(&range, *from, &output, &full);
			spin_unlock_irq(&tracker->memory->lock);
			cond_resched();
		}
	}
	return output.count;
}
