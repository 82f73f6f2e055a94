// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `trapless dirty bench`: what tracking costs on this host, back end by back end.
//!
//! Every figure is taken in this process, on its own memory; nothing has to be cleaned up, so Ctrl-C has its default
//! action.

mod clock;
mod measure;
mod memory;
mod method;
mod region;
mod report;
mod statistics;
mod sweep;
mod twin;

use std::io::IsTerminal;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use clap::Args;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use libdirty::{BackendKind, page_size};
use serde::Serialize;

use clock::Clock;

use crate::parse;
use crate::{doctor, output};

const HELP: &str = "\
For each back end that works here, the pages of a region are written and
collected, in turns with the bare mechanism written by hand (the twin) and with
no tracking. Slow back ends get fewer pages. Then uffd-async collects 64 MiB to
8 GiB, as far as there is memory. What was missed is found by reading the
memory: exit code 1 if anything was.
Time is this process's processor time, on one processor, so that other programs
do not decide; --free has wall clock and all processors.";

/// What to measure, and how to print it.
#[derive(Debug, Args)]
#[command(after_help = HELP)]
pub struct Arguments {
    /// Memory to watch; resident while it runs [default: 1GiB, with --quick 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse::size)]
    size: Option<usize>,
    /// The share of the pages that is written in a pass, spread evenly
    #[arg(long, value_name = "PART", default_value = "1", value_parser = parse::density)]
    density: f64,
    /// Only this back end; may be given again
    #[arg(long, value_name = "NAME", value_parser = parse::backend)]
    backend: Vec<BackendKind>,
    /// Turns of library and twin [default: 31, with --quick 5]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1000))]
    repeat: Option<u16>,
    /// Measure wall clock on any processor, with wake-ups and the load of the host,
    /// instead of processor time on one
    #[arg(long)]
    free: bool,
    /// About 20 seconds instead of minutes: rougher figures
    #[arg(long)]
    quick: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Everything that was measured.
#[derive(Debug, Serialize)]
pub struct Report {
    version: u32,
    host: doctor::host::Host,
    page_size: usize,
    size_bytes: usize,
    stride: usize,
    repeat: usize,
    clock: &'static str,
    rejected: Vec<Rejected>,
    rows: Vec<measure::Row>,
    sweep: Option<sweep::Sweep>,
}

#[derive(Debug, Serialize)]
struct Rejected {
    backend: &'static str,
    why: String,
}

impl Report {
    /// Whether all written pages were reported, by the twins, too.
    fn holds(&self) -> bool {
        self.rows.iter().all(|row| row.missed == 0 && row.twin_missed == 0)
            && self.sweep.iter().flat_map(|sweep| &sweep.points).all(|point| point.missed == 0)
    }
}

/// Measure and print.
///
/// # Errors
/// No memory, no back end, or a refusal of the kernel.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let size = arguments.size.unwrap_or(if arguments.quick { 256 << 20 } else { 1 << 30 });
    let repeat = arguments.repeat.map_or(if arguments.quick { 5 } else { 31 }, usize::from);
    let (largest, passes) = if arguments.quick { (512 << 20, 2) } else { (8 << 30, 3) };
    // Many short passes: a disturbance affects one pair of them, not the median.
    let pass = Duration::from_millis(if arguments.quick { 100 } else { 250 });
    let plan = measure::Plan { stride: (1.0 / arguments.density).round() as usize, repeat, pass };
    let spare = memory::spare()?;
    ensure!(
        size as u64 <= spare,
        "{} is more than half of the free memory ({}); choose a smaller --size",
        output::bytes((size / page_size()) as u64),
        output::bytes(2 * spare / page_size() as u64),
    );

    let mut works = Vec::new();
    let mut rejected = Vec::new();
    for finding in libdirty::survey() {
        let wanted = arguments.backend.is_empty() || arguments.backend.contains(&finding.backend);
        match finding.rejected {
            None if wanted => works.push(finding.backend),
            None => {}
            Some(why) if arguments.backend.contains(&finding.backend) => {
                bail!("{}: {why}", finding.backend)
            }
            Some(why) => rejected.push(Rejected { backend: finding.backend.name(), why }),
        }
    }
    ensure!(!works.is_empty(), "no back end works here; see: trapless doctor");

    let sizes = (largest / sweep::FIRST).ilog2() as usize + 1;
    let sweeps = works.contains(&BackendKind::UffdAsync);
    let steps = works.len() * repeat * 2 + if sweeps { sizes } else { 0 };
    let bar = progress(steps, arguments.json);
    let tick = || bar.inc(1);
    let mut rows = Vec::new();
    let host = doctor::host::Host::look()?; // before the clock, which keeps this process on one CPU
    let clock = if arguments.free { Clock::Free } else { Clock::own()? };
    {
        let mut region = region::Region::new(size)?;
        for kind in works {
            bar.set_message(kind.name());
            rows.push(measure::measure(kind, &mut region, &plan, &clock, &tick)?);
        }
    }
    bar.set_message("sizes");
    let sweep = if sweeps { Some(sweep::sweep(largest, passes, &clock, &tick)?) } else { None };
    bar.finish_and_clear();

    let stride = plan.stride;
    let report = Report {
        version: 1,
        host,
        page_size: page_size(),
        size_bytes: size,
        stride,
        repeat,
        clock: clock.name(),
        rejected,
        rows,
        sweep,
    };
    output::line(&if arguments.json { serde_json::to_string(&report)? } else { report::table(&report) })?;
    Ok(if report.holds() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn progress(steps: usize, quiet: bool) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if quiet || !std::io::stderr().is_terminal() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
    }
    let style =
        ProgressStyle::with_template("{bar:30} {pos}/{len} {msg} {elapsed}").expect("a valid template");
    bar.with_style(style)
}
