// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bench's tables for a person.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, Table, presets};

use super::Report;
use super::statistics::Spread;
use crate::output::{bytes, grouped};

/// Lay the report out.
pub fn table(report: &Report) -> String {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header([
        "back end",
        "pages",
        "untracked",
        "tracked",
        "x",
        "collect",
        "clean",
        "arm",
        "to twin",
        "collect to twin",
        "missed",
        "spurious",
    ]);
    for row in &report.rows {
        table.add_row([
            row.backend.to_owned(),
            grouped(row.pages as u64),
            format!("{:.1}", row.untracked_ns_per_page.median),
            with_spread(&row.tracked),
            format!("{:.0}", row.tracked_over_untracked.median),
            with_spread(&row.collect),
            format!("{:.1}", row.collect_clean.median),
            format!("{:.1}", row.arm.median),
            ratio(&row.library_over_twin),
            ratio(&row.collect_over_twin),
            row.missed.to_string(),
            row.spurious.to_string(),
        ]);
    }
    for column in table.column_iter_mut().skip(1) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    let mut text = format!(
        "{}, {}\n{table}\n\
         Nanoseconds a page: untracked, tracked and collect a page written, clean and arm a page watched;\n\
         +- is half the distance of the quartiles; x is tracked to untracked; twin is the mechanism by hand.\n\
         Time is {}. Missed and spurious by comparing memory, over {} turns.\n",
        report.host.kernel,
        bytes((report.size_bytes / report.page_size) as u64),
        report.clock,
        report.repeat,
    );
    for rejected in &report.rejected {
        let _ = writeln!(text, "\nnot here: {}: {}", rejected.backend, rejected.why);
    }
    for row in &report.rows {
        let _ = write!(
            text,
            "\n{}: bookkeeping {} KiB for {} watched pages",
            row.backend,
            row.memory.bookkeeping_bytes / 1024,
            grouped(row.memory.watched_pages as u64)
        );
    }
    if let Some(sweep) = &report.sweep {
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN);
        table.set_header(["watched, all dirty", "collect ms", "ns a page", "bookkeeping KiB", "missed"]);
        for point in &sweep.points {
            table.add_row([
                bytes(point.pages as u64),
                format!("{:.2}", point.collect_ns.median / 1e6),
                format!("{:.1}", point.collect_ns.median / point.pages as f64),
                (point.memory.bookkeeping_bytes / 1024).to_string(),
                point.missed.to_string(),
            ]);
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let _ = write!(text, "\n\n{} by size\n{table}", sweep.backend);
        if let (Some(line), Some(bits)) = (sweep.line, sweep.bits_per_page) {
            let _ = write!(
                text,
                "\nA straight line explains {:.2} % (R^2 {:.4}); each further page takes {bits:.2} bits.",
                line.r_squared * 100.0,
                line.r_squared
            );
        }
        if let Some(why) = &sweep.stopped {
            let _ = write!(text, "\nStopped: {why}.");
        }
    }
    text
}

fn with_spread(spread: &Spread) -> String {
    format!("{:.1} +-{:.1}", spread.median, (spread.q3 - spread.q1) / 2.0)
}

fn ratio(spread: &Spread) -> String {
    format!("{:.3} +-{:.3}", spread.median, (spread.q3 - spread.q1) / 2.0)
}
