// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `trapless dirty plot`: a recording as a picture. Above the pages written a second, the busiest mappings
//! stacked; below the working set.

use std::fs::File;
use std::io::BufReader;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, anyhow, bail};
use clap::Args;
use plotters::prelude::*;

use super::recording::{self, Recording};
use crate::destination::{self, Readers};
use crate::output::{printable, tail};

/// Draw pages written a second, by mapping, and the working set over time.
#[derive(Debug, Args)]
pub struct Arguments {
    /// The recording; - is standard input
    #[arg(value_name = "FILE")]
    input: PathBuf,
    /// The SVG file to write; an old one is replaced; - is standard output
    #[arg(short, long, value_name = "SVG")]
    output: PathBuf,
}

const SIZE: (u32, u32) = (1100, 700);
/// Mappings with a colour of their own.
const BUSIEST: usize = 8;

/// Draw.
///
/// # Errors
/// The recording is invalid (with the line), or the picture cannot be written.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let is_standard = arguments.input.as_os_str() == "-";
    let path = if is_standard { Path::new("/dev/stdin") } else { &arguments.input };
    let name = if is_standard { "standard input".into() } else { arguments.input.display().to_string() };
    let input = File::open(path).with_context(|| format!("cannot read {name}"))?;
    let (is, target) = (input.metadata()?, std::fs::metadata(&arguments.output));
    if target.is_ok_and(|target| target.is_file() && (target.dev(), target.ino()) == (is.dev(), is.ino())) {
        bail!(
            "{} is the recording itself; choose another name for the picture",
            destination::name(&arguments.output)
        );
    }
    let recording = recording::read(BufReader::new(input)).with_context(|| name.clone())?;
    if recording.is_cut {
        crate::output::remark!("trapless: {name} is truncated; its unfinished last line is left out");
    }
    if recording.samples.is_empty() {
        return Err(anyhow!("{name}: it has no interval to draw"));
    }
    let picture = draw(&recording)?;
    destination::replace(&arguments.output, picture.as_bytes(), Readers::Usual)
        .with_context(|| format!("cannot write {}", destination::name(&arguments.output)))?;
    Ok(ExitCode::SUCCESS)
}

/// A band of the upper picture: pages a second, sample by sample.
struct Band {
    label: String,
    rates: Vec<f64>,
}

fn draw(recording: &Recording) -> Result<String> {
    let mut picture = String::new();
    {
        let root = SVGBackend::with_string(&mut picture, SIZE).into_drawing_area();
        paint(&root, recording).map_err(|error| anyhow!("cannot draw: {error}"))?;
    }
    Ok(picture)
}

type Painted<E> = Result<(), DrawingAreaErrorKind<E>>;

fn paint<B: DrawingBackend>(
    root: &DrawingArea<B, plotters::coord::Shift>,
    recording: &Recording,
) -> Painted<B::ErrorType> {
    root.fill(&WHITE)?;
    let header = &recording.header;
    let title = format!("{} ({}), {}", printable(&header.command), header.pid, printable(&header.backend));
    let root = root.titled(&title, ("sans-serif", 22))?;
    let (above, below) = root.split_vertically(SIZE.1 * 6 / 10);

    let samples = &recording.samples;
    let begin = samples.first().map_or(0.0, |first| (first.t - first.seconds).clamp(0.0, first.t));
    let end = samples.last().map_or(1.0, |last| last.t);
    let times = begin..end.max(begin + begin.abs() * 1e-9 + 1e-3);

    // Stacked: each band is drawn down to the axis, the highest first.
    let bands = bands(recording);
    let mut tops: Vec<Vec<f64>> = Vec::new();
    for band in &bands {
        let below = tops.last();
        let top = band.rates.iter().enumerate().map(|(i, rate)| rate + below.map_or(0.0, |below| below[i]));
        tops.push(top.collect());
    }
    let highest = tops.last().into_iter().flatten().copied().fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(&above)
        .margin(10)
        .x_label_area_size(35)
        .y_label_area_size(90)
        .build_cartesian_2d(times.clone(), 0.0..highest * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("seconds")
        .y_desc("pages written a second")
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    for (n, (band, top)) in bands.iter().zip(&tops).enumerate().rev() {
        let colour = Palette99::pick(n).to_rgba();
        let points = steps(recording, |i| top[i]);
        chart
            .draw_series(AreaSeries::new(points, 0.0, colour))?
            .label(band.label.as_str())
            .legend(move |(x, y)| Rectangle::new([(x, y - 5), (x + 12, y + 5)], colour.filled()));
    }
    if !bands.is_empty() {
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperRight)
            .background_style(WHITE.mix(0.8))
            .border_style(BLACK)
            .draw()?;
    }

    let bytes = |pages: u64| pages as f64 * header.page_size as f64;
    let most = samples.iter().map(|sample| bytes(sample.working_set)).fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(&below)
        .margin(10)
        .x_label_area_size(35)
        .y_label_area_size(90)
        .build_cartesian_2d(times, 0.0..most * 1.05)?;
    chart
        .configure_mesh()
        .x_desc("seconds")
        .y_desc(format!("bytes written within {} s", header.window))
        .y_label_formatter(&|value| short(*value))
        .draw()?;
    chart.draw_series(LineSeries::new(steps(recording, |i| bytes(samples[i].working_set)), &BLUE))?;
    root.present()
}

/// A value holds for its whole interval.
fn steps(recording: &Recording, value: impl Fn(usize) -> f64) -> Vec<(f64, f64)> {
    let mut points = Vec::with_capacity(recording.samples.len() * 2);
    let mut before = 0.0_f64;
    for (i, sample) in recording.samples.iter().enumerate() {
        points.push(((sample.t - sample.seconds).max(before).min(sample.t), value(i)));
        points.push((sample.t, value(i)));
        before = sample.t;
    }
    points
}

/// The mappings with the most written pages, by name, and the sum of the others.
fn bands(recording: &Recording) -> Vec<Band> {
    let mut totals: std::collections::BTreeMap<&str, f64> = std::collections::BTreeMap::new();
    for mapping in recording.samples.iter().flat_map(|sample| &sample.mappings) {
        *totals.entry(&mapping.name).or_default() += mapping.written as f64;
    }
    let mut names: Vec<_> = totals.into_iter().filter(|(_, total)| *total > 0.0).collect();
    names.sort_by(|a, b| b.1.total_cmp(&a.1));
    let rates = |of: &dyn Fn(&str) -> bool| -> Vec<f64> {
        let rate = |sample: &super::sample::Sample| {
            let of = sample.mappings.iter().filter(|mapping| of(&mapping.name));
            of.map(|mapping| mapping.written as f64).sum::<f64>() / sample.seconds
        };
        recording.samples.iter().map(rate).collect()
    };
    let (busiest, rest) = names.split_at(names.len().min(BUSIEST));
    let mut bands: Vec<_> = busiest
        .iter()
        .map(|(name, _)| Band { label: tail(name, 40), rates: rates(&|other| other == *name) })
        .collect();
    if !rest.is_empty() {
        let label = format!("{} more", rest.len());
        bands.push(Band { label, rates: rates(&|other| rest.iter().any(|(name, _)| *name == other)) });
    }
    bands
}

/// 12k, 3.4M.
fn short(value: f64) -> String {
    let (unit, by) = [("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)]
        .into_iter()
        .find(|(_, by)| value >= *by)
        .unwrap_or(("", 1.0));
    let scaled = format!("{:.2}", value / by);
    format!("{}{unit}", scaled.trim_end_matches('0').trim_end_matches('.'))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dirty::recording::Header;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        /// Every valid recording can be drawn, as XML.
        #[test]
        fn draws_every_recording(samples in recording::tests::samples(), command in "\\PC{0,9}") {
            let header = Header::new(1, command, "<&>".into(), 1.0, 10.0, 0.0);
            let picture = draw(&Recording { header, samples, is_cut: false }).unwrap();
            prop_assert!(picture.starts_with("<svg") && picture.trim_end().ends_with("</svg>"));
            prop_assert!(!picture.contains("<&>") && !picture.contains("NaN"));
        }
    }

    #[test]
    fn labels() {
        assert_eq!([0.0, 999.0, 1500.0, 2e6].map(short), ["0", "999", "1.5k", "2M"]);
    }
}
