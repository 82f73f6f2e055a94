// SPDX-License-Identifier: GPL-2.0-only
/*
 * ptep_clear_flush() exchanges the entry for zero, which traps, and then asks
 * Xen for a flush. Where nobody else can change the entry, one hypercall does
 * both; that is every copy of a page on write.
 *
 * Invariant: the value returned is what the entry last was, but for the accessed
 * bit. The caller holds the table's lock, so only the hardware can write the
 * entry, and in one that is present and not writable it can set nothing but the
 * accessed bit, a hint that is lost. Any other entry takes the stock path.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/sched.h>

#include <asm/paravirt.h>
#include <asm/xen/hypercall.h>
#include <asm/xen/page.h>

#include <xen/interface/xen.h>

#include "stock_symbols.h"
#include "pvmmu.h"

static enum paravirt_lazy_mode (*stock_get_lazy_mode)(void);

/**
 * pvmmu_clear_flush_resolve - find the stock function needed here
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_clear_flush_resolve(void)
{
	const struct stock_symbol symbol = { "paravirt_get_lazy_mode",
					     &stock_get_lazy_mode };

	return stock_symbols_resolve(&symbol, 1);
}

typedef pte_t clear_flush_t(struct vm_area_struct *vma, unsigned long address,
			    pte_t *ptep);

/* Do the CPU's page tables, and its TLB alone, hold what @ptep says? */
static bool only_here(struct mm_struct *mm, pte_t *ptep)
{
	return mm == current->mm && PagePinned(virt_to_page(ptep)) &&
	       cpumask_any_but(mm_cpumask(mm), smp_processor_id()) >=
		       nr_cpu_ids;
}

/* Called by entry.S with the arguments of ptep_clear_flush(). */
clear_flush_t pvmmu_clear_flush;
pte_t pvmmu_clear_flush(struct vm_area_struct *vma, unsigned long address,
			pte_t *ptep)
{
	clear_flush_t *stock = (clear_flush_t *)pvmmu_hook_clear_flush.body;
	pte_t pte = READ_ONCE(*ptep);

	if ((pte_flags(pte) & (_PAGE_PRESENT | _PAGE_RW)) != _PAGE_PRESENT ||
	    !only_here(vma->vm_mm, ptep) ||
	    stock_get_lazy_mode() != PARAVIRT_LAZY_NONE ||
	    HYPERVISOR_update_va_mapping(address & PAGE_MASK, __pte_ma(0),
					 UVMF_INVLPG | UVMF_LOCAL))
		return stock(vma, address, ptep);
	return pte;
}
