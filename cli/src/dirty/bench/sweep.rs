// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The cost of a collect by the size of the watched memory: `uffd-async`, all pages dirty, doubling from 64 MiB.

use anyhow::Result;
use libdirty::BackendKind;
use serde::Serialize;

use super::clock::Clock;
use super::memory::{self, Memory};
use super::method::{Library, Method};
use super::region::Region;
use super::statistics::{Line, Spread};

/// One size.
#[derive(Debug, Serialize)]
pub struct Point {
    pub bytes: usize,
    pub pages: usize,
    /// Nanoseconds of a whole collect.
    pub collect_ns: Spread,
    pub missed: usize,
    pub spurious: usize,
    pub memory: Memory,
}

/// The sizes, and the lines through them.
#[derive(Debug, Serialize)]
pub struct Sweep {
    pub backend: &'static str,
    pub points: Vec<Point>,
    /// Nanoseconds of a collect over pages.
    pub line: Option<Line>,
    /// Bits of bookkeeping for each further page, without the tracker's fixed size.
    pub bits_per_page: Option<f64>,
    /// Why it stopped before the largest size, if it did.
    pub stopped: Option<String>,
}

/// The smallest size.
pub const FIRST: usize = 64 << 20;

/// Measure sizes up to `largest`, as far as there is memory.
///
/// # Errors
/// When the back end does not work or the kernel refuses.
pub fn sweep(largest: usize, repeat: usize, clock: &Clock, tick: &dyn Fn()) -> Result<Sweep> {
    let kind = BackendKind::UffdAsync;
    let (mut points, mut stopped) = (Vec::new(), None);
    let mut bytes = FIRST;
    while bytes <= largest {
        let spare = memory::spare()?;
        if bytes as u64 > spare {
            let size = |bytes| bytesize::ByteSize::b(bytes).display().iec();
            stopped = Some(format!(
                "{} is more than half of the free memory ({})",
                size(bytes as u64),
                size(2 * spare)
            ));
            break;
        }
        points.push(point(kind, bytes, repeat, clock)?);
        tick();
        bytes *= 2;
    }
    let over_pages = |of: fn(&Point) -> f64| {
        Line::through(&points.iter().map(|p| (p.pages as f64, of(p))).collect::<Vec<_>>())
    };
    Ok(Sweep {
        backend: kind.name(),
        line: over_pages(|p| p.collect_ns.median),
        bits_per_page: over_pages(|p| p.memory.bookkeeping_bytes as f64 * 8.0).map(|line| line.slope),
        points,
        stopped,
    })
}

fn point(kind: BackendKind, bytes: usize, repeat: usize, clock: &Clock) -> Result<Point> {
    let mut region = Region::new(bytes)?;
    let pages = region.pages();
    let mut library = Library::start(kind, region.first(pages))?;
    let (mut spent, mut missed, mut spurious) = (Vec::new(), 0, 0);
    for _ in 0..repeat {
        region.touch(pages, 1);
        let (took, done) = clock.time(|| library.collect());
        done?;
        spent.push(took);
        let verdict = region.judge(&library.reported());
        missed += verdict.missed;
        spurious += verdict.spurious;
    }
    drop(library);
    let memory = memory::of_back_end(kind, &mut region, 1)?;
    Ok(Point { bytes, pages, collect_ns: Spread::of(spent), missed, spurious, memory })
}
