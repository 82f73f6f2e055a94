// SPDX-License-Identifier: GPL-2.0-only
/*
 * Symbols that the kernel does not export; without one of them the module does not load.
 * And tracepoints by their names; without one a mechanism does not work.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/string.h>
#include <linux/tracepoint.h>

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

struct search {
	const char *name;
	struct tracepoint *found;
};

static void look_at(struct tracepoint *candidate, void *data)
{
	struct search *search = data;

	if (!strcmp(candidate->name, search->name))
		search->found = candidate;
}

/**
 * tpd_tracepoint - find a tracepoint of the kernel
 * @name: its name
 *
 * Return: the tracepoint, or NULL after naming it.
 */
struct tracepoint *tpd_tracepoint(const char *name)
{
	struct search search = { .name = name };

	for_each_kernel_tracepoint(look_at, &search);
	if (!search.found)
		pr_err("this kernel has no tracepoint %s\n", name);
	return search.found;
}
