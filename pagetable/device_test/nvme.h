/* SPDX-License-Identifier: GPL-2.0-only */
/* An NVMe controller that is made to write one page of memory. */
#ifndef TRAPLESS_NVME_H
#define TRAPLESS_NVME_H

#include <linux/nvme.h>
#include <linux/pci.h>

struct dt_nvme {
	struct pci_dev *pdev;
	void __iomem *registers;
	/* A page for each queue, and the answer that all others must be. */
	struct nvme_command *submission;
	struct nvme_completion *completion;
	dma_addr_t queues;
	void *reference;
	dma_addr_t reference_at;
};

/**
 * dt_nvme_start() - take a controller that nobody uses
 * @nvme: what it will be
 * @pdev: its device, enabled and allowed to be master
 *
 * Return: 0, or an error; the controller is off in either case.
 */
int dt_nvme_start(struct dt_nvme *nvme, struct pci_dev *pdev);

/**
 * dt_nvme_write() - make the controller write a page
 * @nvme: the controller
 * @to: address of the page, as the device sees it
 *
 * The page gets what @reference has. The controller is switched on for this, and
 * is off again when it returns: then no write of it is on its way.
 *
 * Return: the controller's status of the command, which may say that it could
 * not write; or an error if it gave none.
 */
int dt_nvme_write(struct dt_nvme *nvme, dma_addr_t to);

#endif /* TRAPLESS_NVME_H */
