// SPDX-License-Identifier: GPL-2.0-only
/* What tables.c, cache.c and pool.c need and the kernel does not export to modules. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "stock_symbols.h"
#include "trapless.h"

struct tpt_stock tpt_stock;

/**
 * tpt_stock_resolve - find every symbol of struct tpt_stock
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int tpt_stock_resolve(void)
{
	const struct stock_symbol symbols[] = {
		{ "pgd_lock", &tpt_stock.pgd_lock },
		{ "pgd_list", &tpt_stock.pgd_list },
		{ "init_top_pgt", &tpt_stock.init_top_pgt },
		{ "level3_user_vsyscall", &tpt_stock.level3_user_vsyscall },
		{ "init_mm", &tpt_stock.init_mm },
		{ "max_pfn", &tpt_stock.max_pfn },
		{ "tlb_remove_table", &tpt_stock.tlb_remove_table },
		{ "__memcg_kmem_charge_page",
		  &tpt_stock.memcg_kmem_charge_page },
		{ "__memcg_kmem_uncharge_page",
		  &tpt_stock.memcg_kmem_uncharge_page },
#ifdef TPT_NEGATIVE_CONTROL_UNKNOWN_SYMBOL
		{ "trapless_no_such_symbol", &tpt_stock.init_mm },
#endif
	};

	return stock_symbols_resolve(symbols, ARRAY_SIZE(symbols));
}
