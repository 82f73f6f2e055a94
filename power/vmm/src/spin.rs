// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The spin table, by which the guest starts its other processors (ePAPR 1.1, section 5.5.2): an entry for each, of
//! registers, so that no vCPU has to spin. A processor starts once, when the guest replaces the low half of its
//! address, 1 until then.

use std::sync::{Condvar, Mutex, MutexGuard};

use crate::layout;

const PANICKED: &str = "a thread panicked, which ends the process";
const ENTRY: usize = layout::SPIN_ENTRY as usize;
/// Offsets in an entry, big-endian words.
const ADDRESS_HIGH: usize = 0;
const ADDRESS_LOW: usize = 4;
const R3_LOW: usize = 12;
/// The address of a processor that is not started.
const NOWHERE: u32 = 1;

/// How a processor starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Started {
    /// Physical.
    pub address: u64,
    /// Its r3.
    pub argument: u32,
}

/// The table.
#[derive(Debug)]
pub struct Spin {
    entries: Mutex<Vec<[u8; ENTRY]>>,
    changed: Condvar,
}

impl Spin {
    /// A table for this many processors, the first of which is not started by it.
    pub fn new(processors: u32) -> Self {
        let mut entry = [0; ENTRY];
        entry[ADDRESS_LOW..][..4].copy_from_slice(&NOWHERE.to_be_bytes());
        Self { entries: Mutex::new(vec![entry; processors as usize]), changed: Condvar::new() }
    }

    fn entries(&self) -> MutexGuard<'_, Vec<[u8; ENTRY]>> {
        self.entries.lock().expect(PANICKED)
    }

    /// The guest reads.
    pub fn read(&self, offset: u64, data: &mut [u8]) {
        let entries = self.entries();
        let bytes = entries.as_flattened().iter().skip(usize::try_from(offset).unwrap_or(usize::MAX));
        data.iter_mut().zip(bytes).for_each(|(to, from)| *to = *from);
    }

    /// The guest writes.
    pub fn write(&self, offset: u64, data: &[u8]) {
        let mut entries = self.entries();
        let bytes = entries.as_flattened_mut().iter_mut().skip(usize::try_from(offset).unwrap_or(usize::MAX));
        bytes.zip(data).for_each(|(to, from)| *to = *from);
        self.changed.notify_all();
    }

    /// Wait until a processor is started; none if there is no such.
    pub fn wait(&self, processor: u32) -> Option<Started> {
        let mut entries = self.entries();
        loop {
            let entry = entries.get(processor as usize)?;
            let word =
                |at: usize| u32::from_be_bytes([entry[at], entry[at + 1], entry[at + 2], entry[at + 3]]);
            if word(ADDRESS_LOW) != NOWHERE {
                let address = u64::from(word(ADDRESS_HIGH)) << 32 | u64::from(word(ADDRESS_LOW));
                return Some(Started { address, argument: word(R3_LOW) });
            }
            entries = self.changed.wait(entries).expect(PANICKED);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::thread;

    #[test]
    fn a_processor_starts_when_its_address_is_there() {
        let spin = Arc::new(Spin::new(2));
        let waiting = Arc::clone(&spin);
        let second = thread::spawn(move || waiting.wait(1));
        let mut word = [0; 4];
        spin.read(32 + 4, &mut word);
        assert_eq!(word, [0, 0, 0, 1]);
        // Another's address, and other fields, start nothing.
        spin.write(4, &0x1234u32.to_be_bytes());
        spin.write(32 + 12, &7u32.to_be_bytes());
        spin.write(32 + 20, &1u32.to_be_bytes());
        assert!(!second.is_finished());
        spin.write(32 + 4, &0xabc0u32.to_be_bytes());
        assert_eq!(second.join().unwrap(), Some(Started { address: 0xabc0, argument: 7 }));
        assert_eq!(spin.wait(2), None);
    }

    #[test]
    fn anything_gets_an_answer() {
        let spin = Spin::new(2);
        for offset in [0, 60, 63, 64, 1 << 40, u64::MAX] {
            for length in 0..=8 {
                spin.write(offset, &vec![0xff; length]);
                spin.read(offset, &mut vec![0; length]);
            }
        }
    }
}
