/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What is done as fork copies an area from a parent to its child (copy_range.c), by
 * parts that share the hook: fork.c, fork_entries.c, fork_text.c, fork_copy.c,
 * fork_hints.c.
 */
#ifndef PVMMU_COPY_RANGE_H
#define PVMMU_COPY_RANGE_H

#include <linux/mm.h>

#include "pvmmu.h"

/* Pages of an area that the child gets copies of, at most: of those that are guessed, */
#define FORK_HINTS	8
/* and of the stack and the thread's control block. */
#define FORK_COPIES	(FORK_HINTS + 3)

/**
 * struct fork_copies - pages that the child gets copies of at once
 * @count:   how many
 * @address: where they are
 * @page:    the parent's
 */
struct fork_copies {
	unsigned int count;
	unsigned long address[FORK_COPIES];
	struct page *page[FORK_COPIES];
};

static inline bool is_copied_in_fork(unsigned long address,
				     const struct fork_copies *copies)
{
	unsigned int i;

	for (i = 0; i < copies->count; i++)
		if (copies->address[i] == address)
			return true;
	return false;
}

/* Return: whether any of them is in a range. */
static inline bool has_copies(unsigned long start, unsigned long end,
			      const struct fork_copies *copies)
{
	unsigned int i;

	for (i = 0; i < copies->count; i++)
		if (copies->address[i] >= start && copies->address[i] < end)
			return true;
	return false;
}

/* fork.c */
void pvmmu_fork_protect(struct vm_area_struct *src, const struct fork_copies *copies);

/* fork_copy.c */
void pvmmu_fork_copy_begin(struct vm_area_struct *src, unsigned int parts,
			   struct fork_copies *copies);
void pvmmu_fork_copy_end(const struct fork_copies *copies);

/* fork_entries.c */
int pvmmu_fork_entries(struct vm_area_struct *dst, struct vm_area_struct *src,
		       copy_range_t *stock);

/* fork_hints.c */
unsigned int pvmmu_fork_hints(struct vm_area_struct *vma, unsigned long *address);

/* fork_text.c */
void pvmmu_fork_text(struct vm_area_struct *dst, struct vm_area_struct *src);

#endif /* PVMMU_COPY_RANGE_H */
