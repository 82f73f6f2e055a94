// SPDX-License-Identifier: GPL-2.0-only
/* Symbols that the kernel does not export; without one of them the module does not load. */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include "series_memory.h"
#include "stock_symbols.h"
#include "tracking.h"

struct tpd_stock tpd_stock;
struct series_stock series_stock;

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
		SERIES_STOCK_SYMBOLS,
		{ "lru_add_drain_all", &tpd_stock.lru_add_drain_all },
	};

	return stock_symbols_resolve(symbols, ARRAY_SIZE(symbols));
}
