// SPDX-License-Identifier: GPL-2.0-only
/*
 * The layout of a VM's traced blocks, as text: recorded while they are split, or set
 * beforehand and then kept, which saves the cost of splitting.
 *
 * Invariant: a layout contains sizes only. Whether an entry is execute-only depends on
 * the sites only (e500_bt_tlb.c), for blocks of any size, so a wrong layout only costs
 * speed. A text is accepted as a whole or refused with nothing changed.
 *
 * The text has a line for each page that has, or had, sites:
 *
 *	<guest-physical page, hexadecimal> <KB, decimal> [traced]
 *
 * The size is the smallest that entries over the page were limited to; "traced" says that
 * the page has sites now. This defines all entries: the entry over any page is the
 * largest one in which no traced page has a smaller size, and it is execute-only if it
 * has a traced page. The output can be used as input; "traced" is then ignored. In a VM
 * whose layout was set, other pages have entries of bt_first_kb, and nothing is split.
 * A guest cannot make the record larger than one line per page of its memory.
 *
 * Locking and lifetime: the file exists from the first vcpu on, and is removed, with all
 * users drained, before the VM is destroyed. The file's writer replaces kvmppc_bt.layout
 * under kvmppc_bt.claim and only while @enabled is not set; the vcpu's thread reads the
 * pointer only while @enabled is set, so for it the layout does not change. The writer
 * also holds kvmppc_bt.layout_lock against the file's reader, which reads sizes
 * concurrently with the vcpu's thread, by RCU: sizes are values, not memory.
 */
#include <linux/ctype.h>
#include <linux/debugfs.h>
#include <linux/kstrtox.h>
#include <linux/kvm_host.h>
#include <linux/log2.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/seq_file.h>
#include <linux/sizes.h>
#include <linux/slab.h>
#include <asm/mmu.h>

#include "e500_bt.h"

/* Some 120,000 pages: all of 256 MiB is a little more than 1 MiB of text. */
#define BT_MAX_TEXT	SZ_2M

/* Guest-physical addresses have 36 bits. */
#define BT_PAGE_BITS	(36 - PAGE_SHIFT)

/* A size that an entry can have, between a page and the largest page of a host. */
bool kvmppc_bt_good_kb(unsigned int kb)
{
	return is_power_of_2(kb) && ilog2(kb) % 2 == 0 && ilog2(kb) >= BOOK3E_PAGESZ_4K &&
	       ilog2(kb) <= BT_LARGEST_TSIZE;
}

static struct bt_layout *make_layout(void)
{
	struct bt_layout *layout = kzalloc(sizeof(*layout), GFP_KERNEL_ACCOUNT);

	if (layout)
		xa_init(&layout->sizes);
	return layout;
}

static void free_layout(struct bt_layout *layout)
{
	if (!layout)
		return;
	xa_destroy(&layout->sizes);
	kfree(layout);
}

/* Returns 0 or -ENOMEM. */
int kvmppc_bt_init_layout(struct kvmppc_bt *bt)
{
	mutex_init(&bt->layout_lock);
	bt->layout = make_layout();
	return bt->layout ? 0 : -ENOMEM;
}

void kvmppc_bt_free_layout(struct kvmppc_bt *bt)
{
	free_layout(bt->layout);
}

/**
 * kvmppc_bt_note_size - record how large entries over a page with sites may be
 * @bt: the VM
 * @gfn: the page
 * @tsize: the size, as in MAS1[TSIZE]
 */
void kvmppc_bt_note_size(struct kvmppc_bt *bt, gfn_t gfn, int tsize)
{
	struct bt_layout *layout = bt->layout;
	void *known = xa_load(&layout->sizes, gfn);

	if (known && xa_to_value(known) <= tsize)
		return;
	if (xa_err(xa_store(&layout->sizes, gfn, xa_mk_value(tsize), GFP_KERNEL_ACCOUNT)))
		WRITE_ONCE(layout->incomplete, true);
}

/**
 * kvmppc_bt_first_size - how large entries over a page may be when it gets its first site
 * @bt: the VM
 * @gfn: the page
 * @otherwise: the size if no layout says so, as in MAS1[TSIZE]
 */
int kvmppc_bt_first_size(struct kvmppc_bt *bt, gfn_t gfn, int otherwise)
{
	void *given = bt->layout->fixed ? xa_load(&bt->layout->sizes, gfn) : NULL;

	return given ? xa_to_value(given) : otherwise;
}

/* Parse a line of a layout. Returns NULL, or what is wrong with it. */
static const char *take_line(struct bt_layout *layout, char *line)
{
	char *page = strsep(&line, " "), *size = strsep(&line, " "), *traced = strsep(&line, " ");
	unsigned long gfn;
	unsigned int kb;

	/* The first character excludes what kstrtoul() accepts besides plain numbers. */
	if (!isxdigit(*page) || kstrtoul(page, 16, &gfn))
		return "the page is not a hexadecimal number";
	if (gfn >> BT_PAGE_BITS)
		return "there is no such page";
	if (!size || !isdigit(*size) || kstrtouint(size, 10, &kb))
		return "the size is not a decimal number";
	if (!kvmppc_bt_good_kb(kb))
		return "the size is not that of a TLB entry, in KB";
	if (line || (traced && strcmp(traced, "traced")))
		return "there is more than a page, a size and \"traced\"";
	switch (xa_insert(&layout->sizes, gfn, xa_mk_value(ilog2(kb)), GFP_KERNEL_ACCOUNT)) {
	case 0:
		return NULL;
	case -EBUSY:
		return "the page is listed twice";
	}
	return "there is no memory for it";
}

/* Parse a text. Returns its layout, or an error. */
static struct bt_layout *parse(char *text)
{
	struct bt_layout *layout = make_layout();
	unsigned int number = 0;
	const char *wrong;

	if (!layout)
		return ERR_PTR(-ENOMEM);
	layout->fixed = true;
	while (text && *text) {
		number++;
		wrong = take_line(layout, strsep(&text, "\n"));
		if (wrong) {
			pr_err("kvm: bt_layout: line %u: %s\n", number, wrong);
			free_layout(layout);
			return ERR_PTR(-EINVAL);
		}
	}
	return layout;
}

/* Set the VM's layout, unless one is in use. Frees the layout that is not kept. */
static int give(struct kvmppc_bt *bt, struct bt_layout *layout)
{
	bool busy;

	mutex_lock(&bt->layout_lock);
	spin_lock(&bt->claim);
	busy = bt->enabled;
	if (!busy)
		swap(bt->layout, layout);
	spin_unlock(&bt->claim);
	mutex_unlock(&bt->layout_lock);
	free_layout(layout);
	return busy ? -EBUSY : 0;
}

static ssize_t layout_write(struct file *file, const char __user *from, size_t count, loff_t *at)
{
	struct kvm *kvm = file_inode(file)->i_private;
	struct bt_layout *layout;
	char *text;
	int r;

	if (*at) {
		pr_err("kvm: bt_layout: it must be one write\n");
		return -EINVAL;
	}
	if (count > BT_MAX_TEXT) {
		pr_err("kvm: bt_layout: %zu bytes are too many\n", count);
		return -EFBIG;
	}
	text = kvzalloc(count + 1, GFP_KERNEL_ACCOUNT);
	if (!text)
		return -ENOMEM;
	if (copy_from_user(text, from, count)) {
		kvfree(text);
		return -EFAULT;
	}
	if (strlen(text) == count) {
		layout = parse(text);
	} else {
		pr_err("kvm: bt_layout: byte %zu is 0\n", strlen(text));
		layout = ERR_PTR(-EINVAL);
	}
	kvfree(text);
	if (IS_ERR(layout))
		return PTR_ERR(layout);
	r = give(kvm->arch.bt, layout);
	if (r)
		return r;
	*at = count;
	return count;
}

static int layout_show(struct seq_file *file, void *unused)
{
	struct kvm *kvm = file->private;
	struct kvmppc_bt *bt = kvm->arch.bt;
	unsigned long gfn;
	void *size;
	int r = 0;

	mutex_lock(&bt->layout_lock);
	xa_for_each(&bt->layout->sizes, gfn, size)
		seq_printf(file, "%lx %lu%s\n", gfn, 1UL << xa_to_value(size),
			   xa_get_mark(&bt->pages, gfn, BT_HAS_SITES) ? " traced" : "");
	if (READ_ONCE(bt->layout->incomplete))
		r = -ENOMEM;
	mutex_unlock(&bt->layout_lock);
	return r;
}

static int layout_open(struct inode *inode, struct file *file)
{
	return single_open(file, layout_show, inode->i_private);
}

static const struct file_operations layout_file = {
	.owner = THIS_MODULE,
	.open = layout_open,
	.read = seq_read,
	.write = layout_write,
	.llseek = seq_lseek,
	.release = single_release,
};

/**
 * kvmppc_bt_show_layout - make the file bt_layout
 * @kvm: the VM, which gets its first vcpu; kvm->lock is held
 */
void kvmppc_bt_show_layout(struct kvm *kvm)
{
	struct kvmppc_bt *bt = kvm->arch.bt;

	/* An earlier first vcpu may have failed after the file was created. */
	if (bt->layout_shown)
		return;
	bt->layout_shown = true;
	debugfs_create_file("bt_layout", 0600, kvm->debugfs_dentry, kvm, &layout_file);
}
