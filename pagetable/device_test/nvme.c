// SPDX-License-Identifier: GPL-2.0-only
/*
 * The least of an NVMe controller, by the specification that all of them follow:
 * two queues for administration, no interrupts, and one command, Identify, which
 * writes 4 KiB about the controller itself. It changes nothing that the
 * controller stores.
 *
 * Invariant: the controller is on only within dt_nvme_write(). Whatever it was
 * told before is forgotten when it is switched off, so one that hung because its
 * write was refused starts anew with the next.
 */
#include <linux/delay.h>
#include <linux/dma-mapping.h>
#include <linux/io-64-nonatomic-lo-hi.h>

#include "nvme.h"

#define DEPTH		2	/* entries of a queue: the fewest that there can be */
#define ANSWER_MS	5000
#define PAGE_BYTES	4096	/* of the controller: queues begin at one */
#define QUEUE_BYTES	(2 * PAGE_BYTES)

/* Switching on and off takes as long as the controller says. */
static int wait_ready(struct dt_nvme *nvme, bool on)
{
	unsigned long units = NVME_CAP_TIMEOUT(lo_hi_readq(nvme->registers + NVME_REG_CAP));
	unsigned long end = jiffies + (units + 1) * HZ / 2;
	u32 status;

	for (;;) {
		status = readl(nvme->registers + NVME_REG_CSTS);
		if (status == ~0u)
			return -ENODEV;
		if (!!(status & NVME_CSTS_RDY) == on)
			return 0;
		if (on && (status & NVME_CSTS_CFS))
			return -EIO;
		if (time_after(jiffies, end))
			return -ETIMEDOUT;
		usleep_range(100, 1000);
	}
}

static int switch_off(struct dt_nvme *nvme)
{
	writel(0, nvme->registers + NVME_REG_CC);
	return wait_ready(nvme, false);
}

static int switch_on(struct dt_nvme *nvme)
{
	int rc = switch_off(nvme);

	if (rc)
		return rc;
	/* Xen may have forbidden it after faults, which the test provokes. */
	pci_set_master(nvme->pdev);
	memset(nvme->submission, 0, QUEUE_BYTES);
	writel(~0u, nvme->registers + NVME_REG_INTMS);
	writel((DEPTH - 1) << 16 | (DEPTH - 1), nvme->registers + NVME_REG_AQA);
	lo_hi_writeq(nvme->queues, nvme->registers + NVME_REG_ASQ);
	lo_hi_writeq(nvme->queues + PAGE_BYTES, nvme->registers + NVME_REG_ACQ);
	writel(NVME_CC_ENABLE | NVME_CC_CSS_NVM | NVME_CC_AMS_RR | NVME_CC_SHN_NONE |
	       NVME_CC_IOSQES | NVME_CC_IOCQES, nvme->registers + NVME_REG_CC);
	return wait_ready(nvme, true);
}

static int identify(struct dt_nvme *nvme, dma_addr_t to)
{
	unsigned long end = jiffies + msecs_to_jiffies(ANSWER_MS);
	struct nvme_identify *command = &nvme->submission->identify;
	u16 status;

	command->opcode = nvme_admin_identify;
	command->command_id = 1;	/* only the controller's to repeat */
	command->dptr.prp1 = cpu_to_le64(to);
	command->cns = NVME_ID_CNS_CTRL;
	/* The command is in memory before the controller hears of it. */
	wmb();
	writel(1, nvme->registers + NVME_REG_DBS);
	for (;;) {
		status = le16_to_cpu(READ_ONCE(nvme->completion->status));
		if (status & 1)	/* the phase, 1 in the first round */
			break;
		if (readl(nvme->registers + NVME_REG_CSTS) & NVME_CSTS_CFS)
			return -EIO;
		if (time_after(jiffies, end))
			return -ETIMEDOUT;
		usleep_range(100, 1000);
	}
	/* What it has written is looked at after its answer. */
	rmb();
	return status >> 1;
}

int dt_nvme_write(struct dt_nvme *nvme, dma_addr_t to)
{
	int rc = switch_on(nvme);
	int off;

	if (!rc)
		rc = identify(nvme, to);
	off = switch_off(nvme);
	if (off) {
		/* It may write still: not to memory any more. */
		pci_clear_master(nvme->pdev);
		return off;
	}
	return rc;
}

int dt_nvme_start(struct dt_nvme *nvme, struct pci_dev *pdev)
{
	int rc;

	nvme->pdev = pdev;
	nvme->registers = pcim_iomap(pdev, 0, 0);
	if (!nvme->registers)
		return -ENOMEM;
	/* Of other sizes of pages than ours it is not told. */
	if (NVME_CAP_MPSMIN(lo_hi_readq(nvme->registers + NVME_REG_CAP)))
		return -EOPNOTSUPP;
	nvme->submission = dmam_alloc_coherent(&pdev->dev, QUEUE_BYTES, &nvme->queues,
					       GFP_KERNEL);
	nvme->reference = dmam_alloc_coherent(&pdev->dev, PAGE_BYTES, &nvme->reference_at,
					      GFP_KERNEL);
	if (!nvme->submission || !nvme->reference)
		return -ENOMEM;
	nvme->completion = (void *)nvme->submission + PAGE_BYTES;
	rc = dt_nvme_write(nvme, nvme->reference_at);
	if (rc > 0)
		rc = -EIO;
	return rc;
}
