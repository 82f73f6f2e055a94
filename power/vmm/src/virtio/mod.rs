// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A disk and a network for the guest: virtio 1.x devices behind virtio-mmio registers.
//!
//! All that the devices read comes from the guest: registers, rings, requests. It may change while it is read, for
//! another vCPU may run. So each value is read once and checked after that; each buffer is checked to be memory of
//! the guest before anything else is done with it; and its bytes are only ever touched by the host's kernel, which
//! gets their addresses. A guest that breaks the rules of a ring gets a device that needs a reset, as the
//! specification has it, and nothing else.
//!
//! rust-vmm's virtio-queue, vm-memory and virtio-bindings are for processors of 64 bits: they do not compile for an
//! e500. virtio-queue is the witness of `queue`'s tests, and the kernel's headers are the witness of all numbers.

pub mod block;
pub mod mmio;
pub mod network;
pub mod queue;
pub mod ram;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::must_agree;
    use std::collections::BTreeMap;

    const SOURCE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/virtio.c");

    #[expect(clippy::unnecessary_cast, reason = "the values have various types")]
    fn ours() -> BTreeMap<String, u64> {
        let pairs: &[(&str, u64)] = &[
            ("VIRTIO_MMIO_MAGIC_VALUE", mmio::register::MAGIC_VALUE as u64),
            ("VIRTIO_MMIO_VERSION", mmio::register::VERSION as u64),
            ("VIRTIO_MMIO_DEVICE_ID", mmio::register::DEVICE_ID as u64),
            ("VIRTIO_MMIO_VENDOR_ID", mmio::register::VENDOR_ID as u64),
            ("VIRTIO_MMIO_DEVICE_FEATURES", mmio::register::DEVICE_FEATURES as u64),
            ("VIRTIO_MMIO_DEVICE_FEATURES_SEL", mmio::register::DEVICE_FEATURES_SEL as u64),
            ("VIRTIO_MMIO_DRIVER_FEATURES", mmio::register::DRIVER_FEATURES as u64),
            ("VIRTIO_MMIO_DRIVER_FEATURES_SEL", mmio::register::DRIVER_FEATURES_SEL as u64),
            ("VIRTIO_MMIO_QUEUE_SEL", mmio::register::QUEUE_SEL as u64),
            ("VIRTIO_MMIO_QUEUE_NUM_MAX", mmio::register::QUEUE_NUM_MAX as u64),
            ("VIRTIO_MMIO_QUEUE_NUM", mmio::register::QUEUE_NUM as u64),
            ("VIRTIO_MMIO_QUEUE_READY", mmio::register::QUEUE_READY as u64),
            ("VIRTIO_MMIO_QUEUE_NOTIFY", mmio::register::QUEUE_NOTIFY as u64),
            ("VIRTIO_MMIO_INTERRUPT_STATUS", mmio::register::INTERRUPT_STATUS as u64),
            ("VIRTIO_MMIO_INTERRUPT_ACK", mmio::register::INTERRUPT_ACK as u64),
            ("VIRTIO_MMIO_STATUS", mmio::register::STATUS as u64),
            ("VIRTIO_MMIO_QUEUE_DESC_LOW", mmio::register::QUEUE_DESC_LOW as u64),
            ("VIRTIO_MMIO_QUEUE_DESC_HIGH", mmio::register::QUEUE_DESC_HIGH as u64),
            ("VIRTIO_MMIO_QUEUE_AVAIL_LOW", mmio::register::QUEUE_AVAIL_LOW as u64),
            ("VIRTIO_MMIO_QUEUE_AVAIL_HIGH", mmio::register::QUEUE_AVAIL_HIGH as u64),
            ("VIRTIO_MMIO_QUEUE_USED_LOW", mmio::register::QUEUE_USED_LOW as u64),
            ("VIRTIO_MMIO_QUEUE_USED_HIGH", mmio::register::QUEUE_USED_HIGH as u64),
            ("VIRTIO_MMIO_SHM_LEN_LOW", mmio::register::SHM_LEN_LOW as u64),
            ("VIRTIO_MMIO_SHM_LEN_HIGH", mmio::register::SHM_LEN_HIGH as u64),
            ("VIRTIO_MMIO_CONFIG", mmio::register::CONFIG as u64),
            ("VIRTIO_MMIO_INT_VRING", mmio::INTERRUPT_USED as u64),
            ("VIRTIO_MMIO_INT_CONFIG", mmio::INTERRUPT_CONFIGURATION as u64),
            ("VIRTIO_CONFIG_S_DRIVER_OK", mmio::status::DRIVER_OK as u64),
            ("VIRTIO_CONFIG_S_FEATURES_OK", mmio::status::FEATURES_OK as u64),
            ("VIRTIO_CONFIG_S_NEEDS_RESET", mmio::status::NEEDS_RESET as u64),
            ("VIRTIO_F_VERSION_1", mmio::F_VERSION_1.trailing_zeros() as u64),
            ("VIRTIO_ID_BLOCK", <block::Disk as mmio::Device>::ID as u64),
            ("VIRTIO_ID_NET", <network::Network as mmio::Device>::ID as u64),
            ("VRING_DESC_F_NEXT", queue::NEXT as u64),
            ("VRING_DESC_F_WRITE", queue::WRITE as u64),
            ("VRING_DESC_F_INDIRECT", queue::INDIRECT as u64),
            ("VRING_AVAIL_F_NO_INTERRUPT", queue::NO_INTERRUPT as u64),
            ("sizeof(struct vring_desc)", queue::DESCRIPTOR_SIZE as u64),
            ("sizeof(struct vring_used_elem)", queue::USED_ELEMENT_SIZE as u64),
            ("offsetof(struct vring_avail, ring)", queue::RING_HEADER as u64),
            ("offsetof(struct vring_used, ring)", queue::RING_HEADER as u64),
            ("offsetof(struct vring_avail, idx)", queue::RING_INDEX as u64),
            ("offsetof(struct vring_used, idx)", queue::RING_INDEX as u64),
            ("1 << VIRTIO_BLK_F_SEG_MAX", block::F_SEG_MAX as u64),
            ("1 << VIRTIO_BLK_F_RO", block::F_RO as u64),
            ("1 << VIRTIO_BLK_F_FLUSH", block::F_FLUSH as u64),
            ("VIRTIO_BLK_T_IN", block::T_IN as u64),
            ("VIRTIO_BLK_T_OUT", block::T_OUT as u64),
            ("VIRTIO_BLK_T_FLUSH", block::T_FLUSH as u64),
            ("VIRTIO_BLK_T_GET_ID", block::T_GET_ID as u64),
            ("VIRTIO_BLK_S_OK", block::S_OK as u64),
            ("VIRTIO_BLK_S_IOERR", block::S_IOERR as u64),
            ("VIRTIO_BLK_S_UNSUPP", block::S_UNSUPP as u64),
            ("VIRTIO_BLK_ID_BYTES", block::SERIAL.len() as u64),
            ("sizeof(struct virtio_blk_outhdr)", block::HEADER as u64),
            ("offsetof(struct virtio_blk_config, geometry)", block::CONFIGURATION as u64),
            ("1 << VIRTIO_NET_F_MAC", network::F_MAC as u64),
            ("sizeof(struct virtio_net_hdr_v1)", network::HEADER as u64),
            ("offsetof(struct virtio_net_hdr_v1, num_buffers)", network::BUFFERS_FIELD as u64),
        ];
        pairs.iter().map(|&(name, value)| (name.into(), value)).collect()
    }

    #[test]
    fn the_headers_say_the_same() {
        must_agree(&ours(), SOURCE, "VIRTIO_MMIO_QUEUE_NOTIFY", "VIRTIO_BLK_T_OUT");
    }
}
