// SPDX-License-Identifier: GPL-2.0-only
/* Symbols that the kernel does not export; without one of them the module does not load. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "stock_symbols.h"
#include "tracking.h"

struct tpd_stock tpd_stock;

/**
 * tpd_stock_resolve - find every symbol of struct tpd_stock
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int tpd_stock_resolve(void)
{
	const struct stock_symbol symbols[] = {
		{ "mm_access", &tpd_stock.mm_access },
		{ "flush_tlb_mm_range", &tpd_stock.flush_tlb_mm_range },
		{ "folio_mapcount", &tpd_stock.folio_mapcount },
		{ "lru_add_drain_all", &tpd_stock.lru_add_drain_all },
	};

	return stock_symbols_resolve(symbols, ARRAY_SIZE(symbols));
}
