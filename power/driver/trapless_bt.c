// SPDX-License-Identifier: GPL-2.0-only
/*
 * The guest's half of in-place translation: it gives the host a data page and
 * execute pages, and does nothing else.
 *
 * The data page is the last page of the address space, where Linux has nothing: the
 * fixmap ends below it. It has no memory of the guest's; the host puts
 * its own there. The execute pages are part of the kernel's text, so they are
 * within a branch's reach of all of it and mapped whenever it is. Without a host
 * that asks for them, by a node in the device tree, they are never touched.
 */
#include <linux/init.h>
#include <linux/kvm_para.h>
#include <linux/mm.h>
#include <linux/of.h>
#include <linux/printk.h>
#include <asm/epapr_hcalls.h>
#include <asm/fixmap.h>
#include <asm/kvm_para.h>

#include "trapless_bt.h"

#define DATA_PAGE	(-4096UL)
/* KVM on e500v2 takes a system call of the kernel with this r0 for a hypercall. */
static long hypercall(unsigned long nr, unsigned long a, unsigned long b, unsigned long c)
{
	register unsigned long r0 asm("r0") = KVM_SC_MAGIC_R0;
	register unsigned long r3 asm("r3") = a;
	register unsigned long r4 asm("r4") = b;
	register unsigned long r5 asm("r5") = c;
	register unsigned long r11 asm("r11") = nr;

	asm volatile("sc" : "+r" (r0), "+r" (r3), "+r" (r4), "+r" (r5), "+r" (r11) : :
		     "memory", "cc", "xer", "ctr", "lr", "r6", "r7", "r8", "r9", "r10", "r12");
	return r3;
}

static int __init trapless_bt_init(void)
{
	struct device_node *node;
	long r;

	BUILD_BUG_ON(FIXADDR_TOP > DATA_PAGE);
	node = of_find_compatible_node(NULL, NULL, "trapless,in-place-translation");
	if (!node)
		return 0;
	of_node_put(node);
	r = hypercall(KVM_HCALL_TOKEN(KVM_HC_PPC_BT_ENABLE), DATA_PAGE,
		      (unsigned long)trapless_bt_execute, TRAPLESS_BT_PAGES);
	if (r)
		pr_info("trapless: the host does not translate in place: %ld\n", r);
	return 0;
}
early_initcall(trapless_bt_init);
