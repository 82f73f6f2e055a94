// SPDX-License-Identifier: GPL-2.0-only
/*
 * Kernel symbols that tables.c and cache.c need and the kernel does not export
 * to modules. One missing symbol refuses the module: it means a kernel whose
 * page-table code we have not read.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/errno.h>
#include <linux/kprobes.h>
#include <linux/printk.h>

#include "trapless.h"

struct tpt_stock tpt_stock;

/* The kernel tells a kprobe the address of any function, this one included. */
static unsigned long (*find_kallsyms_lookup_name(void))(const char *name)
{
	struct kprobe probe = { .symbol_name = "kallsyms_lookup_name" };
	void *address;

	if (register_kprobe(&probe))
		return NULL;
	address = probe.addr;
	unregister_kprobe(&probe);
	return address;
}

/**
 * tpt_stock_resolve - find every symbol of struct tpt_stock
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int tpt_stock_resolve(void)
{
	const struct {
		const char *name;
		void *slot;
	} symbols[] = {
		{ "pgd_lock", &tpt_stock.pgd_lock },
		{ "pgd_list", &tpt_stock.pgd_list },
		{ "init_top_pgt", &tpt_stock.init_top_pgt },
		{ "level3_user_vsyscall", &tpt_stock.level3_user_vsyscall },
		{ "init_mm", &tpt_stock.init_mm },
		{ "huge_zero_page", &tpt_stock.huge_zero_page },
		{ "free_swap_cache", &tpt_stock.free_swap_cache },
		{ "__memcg_kmem_charge_page",
		  &tpt_stock.memcg_kmem_charge_page },
		{ "__memcg_kmem_uncharge_page",
		  &tpt_stock.memcg_kmem_uncharge_page },
#ifdef TPT_NEGATIVE_CONTROL_UNKNOWN_SYMBOL
		{ "trapless_no_such_symbol", &tpt_stock.init_mm },
#endif
	};
	unsigned long (*lookup)(const char *name) = find_kallsyms_lookup_name();
	unsigned int i;

	if (!lookup) {
		pr_err("this kernel does not let a kprobe find kallsyms_lookup_name\n");
		return -ENOENT;
	}
	for (i = 0; i < ARRAY_SIZE(symbols); i++) {
		unsigned long address = lookup(symbols[i].name);

		if (!address) {
			pr_err("unknown kernel: no symbol %s\n",
			       symbols[i].name);
			return -ENOENT;
		}
		*(unsigned long *)symbols[i].slot = address;
	}
	return 0;
}
