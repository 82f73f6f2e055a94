// SPDX-License-Identifier: GPL-2.0-only
/*
 * For tests: a kernel thread that borrows a process's memory and writes to it by
 * its addresses, as drivers do that finish a request for a process (vhost, USB
 * gadgets). Each address that root writes to the parameter "store" gets one byte,
 * in the memory of the writing process.
 *
 * The thread is new, so nothing but kthread_use_mm() says whose memory it writes to.
 */
#include <linux/completion.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/sched/mm.h>
#include <linux/uaccess.h>

struct loan {
	struct mm_struct *mm;
	char __user *address;
	int err;
	struct completion done;
};

static int borrow(void *data)
{
	struct loan *loan = data;

	kthread_use_mm(loan->mm);
	loan->err = put_user('b', loan->address);
	kthread_unuse_mm(loan->mm);
	complete(&loan->done);
	return 0;
}

static int store(const char *text, const struct kernel_param *param)
{
	struct loan loan = { .mm = current->mm };
	struct task_struct *thread;
	unsigned long address;
	int err = kstrtoul(text, 0, &address);

	if (err)
		return err;
	init_completion(&loan.done);
	loan.address = (char __user *)address;
	mmget(loan.mm);
	thread = kthread_run(borrow, &loan, "trapless_borrow");
	if (IS_ERR(thread)) {
		err = PTR_ERR(thread);
	} else {
		wait_for_completion(&loan.done);
		err = loan.err;
	}
	mmput(loan.mm);
	return err;
}

static const struct kernel_param_ops store_ops = { .set = store };
module_param_cb(store, &store_ops, NULL, 0200);
MODULE_PARM_DESC(store, "address in the writing process to which a kernel thread stores a byte");

MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("Test: a kernel thread that writes to a borrowed memory");
