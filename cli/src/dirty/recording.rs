// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A recording: lines of JSON, a header and then a sample each ([`FORMAT`]).
//!
//! A line is written with one call, so a truncated recording is valid except perhaps for its last line, which then
//! has no newline. Only that line may be damaged: any other damage is refused, with the line's number.

use std::io::BufRead;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::sample::Sample;
use crate::output::printable;

/// The format for a reader of `--help`.
pub const FORMAT: &str = "\
The file has one JSON object a line. The first is the header:
  recording    always \"trapless dirty\"
  version      1
  pid, command, backend
  page_size    bytes
  interval, window   seconds
  began        seconds since 1970
Each other line is an interval; counts are pages:
  t            seconds since tracking began, at the end of the interval
  seconds      that it lasted
  written      pages seen written
  assumed      pages dirty for another reason, and assumed_why: the same by reason
  working_set  distinct pages seen written within the window
  mappings     start, end (hexadecimal), name, written, assumed
  gone         only on the last line, if the process is gone: \"exited\" or \"exec\"
A recording that is truncated, by kill -9 or a full disk, can be read up to there.";

const KIND: &str = "trapless dirty";
const VERSION: u32 = 1;
/// Longer lines are never ours: refuse them before they fill the memory.
const LONGEST: u64 = 64 << 20;

/// The first line.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Header {
    recording: String,
    version: u32,
    pub pid: i32,
    pub command: String,
    pub backend: String,
    pub page_size: u64,
    pub interval: f64,
    pub window: f64,
    pub began: f64,
}

impl Header {
    pub fn new(pid: i32, command: String, backend: String, interval: f64, window: f64, began: f64) -> Self {
        let page_size = libdirty::page_size() as u64;
        Header {
            recording: KIND.into(),
            version: VERSION,
            pid,
            command,
            backend,
            page_size,
            interval,
            window,
            began,
        }
    }

    fn check(&self) -> Result<()> {
        ensure!(
            self.recording == KIND,
            "it is no recording of trapless dirty: it is one of {}",
            printable(&self.recording)
        );
        ensure!(self.version == VERSION, "version {} is unknown; this program reads {VERSION}", self.version);
        ensure!(self.page_size.is_power_of_two(), "no page has {} bytes", self.page_size);
        let numbers = [self.interval, self.window, self.began];
        ensure!(numbers.iter().all(|n| n.is_finite() && *n >= 0.0), "a time is negative");
        Ok(())
    }
}

/// A recording that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Recording {
    pub header: Header,
    pub samples: Vec<Sample>,
    /// Its last line is truncated and was left out.
    pub is_cut: bool,
}

/// Read a recording.
///
/// # Errors
/// The number of the first invalid line, and why it is invalid.
pub fn read(mut input: impl BufRead) -> Result<Recording> {
    let mut header: Option<Header> = None;
    let mut samples: Vec<Sample> = Vec::new();
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        let mut some = std::io::Read::take(&mut input, LONGEST);
        some.read_until(b'\n', &mut line).with_context(|| format!("line {number}"))?;
        if line.is_empty() {
            break;
        }
        let is_whole = line.last() == Some(&b'\n');
        ensure!(is_whole || (line.len() as u64) < LONGEST, "line {number}: longer than {LONGEST} bytes");
        let result = match &header {
            None => parsed(&line).context("it is no recording of trapless dirty").and_then(|read: Header| {
                read.check()?;
                header = Some(read);
                Ok(())
            }),
            Some(_) => parsed(&line).and_then(|read: Sample| {
                check(&read, samples.last())?;
                samples.push(tidy(read));
                Ok(())
            }),
        };
        match (result, &header) {
            (Ok(()), _) => {}
            (Err(_), Some(header)) if !is_whole => {
                return Ok(Recording { header: header.clone(), samples, is_cut: true });
            }
            (Err(error), _) => return Err(error.context(format!("line {number}"))),
        }
    }
    match header {
        Some(header) => Ok(Recording { header, samples, is_cut: false }),
        None => bail!("it is no recording of trapless dirty: it is empty"),
    }
}

/// The parser's own words, but for its number of the line, which counts from this one.
fn parsed<T: serde::de::DeserializeOwned>(line: &[u8]) -> Result<T> {
    serde_json::from_slice(line.trim_ascii_end()).map_err(|error| {
        let said = error.to_string();
        let why = said.split(" at line 1 column ").next().unwrap_or(&said);
        anyhow::anyhow!("{} at column {}", printable(why), error.column())
    })
}

fn check(sample: &Sample, before: Option<&Sample>) -> Result<()> {
    ensure!(sample.t.is_finite() && sample.t >= 0.0, "t is {}", sample.t);
    ensure!(sample.seconds.is_finite() && sample.seconds > 0.0, "an interval of {} seconds", sample.seconds);
    ensure!((u64::MAX as f64 / sample.seconds).is_finite(), "an interval of {:?} seconds", sample.seconds);
    ensure!(before.is_none_or(|before| before.t < sample.t), "t does not grow");
    ensure!(before.is_none_or(|before| before.gone.is_none()), "a sample of a process that is gone");
    Ok(())
}

fn tidy(mut sample: Sample) -> Sample {
    for mapping in &mut sample.mappings {
        mapping.name = printable(&mapping.name);
    }
    sample
}

#[cfg(test)]
pub(in crate::dirty) mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::dirty::sample::{Address, Gone, MappingSample};

    fn header() -> Header {
        Header::new(7, "cat".into(), "uffd-async".into(), 1.0, 10.0, 1e9)
    }

    fn text(header: &Header, samples: &[Sample]) -> Vec<u8> {
        let mut text = serde_json::to_vec(header).unwrap();
        for sample in samples {
            text.push(b'\n');
            text.extend(serde_json::to_vec(sample).unwrap());
        }
        text.push(b'\n');
        text
    }

    prop_compose! {
        fn mapping()(start in 1usize..1 << 30, pages in 1usize..1 << 20, name in "[^\u{0}-\u{1f}\u{7f}-\u{9f}\u{fffe}\u{ffff}]{0,9}",
                     written: u64, assumed: u64) -> MappingSample {
            MappingSample { start: Address(start << 12), end: Address((start + pages) << 12), name, written, assumed }
        }
    }

    prop_compose! {
        pub(in crate::dirty) fn samples()(parts in prop::collection::vec((0.001f64..1e6, 0.001f64..1e6, any::<u64>(), any::<u64>(),
                any::<u64>(), prop::collection::vec(mapping(), 0..5)), 0..12), gone: bool) -> Vec<Sample> {
            let mut t = 0.0;
            let mut samples: Vec<_> = parts.into_iter().map(|(step, seconds, written, assumed, working_set, mappings)| {
                t += step;
                Sample { t, seconds, written, assumed, assumed_why: BTreeMap::from([("x".into(), 1)]), working_set, mappings, gone: None }
            }).collect();
            if let (true, Some(last)) = (gone, samples.last_mut()) {
                last.gone = Some(Gone::Exited);
            }
            samples
        }
    }

    proptest! {
        /// What is written can be read; truncated anywhere behind the header, up to there.
        #[test]
        fn reads_what_was_written_and_what_was_cut(samples in samples(), cut: prop::sample::Index) {
            let whole = text(&header(), &samples);
            prop_assert_eq!(read(&whole[..]).unwrap(), Recording { header: header(), samples: samples.clone(), is_cut: false });
            let behind_header = text(&header(), &[]).len();
            let cut = behind_header + cut.index(whole.len() - behind_header + 1);
            let part = read(&whole[..cut]).unwrap();
            prop_assert_eq!(&part.samples[..], &samples[..part.samples.len()]);
            let lines = whole[..cut].iter().filter(|byte| **byte == b'\n').count();
            prop_assert!(part.samples.len() + 1 >= lines);
        }

        /// Garbage is an error or a recording, never a panic.
        #[test]
        fn takes_any_bytes(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            let _ = read(&bytes[..]);
        }

        /// One damaged byte: an error that names a line, or a recording.
        #[test]
        fn damage_is_named(samples in samples(), at: prop::sample::Index, byte: u8) {
            let mut damaged = text(&header(), &samples);
            let at = at.index(damaged.len());
            damaged[at] = byte;
            if let Err(error) = read(&damaged[..]) {
                prop_assert!(format!("{error:#}").contains("line "), "{error:#}");
            }
        }
    }

    #[test]
    fn names_the_line_and_why() {
        let sample = |t| {
            format!(
                r#"{{"t":{t},"seconds":1,"written":0,"assumed":0,"assumed_why":{{}},"working_set":0,"mappings":[]}}"#
            )
        };
        let header = serde_json::to_string(&header()).unwrap();
        for (text, expected) in [
            (String::new(), "it is no recording of trapless dirty: it is empty"),
            ("{}\n".into(), "line 1: it is no recording of trapless dirty: missing field"),
            // As tools write JSON for people.
            (
                "{\n".into(),
                "line 1: it is no recording of trapless dirty: EOF while parsing an object at column",
            ),
            (
                "\u{7f}ELF\u{2}\u{0}\n".into(),
                "line 1: it is no recording of trapless dirty: expected value at column 1",
            ),
            (
                header.replace("trapless dirty", "perf"),
                "line 1: it is no recording of trapless dirty: it is one of perf",
            ),
            (header.replace("\"version\":1", "\"version\":2"), "line 1: version 2 is unknown"),
            (format!("{header}\nrubbish\n{}\n", sample(1)), "line 2: expected value at column 1"),
            (format!("{header}\n{}\n{}\n", sample(2), sample(1)), "line 3: t does not grow"),
            (format!("{header}\n{}\n", sample(-1)), "line 2: t is -1"),
        ] {
            let error = format!("{:#}", read(text.as_bytes()).unwrap_err());
            assert!(error.starts_with(expected), "{error}");
        }
    }
}
