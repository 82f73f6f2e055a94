// SPDX-License-Identifier: GPL-2.0-only
/*
 * Disables translation of the guest that it runs in, and enables it again; also without
 * disabling it first, as a kernel does that was started by kexec.
 *
 * Invariant: the module is loaded if the kernel's code works at every step, whatever
 * the host answers; its parameter "answers" shows the answers.
 */
#include <linux/init.h>
#include <linux/kernel.h>
#include <linux/kvm_para.h>
#include <linux/module.h>
#include <linux/wait.h>
#include <asm/epapr_hcalls.h>

#include "trapless_bt.h"

/* Same as in the driver. */
#define DATA_PAGE	(-4096UL)
#define CALLS		32

static unsigned int execute;
module_param(execute, uint, 0444);
MODULE_PARM_DESC(execute, "Address of the driver's execute pages");

static char said[64];
static char *answers = said;
module_param(answers, charp, 0444);

static long ask(unsigned long nr, unsigned long pages)
{
	register unsigned long r0 asm("r0") = KVM_SC_MAGIC_R0;
	register unsigned long r3 asm("r3") = DATA_PAGE;
	register unsigned long r4 asm("r4") = execute;
	register unsigned long r5 asm("r5") = pages;
	register unsigned long r11 asm("r11") = KVM_HCALL_TOKEN(nr);

	asm volatile("sc" : "+r" (r0), "+r" (r3), "+r" (r4), "+r" (r5), "+r" (r11) : :
		     "memory", "cc", "xer", "ctr", "lr", "r6", "r7", "r8", "r9", "r10", "r12");
	return r3;
}

/* Run code of the kernel that disables interrupts and enables them again. */
static bool works(void)
{
	DECLARE_WAIT_QUEUE_HEAD_ONSTACK(queue);
	DEFINE_WAIT(entry);
	unsigned int i;

	for (i = 0; i < CALLS; i++) {
		add_wait_queue(&queue, &entry);
		if (list_empty(&queue.head))
			return false;
		remove_wait_queue(&queue, &entry);
		if (!list_empty(&queue.head))
			return false;
	}
	return true;
}

static int __init renew_init(void)
{
	static const struct {
		unsigned long nr;
		unsigned long pages;
	} questions[] = {
		{ KVM_HC_PPC_BT_DISABLE, 0 },
		{ KVM_HC_PPC_BT_ENABLE, TRAPLESS_BT_PAGES },
		{ KVM_HC_PPC_BT_ENABLE, TRAPLESS_BT_PAGES },
		{ KVM_HC_PPC_BT_ENABLE, 0 },
		{ KVM_HC_PPC_BT_DISABLE, 0 },
		{ KVM_HC_PPC_BT_DISABLE, 0 },
		{ KVM_HC_PPC_BT_ENABLE, TRAPLESS_BT_PAGES },
	};
	unsigned int i, length = 0;

	if (!execute)
		return -EINVAL;
	for (i = 0; i < ARRAY_SIZE(questions); i++) {
		length += scnprintf(said + length, sizeof(said) - length, "%s%ld", i ? " " : "",
				    ask(questions[i].nr, questions[i].pages));
		if (!works()) {
			pr_err("the kernel's code is wrong after question %u\n", i);
			return -EINVAL;
		}
	}
	return 0;
}
module_init(renew_init);

static void __exit renew_exit(void)
{
}
module_exit(renew_exit);

MODULE_DESCRIPTION("Test of in-place translation: ended and begun anew");
MODULE_LICENSE("GPL");
