// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The registers of a virtio device, version 2 of virtio-mmio, and its interrupt.
//!
//! The vCPUs' threads and a device's own change the device and its interrupt line together, under one lock. The line
//! is level-triggered: up exactly while the guest has an interrupt to acknowledge. A queue is used only while the
//! driver says that it is ready and the device needs no reset.

use std::sync::{Condvar, Mutex, MutexGuard};

use anyhow::{Context, Result};

use super::queue::{Broken, Queue, SIZE_MAX};
use super::ram::Ram;
use crate::board::Registers;
use crate::console::Line;
use crate::log::Log;

const PANICKED: &str = "a thread panicked, which ends the process";

const MAGIC_VALUE: u32 = u32::from_le_bytes(*b"virt");
const VERSION: u32 = 2;
const VENDOR: u32 = u32::from_le_bytes(*b"trpl");

/// Registers, as in linux/virtio_mmio.h.
pub(super) mod register {
    pub const MAGIC_VALUE: u64 = 0x000;
    pub const VERSION: u64 = 0x004;
    pub const DEVICE_ID: u64 = 0x008;
    pub const VENDOR_ID: u64 = 0x00c;
    pub const DEVICE_FEATURES: u64 = 0x010;
    pub const DEVICE_FEATURES_SEL: u64 = 0x014;
    pub const DRIVER_FEATURES: u64 = 0x020;
    pub const DRIVER_FEATURES_SEL: u64 = 0x024;
    pub const QUEUE_SEL: u64 = 0x030;
    pub const QUEUE_NUM_MAX: u64 = 0x034;
    pub const QUEUE_NUM: u64 = 0x038;
    pub const QUEUE_READY: u64 = 0x044;
    pub const QUEUE_NOTIFY: u64 = 0x050;
    pub const INTERRUPT_STATUS: u64 = 0x060;
    pub const INTERRUPT_ACK: u64 = 0x064;
    pub const STATUS: u64 = 0x070;
    pub const QUEUE_DESC_LOW: u64 = 0x080;
    pub const QUEUE_DESC_HIGH: u64 = 0x084;
    pub const QUEUE_AVAIL_LOW: u64 = 0x090;
    pub const QUEUE_AVAIL_HIGH: u64 = 0x094;
    pub const QUEUE_USED_LOW: u64 = 0x0a0;
    pub const QUEUE_USED_HIGH: u64 = 0x0a4;
    pub const SHM_LEN_LOW: u64 = 0x0b0;
    pub const SHM_LEN_HIGH: u64 = 0x0b4;
    pub const CONFIG: u64 = 0x100;
}

/// Bits of the status, as in linux/virtio_config.h.
pub(super) mod status {
    pub const DRIVER_OK: u32 = 4;
    pub const FEATURES_OK: u32 = 8;
    pub const NEEDS_RESET: u32 = 0x40;
}

/// The only version that there is.
pub(super) const F_VERSION_1: u64 = 1 << 32;

pub(super) const INTERRUPT_USED: u32 = 1;
pub(super) const INTERRUPT_CONFIGURATION: u32 = 2;

/// What differs between devices.
pub trait Device: Send {
    /// Its number in the specification.
    const ID: u32;
    /// How many queues it has.
    const QUEUES: usize;
    /// Its name, for messages.
    const NAME: &str;

    /// What it offers besides the version.
    fn features(&self) -> u64;

    /// What the guest accepts, before it uses a queue.
    fn accept(&mut self, features: u64);

    /// Its configuration, as the guest reads it.
    fn configuration(&self) -> &[u8];

    /// The guest has made buffers of a queue available. Returns whether some were given back.
    ///
    /// # Errors
    /// The guest breaks a rule of the queue.
    fn notified(&mut self, number: usize, queue: &mut Queue, ram: &Ram) -> Result<bool, Broken>;
}

struct State<D> {
    device: D,
    ram: Ram,
    queues: Vec<Queue>,
    queue: u32,
    status: u32,
    offered_half: u32,
    accepted_half: u32,
    accepted: u64,
    interrupt: u32,
    line: Line,
    /// What the line was last set to.
    up: bool,
    /// The device's own thread waits for the guest.
    waiting: bool,
    log: Log,
}

/// A device's registers.
pub struct Mmio<D> {
    state: Mutex<State<D>>,
    touched: Condvar,
}

/// A step of a device's own thread.
pub enum Step {
    /// It did what there was, and gave buffers back or not.
    Done(bool),
    /// It needs a buffer of the guest.
    Wait,
}

impl<D: Device> State<D> {
    fn reset(&mut self) {
        self.queues = (0..D::QUEUES).map(|_| Queue::default()).collect();
        (self.queue, self.status, self.interrupt) = (0, 0, 0);
        (self.offered_half, self.accepted_half, self.accepted) = (0, 0, 0);
    }

    fn features(&self) -> u64 {
        self.device.features() | F_VERSION_1
    }

    fn running(&self) -> bool {
        self.status & (status::DRIVER_OK | status::NEEDS_RESET) == status::DRIVER_OK
    }

    fn update(&mut self) -> Result<()> {
        let up = self.interrupt != 0;
        if up != self.up {
            (self.line)(up).with_context(|| format!("cannot set the interrupt of the {}", D::NAME))?;
            self.up = up;
        }
        Ok(())
    }

    /// Let the device work on a queue.
    fn work(
        &mut self,
        number: usize,
        work: impl FnOnce(&mut D, &mut Queue, &Ram) -> Result<Step, Broken>,
    ) -> Step {
        if !self.running() {
            return Step::Wait;
        }
        let Some(queue) = self.queues.get_mut(number).filter(|queue| queue.ready) else { return Step::Wait };
        let done = work(&mut self.device, queue, &self.ram).and_then(|step| {
            if matches!(step, Step::Done(true)) && queue.wants_interrupt(&self.ram)? {
                self.interrupt |= INTERRUPT_USED;
            }
            Ok(step)
        });
        done.unwrap_or_else(|broken| {
            self.log.print(format_args!("the {} needs a reset: queue {number}: {broken}", D::NAME));
            self.status |= status::NEEDS_RESET;
            self.interrupt |= INTERRUPT_CONFIGURATION;
            Step::Wait
        })
    }

    fn read(&self, offset: u64) -> u32 {
        let queue = usize::try_from(self.queue).ok().and_then(|number| self.queues.get(number));
        match offset {
            register::MAGIC_VALUE => MAGIC_VALUE,
            register::VERSION => VERSION,
            register::DEVICE_ID => D::ID,
            register::VENDOR_ID => VENDOR,
            register::DEVICE_FEATURES => half(self.features(), self.offered_half),
            register::QUEUE_NUM_MAX => queue.map_or(0, |_| SIZE_MAX.into()),
            register::QUEUE_READY => queue.map_or(0, |queue| queue.ready.into()),
            register::INTERRUPT_STATUS => self.interrupt,
            register::STATUS => self.status,
            // No shared memory has a length of all ones.
            register::SHM_LEN_LOW | register::SHM_LEN_HIGH => u32::MAX,
            _ => 0,
        }
    }

    fn write(&mut self, offset: u64, value: u32) {
        match offset {
            register::DEVICE_FEATURES_SEL => self.offered_half = value,
            register::DRIVER_FEATURES_SEL => self.accepted_half = value,
            register::DRIVER_FEATURES if self.status & status::FEATURES_OK == 0 => {
                set_half(&mut self.accepted, self.accepted_half, value);
            }
            register::QUEUE_SEL => self.queue = value,
            register::QUEUE_NOTIFY => {
                let number = value as usize;
                self.work(number, |device, queue, ram| device.notified(number, queue, ram).map(Step::Done));
            }
            register::INTERRUPT_ACK => self.interrupt &= !value,
            register::STATUS => self.set_status(value),
            _ => self.set_queue(offset, value),
        }
    }

    fn set_status(&mut self, value: u32) {
        if value == 0 {
            return self.reset();
        }
        let mut value = value | self.status & status::NEEDS_RESET;
        let known = self.accepted & !self.features() == 0 && self.accepted & F_VERSION_1 != 0;
        if value & status::FEATURES_OK != 0 && !known {
            value &= !status::FEATURES_OK;
        }
        if value & status::FEATURES_OK == 0 {
            value &= !status::DRIVER_OK;
        }
        if value & !self.status & status::FEATURES_OK != 0 {
            self.device.accept(self.accepted);
        }
        self.status = value;
    }

    /// A register of the selected queue, which cannot be changed while it is ready.
    fn set_queue(&mut self, offset: u64, value: u32) {
        let Some(queue) = self.queues.get_mut(self.queue as usize) else { return };
        match offset {
            register::QUEUE_READY if value == 0 => *queue = Queue::default(),
            _ if queue.ready => {}
            register::QUEUE_READY => queue.ready = queue.size != 0,
            register::QUEUE_NUM => {
                let size = u16::try_from(value).unwrap_or(0);
                queue.size = if size.is_power_of_two() && size <= SIZE_MAX { size } else { 0 };
            }
            register::QUEUE_DESC_LOW => set_half(&mut queue.descriptors, 0, value),
            register::QUEUE_DESC_HIGH => set_half(&mut queue.descriptors, 1, value),
            register::QUEUE_AVAIL_LOW => set_half(&mut queue.available, 0, value),
            register::QUEUE_AVAIL_HIGH => set_half(&mut queue.available, 1, value),
            register::QUEUE_USED_LOW => set_half(&mut queue.used, 0, value),
            register::QUEUE_USED_HIGH => set_half(&mut queue.used, 1, value),
            _ => {}
        }
    }
}

/// 32 bits of a register of 64; there are two.
fn half(of: u64, number: u32) -> u32 {
    match number {
        0 => of as u32,
        1 => (of >> 32) as u32,
        _ => 0,
    }
}

fn set_half(of: &mut u64, number: u32, value: u32) {
    match number {
        0 => *of = *of >> 32 << 32 | u64::from(value),
        1 => *of = u64::from(value) << 32 | u64::from(*of as u32),
        _ => {}
    }
}

impl<D: Device> Mmio<D> {
    /// A device of a guest with this memory.
    pub fn new(device: D, ram: Ram, line: Line) -> Self {
        let mut state = State {
            device,
            ram,
            queues: Vec::new(),
            queue: 0,
            status: 0,
            offered_half: 0,
            accepted_half: 0,
            accepted: 0,
            interrupt: 0,
            line,
            up: false,
            waiting: false,
            log: Log::default(),
        };
        state.reset();
        Self { state: Mutex::new(state), touched: Condvar::new() }
    }

    fn state(&self) -> MutexGuard<'_, State<D>> {
        self.state.lock().expect(PANICKED)
    }

    /// Look at the device.
    pub fn with<R>(&self, look: impl FnOnce(&D) -> R) -> R {
        look(&self.state().device)
    }

    /// Let the device's own thread work on a queue, as soon as the guest lets it.
    ///
    /// # Errors
    /// The interrupt could not be set.
    pub fn work(
        &self,
        number: usize,
        mut work: impl FnMut(&mut D, &mut Queue, &Ram) -> Result<Step, Broken>,
    ) -> Result<()> {
        let mut state = self.state();
        loop {
            let step = state.work(number, &mut work);
            state.update()?;
            match step {
                Step::Done(_) => return Ok(()),
                Step::Wait => {
                    state.waiting = true;
                    state = self.touched.wait(state).expect(PANICKED);
                    state.waiting = false;
                }
            }
        }
    }
}

impl<D: Device> Registers for Mmio<D> {
    fn read(&self, offset: u64, data: &mut [u8]) -> Result<()> {
        let state = self.state();
        if let Some(at) = offset.checked_sub(register::CONFIG) {
            let bytes = state.device.configuration().iter().skip(usize::try_from(at).unwrap_or(usize::MAX));
            data.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
        } else if let Ok(word) = <&mut [u8; 4]>::try_from(data) {
            *word = state.read(offset).to_le_bytes();
        }
        Ok(())
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        let Ok(word) = <[u8; 4]>::try_from(data) else { return Ok(()) };
        let mut state = self.state();
        if offset < register::CONFIG {
            state.write(offset, u32::from_le_bytes(word));
        }
        // Waking is a system call even if no thread sleeps.
        if state.waiting {
            self.touched.notify_one();
        }
        state.update()
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::driver::{self, AVAILABLE, BUFFERS, DESCRIPTORS, USED, give, last_used, ram};
    use super::*;
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::thread;

    const SIZE: usize = 0x1_0000;
    const F_OFFERED: u64 = 1 << 3;
    const READ_OF_2: u64 = register::CONFIG + 2;

    /// Gives everything back, and says how much was readable.
    #[derive(Default)]
    struct Echo {
        accepted: Option<u64>,
        worked: usize,
    }

    impl Device for Echo {
        const ID: u32 = 7;
        const QUEUES: usize = 2;
        const NAME: &str = "echo";

        fn features(&self) -> u64 {
            F_OFFERED
        }

        fn accept(&mut self, features: u64) {
            self.accepted = Some(features);
        }

        fn configuration(&self) -> &[u8] {
            b"config"
        }

        fn notified(&mut self, _number: usize, queue: &mut Queue, ram: &Ram) -> Result<bool, Broken> {
            let Some(chain) = queue.peek(ram)? else { return Ok(false) };
            queue.advance();
            queue.give_back(ram, chain.head, super::super::queue::length(&chain.readable) as u32)?;
            self.worked += 1;
            Ok(true)
        }
    }

    struct Bench {
        mmio: Arc<Mmio<Echo>>,
        ram: Ram,
        line: Arc<Mutex<Vec<bool>>>,
    }

    fn bench() -> Bench {
        let (ram, line) = (ram(SIZE), Arc::new(Mutex::new(Vec::new())));
        let seen = Arc::clone(&line);
        let set = move |up| {
            seen.lock().unwrap().push(up);
            Ok(())
        };
        Bench { mmio: Arc::new(Mmio::new(Echo::default(), ram.clone(), Box::new(set))), ram, line }
    }

    impl Bench {
        fn read(&self, offset: u64) -> u32 {
            let mut word = [0; 4];
            self.mmio.read(offset, &mut word).unwrap();
            u32::from_le_bytes(word)
        }

        fn write(&self, offset: u64, value: u32) {
            self.mmio.write(offset, &value.to_le_bytes()).unwrap();
        }

        fn accept(&self, features: u64) {
            for number in 0..2 {
                self.write(register::DRIVER_FEATURES_SEL, number);
                self.write(register::DRIVER_FEATURES, half(features, number));
            }
            self.write(register::STATUS, 3 | status::FEATURES_OK);
        }

        /// Do what a driver does until it can use queue 1.
        fn start(&self) -> Queue {
            self.write(register::STATUS, 0);
            self.accept(F_VERSION_1 | F_OFFERED);
            self.write(register::QUEUE_SEL, 1);
            self.write(register::QUEUE_NUM, 8);
            for (offset, page) in [
                (register::QUEUE_DESC_LOW, DESCRIPTORS),
                (register::QUEUE_AVAIL_LOW, AVAILABLE),
                (register::QUEUE_USED_LOW, USED),
            ] {
                self.write(offset, page as u32);
            }
            self.write(register::QUEUE_READY, 1);
            self.write(register::STATUS, 3 | status::FEATURES_OK | status::DRIVER_OK);
            driver::queue(8)
        }

        fn worked(&self) -> usize {
            self.mmio.with(|device| device.worked)
        }
    }

    #[test]
    fn a_driver_finds_what_it_needs() {
        let bench = bench();
        let expected = [
            (0, 0x7472_6976),
            (4, 2),
            (8, 7),
            (register::QUEUE_NUM_MAX, 256),
            (register::SHM_LEN_LOW, u32::MAX),
        ];
        for (offset, value) in expected {
            assert_eq!(bench.read(offset), value, "{offset:#x}");
        }
        bench.write(register::QUEUE_SEL, 2);
        assert_eq!(bench.read(register::QUEUE_NUM_MAX), 0);
        let offered = [0, 1, 2].map(|number| {
            bench.write(register::DEVICE_FEATURES_SEL, number);
            bench.read(register::DEVICE_FEATURES)
        });
        assert_eq!(offered, [8, 1, 0]);
        let mut bytes = [0xff; 3];
        bytes.fill(0);
        bench.mmio.read(READ_OF_2, &mut bytes).unwrap();
        assert_eq!(&bytes, b"nfi");
        assert_eq!(bench.read(register::CONFIG + 5), u32::from(b'g'));
    }

    #[test]
    fn only_offered_features_of_the_right_version_are_accepted() {
        let bench = bench();
        for (features, known) in [
            (0, false),
            (F_OFFERED, false),
            (F_VERSION_1 | 1, false),
            (F_VERSION_1, true),
            (F_VERSION_1 | F_OFFERED, true),
        ] {
            bench.write(register::STATUS, 0);
            bench.accept(features);
            assert_eq!(bench.read(register::STATUS), 3 | if known { status::FEATURES_OK } else { 0 });
            assert_eq!(bench.mmio.with(|device| device.accepted == Some(features)), known);
            bench.write(register::STATUS, 3 | status::DRIVER_OK);
            assert_eq!(bench.read(register::STATUS), 3);
        }
    }

    #[test]
    fn a_request_is_done_and_interrupts() {
        let bench = bench();
        let queue = bench.start();
        give(&bench.ram, &queue, &[(BUFFERS, 5, false)]);
        bench.write(register::QUEUE_NOTIFY, 1);
        assert_eq!(last_used(&bench.ram, &queue), (1, 0, 5));
        assert_eq!((bench.read(register::INTERRUPT_STATUS), bench.worked()), (INTERRUPT_USED, 1));
        bench.write(register::INTERRUPT_ACK, INTERRUPT_USED);
        // Nothing is there, or no such queue, or not a word.
        bench.write(register::QUEUE_NOTIFY, 1);
        bench.write(register::QUEUE_NOTIFY, 0);
        bench.write(register::QUEUE_NOTIFY, u32::MAX);
        driver::make_available(&bench.ram, &queue, 0);
        bench.mmio.write(register::QUEUE_NOTIFY, &[1, 0]).unwrap();
        assert_eq!(*bench.line.lock().unwrap(), [true, false]);
        // A guest that polls.
        assert!(bench.ram.store16(AVAILABLE, 1));
        bench.write(register::QUEUE_NOTIFY, 1);
        assert_eq!((bench.worked(), bench.read(register::INTERRUPT_STATUS)), (2, 0));
    }

    #[test]
    fn a_queue_is_used_only_when_all_is_ready() {
        let bench = bench();
        let queue = bench.start();
        // It cannot be moved.
        bench.write(register::QUEUE_DESC_LOW, 0x8000);
        bench.write(register::QUEUE_NUM, 4);
        give(&bench.ram, &queue, &[(BUFFERS, 5, false)]);
        bench.write(register::QUEUE_NOTIFY, 1);
        assert_eq!((bench.worked(), last_used(&bench.ram, &queue)), (1, (1, 0, 5)));
        driver::make_available(&bench.ram, &queue, 0);
        bench.write(register::STATUS, 3 | status::FEATURES_OK);
        bench.write(register::QUEUE_NOTIFY, 1);
        assert_eq!(bench.worked(), 1);
        bench.write(register::STATUS, 3 | status::FEATURES_OK | status::DRIVER_OK);
        bench.write(register::QUEUE_READY, 0);
        bench.write(register::QUEUE_NOTIFY, 1);
        for size in [0, 3, 512, 0x1_0008, u32::MAX] {
            bench.write(register::QUEUE_NUM, size);
            bench.write(register::QUEUE_READY, 1);
            assert_eq!(bench.read(register::QUEUE_READY), 0, "{size}");
        }
        assert_eq!(bench.worked(), 1);
        bench.start();
        bench.write(register::QUEUE_NOTIFY, 1);
        assert_eq!(bench.worked(), 2);
    }

    #[test]
    fn a_broken_queue_needs_a_reset() {
        let bench = bench();
        let queue = bench.start();
        give(&bench.ram, &queue, &[(SIZE as u64, 1, false)]);
        bench.write(register::QUEUE_NOTIFY, 1);
        let broken = 3 | status::FEATURES_OK | status::DRIVER_OK | status::NEEDS_RESET;
        assert_eq!(bench.read(register::STATUS), broken);
        assert_eq!(bench.read(register::INTERRUPT_STATUS), INTERRUPT_CONFIGURATION);
        // Neither another request nor another status helps, a reset does.
        give(&bench.ram, &queue, &[(BUFFERS, 1, false)]);
        bench.write(register::STATUS, 3 | status::FEATURES_OK | status::DRIVER_OK);
        bench.write(register::QUEUE_NOTIFY, 1);
        assert_eq!((bench.read(register::STATUS), bench.worked()), (broken, 0));
        bench.start();
        assert_eq!(bench.read(register::INTERRUPT_STATUS), 0);
        bench.write(register::QUEUE_NOTIFY, 1);
        assert_eq!(bench.worked(), 1);
        assert_eq!(*bench.line.lock().unwrap(), [true, false, true]);
    }

    #[test]
    fn the_devices_own_thread_waits_for_the_guest() {
        let bench = bench();
        let mmio = Arc::clone(&bench.mmio);
        let own = thread::spawn(move || {
            mmio.work(1, |device, queue, ram| match queue.peek(ram)? {
                Some(_) => device.notified(1, queue, ram).map(Step::Done),
                None => Ok(Step::Wait),
            })
        });
        let queue = bench.start();
        while !bench.mmio.state().waiting {
            thread::yield_now();
        }
        assert!(!own.is_finished());
        give(&bench.ram, &queue, &[(BUFFERS, 5, false)]);
        bench.write(register::STATUS, 3 | status::FEATURES_OK | status::DRIVER_OK);
        own.join().unwrap().unwrap();
        assert_eq!((bench.worked(), bench.read(register::INTERRUPT_STATUS)), (1, INTERRUPT_USED));
    }

    proptest! {
        /// Any accesses in any order: each returns, and the line is up exactly if there is an interrupt.
        #[test]
        fn any_access_gets_an_answer(
            accesses in prop::collection::vec(
                (
                    prop_oneof![(0u64..0x40).prop_map(|word| 4 * word), 0u64..0x200],
                    prop_oneof![0u32..16, any::<u32>(), Just(AVAILABLE as u32)],
                    prop_oneof![6 => Just(4usize), 1 => 0usize..9],
                ),
                0..200,
            ),
            bytes in prop::collection::vec(any::<u8>(), 0x100),
        ) {
            let bench = bench();
            driver::put(&bench.ram, AVAILABLE, &bytes);
            bench.start();
            for (offset, value, length) in accesses {
                let data = [value.to_le_bytes(), [0; 4]].concat();
                prop_assert!(bench.mmio.write(offset, &data[..length]).is_ok());
                prop_assert!(bench.mmio.read(offset, &mut vec![0; length]).is_ok());
                let up = bench.line.lock().unwrap().last().copied().unwrap_or(false);
                prop_assert_eq!(up, bench.read(register::INTERRUPT_STATUS) != 0);
            }
        }
    }
}
