// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The devices at physical addresses that are not memory or the interrupt controller, which KVM emulates.
//!
//! The guest chooses the address, the width and the data: every access gets an answer.

use std::io::Write;
use std::sync::Arc;

use anyhow::Result;

use crate::console::Console;
use crate::layout;

const SERIAL: u64 = layout::SOC as u64 + layout::SERIAL as u64;
const SERIAL_LAST: u64 = SERIAL + 7;
const RSTCR: u64 = layout::SOC as u64 + layout::RSTCR as u64;
/// The bit of RSTCR that resets the chip.
const RESET_REQUEST: u32 = 2;
/// A faulty guest must not fill the host's log.
const PRINT_AT_MOST: u32 = 8;

/// The effect of an access besides its data.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// The guest resets the machine.
    Reset,
}

/// The devices.
pub struct Board<W: Write> {
    console: Arc<Console<W>>,
    printed: u32,
}

impl<W: Write> Board<W> {
    /// A board with this serial port.
    pub fn new(console: Arc<Console<W>>) -> Self {
        Self { console, printed: 0 }
    }

    /// A write of the guest. Without a device at the address it has no effect.
    ///
    /// # Errors
    /// A device could not do its work.
    pub fn write(&mut self, address: u64, data: &[u8]) -> Result<Effect> {
        match (address, data) {
            (SERIAL..=SERIAL_LAST, &[value]) => self.console.write((address - SERIAL) as u8, value)?,
            (RSTCR, &[a, b, c, d]) if u32::from_be_bytes([a, b, c, d]) & RESET_REQUEST != 0 => {
                return Ok(Effect::Reset);
            }
            (RSTCR, _) => {}
            _ => self.print("writes to", address, data.len()),
        }
        Ok(Effect::None)
    }

    /// A read of the guest. Without a device at the address it returns zeros.
    ///
    /// # Errors
    /// A device could not do its work.
    pub fn read(&mut self, address: u64, data: &mut [u8]) -> Result<()> {
        data.fill(0);
        match (address, &mut *data) {
            (SERIAL..=SERIAL_LAST, [value]) => *value = self.console.read((address - SERIAL) as u8)?,
            (RSTCR, _) => {}
            _ => self.print("reads from", address, data.len()),
        }
        Ok(())
    }

    fn print(&mut self, what: &str, address: u64, length: usize) {
        self.printed = self.printed.saturating_add(1);
        if self.printed <= PRINT_AT_MOST {
            eprintln!(
                "trapless-power-vmm: the guest {what} {address:#x}, {length} bytes, where there is no device"
            );
        }
        if self.printed == PRINT_AT_MOST {
            eprintln!("trapless-power-vmm: further accesses of this kind are not printed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn board() -> Board<io::Sink> {
        Board::new(Arc::new(Console::new(io::sink(), true, Box::new(|_| Ok(())))))
    }

    #[test]
    fn registers_are_where_the_kernel_looks() {
        let mut board = board();
        let mut byte = [0xff];
        board.read(0xe000_4505, &mut byte).unwrap();
        assert_eq!(byte[0] & 0x60, 0x60);
        assert_eq!(board.write(0xe000_4500, b"x").unwrap(), Effect::None);
        assert_eq!(board.write(0xe00e_00b0, &2u32.to_be_bytes()).unwrap(), Effect::Reset);
        assert_eq!(board.printed, 0);
    }

    #[test]
    fn only_a_reset_resets() {
        let mut board = board();
        for data in [&2u32.to_le_bytes()[..], &[2], &[0; 4], &[0xff; 8], &[]] {
            assert_eq!(board.write(0xe00e_00b0, data).unwrap(), Effect::None);
        }
    }

    #[test]
    fn anything_gets_an_answer() {
        let mut board = board();
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
