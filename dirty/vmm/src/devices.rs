// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The devices: one serial port, and a keyboard controller that only resets. None of them writes to the guest's
//! memory, so the log of the processors' writes is complete.

use std::io::{self, Read, Write};
use std::sync::Mutex;
use std::thread;
use std::time::Duration;

use vm_superio::serial::NoEvents;
use vm_superio::{Serial, Trigger};
use vmm_sys_util::eventfd::EventFd;

const SERIAL: u16 = 0x3f8;
const SERIAL_LAST: u16 = SERIAL + 7;
/// Its interrupt.
pub const SERIAL_IRQ: u32 = 4;
const KEYBOARD_COMMAND: u16 = 0x64;
const KEYBOARD_RESET: u8 = 0xfe;
/// Output is always waiting, which no controller's is, so that the kernel finds none; but it takes commands.
const KEYBOARD_STATUS: u8 = 0xfd;
/// The clock's data: zero says that no update is in progress, which everything else would wait for.
const CLOCK_DATA: u16 = 0x71;
/// How often a guest that does not take its input is asked again.
const FULL_POLL: Duration = Duration::from_millis(5);

/// An interrupt line that KVM watches.
#[derive(Debug)]
pub struct Interrupt(pub EventFd);

impl Trigger for Interrupt {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        self.0.write(1)
    }
}

/// What a port did beside the data.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Nothing.
    None,
    /// The guest resets the machine.
    Reset,
}

/// All devices.
pub struct Devices {
    serial: Mutex<Serial<Interrupt, NoEvents, Box<dyn Write + Send>>>,
}

impl Devices {
    /// The serial port writes to `output`.
    pub fn new(interrupt: Interrupt, output: Box<dyn Write + Send>) -> Self {
        Self { serial: Mutex::new(Serial::new(interrupt, output)) }
    }

    fn serial(&self) -> std::sync::MutexGuard<'_, Serial<Interrupt, NoEvents, Box<dyn Write + Send>>> {
        self.serial.lock().expect("a vCPU panicked")
    }

    /// The guest writes to a port. A console that cannot be written to (a closed pipe) loses its output.
    pub fn write(&self, port: u16, data: &[u8]) -> Effect {
        match (port, data) {
            (SERIAL..=SERIAL_LAST, &[byte]) => {
                let _ = self.serial().write((port - SERIAL) as u8, byte);
                Effect::None
            }
            (KEYBOARD_COMMAND, &[KEYBOARD_RESET]) => Effect::Reset,
            _ => Effect::None,
        }
    }

    /// The guest reads from a port; where nothing is, all bits are set, as on a PC.
    pub fn read(&self, port: u16, data: &mut [u8]) {
        data.fill(0xff);
        match (port, &mut *data) {
            (SERIAL..=SERIAL_LAST, [byte]) => *byte = self.serial().read((port - SERIAL) as u8),
            (KEYBOARD_COMMAND, [byte]) => *byte = KEYBOARD_STATUS,
            (CLOCK_DATA, [byte]) => *byte = 0,
            _ => {}
        }
    }

    /// Feed the serial port until the input ends.
    pub fn feed(&self, mut input: impl Read) {
        let mut buffer = [0; 32];
        while let Ok(length @ 1..) = input.read(&mut buffer) {
            let mut rest = &buffer[..length];
            while !rest.is_empty() {
                match self.serial().enqueue_raw_bytes(rest) {
                    Ok(taken) if taken > 0 => rest = &rest[taken..],
                    _ => thread::sleep(FULL_POLL),
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_answer_as_a_pc_does() {
        let devices = Devices::new(Interrupt(EventFd::new(0).unwrap()), Box::new(io::sink()));
        let read = |port| {
            let mut byte = [0];
            devices.read(port, &mut byte);
            byte[0]
        };
        assert_eq!(read(SERIAL + 5) & 0x60, 0x60);
        assert_eq!((read(CLOCK_DATA), read(0xcf8)), (0, 0xff));
        devices.feed(&b"x"[..]);
        assert_eq!(read(SERIAL), b'x');
        assert_eq!(devices.write(SERIAL, b"y"), Effect::None);
        assert_eq!(devices.write(KEYBOARD_COMMAND, &[0xfe]), Effect::Reset);
        // A width that the device does not have.
        assert_eq!(devices.write(SERIAL, b"yy"), Effect::None);
        devices.read(SERIAL, &mut [0; 4]);
    }
}
