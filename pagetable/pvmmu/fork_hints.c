// SPDX-License-Identifier: GPL-2.0-only
/*
 * A page that was copied after a fork, by the child or by its parent, is likely to be
 * copied after the next fork too: a C library's locks, an allocator's state, the page of
 * the stack that a program writes first. Here a few such pages of each area are
 * remembered, and fork_copy.c has fork copy them at once.
 *
 * What is remembered is a guess and nothing more: fork_copy.c judges each page anew.
 *
 *  - A wrong one costs a page that is copied in vain. An area has WAYS at most, all areas
 *    of all processes WAYS << SETS_BITS, and after USES forks those of an area are
 *    forgotten and have to be found again.
 *  - A parent and its children have one place, by the root of their area's reverse map.
 *    Only its address is kept, and never followed: it may be another's by now.
 *  - There is no lock. What two CPUs write at once is a wrong guess at worst.
 *
 * Copies are seen by clear_flush.c: without that part nothing is learnt.
 */
#include <linux/build_bug.h>
#include <linux/hash.h>
#include <linux/mm.h>
#include <linux/pagemap.h>
#include <linux/rmap.h>

#include "copy_range.h"
#include "pvmmu.h"

#define SETS_BITS	8
#define WAYS		FORK_HINTS
#define USES		32

/**
 * struct hints - pages of the areas that have one root
 * @root:  its address; 0 if there are none
 * @uses:  how many forks have used them
 * @next:  which is replaced next
 * @index: the pages, by linear_page_index() + 1; 0 if there is none
 */
struct hints {
	unsigned long root;
	unsigned int uses;
	unsigned int next;
	pgoff_t index[WAYS];
};

static struct hints sets[1 << SETS_BITS];

static unsigned long root_of(const struct vm_area_struct *vma)
{
	return (unsigned long)vma->anon_vma->root;
}

static struct hints *set_of(unsigned long root)
{
	return sets + hash_long(root, SETS_BITS);
}

static void forget(struct hints *set, unsigned long root)
{
	unsigned int i;

	for (i = 0; i < WAYS; i++)
		WRITE_ONCE(set->index[i], 0);
	WRITE_ONCE(set->uses, 0);
	WRITE_ONCE(set->root, root);
}

/**
 * pvmmu_fork_hint - remember a page that is being copied
 * @vma:     its area
 * @address: where it is
 * @pte:     its entry, present
 *
 * A page of a file is copied at its first write, whether there was a fork or not.
 */
void pvmmu_fork_hint(struct vm_area_struct *vma, unsigned long address, pte_t pte)
{
	pgoff_t index = linear_page_index(vma, address) + 1;
	struct hints *set;
	unsigned int i;

	if (!pvmmu_copy_range_is_on(PVMMU_FORK_HINTS) || !vma->anon_vma ||
	    pte_special(pte) || !pfn_valid(pte_pfn(pte)) || !PageAnon(pte_page(pte)))
		return;
	set = set_of(root_of(vma));
	if (READ_ONCE(set->root) != root_of(vma))
		forget(set, root_of(vma));
	for (i = 0; i < WAYS; i++)
		if (READ_ONCE(set->index[i]) == index)
			return;
	i = READ_ONCE(set->next);
	WRITE_ONCE(set->index[i % WAYS], index);
	WRITE_ONCE(set->next, i + 1);
}

/**
 * pvmmu_fork_hints - the pages of an area that are likely to be copied
 * @vma:     the area, with an anon_vma
 * @address: receives where they are
 *
 * Return: how many, at most FORK_HINTS.
 */
unsigned int pvmmu_fork_hints(struct vm_area_struct *vma, unsigned long *address)
{
	struct hints *set = set_of(root_of(vma));
	unsigned int i, uses, found = 0;

	if (READ_ONCE(set->root) != root_of(vma))
		return 0;
	uses = READ_ONCE(set->uses) + 1;
	WRITE_ONCE(set->uses, uses);
	if (uses > USES) {
		forget(set, 0);
		return 0;
	}
	for (i = 0; i < WAYS; i++) {
		pgoff_t index = READ_ONCE(set->index[i]);

		if (index > vma->vm_pgoff && index <= vma->vm_pgoff + vma_pages(vma))
			address[found++] = vma->vm_start +
				((index - 1 - vma->vm_pgoff) << PAGE_SHIFT);
	}
	return found;
}
