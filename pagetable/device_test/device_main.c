// SPDX-License-Identifier: GPL-2.0-only
/*
 * One page, and a spare device that writes into it: is the page within the
 * device's reach? For "trapless pagetable verify --device"; the device is the one
 * that "device" names and whose driver_override names this module.
 *
 *   echo mark | release | write > /sys/module/trapless_device_test/parameters/do
 *   cat /sys/module/trapless_device_test/parameters/result
 *
 * "write" fills the page with a pattern, lets the device write and compares every
 * byte: "written" if all of what it writes arrived, "blocked" if no byte changed,
 * "torn" for all else, and "silent" if the device gave no answer to the command:
 * then nothing is known of what it did.
 *
 * Invariant: the page is mapped for the device, at its own machine address, from
 * the beginning to the end; so nothing but Xen is between the two. It is not freed
 * while it is marked, nor while the device could write.
 */
#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/dma-mapping.h>
#include <linux/mm.h>
#include <linux/module.h>
#include <linux/mutex.h>

#include <asm/xen/page.h>
#include <xen/xen.h>

#include "call.h"
#include "nvme.h"

#define UNTOUCHED	0xaa

static char *device = "";
module_param(device, charp, 0444);
MODULE_PARM_DESC(device, "a PCI device that nobody uses, 0000:00:00.0");

static DEFINE_MUTEX(lock);	/* of all below */
static struct dt_nvme nvme;
static struct page *page;	/* there is one while the device is ours */
static dma_addr_t page_at;
static const char *result = "none";

static int device_writes(void)
{
	u8 *data = page_address(page);
	int status;

	memset(data, UNTOUCHED, PAGE_SIZE);
	status = dt_nvme_write(&nvme, page_at);
	if (status < 0)
		result = "silent";
	else if (!memcmp(data, nvme.reference, PAGE_SIZE))
		result = "written";
	else if (!memchr_inv(data, UNTOUCHED, PAGE_SIZE))
		result = "blocked";
	else
		result = "torn";
	pr_info("mfn %lx: %s (status %d)\n", pfn_to_mfn(page_to_pfn(page)), result, status);
	return 0;
}

static int do_set(const char *val, const struct kernel_param *kp)
{
	int rc = -EINVAL;

	mutex_lock(&lock);
	if (!page)
		rc = -EAGAIN;	/* on the module's command line, or the device is gone */
	else if (sysfs_streq(val, "write"))
		rc = device_writes();
	else if (sysfs_streq(val, "mark"))
		rc = tpt_call_page(TPT_OP_MARK, page);
	else if (sysfs_streq(val, "release"))
		rc = tpt_call_page(TPT_OP_RELEASE, page);
	mutex_unlock(&lock);
	return rc;
}

static const struct kernel_param_ops do_ops = { .set = do_set };
module_param_cb(do, &do_ops, NULL, 0200);

static int result_get(char *buf, const struct kernel_param *kp)
{
	return sysfs_emit(buf, "%s\n", result);
}

static const struct kernel_param_ops result_ops = { .get = result_get };
module_param_cb(result, &result_ops, NULL, 0444);

static int map_page(struct pci_dev *pdev)
{
	struct page *new = alloc_page(GFP_KERNEL);

	if (!new)
		return -ENOMEM;
	page_at = dma_map_page(&pdev->dev, new, 0, PAGE_SIZE, DMA_FROM_DEVICE);
	if (dma_mapping_error(&pdev->dev, page_at)) {
		__free_page(new);
		return -EIO;
	}
	if (page_at != PFN_PHYS(pfn_to_mfn(page_to_pfn(new)))) {
		pci_err(pdev, "it would write another page, which is copied\n");
		dma_unmap_page(&pdev->dev, page_at, PAGE_SIZE, DMA_FROM_DEVICE);
		__free_page(new);
		return -EOPNOTSUPP;
	}
	page = new;
	return 0;
}

static int device_probe(struct pci_dev *pdev, const struct pci_device_id *id)
{
	int rc;

	if (strcmp(pci_name(pdev), device))
		return -ENODEV;
	if (pdev->class != PCI_CLASS_STORAGE_EXPRESS) {
		pci_err(pdev, "it is no NVMe controller\n");
		return -ENODEV;
	}
	rc = pcim_enable_device(pdev);
	if (rc)
		return rc;
	pci_set_master(pdev);
	rc = dma_set_mask_and_coherent(&pdev->dev, DMA_BIT_MASK(64));
	if (!rc)
		rc = dt_nvme_start(&nvme, pdev);
	if (!rc)
		rc = map_page(pdev);
	if (rc) {
		pci_err(pdev, "it does not write: %d\n", rc);
		pci_clear_master(pdev);
	}
	return rc;
}

static void device_remove(struct pci_dev *pdev)
{
	long rc;

	mutex_lock(&lock);
	pci_clear_master(pdev);
	rc = tpt_call_page(TPT_OP_RELEASE, page);
	dma_unmap_page(&pdev->dev, page_at, PAGE_SIZE, DMA_FROM_DEVICE);
	if (tpt_may_be_marked(rc))
		pr_err("page not released (%ld), leaking it\n", rc);
	else
		__free_page(page);
	page = NULL;
	mutex_unlock(&lock);
}

static struct pci_driver driver = {
	.name = KBUILD_MODNAME,
	/* No device's: only driver_override brings one here. */
	.id_table = NULL,
	.probe = device_probe,
	.remove = device_remove,
	.driver = {
		.suppress_bind_attrs = true,
		.probe_type = PROBE_FORCE_SYNCHRONOUS,
	},
};

static int __init device_test_init(void)
{
	int rc;

	if (!xen_pv_domain())
		return -ENODEV;
	rc = pci_register_driver(&driver);
	if (rc)
		return rc;
	if (!page) {
		pr_err("device %s is not ours: it is not there, its driver_override does not name %s, or see above\n",
		       device, KBUILD_MODNAME);
		pci_unregister_driver(&driver);
		return -ENODEV;
	}
	return 0;
}

static void __exit device_test_exit(void)
{
	pci_unregister_driver(&driver);
}

module_init(device_test_init);
module_exit(device_test_exit);
MODULE_LICENSE("GPL");
MODULE_DESCRIPTION("trapless: does a spare device reach a semi-writable page?");
