// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The devices at physical addresses that are not memory or the interrupt controller, which KVM emulates.
//!
//! The guest chooses the address, the width and the data: every access gets an answer. Each device has a lock of its
//! own, for vCPUs use them at once.

use std::io::Write;
use std::sync::Arc;

use anyhow::Result;

use crate::console::Console;
use crate::layout;
use crate::log::Log;
use crate::spin::Spin;

const SERIAL: u64 = layout::SOC as u64 + layout::SERIAL as u64;
const SERIAL_LAST: u64 = SERIAL + 7;
const VIRTIO: u64 = layout::SOC as u64 + layout::VIRTIO as u64;
const VIRTIO_STRIDE: u64 = layout::VIRTIO_STRIDE as u64;
const VIRTIO_SIZE: u64 = layout::VIRTIO_SIZE as u64;
const SPIN: u64 = layout::SOC as u64 + layout::SPIN as u64;
const SPIN_LAST: u64 = SPIN + layout::CPUS_MOST as u64 * layout::SPIN_ENTRY as u64 - 1;
const RSTCR: u64 = layout::SOC as u64 + layout::RSTCR as u64;
/// The bit of RSTCR that resets the chip.
const RESET_REQUEST: u32 = 2;

/// The effect of an access besides its data.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// The guest resets the machine.
    Reset,
}

/// A device that has some of the addresses.
pub trait Registers: Send + Sync {
    /// The guest reads at an offset in its registers; `data` is zeros.
    ///
    /// # Errors
    /// The device could not do its work.
    fn read(&self, offset: u64, data: &mut [u8]) -> Result<()>;

    /// The guest writes.
    ///
    /// # Errors
    /// The device could not do its work.
    fn write(&self, offset: u64, data: &[u8]) -> Result<()>;
}

/// The devices.
pub struct Board<W: Write> {
    console: Arc<Console<W>>,
    virtio: Vec<Arc<dyn Registers>>,
    spin: Arc<Spin>,
    nowhere: Log,
}

impl<W: Write> Board<W> {
    /// A board with these devices.
    pub fn new(console: Arc<Console<W>>, virtio: Vec<Arc<dyn Registers>>, spin: Arc<Spin>) -> Self {
        Self { console, virtio, spin, nowhere: Log::default() }
    }

    /// The virtio device at an address, and the offset in its registers.
    fn virtio_at(&self, address: u64) -> Option<(&dyn Registers, u64)> {
        let distance = address.checked_sub(VIRTIO)?;
        let device = self.virtio.get(usize::try_from(distance / VIRTIO_STRIDE).ok()?)?;
        let offset = distance % VIRTIO_STRIDE;
        (offset < VIRTIO_SIZE).then_some((&**device, offset))
    }

    /// A write of the guest. Without a device at the address it has no effect.
    ///
    /// # Errors
    /// A device could not do its work.
    pub fn write(&self, address: u64, data: &[u8]) -> Result<Effect> {
        match (address, data) {
            (SERIAL..=SERIAL_LAST, &[value]) => self.console.write((address - SERIAL) as u8, value)?,
            (RSTCR, &[a, b, c, d]) if u32::from_be_bytes([a, b, c, d]) & RESET_REQUEST != 0 => {
                return Ok(Effect::Reset);
            }
            (RSTCR, _) => {}
            (SPIN..=SPIN_LAST, _) => self.spin.write(address - SPIN, data),
            _ => match self.virtio_at(address) {
                Some((device, offset)) => device.write(offset, data)?,
                None => self.print("writes to", address, data.len()),
            },
        }
        Ok(Effect::None)
    }

    /// A read of the guest. Without a device at the address it returns zeros.
    ///
    /// # Errors
    /// A device could not do its work.
    pub fn read(&self, address: u64, data: &mut [u8]) -> Result<()> {
        data.fill(0);
        match (address, &mut *data) {
            (SERIAL..=SERIAL_LAST, [value]) => *value = self.console.read((address - SERIAL) as u8)?,
            (RSTCR, _) => {}
            (SPIN..=SPIN_LAST, _) => self.spin.read(address - SPIN, data),
            _ => match self.virtio_at(address) {
                Some((device, offset)) => device.read(offset, data)?,
                None => self.print("reads from", address, data.len()),
            },
        }
        Ok(())
    }

    fn print(&self, what: &str, address: u64, length: usize) {
        self.nowhere
            .print(format_args!("the guest {what} {address:#x}, {length} bytes, where there is no device"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    /// Answers with its offset, and takes nothing.
    struct Echo(u8);

    impl Registers for Echo {
        fn read(&self, offset: u64, data: &mut [u8]) -> Result<()> {
            data.fill(self.0 + offset as u8);
            Ok(())
        }

        fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
            anyhow::bail!("{} {offset} {}", self.0, data.len())
        }
    }

    fn board() -> Board<io::Sink> {
        let console = Arc::new(Console::new(io::sink(), true, Box::new(|_| Ok(()))));
        Board::new(console, vec![Arc::new(Echo(1)), Arc::new(Echo(2))], Arc::new(Spin::new(2)))
    }

    #[test]
    fn virtio_devices_are_one_after_another() {
        let board = board();
        let read = |address| {
            let mut byte = [0];
            board.read(address, &mut byte).unwrap();
            byte[0]
        };
        assert_eq!((read(0xe008_0000), read(0xe008_0010), read(0xe008_1003)), (1, 0x11, 5));
        assert_eq!((read(0xe008_0200), read(0xe008_2000), read(0xe007_ffff)), (0, 0, 0));
        assert_eq!(board.nowhere.count(), 3);
        assert_eq!(board.write(0xe008_1050, &[0; 4]).unwrap_err().to_string(), "2 80 4");
    }

    #[test]
    fn registers_are_where_the_kernel_looks() {
        let board = board();
        let mut byte = [0xff];
        board.read(0xe000_4505, &mut byte).unwrap();
        assert_eq!(byte[0] & 0x60, 0x60);
        assert_eq!(board.write(0xe000_4500, b"x").unwrap(), Effect::None);
        assert_eq!(board.write(0xe00e_00b0, &2u32.to_be_bytes()).unwrap(), Effect::Reset);
        assert_eq!(board.nowhere.count(), 0);
    }

    #[test]
    fn only_a_reset_resets() {
        let board = board();
        for data in [&2u32.to_le_bytes()[..], &[2], &[0; 4], &[0xff; 8], &[]] {
            assert_eq!(board.write(0xe00e_00b0, data).unwrap(), Effect::None);
        }
    }

    #[test]
    fn anything_gets_an_answer() {
        let board = board();
        for address in [0, 0xe000_44ff, 0xe000_4508, 0xe00e_00b1, u64::MAX] {
            for length in 0..=8 {
                let mut data = vec![0xff; length];
                assert_eq!(board.write(address, &data).unwrap(), Effect::None);
                board.read(address, &mut data).unwrap();
                assert!(data.iter().all(|&byte| byte == 0));
            }
        }
        // The serial port has no registers of two bytes.
        let mut data = [0xff; 2];
        board.read(0xe000_4500, &mut data).unwrap();
        assert_eq!(data, [0; 2]);
    }
}
