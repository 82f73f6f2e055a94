// SPDX-License-Identifier: GPL-2.0-only
/*
 * Maps pages in the middle of the range of vmalloc(), where nothing else is, and reads them
 * in the address space of whoever asks. It cannot be unloaded: the pages stay mapped.
 *
 *   map       a write maps one more page, 512 GiB behind the one before
 *   read      how many of them are mapped, each read and compared; in the kernel's
 *             context of the task that reads this file
 *   missing   entries of init_mm's top table that the top table of that task has not
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/gfp.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/pgtable.h>
#include <linux/sched.h>

#include "stock_symbols.h"

#define MOST_PAGES	8
#define VALUE(page)	(0x7472617000000000UL + (page))

static struct mm_struct *stock_init_mm;
static struct page *pages[MOST_PAGES];
static unsigned int count;

static unsigned long *place(unsigned int page)
{
	unsigned long middle = (VMALLOC_START >> 1) + (VMALLOC_END >> 1);

	return (void *)((middle & PGDIR_MASK) + page * PGDIR_SIZE);
}

static int set_entry(pte_t *pte, unsigned long address, void *data)
{
	struct page *page = data;

	set_pte_at(stock_init_mm, address, pte, mk_pte(page, PAGE_KERNEL));
	return 0;
}

static int map(const char *value, const struct kernel_param *param)
{
	int rc;

	if (count == MOST_PAGES)
		return -ENOSPC;
	pages[count] = alloc_page(GFP_KERNEL);
	if (!pages[count])
		return -ENOMEM;
	rc = apply_to_page_range(stock_init_mm, (unsigned long)place(count), PAGE_SIZE,
				 set_entry, pages[count]);
	if (rc) {
		__free_page(pages[count]);
		return rc;
	}
	*place(count) = VALUE(count);
	count++;
	return 0;
}

static int read_all(char *buffer, const struct kernel_param *param)
{
	unsigned int i;

	for (i = 0; i < count; i++)
		if (READ_ONCE(*place(i)) != VALUE(i))
			return -EIO;
	return sprintf(buffer, "%u\n", count);
}

static int count_missing(char *buffer, const struct kernel_param *param)
{
	unsigned int i, missing = 0;

	for (i = KERNEL_PGD_BOUNDARY; i < PTRS_PER_PGD; i++)
		missing += !pgd_val(current->mm->pgd[i]) != !pgd_val(stock_init_mm->pgd[i]);
	return sprintf(buffer, "%u\n", missing);
}

static const struct kernel_param_ops map_ops = { .set = map };
static const struct kernel_param_ops read_ops = { .get = read_all };
static const struct kernel_param_ops missing_ops = { .get = count_missing };
module_param_cb(map, &map_ops, NULL, 0200);
module_param_cb(read, &read_ops, NULL, 0444);
module_param_cb(missing, &missing_ops, NULL, 0444);

static int __init vmalloc_far_init(void)
{
	const struct stock_symbol symbol = { "init_mm", &stock_init_mm };

	return stock_symbols_resolve(&symbol, 1);
}

module_init(vmalloc_far_init);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Pages in the middle of the range of vmalloc()");
