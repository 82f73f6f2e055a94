/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * As much of the kernel as found.c asks for, in a program. Locks are nothing: one
 * thread. An allocation without waiting can be made to fail.
 */
#ifndef TRAPLESS_HOST_KERNEL_H
#define TRAPLESS_HOST_KERNEL_H

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t u64;

#define PAGE_SHIFT	12
#define PAGE_SIZE	(1UL << PAGE_SHIFT)
#define PAGE_MASK	(~(PAGE_SIZE - 1))

#define BITS_PER_LONG	64UL
#define BITS_TO_LONGS(bits)	(((bits) + BITS_PER_LONG - 1) / BITS_PER_LONG)
#define DECLARE_BITMAP(name, bits)	unsigned long name[BITS_TO_LONGS(bits)]
#define GENMASK(high, low)	((~0UL << (low)) & (~0UL >> (BITS_PER_LONG - 1 - (high))))

#define min(a, b)	((a) < (b) ? (a) : (b))
#define max(a, b)	((a) > (b) ? (a) : (b))
#define IS_ALIGNED(x, to)	(!((x) & ((to) - 1)))
#define struct_size(p, member, count)	(sizeof(*(p)) + sizeof((p)->member[0]) * (count))
#define container_of(p, type, member)	((type *)((char *)(p) - offsetof(type, member)))

struct list_head {
	struct list_head *next, *prev;
};

#define list_for_each_entry(entry, head, member)				\
	for (entry = container_of((head)->next, typeof(*entry), member);	\
	     &entry->member != (head);						\
	     entry = container_of(entry->member.next, typeof(*entry), member))

/* Only their names are needed. */
struct hlist_node { int unused; };
struct mm_struct;
struct mmu_notifier { int unused; };
struct mutex { int unused; };
struct page;
struct folio;
struct rcu_head { int unused; };
struct task_struct;
typedef struct { int unused; } spinlock_t;
typedef struct { int unused; } pte_t;

#define spin_lock_irq(lock)			((void)(lock))
#define spin_unlock_irq(lock)			((void)(lock))
#define spin_lock_irqsave(lock, flags)		((void)(lock), (flags) = 0)
#define spin_unlock_irqrestore(lock, flags)	((void)(lock), (void)(flags))
#define cond_resched()				((void)0)

typedef unsigned int refcount_t;

#define refcount_set(count, value)	(*(count) = (value))
#define refcount_inc(count)		(++*(count))
#define refcount_dec_and_test(count)	(!--*(count))

#define GFP_NOWAIT		1
#define GFP_KERNEL_ACCOUNT	2
#define __GFP_ACCOUNT		0
#define __GFP_NOMEMALLOC	0
#define __GFP_NOWARN		0
#define __GFP_RETRY_MAYFAIL	0
#define __GFP_ZERO		0

/* Every so many of the allocations without waiting fail, on average; 0: none. */
extern unsigned int failing;
unsigned long next_random(void);

static inline void *kmalloc(size_t size, int flags)
{
	return flags & GFP_NOWAIT && failing && !(next_random() % failing) ? NULL :
	       calloc(1, size);
}

#define kzalloc		kmalloc
#define kvzalloc	kmalloc
#define kvcalloc(count, size, flags)	kmalloc((count) * (size), flags)
#define kfree		free
#define kvfree		free

#define __ffs(word)	((unsigned long)__builtin_ctzl(word))

static inline void bitmap_fill(unsigned long *map, unsigned int bits)
{
	memset(map, 0xff, bits / 8);
}

static inline void bitmap_set(unsigned long *map, unsigned int first, unsigned int count)
{
	for (; count; first++, count--)
		map[first / BITS_PER_LONG] |= 1UL << first % BITS_PER_LONG;
}

static inline void bitmap_or(unsigned long *to, const unsigned long *a, const unsigned long *b,
			     unsigned int bits)
{
	unsigned int i;

	for (i = 0; i < BITS_TO_LONGS(bits); i++)
		to[i] = a[i] | b[i];
}

#endif /* TRAPLESS_HOST_KERNEL_H */
