// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The differential test of page tables: the module trapless_table_test makes calls about page tables from a seed, as
//! an adversarial guest would, on stock Xen and then under the payload. Each answer must be the same.
//!
//! Invariant: until its answers are known to be those of stock Xen, the payload's switches are on only while the module
//! makes calls. A process that ends under a payload that decides wrongly could take the host with it.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use serde::Serialize;

use super::super::control::put;
use super::super::host::Host;
use super::super::image::left_out;
use super::super::linux::Log;
use super::super::unload::remove;
use super::{ASKED, Unknown};

pub use super::super::left::TABLE_TEST as MODULE;

/// Rounds of a seed, some 4,000 calls.
const ROUNDS: u32 = 40;
/// Records that the module keeps, of 40 bytes; and when to stop, so that no seed is cut.
const RECORDS: u64 = 600_000;
const ENOUGH: u64 = 450_000;
/// All switches of the payload; those that it was built without stay off.
const SWITCHES: &str = "15";

/// Whether the payload has calls of its own, on ranges of entries. Stock Xen has none: there the module makes the
/// updates that a range stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calls {
    OfStock,
    AndRanges,
}

impl Calls {
    /// Those of a payload.
    ///
    /// # Errors
    /// When the file is no payload.
    pub fn of(payload: &[u8]) -> Result<Self> {
        let is_without = left_out(payload)?.iter().any(|(part, _)| part == "ranges");
        Ok(if is_without { Calls::OfStock } else { Calls::AndRanges })
    }

    /// As the module names them.
    fn kinds(self) -> &'static str {
        match self {
            Calls::OfStock => "all",
            Calls::AndRanges => "all,range",
        }
    }
}

/// What was compared.
#[derive(Debug, Default, Serialize)]
pub struct Tables {
    pub first_seed: u32,
    /// Seeds whose calls have the same answers each time on stock Xen.
    pub seeds: usize,
    /// Seeds that were left out because stock Xen's own answers differed.
    pub unstable: usize,
    /// Seeds that were dropped later: with the payload loaded their answers differed, also while it was switched off.
    pub dropped: usize,
    /// Calls on stock Xen.
    pub calls: u64,
    /// Calls with the payload that were compared, undisturbed.
    pub compared: u64,
    /// The same while timers interrupt them.
    pub compared_interrupted: u64,
    /// Calls that Xen was seen to leave in the middle.
    pub left_in_the_middle: u64,
    /// Calls on ranges in which the payload changed entries, if it has such calls.
    pub ranges: Option<u64>,
    /// The first difference, as the module said it.
    pub difference: Vec<String>,
}

impl Tables {
    /// Whether the answers are those of stock Xen, if nothing interrupts the calls.
    pub fn hold_undisturbed(&self) -> bool {
        self.difference.is_empty() && self.calls > 0 && self.compared == self.calls
    }

    /// What is missing if they do not hold, and hold undisturbed.
    pub fn not_interrupted(&self) -> String {
        if self.compared_interrupted == 0 {
            "no answers could be compared while timers interrupted the calls: they differed also while the payload was switched off".into()
        } else if self.ranges == Some(0) {
            "the payload has calls on ranges, and changed no entry in any".into()
        } else {
            "no call was seen to be left in the middle, although timers interrupted them".into()
        }
    }

    /// Whether they are, also if something does.
    pub fn hold(&self) -> bool {
        self.hold_undisturbed()
            && self.compared_interrupted > 0
            && self.left_in_the_middle > 0
            && self.ranges != Some(0)
    }
}

/// A seed on stock Xen: where its records begin, and how many there are.
#[derive(Debug, Clone, Copy)]
pub struct Recorded {
    seed: u32,
    at: u64,
    calls: u64,
}

/// The module's control files.
pub struct Driver {
    files: PathBuf,
}

impl Driver {
    /// Load the module.
    ///
    /// # Errors
    /// The kernel's, with what its log says.
    pub fn load(host: &Host, file: &Path, calls: Calls) -> Result<Self> {
        host.kernel
            .insert(MODULE, file, &format!("records={RECORDS} kinds={}", calls.kinds()))
            .map_err(|not| anyhow!("{MODULE} cannot be loaded: {}: {}", not.error, not.said.join("; ")))?;
        Ok(Driver { files: host.path(format!("/sys/module/{MODULE}/parameters")) })
    }

    fn set(&self, name: &str, value: &str) -> Result<()> {
        put(&self.files.join(name), value).with_context(|| format!("{MODULE}: {name}={value}"))
    }

    fn get(&self, name: &str) -> Result<String> {
        let text = std::fs::read_to_string(self.files.join(name));
        Ok(text.with_context(|| format!("{MODULE}: {name}"))?.trim().to_owned())
    }

    fn count(&self, name: &str) -> Result<u64> {
        self.get(name)?.parse().with_context(|| format!("{MODULE}: {name}"))
    }

    /// One run of a seed: the calls that it made, and the calls compared so far in this leg.
    fn run(&self, seed: u32) -> Result<Ran> {
        let ran = put(&self.files.join("run"), &format!("{seed} {ROUNDS}"));
        let differs = self.get("differs")? == "Y";
        if !differs {
            ran.with_context(|| format!("{MODULE}: seed {seed}"))?;
        }
        let line = self.get("digest")?;
        let number = |name: &str| -> Result<u64> {
            let mut words = line.split(' ').skip_while(|word| *word != name);
            let value = words.nth(1).and_then(|value| value.parse().ok());
            value.with_context(|| format!("{MODULE}: digest has no {name}: {line}"))
        };
        Ok(Ran { calls: number("calls")?, compared: number("compared")?, differs })
    }

    /// Keep stock Xen's answers to the calls of as many seeds as the time allows, of one at least. A seed stays only
    /// if two more runs have the same answers.
    ///
    /// # Errors
    /// Those of the module; when no seed is left; and when a signal has requested the end.
    pub fn record(&self, host: &Host, found: &mut Tables, time: Duration) -> Result<Vec<Recorded>> {
        let end = Instant::now() + time;
        self.set("switches", "-1")?;
        self.set("preempt", "0")?;
        self.set("mode", "record")?;
        let mut seeds: Vec<Recorded> = Vec::new();
        let mut at = 0;
        while seeds.is_empty() || (Instant::now() < end && at < ENOUGH) {
            let seed = found.first_seed.wrapping_add(u32::try_from(seeds.len())?);
            let calls = self.run(seed)?.calls;
            seeds.push(Recorded { seed, at, calls });
            at += calls;
            stop_if_asked(host)?;
        }
        let mut stable = Vec::new();
        for seed in seeds {
            if self.agrees(seed)? && self.agrees(seed)? {
                stable.push(seed)
            } else {
                found.unstable += 1
            }
            stop_if_asked(host)?;
        }
        found.seeds = stable.len();
        found.calls = stable.iter().map(|seed| seed.calls).sum();
        ensure!(found.calls > 0, "stock Xen gave no seed's calls the same answers each time");
        Ok(stable)
    }

    /// Whether a seed's calls have the recorded answers now, all of them.
    fn agrees(&self, of: Recorded) -> Result<bool> {
        self.set("mode", "compare")?;
        let ran = self.run(of.seed)?;
        ensure!(
            ran.differs || ran.compared == of.at + of.calls,
            "{MODULE}: of {} calls of seed {} it compared {}",
            of.calls,
            of.seed,
            ran.compared.saturating_sub(of.at)
        );
        Ok(!ran.differs)
    }

    /// Run `load`, which applies the payload, and turn its switches off at once, from another thread: no process
    /// is started meanwhile that could meet them.
    ///
    /// # Errors
    /// Those of `load`; or the switches could not be turned off.
    pub fn switched_off(&self, load: impl FnOnce() -> Result<()>) -> Result<()> {
        self.set("mode", "off")?;
        self.set("switches", "0")?;
        let run = self.files.join("run");
        let is_loaded = AtomicBool::new(false);
        let loaded = std::thread::scope(|threads| {
            threads.spawn(|| {
                // Fails until there is a payload.
                while put(&run, "0 0").is_err() && !is_loaded.load(Ordering::Relaxed) {
                    std::thread::yield_now();
                }
            });
            let loaded = load();
            is_loaded.store(true, Ordering::Relaxed);
            loaded
        });
        loaded?;
        self.set("run", "0 0").context("the payload's switches cannot be turned off")
    }

    /// Make the same calls again, with the payload's switches on, and compare. Ends at the first difference, which is
    /// one if the same calls twice have the recorded answers with the switches off. Returns the seeds without any.
    ///
    /// # Errors
    /// Those of the module; and when a signal has requested the end.
    pub fn compare(
        &self,
        host: &Host,
        seeds: &[Recorded],
        found: &mut Tables,
        interrupted: bool,
    ) -> Result<Vec<Recorded>> {
        let before = self.count("continuations")?;
        let served = self.count("ranges_served")?;
        self.set("preempt", if interrupted { "1" } else { "0" })?;
        let mut agreed = Vec::new();
        for &seed in seeds {
            let mut log = Log::from_now(&host.path("/dev/kmsg"));
            self.set("switches", SWITCHES)?;
            let agrees = self.agrees(seed)?;
            let said = log.as_mut().map(|log| log.of(MODULE)).unwrap_or_default();
            self.set("switches", "0")?;
            if agrees {
                let compared =
                    if interrupted { &mut found.compared_interrupted } else { &mut found.compared };
                *compared += seed.calls;
                agreed.push(seed);
            } else if self.agrees(seed)? && self.agrees(seed)? {
                found.difference = said;
                if found.difference.is_empty() {
                    found.difference.push(format!("seed {}: the kernel's log has the call", seed.seed));
                }
                return Ok(agreed);
            } else {
                found.dropped += 1;
                if !interrupted {
                    found.seeds -= 1;
                    found.calls -= seed.calls;
                }
            }
            stop_if_asked(host)?;
        }
        found.left_in_the_middle += self.count("continuations")?.saturating_sub(before);
        if let Some(ranges) = &mut found.ranges {
            *ranges += self.count("ranges_served")?.saturating_sub(served);
        }
        Ok(agreed)
    }
}

struct Ran {
    calls: u64,
    compared: u64,
    differs: bool,
}

/// # Errors
/// When a signal has requested the end.
pub fn stop_if_asked(host: &Host) -> Result<()> {
    if host.kernel.stopped(Duration::ZERO) {
        bail!(Unknown(ASKED.into()));
    }
    Ok(())
}

/// Unload the module, whatever was done with it.
///
/// # Errors
/// When the kernel does not remove it.
pub fn take_out(host: &Host) -> Result<()> {
    if host.has_module(MODULE) {
        remove(host, MODULE).with_context(|| format!("module {MODULE} stays"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_legs_have_to_hold() {
        let found = || Tables {
            calls: 9,
            compared: 9,
            compared_interrupted: 9,
            left_in_the_middle: 1,
            ..Tables::default()
        };
        assert!(found().hold());
        for (worse, undisturbed) in [
            (Tables { compared_interrupted: 0, ..found() }, true),
            (Tables { left_in_the_middle: 0, ..found() }, true),
            (Tables { ranges: Some(0), ..found() }, true),
            (Tables { compared: 8, ..found() }, false),
            (Tables { calls: 0, compared: 0, ..found() }, false),
            (Tables { difference: vec!["x".into()], ..found() }, false),
        ] {
            assert!(!worse.hold() && worse.hold_undisturbed() == undisturbed, "{worse:?}");
        }
    }
}
