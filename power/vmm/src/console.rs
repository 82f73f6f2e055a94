// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The serial port, and the input and output connected to it.
//!
//! The vCPU's thread and the input thread change the device and its interrupt line together, under one lock. The
//! line is level-triggered: up exactly while an interrupt is pending and enabled. While the guest does not accept
//! input, the input thread sleeps until the guest accesses the device.

use std::io::{self, Read, Write};
use std::sync::{Condvar, Mutex, MutexGuard};

use anyhow::{Context, Result, ensure};
use vm_superio::serial::{Error, NoEvents};
use vm_superio::{Serial, Trigger};

const PANICKED: &str = "a thread panicked, which ends the process";
/// Longer lines are written in parts.
const LINE: usize = 1024;

/// Interrupts in the interrupt enable register and in the interrupt identification register.
const ENABLE_RECEIVED: u8 = 1;
const ENABLE_EMPTY: u8 = 2;
const PENDING_EMPTY: u8 = 2;
const PENDING_RECEIVED: u8 = 4;
/// Bits of the modem control register.
const REQUEST_TO_SEND: u8 = 2;
const INTERRUPTS_OUT: u8 = 8;
const READY: u8 = REQUEST_TO_SEND | INTERRUPTS_OUT;

/// Sets the interrupt line.
pub type Line = Box<dyn Fn(bool) -> io::Result<()> + Send>;

/// The crate reports when an interrupt begins, not when it ends; we set the line from its state instead.
struct Unused;

impl Trigger for Unused {
    type E = io::Error;

    fn trigger(&self) -> io::Result<()> {
        Ok(())
    }
}

/// Output, in lines unless input is a terminal: a guest writes single bytes, and each would be a system call.
struct Output<W> {
    to: W,
    by_line: bool,
    pending: Vec<u8>,
}

impl<W: Write> Output<W> {
    fn finish(&mut self) -> io::Result<()> {
        let result = self.to.write_all(&self.pending).and_then(|()| self.to.flush());
        self.pending.clear();
        result
    }
}

impl<W: Write> Write for Output<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.pending.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    /// Called by the device after each byte.
    fn flush(&mut self) -> io::Result<()> {
        if !self.by_line || self.pending.ends_with(b"\n") || self.pending.len() >= LINE {
            return self.finish();
        }
        Ok(())
    }
}

struct Port<W: Write> {
    serial: Serial<Unused, NoEvents, Output<W>>,
    line: Line,
    /// What the line was last set to.
    up: bool,
    /// Output was lost, which is reported once.
    lost: bool,
    /// Input waits for the guest.
    waiting: bool,
}

impl<W: Write> Port<W> {
    fn update(&mut self) -> Result<()> {
        let state = self.serial.state();
        let raised = |enable, pending| {
            state.interrupt_enable & enable != 0 && state.interrupt_identification & pending != 0
        };
        let up = raised(ENABLE_RECEIVED, PENDING_RECEIVED) || raised(ENABLE_EMPTY, PENDING_EMPTY);
        if up != self.up {
            (self.line)(up).context("cannot set the serial port's interrupt")?;
            self.up = up;
        }
        Ok(())
    }

    /// Offer input and return how many bytes the guest accepts. Input before its driver is ready would be lost: the
    /// driver briefly enables the interrupt when it probes the device (RTS may be up then, from an early console), and
    /// drops what it has received while it opens the device (OUT2 is up then). Afterwards RTS and OUT2 are both up.
    fn offer(&mut self, bytes: &[u8]) -> Result<usize> {
        let state = self.serial.state();
        if state.interrupt_enable & ENABLE_RECEIVED == 0 || state.modem_control & READY != READY {
            return Ok(0);
        }
        // A full queue is the only possible error, as the trigger returns none.
        let taken = self.serial.enqueue_raw_bytes(bytes).unwrap_or(0);
        self.update()?;
        Ok(taken)
    }
}

/// A serial port whose output goes to a `W`.
pub struct Console<W: Write> {
    port: Mutex<Port<W>>,
    touched: Condvar,
}

impl<W: Write> Console<W> {
    /// `by_line`: output may wait for the end of its line.
    pub fn new(to: W, by_line: bool, line: Line) -> Self {
        let serial = Serial::new(Unused, Output { to, by_line, pending: Vec::new() });
        let port = Port { serial, line, up: false, lost: false, waiting: false };
        Self { port: Mutex::new(port), touched: Condvar::new() }
    }

    fn port(&self) -> MutexGuard<'_, Port<W>> {
        self.port.lock().expect(PANICKED)
    }

    /// The guest has accessed the device.
    fn settle(&self, mut port: MutexGuard<'_, Port<W>>) -> Result<()> {
        port.update()?;
        // Waking is a system call even if no thread sleeps.
        if port.waiting {
            self.touched.notify_one();
        }
        Ok(())
    }

    /// The guest writes to a register. Output that cannot be written (to a closed pipe) is lost.
    ///
    /// # Errors
    /// The interrupt could not be set.
    pub fn write(&self, register: u8, value: u8) -> Result<()> {
        let mut port = self.port();
        match port.serial.write(register, value) {
            Err(Error::IOError(error)) if !port.lost => {
                port.lost = true;
                eprintln!("trapless-power-vmm: the guest's output is lost: {error}");
            }
            // The trigger returns no errors, and only input fills the queue.
            _ => {}
        }
        self.settle(port)
    }

    /// The guest reads a register.
    ///
    /// # Errors
    /// The interrupt could not be set.
    pub fn read(&self, register: u8) -> Result<u8> {
        let mut port = self.port();
        let value = port.serial.read(register);
        self.settle(port)?;
        Ok(value)
    }

    /// Feed input to the guest, when it listens, until the input ends.
    ///
    /// # Errors
    /// The input cannot be read, or the interrupt cannot be set.
    pub fn feed(&self, mut input: impl Read) -> Result<()> {
        let mut buffer = [0; 64];
        loop {
            let length = match input.read(&mut buffer) {
                Ok(0) => return Ok(()),
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error).context("cannot read input"),
            };
            let mut rest = &buffer[..length];
            let mut port = self.port();
            while !rest.is_empty() {
                let taken = port.offer(rest)?;
                rest = &rest[taken..];
                port.waiting = taken == 0;
                if port.waiting {
                    port = self.touched.wait(port).expect(PANICKED);
                }
            }
            port.waiting = false;
        }
    }

    /// Write an unfinished line.
    ///
    /// # Errors
    /// It cannot be written, or earlier output was lost.
    pub fn finish(&self) -> Result<()> {
        let mut port = self.port();
        port.serial.writer_mut().finish().context("the guest's last output is lost")?;
        ensure!(!port.lost, "some of the guest's output was lost");
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    const DATA: u8 = 0;
    const ENABLE: u8 = 1;
    const IDENTIFY: u8 = 2;
    const MODEM: u8 = 4;
    const STATUS: u8 = 5;

    /// For tests: the output in the parts in which it was written, and the line's changes.
    #[derive(Clone, Default)]
    struct Seen(Arc<Mutex<(Vec<String>, Vec<bool>)>>);

    impl Write for Seen {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().0.push(String::from_utf8_lossy(bytes).into());
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Seen {
        fn console(&self, by_line: bool) -> Console<Self> {
            let line = self.clone();
            let set = move |up| {
                line.0.lock().unwrap().1.push(up);
                Ok(())
            };
            Console::new(self.clone(), by_line, Box::new(set))
        }

        fn line(&self) -> Vec<bool> {
            self.0.lock().unwrap().1.clone()
        }

        fn parts(&self) -> Vec<String> {
            self.0.lock().unwrap().0.clone()
        }
    }

    fn print(console: &Console<Seen>, text: &str) {
        for byte in text.bytes() {
            console.write(DATA, byte).unwrap();
        }
    }

    #[test]
    fn output_goes_by_lines_or_bytes() {
        let seen = Seen::default();
        let console = seen.console(true);
        print(&console, "one\ntwo");
        assert_eq!(seen.parts(), ["one\n"]);
        console.finish().unwrap();
        assert_eq!(seen.parts(), ["one\n", "two"]);
        print(&console, &"x".repeat(LINE + 1));
        assert_eq!(seen.parts()[2].len(), LINE);

        let seen = Seen::default();
        print(&seen.console(false), "ab");
        assert_eq!(seen.parts(), ["a", "b"]);
    }

    #[test]
    fn the_line_follows_what_is_pending_and_enabled() {
        let seen = Seen::default();
        let console = seen.console(true);
        print(&console, "polled");
        assert!(seen.line().is_empty());
        // The transmitter is always empty.
        console.write(ENABLE, ENABLE_EMPTY).unwrap();
        print(&console, "ab");
        assert_eq!(seen.line(), [true]);
        assert_eq!(console.read(IDENTIFY).unwrap() & 0xf, PENDING_EMPTY);
        assert_eq!(seen.line(), [true, false]);
        print(&console, "c");
        // When disabled, the line is down although the interrupt is pending.
        console.write(ENABLE, 0).unwrap();
        assert_eq!(seen.line(), [true, false, true, false]);
    }

    #[test]
    fn input_raises_the_line_until_it_is_read() {
        let seen = Seen::default();
        let console = seen.console(true);
        assert_eq!(console.port().offer(b"xy").unwrap(), 0);
        console.write(ENABLE, ENABLE_RECEIVED).unwrap();
        for probing in [REQUEST_TO_SEND, INTERRUPTS_OUT] {
            console.write(MODEM, probing).unwrap();
            assert_eq!(console.port().offer(b"xy").unwrap(), 0);
        }
        console.write(MODEM, READY).unwrap();
        console.feed(&b"xy"[..]).unwrap();
        assert_eq!(seen.line(), [true]);
        assert_eq!(console.read(STATUS).unwrap() & 1, 1);
        assert_eq!((console.read(DATA).unwrap(), console.read(DATA).unwrap()), (b'x', b'y'));
        assert_eq!(console.read(STATUS).unwrap() & 1, 0);
        assert_eq!(seen.line(), [true, false]);
    }

    #[test]
    fn input_waits_for_the_guest_and_none_is_lost() {
        const LENGTH: usize = 1000;
        let console = Arc::new(Seen::default().console(true));
        let feeder = Arc::clone(&console);
        let sent: Vec<u8> = (0..LENGTH).map(|i| i as u8).collect();
        let input = sent.clone();
        let feeder = thread::spawn(move || feeder.feed(&input[..]));
        // The guest is ready late, and reads a byte when there is one.
        while !console.port().waiting {
            thread::yield_now();
        }
        console.write(ENABLE, ENABLE_RECEIVED).unwrap();
        console.write(MODEM, READY).unwrap();
        let mut received = Vec::new();
        while received.len() < LENGTH {
            match console.read(STATUS).unwrap() & 1 {
                0 => thread::yield_now(),
                _ => received.push(console.read(DATA).unwrap()),
            }
        }
        feeder.join().unwrap().unwrap();
        assert!(received == sent);
        assert!(!console.port().waiting);
    }

    #[test]
    fn a_line_that_cannot_be_set_is_an_error() {
        let fail = |_| Err(io::Error::from(io::ErrorKind::Other));
        let console = Console::new(io::sink(), true, Box::new(fail));
        assert!(console.write(ENABLE, ENABLE_EMPTY).unwrap_err().to_string().contains("interrupt"));
    }

    #[test]
    fn lost_output_does_not_stop_the_guest_but_is_reported() {
        let console = Console::new(&mut [][..], false, Box::new(|_| Ok(())));
        console.write(DATA, b'x').unwrap();
        assert!(console.finish().unwrap_err().to_string().contains("was lost"));
    }
}
