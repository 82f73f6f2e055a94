// SPDX-License-Identifier: GPL-2.0-only
/*
 * One page and a real device that writes into it: is the page within the
 * device's reach? Driven from the shell, so that the machine's own trace can
 * be read step by step:
 *
 *   echo mark | release | read > /sys/module/dma_gate/parameters/do
 *   cat /sys/module/dma_gate/parameters/result
 *
 * "read" fills the page with a pattern, reads a disk block into it by DMA and
 * compares every byte: "written" if the whole block arrived (the disk holds
 * another pattern), "blocked" if no byte changed, "torn" for all else.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/bio.h>
#include <linux/mm.h>
#include <linux/module.h>

#include <asm/xen/page.h>
#include <xen/xen.h>

#include "call.h"
#include "series_disk.h"

#define UNTOUCHED	0xaa
#define ON_DISK		0x5a	/* what the lab fills the disk with */

static char *disk = "/dev/sda";
module_param(disk, charp, 0444);
MODULE_PARM_DESC(disk, "block device, every byte of it 0x5a");

static struct series_disk *opened;
static struct page *page;
static const char *result = "none";

/*
 * A device that is refused may report the transfer as done or as failed; only
 * the memory shows what it did, so the I/O status is shown and not judged.
 */
static int read_block(void)
{
	u8 *data = page_address(page);
	struct bio_vec vec;
	struct bio bio;
	int status;

	memset(data, UNTOUCHED, PAGE_SIZE);
	bio_init(&bio, series_disk_device(opened), &vec, 1, REQ_OP_READ);
	bio.bi_iter.bi_sector = 8;
	__bio_add_page(&bio, page, PAGE_SIZE, 0);
	status = submit_bio_wait(&bio);
	bio_uninit(&bio);

	if (!memchr_inv(data, ON_DISK, PAGE_SIZE))
		result = "written";
	else if (!memchr_inv(data, UNTOUCHED, PAGE_SIZE))
		result = "blocked";
	else
		result = "torn";
	pr_info("mfn %lx: %s (I/O status %d)\n",
		pfn_to_mfn(page_to_pfn(page)), result, status);
	return 0;
}

static int do_set(const char *val, const struct kernel_param *kp)
{
	if (!page)
		return -EAGAIN;	/* on the module's command line */
	if (sysfs_streq(val, "read"))
		return read_block();
	if (sysfs_streq(val, "mark"))
		return tpt_call_page(TPT_OP_MARK, page);
	if (sysfs_streq(val, "release"))
		return tpt_call_page(TPT_OP_RELEASE, page);
	return -EINVAL;
}

static const struct kernel_param_ops do_ops = { .set = do_set };
module_param_cb(do, &do_ops, NULL, 0200);

static int result_get(char *buf, const struct kernel_param *kp)
{
	return sysfs_emit(buf, "%s\n", result);
}

static const struct kernel_param_ops result_ops = { .get = result_get };
module_param_cb(result, &result_ops, NULL, 0444);

static int __init dma_gate_init(void)
{
	if (!xen_pv_domain())
		return -ENODEV;
	opened = series_disk_open(disk);
	if (IS_ERR(opened))
		return PTR_ERR(opened);
	page = alloc_page(GFP_KERNEL);
	if (!page) {
		series_disk_close(opened);
		return -ENOMEM;
	}
	return 0;
}

static void __exit dma_gate_exit(void)
{
	long rc = tpt_call_page(TPT_OP_RELEASE, page);

	if (tpt_may_be_marked(rc))
		pr_err("page not released (%ld), leaking it\n", rc);
	else
		__free_page(page);
	series_disk_close(opened);
}

module_init(dma_gate_init);
module_exit(dma_gate_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("trapless test: does a device reach a page?");
