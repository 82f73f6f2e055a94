// SPDX-License-Identifier: GPL-2.0-only
/*
 * The guest's half of in-place translation: it gives the host a data page and
 * execute pages, and does nothing else.
 *
 * The data page is the last page of the address space, where Linux has nothing: the
 * fixmap ends below it. No guest memory is mapped there; the host maps its own. The
 * execute pages are part of the kernel's text, so all of the text is within a branch's
 * reach of them, and they are mapped whenever the text is. Unless the host requests
 * them, by a node in the device tree, they are not used.
 *
 * Modules are out of a branch's reach of those pages. They get execute pages of their
 * own, at the beginning of the modules' area, allocated only if the host has accepted
 * the first ones. These must be mapped whenever a module runs, too, and no TLB miss
 * may occur between a module's instruction and its replacement: so they are mapped by
 * one entry of TLB1, which this driver reserves and which is never replaced. Each processor
 * has a TLB1 of its own: one that starts gets the entry when it comes online, and until then
 * the host has no fragments. Linux starts the others after the first calls of this driver.
 */
#include <linux/cpuhotplug.h>
#include <linux/gfp.h>
#include <linux/init.h>
#include <linux/irqflags.h>
#include <linux/kvm_para.h>
#include <linux/mm.h>
#include <linux/of.h>
#include <linux/printk.h>
#include <linux/sizes.h>
#include <linux/vmalloc.h>
#include <asm/epapr_hcalls.h>
#include <asm/fixmap.h>
#include <asm/io.h>
#include <asm/kvm_para.h>
#include <asm/mmu.h>
#include <asm/reg.h>

#include "trapless_bt.h"

#define DATA_PAGE	(-4096UL)

/* The size of one entry of TLB1: a power of four, in KiB. */
#define MODULES_BYTES	SZ_64K
#define MODULES_TSIZE	BOOK3E_PAGESZ_64K

/*
 * KVM on e500v2 treats a system call of the kernel with this r0 as a hypercall. Returns
 * its status, and in @value what it returns beside that.
 */
static long hypercall(unsigned long nr, unsigned long a, unsigned long b, unsigned long c,
		      unsigned long *value)
{
	register unsigned long r0 asm("r0") = KVM_SC_MAGIC_R0;
	register unsigned long r3 asm("r3") = a;
	register unsigned long r4 asm("r4") = b;
	register unsigned long r5 asm("r5") = c;
	register unsigned long r11 asm("r11") = nr;

	asm volatile("sc" : "+r" (r0), "+r" (r3), "+r" (r4), "+r" (r5), "+r" (r11) : :
		     "memory", "cc", "xer", "ctr", "lr", "r6", "r7", "r8", "r9", "r10", "r12");
	*value = r4;
	return r3;
}

static long __init give(unsigned long ea, unsigned long pages)
{
	unsigned long unused;

	return hypercall(KVM_HCALL_TOKEN(KVM_HC_PPC_BT_ENABLE), DATA_PAGE, ea, pages, &unused);
}

/* For modules: where their execute pages are, and the entry of TLB1 that maps them. */
static unsigned long modules_ea;
static phys_addr_t modules_pa;
static unsigned int modules_entry;

/* A TLB miss changes the MAS registers, but no access here can miss. */
static void write_entry(u32 valid)
{
	unsigned long flags;

	local_irq_save(flags);
	mtspr(SPRN_MAS0, MAS0_TLBSEL(1) | MAS0_ESEL(modules_entry));
	mtspr(SPRN_MAS1, valid | MAS1_TSIZE(MODULES_TSIZE));
	mtspr(SPRN_MAS2, modules_ea | MAS2_M_IF_NEEDED);
	mtspr(SPRN_MAS3, lower_32_bits(modules_pa) | MAS3_SX | MAS3_SR);
	mtspr(SPRN_MAS7, upper_32_bits(modules_pa));
	asm volatile("isync; tlbwe; isync" : : : "memory");
	local_irq_restore(flags);
}

static int map_for_modules(unsigned int cpu)
{
	write_entry(MAS1_VALID | MAS1_IPROT);
	return 0;
}

/*
 * Linux replaces the entries from tlbcam_index on in turn for huge pages, of which there
 * were none yet; it begins with the last entry (mem_init()). A processor that starts clears
 * the entry, as it does all those below tlbcam_index that Linux has nothing for.
 */
static long __init give_for_modules(void)
{
	unsigned int order = get_order(MODULES_BYTES);
	struct vm_struct *area;
	struct page *pages;
	int state;
	long r;

	modules_entry = tlbcam_index;
	if (modules_entry + 1 >= (mfspr(SPRN_TLB1CFG) & TLBnCFG_N_ENTRY))
		return -ENOSPC;
	pages = alloc_pages(GFP_KERNEL | __GFP_ZERO, order);
	if (!pages)
		return -ENOMEM;
	/* With VM_IOREMAP the area is aligned to its size. */
	area = get_vm_area(MODULES_BYTES, VM_IOREMAP);
	if (!area) {
		__free_pages(pages, order);
		return -ENOMEM;
	}
	modules_ea = (unsigned long)area->addr;
	modules_pa = page_to_phys(pages);
	write_entry(MAS1_VALID | MAS1_IPROT);
	tlbcam_index = modules_entry + 1;
	state = cpuhp_setup_state_nocalls(CPUHP_AP_ONLINE_DYN, "virt/trapless:online",
					  map_for_modules, NULL);
	r = state < 0 ? state : give(modules_ea, MODULES_BYTES / PAGE_SIZE);
	if (r) {
		if (state >= 0)
			cpuhp_remove_state_nocalls(state);
		tlbcam_index = modules_entry;
		write_entry(0);
		free_vm_area(area);
		__free_pages(pages, order);
	}
	return r;
}

static bool enabled __initdata;

/*
 * As early as a driver can be called. By the time of early_initcall() an untranslated kernel
 * has made a fifth of all exits of a boot.
 */
static int __init trapless_bt_enable(void)
{
	struct device_node *node;
	unsigned long value;
	long r;

	BUILD_BUG_ON(FIXADDR_TOP > DATA_PAGE);
	node = of_find_compatible_node(NULL, NULL, "trapless,in-place-translation");
	if (!node)
		return 0;
	of_node_put(node);
	r = hypercall(KVM_HCALL_TOKEN(KVM_HC_FEATURES), 0, 0, 0, &value);
	if (r || !(value & 1 << KVM_FEATURE_BT)) {
		pr_info("trapless: the host does not translate in place\n");
		return 0;
	}
	/* Left by an earlier kernel that may not have disabled translation. */
	hypercall(KVM_HCALL_TOKEN(KVM_HC_PPC_BT_DISABLE), 0, 0, 0, &value);
	r = give((unsigned long)trapless_bt_execute, TRAPLESS_BT_PAGES);
	if (r)
		pr_info("trapless: the host refuses to translate in place: %ld\n", r);
	enabled = !r;
	return 0;
}
console_initcall(trapless_bt_enable);

static int __init trapless_bt_enable_for_modules(void)
{
	long r = enabled ? give_for_modules() : 0;

	if (r)
		pr_info("trapless: modules have no execute pages: %ld\n", r);
	return 0;
}
early_initcall(trapless_bt_enable_for_modules);
