// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Dirty-page tracking: the back ends that work here, the one that `auto` selects, and the limits of each.

use std::fmt::Write as _;

use anyhow::Result;
use comfy_table::{Table, presets};
use libdirty::{Capabilities, Finding};
use serde_json::json;

use super::{Section, hanging};

/// # Errors
/// None so far; sections have one type.
pub fn section() -> Result<Section> {
    let findings = libdirty::survey();
    let own = findings.iter().find(|f| f.rejected.is_none());
    let other = findings.iter().find(|f| f.rejected.is_none() && f.backend.capabilities().other_process);
    let name = |finding: Option<&Finding>| finding.map(|f| f.backend.name());

    let mut text = String::new();
    for finding in &findings {
        match &finding.rejected {
            None => text.push_str(&format!("  {:11} works\n", finding.backend)),
            Some(why) => text.push_str(&hanging(&format!("  {:11} no     ", finding.backend), why)),
        }
    }
    let auto = format!(
        "auto selects {} for the own process, {} for another",
        name(own).unwrap_or("nothing"),
        name(other).unwrap_or("nothing")
    );
    let _ = writeln!(text, "  {auto}\n\n{}", indented(&table(&findings).to_string()));
    for finding in &findings {
        let _ = writeln!(text, "  {:11} first write to a page: {}", finding.backend, can(finding).cost);
    }
    text.push_str("\n  yes*: reports pages that were not written, too:\n");
    notes(&mut text, &findings, |can| can.inexact);
    if findings.iter().any(|finding| !can(finding).privilege.is_empty()) {
        text.push_str("  needs a privilege beyond that to ptrace the target:\n");
        notes(&mut text, &findings, |can| can.privilege);
    }
    text.push_str(&hanging(
        "  ",
        "What a back end does not see, the user of the tracker must know of by other means; \"fails\" means that \
         the write returns EFAULT or EIO, or ends in SIGSEGV. Whatever is in doubt is reported as dirty, with a \
         reason.",
    ));

    let named = |works: bool| {
        let names = findings.iter().filter(|finding| finding.rejected.is_none() == works);
        let names: Vec<_> = names.map(|finding| finding.backend.name()).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    };
    let summary = vec![auto, format!("works: {}; does not: {}", named(true), named(false))];
    let back_ends: Vec<_> = findings.iter().map(as_json).collect();
    Ok(Section {
        name: "dirty",
        works: own.is_some(),
        summary,
        text,
        json: json!({ "auto": { "own": name(own), "other": name(other) }, "backends": back_ends }),
    })
}

fn can(finding: &Finding) -> &'static Capabilities {
    finding.backend.capabilities()
}

fn table(findings: &[Finding]) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING);
    let row = |what: &str, of: &dyn Fn(&Capabilities) -> String| {
        let cells = findings.iter().map(|finding| of(can(finding)));
        std::iter::once(what.to_owned()).chain(cells).collect::<Vec<_>>()
    };
    table.set_header(std::iter::once("").chain(findings.iter().map(|finding| finding.backend.name())));
    table.add_row(row("granule in pages", &|can| can.granule_pages.to_string()));
    table.add_row(row("exact", &|can| {
        format!("{}{}", yes(can.exact), if can.inexact.is_empty() { "" } else { "*" })
    }));
    table.add_row(row("read(2), signals", &|can| can.kernel_writes.to_string()));
    table.add_row(row("process_vm_writev", &|can| can.foreign_writes.to_string()));
    table.add_row(row("/proc/PID/mem", &|can| can.mem_writes.to_string()));
    table.add_row(row("mprotect and back", &|can| can.reprotected_writes.to_string()));
    table.add_row(row("mremap", &|can| can.remapped_writes.to_string()));
    table.add_row(row("shared, elsewhere", &|can| can.shared_aliases.to_string()));
    table.add_row(row("O_DIRECT, RDMA", &|can| can.pinned_writes.to_string()));
    table.add_row(row("reclaimed, merged", &|can| can.reclaimed_writes.to_string()));
    table.add_row(row("all of its own", &|can| yes(can.whole_own_process).to_owned()));
    table.add_row(row("another process", &|can| yes(can.other_process).to_owned()));
    for column in table.column_iter_mut() {
        column.set_padding((0, 1));
    }
    table
}

fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {}\n", line.trim_end())).collect()
}

/// Back ends with the same note share a line.
fn notes(text: &mut String, findings: &[Finding], of: fn(&Capabilities) -> &'static str) {
    let mut notes: Vec<(&str, Vec<&str>)> = Vec::new();
    for finding in findings {
        let note = of(finding.backend.capabilities());
        match notes.iter_mut().find(|(known, _)| *known == note) {
            Some((_, names)) => names.push(finding.backend.name()),
            None if note.is_empty() => {}
            None => notes.push((note, vec![finding.backend.name()])),
        }
    }
    for (note, names) in notes {
        text.push_str(&hanging("      ", &format!("{}: {note}", names.join(", "))));
    }
}

fn as_json(finding: &Finding) -> serde_json::Value {
    let can = finding.backend.capabilities();
    json!({
        "name": finding.backend.name(),
        "works": finding.rejected.is_none(),
        "rejected": finding.rejected,
        "granule_pages": can.granule_pages,
        "exact": can.exact,
        "inexact": can.inexact,
        "kernel_writes": can.kernel_writes.to_string(),
        "foreign_writes": can.foreign_writes.to_string(),
        "mem_writes": can.mem_writes.to_string(),
        "remapped_writes": can.remapped_writes.to_string(),
        "reprotected_writes": can.reprotected_writes.to_string(),
        "shared_aliases": can.shared_aliases.to_string(),
        "pinned_writes": can.pinned_writes.to_string(),
        "reclaimed_writes": can.reclaimed_writes.to_string(),
        "whole_own_process": can.whole_own_process,
        "other_process": can.other_process,
        "privilege": can.privilege,
        "cost": can.cost.to_string(),
    })
}
