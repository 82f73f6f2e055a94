/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Kernel symbols that are not exported to modules, for all guest modules. One
 * missing symbol refuses the module: it means a kernel whose page-table code we
 * have not read.
 */
#ifndef TRAPLESS_STOCK_SYMBOLS_H
#define TRAPLESS_STOCK_SYMBOLS_H

#include <linux/errno.h>
#include <linux/kprobes.h>
#include <linux/printk.h>

/**
 * struct stock_symbol - a symbol and the pointer for its address
 * @name: as in /proc/kallsyms
 * @slot: the pointer to set
 */
struct stock_symbol {
	const char *name;
	void *slot;
};

typedef unsigned long kallsyms_lookup_name_t(const char *name);

/*
 * A kprobe gets the address of any function from the kernel, this one included. The
 * probe is never armed: to disarm it takes memory, and without that it would stay
 * in the kernel's lists for good. Asked once a file: each time it waits for all
 * CPUs.
 */
static inline kallsyms_lookup_name_t *find_kallsyms_lookup_name(void)
{
	static kallsyms_lookup_name_t *found;
	struct kprobe probe = {
		.symbol_name = "kallsyms_lookup_name",
		.flags = KPROBE_FLAG_DISABLED,
	};

	if (!found && !register_kprobe(&probe)) {
		found = (void *)probe.addr;
		unregister_kprobe(&probe);
	}
	return found;
}

/**
 * stock_symbols_resolve - set the slots of all symbols
 * @symbols: the symbols
 * @count:   how many
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
static inline int stock_symbols_resolve(const struct stock_symbol *symbols,
					 unsigned int count)
{
	kallsyms_lookup_name_t *lookup = find_kallsyms_lookup_name();
	unsigned int i;

	if (!lookup) {
		pr_err("this kernel does not let a kprobe find kallsyms_lookup_name\n");
		return -ENOENT;
	}
	for (i = 0; i < count; i++) {
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

#endif /* TRAPLESS_STOCK_SYMBOLS_H */
