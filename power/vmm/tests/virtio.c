// SPDX-License-Identifier: Apache-2.0 OR MIT
/*
 * The values in the kernel's headers of the interfaces in src/virtio: compiled for
 * powerpc to assembly with lines "->name value", which its tests compare. Never
 * linked.
 */
#include <stddef.h>
#include <linux/virtio_blk.h>
#include <linux/virtio_config.h>
#include <linux/virtio_ids.h>
#include <linux/virtio_mmio.h>
#include <linux/virtio_net.h>
#include <linux/virtio_ring.h>

#define VALUE(value) __asm__ volatile("\n->" #value " %0" : : "i" ((unsigned int)(value)))

void virtio(void);

void virtio(void)
{
	VALUE(VIRTIO_MMIO_MAGIC_VALUE);
	VALUE(VIRTIO_MMIO_VERSION);
	VALUE(VIRTIO_MMIO_DEVICE_ID);
	VALUE(VIRTIO_MMIO_VENDOR_ID);
	VALUE(VIRTIO_MMIO_DEVICE_FEATURES);
	VALUE(VIRTIO_MMIO_DEVICE_FEATURES_SEL);
	VALUE(VIRTIO_MMIO_DRIVER_FEATURES);
	VALUE(VIRTIO_MMIO_DRIVER_FEATURES_SEL);
	VALUE(VIRTIO_MMIO_QUEUE_SEL);
	VALUE(VIRTIO_MMIO_QUEUE_NUM_MAX);
	VALUE(VIRTIO_MMIO_QUEUE_NUM);
	VALUE(VIRTIO_MMIO_QUEUE_READY);
	VALUE(VIRTIO_MMIO_QUEUE_NOTIFY);
	VALUE(VIRTIO_MMIO_INTERRUPT_STATUS);
	VALUE(VIRTIO_MMIO_INTERRUPT_ACK);
	VALUE(VIRTIO_MMIO_STATUS);
	VALUE(VIRTIO_MMIO_QUEUE_DESC_LOW);
	VALUE(VIRTIO_MMIO_QUEUE_DESC_HIGH);
	VALUE(VIRTIO_MMIO_QUEUE_AVAIL_LOW);
	VALUE(VIRTIO_MMIO_QUEUE_AVAIL_HIGH);
	VALUE(VIRTIO_MMIO_QUEUE_USED_LOW);
	VALUE(VIRTIO_MMIO_QUEUE_USED_HIGH);
	VALUE(VIRTIO_MMIO_SHM_LEN_LOW);
	VALUE(VIRTIO_MMIO_SHM_LEN_HIGH);
	VALUE(VIRTIO_MMIO_CONFIG);
	VALUE(VIRTIO_MMIO_INT_VRING);
	VALUE(VIRTIO_MMIO_INT_CONFIG);
	VALUE(VIRTIO_CONFIG_S_DRIVER_OK);
	VALUE(VIRTIO_CONFIG_S_FEATURES_OK);
	VALUE(VIRTIO_CONFIG_S_NEEDS_RESET);
	VALUE(VIRTIO_F_VERSION_1);
	VALUE(VIRTIO_ID_BLOCK);
	VALUE(VIRTIO_ID_NET);
	VALUE(VRING_DESC_F_NEXT);
	VALUE(VRING_DESC_F_WRITE);
	VALUE(VRING_DESC_F_INDIRECT);
	VALUE(VRING_AVAIL_F_NO_INTERRUPT);
	VALUE(sizeof(struct vring_desc));
	VALUE(sizeof(struct vring_used_elem));
	VALUE(offsetof(struct vring_avail, ring));
	VALUE(offsetof(struct vring_used, ring));
	VALUE(offsetof(struct vring_avail, idx));
	VALUE(offsetof(struct vring_used, idx));
	VALUE(1 << VIRTIO_BLK_F_SEG_MAX);
	VALUE(1 << VIRTIO_BLK_F_RO);
	VALUE(1 << VIRTIO_BLK_F_FLUSH);
	VALUE(VIRTIO_BLK_T_IN);
	VALUE(VIRTIO_BLK_T_OUT);
	VALUE(VIRTIO_BLK_T_FLUSH);
	VALUE(VIRTIO_BLK_T_GET_ID);
	VALUE(VIRTIO_BLK_S_OK);
	VALUE(VIRTIO_BLK_S_IOERR);
	VALUE(VIRTIO_BLK_S_UNSUPP);
	VALUE(VIRTIO_BLK_ID_BYTES);
	VALUE(sizeof(struct virtio_blk_outhdr));
	VALUE(offsetof(struct virtio_blk_config, geometry));
	VALUE(1 << VIRTIO_NET_F_MAC);
	VALUE(sizeof(struct virtio_net_hdr_v1));
	VALUE(offsetof(struct virtio_net_hdr_v1, num_buffers));
}
