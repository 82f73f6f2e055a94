// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel module trapless_dirty, by its device alone: COLLECT, and READ until it is short.

use anyhow::{Context, Result, anyhow};
use libdirty::PageRange;
use libdirty::device::{Device, abi};

use super::bits::Runs;
use crate::dirty::bench::method::Method;

pub(super) struct Twin {
    device: Device,
    /// Room for every other page of the range, the most that can be separate.
    room: Vec<abi::Range>,
    runs: Runs,
}

impl Twin {
    pub(super) fn start(mechanism: u32, range: PageRange) -> Result<Self> {
        let device = Device::open(mechanism).map_err(|why| anyhow!(why))?;
        device.attach(std::process::id().cast_signed(), mechanism).context("ATTACH")?;
        device.watch(range).context("WATCH")?;
        let room = vec![abi::Range::default(); range.pages() / 2 + 2];
        Ok(Twin { device, room, runs: Runs::default() })
    }
}

impl Method for Twin {
    fn collect(&mut self) -> Result<()> {
        // An overrun of the log needs no action: READ then reports everything.
        self.device.collect().context("COLLECT")?;
        self.runs.clear();
        for range in self.device.read(&mut self.room).context("READ")? {
            self.runs.push(usize::try_from(range.start)?, usize::try_from(range.end)?);
        }
        Ok(())
    }

    fn reported(&self) -> Vec<PageRange> {
        self.runs.ranges()
    }
}
