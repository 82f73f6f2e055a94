/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * How the hooked functions reach tables.c; see direct_hook_entry.S. All arrive at
 * one place, so that the kernel brings them in and takes them out together: each
 * time it has to wait for every task.
 */
#include "direct_hook_entry.S"

	direct_unless	tpt_entry_pte_alloc_one, tpt_pte_alloc_one, 1
	direct_unless	tpt_entry_free_table, tpt_free_table, 1
	direct_unless	tpt_entry_pmd_alloc, tpt_pmd_alloc, 3, zero=1
	direct_unless	tpt_entry_pud_alloc, tpt_pud_alloc, 3, zero=1
	direct_unless	tpt_entry_pgd_alloc, tpt_pgd_alloc, 1
	direct_unless	tpt_entry_pgd_free, tpt_pgd_free, 2

/* The stock function behind the hook says which one it is; see tables.c. */
SYM_FUNC_START(tpt_entry)
	movq	(%rsp), %rax
	cmpq	tpt_bodies + 8 * 0(%rip), %rax
	je	tpt_entry_pte_alloc_one
	cmpq	tpt_bodies + 8 * 1(%rip), %rax
	je	tpt_entry_free_table
	cmpq	tpt_bodies + 8 * 2(%rip), %rax
	je	tpt_entry_pmd_alloc
	cmpq	tpt_bodies + 8 * 3(%rip), %rax
	je	tpt_entry_pud_alloc
	cmpq	tpt_bodies + 8 * 4(%rip), %rax
	je	tpt_entry_pgd_alloc
	cmpq	tpt_bodies + 8 * 5(%rip), %rax
	je	tpt_entry_pgd_free
	RET
SYM_FUNC_END(tpt_entry)
