/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * Entry code of the hooks of tables.c; see direct_hook_entry.S. All hooks share one
 * entry, so that ftrace sets and removes them together: each such operation waits
 * for every task.
 *
 * Invariant: if the pool does not serve or has no page ready, the stock function
 * runs, with nothing changed except a count, after at most 20 additional
 * instructions (PiBooster, section 5.2.2). Both conditions are read without a lock
 * here; tables.c checks them again.
 */
#include <asm/percpu.h>

#include "direct_hook_entry.S"
#include "series_percpu.h"

#define PTE	0	/* enum tpt_level */
#define PMD	1
#define PUD	2
#define PGD	3

	direct_unless	tpt_serve_pte_alloc_one, tpt_pte_alloc_one, 1
	direct_unless	tpt_serve_pmd_alloc, tpt_pmd_alloc, 3, zero=1
	direct_unless	tpt_serve_pud_alloc, tpt_pud_alloc, 3, zero=1
	direct_unless	tpt_serve_pgd_alloc, tpt_pgd_alloc, 1
	direct_unless	tpt_entry_free_table, tpt_free_table, 1
	direct_unless	tpt_entry_pgd_free, tpt_pgd_free, 2
	direct_unless	tpt_entry_pte_free_tlb, tpt_pte_free_tlb, 2
	direct_unless	tpt_entry_pud_free_tlb, tpt_pud_free_tlb, 2

	/* The first miss since the pool grew asks it to grow. */
	.macro alloc entry, serve, level, arguments
SYM_FUNC_START(\entry)
	cmpq	$0, tpt_free + 8 * \level(%rip)
	jne	\serve
	incq	SERIES_PER_CPU(tpt_misses, 8 * \level)
	cmpb	$0, tpt_growth_asked(%rip)
	jne	1f
	direct_save_arguments \arguments
	call	tpt_pool_wants_more
	direct_restore_arguments \arguments
1:	RET
SYM_FUNC_END(\entry)
	.endm

	alloc	tpt_entry_pte_alloc_one, tpt_serve_pte_alloc_one, PTE, 1
	alloc	tpt_entry_pmd_alloc, tpt_serve_pmd_alloc, PMD, 3
	alloc	tpt_entry_pud_alloc, tpt_serve_pud_alloc, PUD, 3
	alloc	tpt_entry_pgd_alloc, tpt_serve_pgd_alloc, PGD, 1

/* The return address into the stock function says which one it is; see tables.c. */
SYM_FUNC_START(tpt_entry)
	cmpb	$0, tpt_serving(%rip)
	je	1f
	movq	(%rsp), %rax
	cmpq	tpt_bodies + 8 * 0(%rip), %rax
	je	tpt_entry_free_table
	cmpq	tpt_bodies + 8 * 1(%rip), %rax
	je	tpt_entry_pgd_free
	cmpq	tpt_bodies + 8 * 2(%rip), %rax
	je	tpt_entry_pte_alloc_one
	cmpq	tpt_bodies + 8 * 3(%rip), %rax
	je	tpt_entry_pmd_alloc
	cmpq	tpt_bodies + 8 * 4(%rip), %rax
	je	tpt_entry_pud_alloc
	cmpq	tpt_bodies + 8 * 5(%rip), %rax
	je	tpt_entry_pgd_alloc
	cmpq	tpt_bodies + 8 * 6(%rip), %rax
	je	tpt_entry_pte_free_tlb
	cmpq	tpt_bodies + 8 * 7(%rip), %rax
	je	tpt_entry_pud_free_tlb
1:	RET
SYM_FUNC_END(tpt_entry)
