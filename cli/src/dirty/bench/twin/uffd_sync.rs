// SPDX-License-Identifier: Apache-2.0 OR MIT
//! userfaultfd write protection with a thread that handles each fault.
//!
//! The thread waits in a plain `read`. To end it, a separate page outside the range is written, whose fault is the
//! request to stop.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::sync::Arc;
use std::thread::JoinHandle;

use anyhow::{Context, Result};
use libdirty::{PageRange, page_size};
use linux_raw_sys::general::{UFFD_FEATURE_PAGEFAULT_FLAG_WP, uffd_msg};

use super::bits::{Bits, Runs};
use super::uffd::Uffd;
use crate::dirty::bench::method::Method;
use crate::dirty::bench::region::Region;

pub(super) struct Twin {
    shared: Arc<Shared>,
    /// One page, armed, whose fault ends the thread.
    bell: Region,
    thread: Option<JoinHandle<()>>,
    runs: Runs,
}

struct Shared {
    uffd: Uffd,
    bits: Bits,
}

impl Twin {
    pub(super) fn start(range: PageRange) -> Result<Self> {
        let bell = Region::new(page_size()).context("a page")?;
        // Every page is present: Linux 6.1 does not support protecting missing ones.
        let uffd = Uffd::open(UFFD_FEATURE_PAGEFAULT_FLAG_WP)?;
        uffd.register(range)?;
        uffd.register(bell.first(1))?;
        let events = File::from(uffd.0.try_clone().context("dup")?);
        let shared = Arc::new(Shared { uffd, bits: Bits::new(range) });
        let for_thread = shared.clone();
        let thread = Some(std::thread::spawn(move || handle(&for_thread, events)));
        let twin = Twin { shared, bell, thread, runs: Runs::default() };
        for part in [twin.bell.first(1), range] {
            twin.shared.uffd.protect(part, true).context("UFFDIO_WRITEPROTECT")?;
        }
        Ok(twin)
    }
}

impl Method for Twin {
    fn collect(&mut self) -> Result<()> {
        self.shared.uffd.protect(self.shared.bits.range(), true).context("UFFDIO_WRITEPROTECT")?;
        self.runs.clear();
        self.shared.bits.take(&mut self.runs);
        Ok(())
    }

    fn reported(&self) -> Vec<PageRange> {
        self.runs.ranges()
    }
}

impl Drop for Twin {
    fn drop(&mut self) {
        self.bell.touch(1, 1);
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the handler does not panic");
        }
        self.shared.uffd.unregister(self.shared.bits.range());
        self.shared.uffd.unregister(self.bell.first(1));
    }
}

fn handle(shared: &Shared, mut events: File) {
    const SIZE: usize = size_of::<uffd_msg>();
    let mut buffer = [0u8; 16 * SIZE];
    loop {
        let length = match events.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(error) => panic!("reading a userfaultfd: {error}"),
        };
        for message in buffer[..length].chunks_exact(SIZE) {
            // SAFETY: the kernel wrote a whole message; it is plain data, and the read needs no alignment.
            let message: uffd_msg = unsafe { message.as_ptr().cast::<uffd_msg>().read_unaligned() };
            // SAFETY: only page faults are reported without further features.
            let address = unsafe { message.arg.pagefault.address } as usize & !(page_size() - 1);
            let page = PageRange::from_length(address, page_size()).expect("a page of user space");
            let is_bell = !shared.bits.range().contains(page);
            if !is_bell {
                shared.bits.set(address);
            }
            shared.uffd.protect(page, false).expect("a page that faulted can be opened");
            if is_bell {
                return;
            }
        }
    }
}
