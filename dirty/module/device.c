// SPDX-License-Identifier: GPL-2.0-only
/*
 * /dev/trapless_dirty: what ../abi/trapless_dirty.h describes. Nothing from user
 * space is trusted here.
 *
 * Invariant: a tracker can be used only through the open file that attached it, and
 * ends with it. Whether the caller may track a process is checked at ATTACH, for the mm
 * that the process has then. A program that it executes later has another mm, which is
 * never read.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/device.h>
#include <linux/fs.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/pid.h>
#include <linux/ptrace.h>
#include <linux/sched/mm.h>
#include <linux/slab.h>
#include <linux/sysfs.h>
#include <linux/uaccess.h>

#include <asm/tlbflush.h>

#include "tracking.h"

/* Ranges that one READ takes at a time. */
#define READ_STEP	256u

static const struct tpd_mechanism *const mechanisms[] = {
	[TRAPLESS_DIRTY_DBIT] = &tpd_dbit,
	[TRAPLESS_DIRTY_SPML] = &tpd_spml,
	[TRAPLESS_DIRTY_EPML] = &tpd_epml,
};

/* Bit 1 << mechanism: it works here. Constant once the device is registered. */
static u32 present;

/**
 * struct opened - an open file
 * @lock:    one ioctl at a time; outside of all other locks
 * @tracker: NULL before ATTACH
 */
struct opened {
	struct mutex lock;
	struct tpd_tracker *tracker;
};

static int device_open(struct inode *inode, struct file *file)
{
	struct opened *opened = kzalloc(sizeof(*opened), TPD_GFP);

	if (!opened)
		return -ENOMEM;
	mutex_init(&opened->lock);
	file->private_data = opened;
	return nonseekable_open(inode, file);
}

static int device_release(struct inode *inode, struct file *file)
{
	struct opened *opened = file->private_data;

	if (opened->tracker)
		tpd_detach(opened->tracker);
	kfree(opened);
	return 0;
}

static int get_info(void __user *user)
{
	const struct trapless_dirty_info info = {
		.abi = TRAPLESS_DIRTY_ABI,
		.mechanisms = present,
	};

	return copy_to_user(user, &info, sizeof(info)) ? -EFAULT : 0;
}

/* Get the mm of a process, with a user of it, if the caller may trace it. */
static struct mm_struct *traceable_memory(pid_t number)
{
	struct pid *pid = find_get_pid(number);
	struct task_struct *task = get_pid_task(pid, PIDTYPE_PID);
	struct mm_struct *mm;

	put_pid(pid);
	if (!task)
		return ERR_PTR(-ESRCH);
	mm = tpd_stock.mm_access(task, PTRACE_MODE_ATTACH_REALCREDS);
	put_task_struct(task);
	return mm ?: ERR_PTR(-ESRCH);
}

static int attach(struct opened *opened, void __user *user)
{
	struct trapless_dirty_attach arguments;
	struct tpd_tracker *tracker;
	struct mm_struct *mm;

	if (opened->tracker)
		return -EBUSY;
	if (copy_from_user(&arguments, user, sizeof(arguments)))
		return -EFAULT;
	if (arguments.pid <= 0 || arguments.mechanism >= ARRAY_SIZE(mechanisms))
		return -EINVAL;
	if (!(present & BIT(arguments.mechanism)))
		return -EOPNOTSUPP;
	mm = traceable_memory(arguments.pid);
	if (IS_ERR(mm))
		return PTR_ERR(mm);
	tracker = tpd_attach(mm, mechanisms[arguments.mechanism]);
	mmput(mm);
	if (IS_ERR(tracker))
		return PTR_ERR(tracker);
	opened->tracker = tracker;
	return 0;
}

static int get_range(struct trapless_dirty_range *range, void __user *user)
{
	if (copy_from_user(range, user, sizeof(*range)))
		return -EFAULT;
	if (!PAGE_ALIGNED(range->start | range->end) || range->start >= range->end ||
	    range->end > TASK_SIZE_MAX)
		return -EINVAL;
	return 0;
}

/* Take what a walk needs: a user of the mm, harvest, mmap_lock. */
static int enter(struct tpd_memory *memory)
{
	int err = -EINTR;

	if (!mmget_not_zero(memory->mm))
		return -ESRCH;
	if (mutex_lock_killable(&memory->harvest))
		goto put;
	if (!mmap_read_lock_killable(memory->mm))
		return 0;
	mutex_unlock(&memory->harvest);
put:
	mmput(memory->mm);
	return err;
}

static void leave(struct tpd_memory *memory)
{
	mmap_read_unlock(memory->mm);
	mutex_unlock(&memory->harvest);
	mmput(memory->mm);
}

/* Before pages are returned to user space: no TLB has an entry that was cleared. */
static void flush_stale(struct tpd_memory *memory)
{
	bool stale;

	spin_lock_irq(&memory->lock);
	stale = memory->stale;
	memory->stale = false;
	spin_unlock_irq(&memory->lock);
	if (stale)
		tpd_stock.flush_tlb_mm_range(memory->mm, 0, TLB_FLUSH_ALL, 0, false);
}

static int watch(struct tpd_tracker *tracker, void __user *user)
{
	struct tpd_memory *memory = tracker->memory;
	struct trapless_dirty_range range;
	unsigned long from;
	int err;

	err = get_range(&range, user);
	if (err)
		return err;
	/* References of these batches would look like I/O. */
	tpd_stock.lru_add_drain_all();
	err = enter(memory);
	if (err)
		return err;
	if (tpd_secondary_came(memory)) {
		err = -EOPNOTSUPP;
		goto out;
	}
	err = tpd_watch(tracker, range.start, range.end);
	if (err)
		goto out;
	err = tracker->mechanism->arm(tracker, range.start, range.end);
	if (!err)
		err = tpd_kernel_writes_watch(memory, range.start, range.end);
	if (err) {
		/* The range was entered as a whole, so no other is cut. */
		tpd_unwatch(tracker, range.start, range.end);
		goto out;
	}
	/* The user knows what the range holds now: forget what arming found. */
	from = range.start;
	tpd_take(tracker, NULL, 0, &from, range.end);
	flush_stale(memory);
out:
	leave(memory);
	return err;
}

static int unwatch(struct tpd_tracker *tracker, void __user *user)
{
	struct trapless_dirty_range range;
	int err;

	err = get_range(&range, user);
	if (err)
		return err;
	if (mutex_lock_killable(&tracker->memory->harvest))
		return -EINTR;
	err = tpd_unwatch(tracker, range.start, range.end);
	mutex_unlock(&tracker->memory->harvest);
	return err;
}

static int collect(struct tpd_tracker *tracker, void __user *user)
{
	struct trapless_dirty_collect result = { 0 };
	struct tpd_memory *memory = tracker->memory;
	int err;

	err = enter(memory);
	if (err)
		return err;
	if (tpd_secondary_came(memory))
		tpd_found(memory, 0, ULONG_MAX & PAGE_MASK);
	tpd_kernel_writes_collect(memory);
	err = tracker->mechanism->collect(tracker);
	tpd_found_active(memory);
	if (!err) {
		spin_lock_irq(&memory->lock);
		if (tracker->overrun)
			result.flags |= TRAPLESS_DIRTY_OVERRUN;
		tracker->overrun = false;
		spin_unlock_irq(&memory->lock);
	}
	leave(memory);
	if (err)
		return err;
	/* After EFAULT the pages stay found; only the flags are lost. */
	return copy_to_user(user, &result, sizeof(result)) ? -EFAULT : 0;
}

/*
 * Take ranges to which no processor writes through a stale TLB entry: no harvest is in
 * progress, and entries that the kernel cleared are flushed.
 */
static int take(struct tpd_tracker *tracker, struct trapless_dirty_range *ranges,
		unsigned int capacity, unsigned long *from, unsigned int *count)
{
	if (mutex_lock_killable(&tracker->memory->harvest))
		return -EINTR;
	*count = tpd_take(tracker, ranges, capacity, from, ULONG_MAX);
	flush_stale(tracker->memory);
	mutex_unlock(&tracker->memory->harvest);
	return 0;
}

static void put_back(struct tpd_tracker *tracker, const struct trapless_dirty_range *ranges,
		     unsigned int count)
{
	unsigned int i;

	for (i = 0; i < count; i++)
		tpd_found_by(tracker, ranges[i].start, ranges[i].end);
}

/* User memory is accessed under the file's lock only: a fault may block for ever. */
static int copy_found(struct tpd_tracker *tracker, struct trapless_dirty_read *read,
		      struct trapless_dirty_range *ranges)
{
	struct trapless_dirty_range __user *user = u64_to_user_ptr(read->ranges);
	unsigned long from = 0;

	while (read->count < read->capacity) {
		unsigned int count, step = min(read->capacity - read->count, READ_STEP);
		int err = take(tracker, ranges, step, &from, &count);

		if (err)
			return err;
		if (copy_to_user(user + read->count, ranges, count * sizeof(*ranges))) {
			put_back(tracker, ranges, count);
			return -EFAULT;
		}
		read->count += count;
		if (count < step)
			return 0;
	}
	return 0;
}

static int read_found(struct tpd_tracker *tracker, void __user *user)
{
	struct trapless_dirty_range *ranges;
	struct trapless_dirty_read read;
	int err;

	if (copy_from_user(&read, user, sizeof(read)))
		return -EFAULT;
	if (!read.capacity)
		return -EINVAL;
	read.count = 0;
	/* Not charged to the cgroup, so a caller at its limit can still read results. */
	ranges = kmalloc_array(READ_STEP, sizeof(*ranges), TPD_GFP & ~__GFP_ACCOUNT);
	if (!ranges)
		return -ENOMEM;
	err = copy_found(tracker, &read, ranges);
	kfree(ranges);
	/* After an error too: the user must know how many were stored, and so forgotten. */
	if (copy_to_user(user, &read, sizeof(read)))
		return -EFAULT;
	return err;
}

static int get_stats(struct tpd_tracker *tracker, void __user *user)
{
	struct trapless_dirty_stats stats;

	spin_lock_irq(&tracker->memory->lock);
	stats = tracker->stats;
	spin_unlock_irq(&tracker->memory->lock);
	return copy_to_user(user, &stats, sizeof(stats)) ? -EFAULT : 0;
}

static long attached_ioctl(struct tpd_tracker *tracker, unsigned int command, void __user *user)
{
	if (!tracker)
		return -ENOTCONN;
	switch (command) {
	case TRAPLESS_DIRTY_WATCH:
		return watch(tracker, user);
	case TRAPLESS_DIRTY_UNWATCH:
		return unwatch(tracker, user);
	case TRAPLESS_DIRTY_COLLECT:
		return collect(tracker, user);
	case TRAPLESS_DIRTY_READ:
		return read_found(tracker, user);
	default:
		return get_stats(tracker, user);
	}
}

static long device_ioctl(struct file *file, unsigned int command, unsigned long argument)
{
	struct opened *opened = file->private_data;
	void __user *user = (void __user *)argument;
	long err;

	switch (command) {
	case TRAPLESS_DIRTY_GET_INFO:
		return get_info(user);
	case TRAPLESS_DIRTY_ATTACH:
	case TRAPLESS_DIRTY_WATCH:
	case TRAPLESS_DIRTY_UNWATCH:
	case TRAPLESS_DIRTY_COLLECT:
	case TRAPLESS_DIRTY_READ:
	case TRAPLESS_DIRTY_GET_STATS:
		break;
	default:
		return -ENOTTY;
	}
	if (mutex_lock_killable(&opened->lock))
		return -EINTR;
	if (command == TRAPLESS_DIRTY_ATTACH)
		err = attach(opened, user);
	else
		err = attached_ioctl(opened->tracker, command, user);
	mutex_unlock(&opened->lock);
	return err;
}

static const struct file_operations operations = {
	.owner = THIS_MODULE,
	.open = device_open,
	.release = device_release,
	.unlocked_ioctl = device_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
};

static ssize_t left_out_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return tpd_left_out_show(buf);
}
static DEVICE_ATTR_RO(left_out);

static struct attribute *device_attrs[] = { &dev_attr_left_out.attr, NULL };
ATTRIBUTE_GROUPS(device);

/* Open to all users: ATTACH checks whether the caller may trace the process. */
static struct miscdevice device = {
	.minor = MISC_DYNAMIC_MINOR,
	.name = KBUILD_MODNAME,
	.fops = &operations,
	.groups = device_groups,
	.mode = 0666,
};

static void remove_mechanisms(void)
{
	unsigned int i;

	for (i = 0; i < ARRAY_SIZE(mechanisms); i++)
		if (present & BIT(i))
			mechanisms[i]->remove();
}

static int __init trapless_dirty_init(void)
{
	unsigned int i;
	int err;

	err = tpd_stock_resolve();
	if (err)
		return err;
	for (i = 0; i < ARRAY_SIZE(mechanisms); i++)
		if (!mechanisms[i]->probe())
			present |= BIT(i);
	if (!present) {
		pr_err("no mechanism works on this machine\n");
		return -ENODEV;
	}
	err = tpd_known_check();
	if (err)
		goto remove;
	for (i = 0; i < ARRAY_SIZE(mechanisms); i++)
		if (present & BIT(i) && tpd_is_left_out(mechanisms[i]->name)) {
			mechanisms[i]->remove();
			present &= ~BIT(i);
		}
	/* What is left out may be all: then the device is there to say so. */
	if (!present)
		return misc_register(&device);
	err = tpd_kernel_writes_init();
	if (err)
		goto remove;
	err = tpd_secondary_init();
	if (err)
		goto writes;
	err = misc_register(&device);
	if (!err)
		return 0;
	tpd_secondary_exit();
writes:
	tpd_kernel_writes_exit();
remove:
	remove_mechanisms();
	return err;
}

static void __exit trapless_dirty_exit(void)
{
	misc_deregister(&device);
	/* No file is open, so no memory is tracked. Wait for what is freed with a delay. */
	tpd_memory_exit();
	if (present) {
		tpd_secondary_exit();
		tpd_kernel_writes_exit();
	}
	tpd_lookup_exit();
	remove_mechanisms();
}

module_init(trapless_dirty_init);
module_exit(trapless_dirty_exit);

MODULE_DESCRIPTION("Which pages of a process were written");
MODULE_AUTHOR("trapless");
MODULE_LICENSE("GPL");
