// SPDX-License-Identifier: GPL-2.0-only
/*
 * ptep_clear_flush() exchanges the entry for zero, which traps, and then requests
 * a flush from Xen. If no other code can change the entry, one hypercall does both;
 * that is the case at every copy-on-write.
 *
 * Invariant: the value returned is the entry's last value, except for the accessed
 * bit. The caller holds the table's lock, so only the hardware can write the
 * entry, and in a present entry without write permission it can set only the
 * accessed bit, a hint that is lost. Any other entry takes the stock path.
 *
 * The set of CPUs whose TLBs may hold the entry is read after the entry is cleared.
 * A CPU that switches to the address space meanwhile sets its bit in mm_cpumask()
 * before it loads the page tables: either we see its bit, or its page walk finds
 * the entry cleared.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/mm.h>
#include <linux/pgtable.h>
#include <linux/sched.h>

#include <asm/xen/hypercall.h>
#include <asm/xen/page.h>

#include <xen/interface/xen.h>

#include "direct_hook.h"
#include "permission.h"
#include "pvmmu.h"
#include "series_lazy.h"
#include "series_mmu.h"

static series_lazy_t *stock_get_lazy_mode;
static void (*stock_flush_tlb_mm_range)(struct mm_struct *mm,
					unsigned long start, unsigned long end,
					unsigned int stride_shift,
					bool freed_tables);

/**
 * pvmmu_clear_flush_resolve - find the stock functions needed here
 *
 * Return: 0, or -ENOENT after naming what is missing.
 */
int pvmmu_clear_flush_resolve(void)
{
	const struct stock_symbol symbols[] = {
		{ SERIES_LAZY_SYMBOL, &stock_get_lazy_mode },
		{ "flush_tlb_mm_range", &stock_flush_tlb_mm_range },
	};

	return stock_symbols_resolve(symbols, ARRAY_SIZE(symbols));
}

typedef pte_t clear_flush_t(struct vm_area_struct *vma, unsigned long address,
			    pte_t *ptep);

static bool is_elsewhere(struct mm_struct *mm)
{
	return cpumask_any_but(mm_cpumask(mm), smp_processor_id()) <
	       nr_cpu_ids;
}

/* Called by entry.S with the arguments of ptep_clear_flush(). */
clear_flush_t pvmmu_clear_flush;
pte_t pvmmu_clear_flush(struct vm_area_struct *vma, unsigned long address,
			pte_t *ptep)
{
	clear_flush_t *stock = (clear_flush_t *)pvmmu_hook_clear_flush.body;
	struct mm_struct *mm = vma->vm_mm;
	pte_t pte = READ_ONCE(*ptep);

	address &= PAGE_MASK;
	if (is_protected(pte) && mm == current->mm)
		pvmmu_fork_hint(vma, address, pte);
	/* If other CPUs use the mm, stock flushes once and we would flush twice. */
	if (!is_protected(pte) || mm != current->mm || is_elsewhere(mm) ||
	    series_flush_is_heard(mm) || !PagePinned(virt_to_page(ptep)) ||
	    stock_get_lazy_mode() != SERIES_LAZY_NONE ||
	    HYPERVISOR_update_va_mapping(address, __pte_ma(0),
					 UVMF_INVLPG | UVMF_LOCAL))
		return stock(vma, address, ptep);

	smp_mb(); /* the entry cleared before the mask is read: see above */
	if (is_elsewhere(mm))
		stock_flush_tlb_mm_range(mm, address, address + PAGE_SIZE,
					 PAGE_SHIFT, false);
	return pte;
}
