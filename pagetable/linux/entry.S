/* SPDX-License-Identifier: GPL-2.0-only */
/* How each hooked function reaches tables.c; see direct_hook_entry.S. */
#include "direct_hook_entry.S"

	direct_unless	tpt_entry_pte_alloc_one, tpt_pte_alloc_one, 1
	direct_unless	tpt_entry_pmd_alloc, tpt_pmd_alloc, 3, zero=1
	direct_unless	tpt_entry_pud_alloc, tpt_pud_alloc, 3, zero=1
	direct_unless	tpt_entry_pgd_alloc, tpt_pgd_alloc, 1
	direct_unless	tpt_entry_pgd_free, tpt_pgd_free, 2
	direct_unless	tpt_entry_free_table, tpt_free_table, 1
