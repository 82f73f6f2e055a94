// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is loaded, switched on and cached now: as values, as a table, as JSON.
//!
//! It only reads. Values that cannot be read (without root, or from another version of the module) are left out, and
//! never shown as zero.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::control::{self, LEVELS};
use super::host::Host;
use super::hypercall::Statistics;
use super::left;
use super::livepatch::{Livepatch, State};
use super::part::{POOL_FILES, Part, SWITCH_FILES, Sources};
use super::platform::{Platform, Xen};
use super::{image, plan};
use crate::output::grouped;

/// Switches of the payload, by their bits.
const XEN_SWITCHES: [(&str, u32); 4] =
    [("xen_zero_runs", 1), ("xen_l1_update", 2), ("xen_table_refs", 4), ("xen_ranges", 8)];

/// Everything.
#[derive(Debug, Serialize)]
pub struct Status {
    pub host: String,
    pub kernel: String,
    pub payload: Payload,
    /// None if its module is not loaded.
    pub pool: Option<Pool>,
    /// The module's own switches; none if it is not loaded.
    pub pvmmu: Option<BTreeMap<String, bool>>,
    /// Parts that its module leaves out of this kernel, and why.
    pub pvmmu_left_out: BTreeMap<String, String>,
    /// What a verify has loaded, if there is something: it runs, or was killed.
    pub verify: Option<String>,
}

/// The payload.
#[derive(Debug, Serialize)]
pub struct Payload {
    /// None if it cannot be known; then `why` says why.
    pub loaded: Option<bool>,
    pub why: Option<String>,
    pub abi: Option<u32>,
    pub iommu_follows_page_types: Option<bool>,
    /// Whether all semi-writable pages are taken back, and no new ones admitted.
    pub evicted: Option<bool>,
    pub switches: Option<BTreeMap<&'static str, bool>>,
    /// Switches that this payload was built without, and why.
    pub left_out: BTreeMap<&'static str, String>,
    pub statistics: Option<Statistics>,
}

/// The pool.
#[derive(Debug, Serialize)]
pub struct Pool {
    pub enabled: Option<bool>,
    pub policy: Option<String>,
    pub limit_number: Option<u64>,
    pub limit_percent: Option<u64>,
    pub shrunk: Option<u64>,
    pub levels: BTreeMap<&'static str, Level>,
    /// Levels that stay the kernel's own here, and why.
    pub left_out: Vec<(String, String)>,
}

/// One level's counts.
#[derive(Debug, Serialize)]
pub struct Level {
    pub cached: Option<u64>,
    pub in_use: Option<u64>,
    pub hits: Option<u64>,
    pub misses: Option<u64>,
    pub worst_case: Option<u64>,
}

impl Status {
    pub fn look(host: &Host) -> Self {
        let platform = Platform::look(host);
        let payload = match &platform {
            Platform::NotXen => Payload::absent(Some(false), "no Xen"),
            Platform::Xen(xen) => Payload::look(host, xen),
        };
        let pvmmu = host.has_module("trapless_pvmmu").then(|| {
            let switches = control::switches(host).into_iter().filter(|(name, _)| !name.starts_with("xen_"));
            switches.filter_map(|(name, file)| Some((name, control::is_on(&file).ok()?))).collect()
        });
        let pool = host.has_module("trapless_pagetable").then(|| Pool::look(host));
        let pvmmu_left_out = control::left_out(host, SWITCH_FILES).into_iter().collect();
        Status {
            host: platform.to_string(),
            kernel: host.kernel.release(),
            payload,
            pool,
            pvmmu,
            pvmmu_left_out,
            verify: left::sentence(host),
        }
    }

    /// Whether a part is loaded; nothing if it cannot be known.
    pub fn is_loaded(&self, part: Part) -> Option<bool> {
        match part {
            Part::Payload => self.payload.loaded,
            Part::Pool => Some(self.pool.is_some()),
            Part::Pvmmu => Some(self.pvmmu.is_some()),
        }
    }
}

/// Whether a payload was built with a part. One that does not say so at all has them all.
fn has(parts: u32, bit: u32) -> bool {
    parts == 0 || parts & bit != 0
}

/// What the payload was built without; why, its file says, if it is one of those that `load` looks at.
fn left_out(host: &Host, xen: &Xen, parts: u32) -> BTreeMap<&'static str, String> {
    let said = || -> Option<Vec<(String, String)>> {
        let file = plan::choose_payload(host, xen, &Sources::default()).ok()?;
        image::left_out(&std::fs::read(file).ok()?).ok()
    };
    let missing: Vec<_> = XEN_SWITCHES.into_iter().filter(|(_, bit)| !has(parts, *bit)).collect();
    let said = if missing.is_empty() { Vec::new() } else { said().unwrap_or_default() };
    let why = |name: &str| {
        let why = said.iter().find(|(part, _)| name.strip_prefix("xen_") == Some(part));
        why.map_or_else(|| "not proven for this build of Xen".to_owned(), |(_, why)| why.clone())
    };
    missing.into_iter().map(|(name, _)| (name, why(name))).collect()
}

impl Payload {
    fn absent(loaded: Option<bool>, why: &str) -> Self {
        Payload {
            loaded,
            why: Some(why.to_owned()),
            abi: None,
            iommu_follows_page_types: None,
            evicted: None,
            switches: None,
            left_out: BTreeMap::new(),
            statistics: None,
        }
    }

    fn look(host: &Host, xen: &Xen) -> Self {
        match host.kernel.payload() {
            Ok(Some(answer)) => Payload {
                loaded: Some(true),
                why: None,
                abi: Some(answer.abi),
                iommu_follows_page_types: Some(answer.iommu_follows),
                evicted: Some(answer.is_evicted),
                switches: answer.switches.map(|bits| {
                    let there = XEN_SWITCHES.into_iter().filter(|(_, bit)| has(answer.parts, *bit));
                    there.map(|(name, bit)| (name, bits & bit != 0)).collect()
                }),
                left_out: left_out(host, xen, answer.parts),
                statistics: answer.statistics,
            },
            _ if !xen.is_dom0 => Payload::absent(None, "up to the host: no payload answers this domain"),
            _ if !host.kernel.is_root() => Payload::absent(None, "only root can ask Xen"),
            asked => match Livepatch::find(host, xen).and_then(|livepatch| livepatch.state()) {
                Ok(None) => Payload::absent(Some(false), "Xen does not have it"),
                Ok(Some(State::Applied)) => {
                    let why = asked.err().unwrap_or_else(|| "it does not answer this domain".to_owned());
                    Payload::absent(Some(true), &why)
                }
                Ok(Some(_)) => Payload::absent(Some(false), "uploaded, but not applied"),
                Err(why) => Payload::absent(None, &format!("{why:#}")),
            },
        }
    }
}

impl Pool {
    fn look(host: &Host) -> Self {
        let folder = host.path(POOL_FILES);
        let number = |name: &str| control::number(&folder.join(name)).ok();
        let level = |name: &'static str| {
            let number = |file: &str| control::number(&folder.join(name).join(file)).ok();
            let level = Level {
                cached: number("cached"),
                in_use: number("in_use"),
                hits: number("hits"),
                misses: number("misses"),
                worst_case: number("worst_case"),
            };
            (name, level)
        };
        Pool {
            enabled: control::is_on(&folder.join("enabled")).ok(),
            policy: host
                .text(Path::new(POOL_FILES).join("policy"))
                .map(|name| crate::output::printable(&name)),
            limit_number: number("limit_number"),
            limit_percent: number("limit_percent"),
            shrunk: number("shrunk"),
            levels: LEVELS.map(level).into_iter().collect(),
            left_out: control::left_out(host, POOL_FILES),
        }
    }
}

impl std::fmt::Display for Status {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "host     {}, kernel {}", self.host, self.kernel)?;
        let payload = &self.payload;
        write!(f, "payload  {}", three_way(payload.loaded, "applied", "not applied"))?;
        if let Some(why) = &payload.why {
            write!(f, ": {why}")?;
        }
        if let Some(follows) = payload.iommu_follows_page_types {
            let not = if follows { "" } else { "do not " };
            write!(f, "; this domain's IOMMU mappings {not}follow page types")?;
        }
        writeln!(f)?;
        if payload.evicted == Some(true) {
            writeln!(f, "         pages were taken back, and no new ones are admitted: see unload --evict")?;
        }
        if let Some(switches) = &payload.switches {
            writeln!(f, "         {}", list(switches))?;
        }
        for (name, why) in &payload.left_out {
            writeln!(f, "         {name} left out: {why}")?;
        }
        if let Some(of) = &payload.statistics {
            let (pages, saved) =
                (grouped(of.semi_writable), grouped(of.skipped_map.saturating_add(of.skipped_unmap)));
            writeln!(
                f,
                "         {pages} pages semi-writable, {} held after a failed flush, {saved} IOMMU calls saved",
                grouped(of.held)
            )?;
        }
        match &self.pool {
            None => writeln!(f, "pool     not loaded")?,
            Some(pool) => pool.show(f)?,
        }
        match &self.pvmmu {
            None => write!(f, "pvmmu    not loaded")?,
            Some(switches) => write!(f, "pvmmu    {}", list(switches))?,
        }
        for (part, why) in &self.pvmmu_left_out {
            write!(f, "\n         {part} left out: {why}")?;
        }
        if let Some(what) = &self.verify {
            write!(
                f,
                "\nverify   if none runs now, one was killed and left {what}: trapless pagetable unload"
            )?;
        }
        Ok(())
    }
}

impl Pool {
    /// The shrinking policy in words.
    pub fn shrinking(&self) -> String {
        format!(
            "shrinks by {} (limits: {} tables, {} per 100 in use); {} tables given back so far",
            self.policy.as_deref().unwrap_or("?"),
            number(self.limit_number),
            number(self.limit_percent),
            number(self.shrunk),
        )
    }

    fn show(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        writeln!(f, "pool     {}; {}", three_way(self.enabled, "on", "off"), self.shrinking())?;
        let mut table = Table::new();
        table.load_preset(presets::NOTHING);
        table.set_header(["level", "cached", "in use", "hits", "misses", "worst case"]);
        for name in LEVELS {
            let Some(level) = self.levels.get(name) else { continue };
            let counts = [level.cached, level.in_use, level.hits, level.misses, level.worst_case].map(number);
            table.add_row(std::iter::once(name.to_owned()).chain(counts));
        }
        for column in table.column_iter_mut().skip(1) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let mut text = String::new();
        for line in table.to_string().lines() {
            let _ = writeln!(text, "        {}", line.trim_end());
        }
        f.write_str(&text)?;
        for (level, why) in &self.left_out {
            writeln!(f, "         {level} left out: {why}")?;
        }
        Ok(())
    }
}

fn number(value: Option<u64>) -> String {
    value.map_or_else(|| "?".to_owned(), grouped)
}

fn three_way(is: Option<bool>, yes: &'static str, no: &'static str) -> &'static str {
    match is {
        Some(true) => yes,
        Some(false) => no,
        None => "not known",
    }
}

fn list<N: std::fmt::Display>(switches: &BTreeMap<N, bool>) -> String {
    let one = |(name, on): (&N, &bool)| format!("{name} {}", if *on { "on" } else { "OFF" });
    switches.iter().map(one).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::super::control::Settings;
    use super::super::fake::{BUILD_ID, Fake, payload_without};
    use super::super::load::load;
    use super::super::plan::Wanted;
    use super::super::{hypercall, prometheus};
    use super::*;

    fn loaded() -> Fake {
        let fake = Fake::dom0();
        load(&fake.host(), &Wanted::default(), &Settings::default(), &mut |_| {}).unwrap();
        fake
    }

    #[test]
    fn reports_what_is_there() {
        let fake = loaded();
        let statistics = Statistics {
            semi_writable: 300,
            held: 0,
            marked: 310,
            released: 10,
            flushes: 4,
            skipped_map: 1000,
            skipped_unmap: 1000,
        };
        fake.kernel.borrow_mut().payload = Some(hypercall::Payload {
            abi: 3,
            iommu_follows: true,
            is_evicted: false,
            parts: 7,
            switches: Some(5),
            statistics: Some(statistics),
        });
        let status = Status::look(&fake.host());
        let json = serde_json::to_value(&status).unwrap();
        assert_eq!(json["host"], "PV dom0 on Xen 4.17.7");
        assert_eq!(json["pool"]["levels"]["pmd"]["cached"], 41);
        assert_eq!(json["pool"]["policy"], "adaptive");
        assert_eq!(json["payload"]["switches"]["xen_l1_update"], false);
        assert_eq!(json["payload"]["statistics"]["skipped_unmap"], 1000);
        assert_eq!(json["pvmmu"]["fork"], true);
        let text = status.to_string();
        for says in [
            "2,000 IOMMU calls saved",
            "xen_l1_update OFF",
            "pool     on; shrinks by adaptive",
            "fork on, walk on",
        ] {
            assert!(text.contains(says), "{says:?} is missing in:\n{text}");
        }
    }

    #[test]
    fn says_what_the_payload_was_built_without() {
        let fake = loaded();
        let answer = |parts| {
            Some(hypercall::Payload {
                abi: 3,
                iommu_follows: true,
                is_evicted: false,
                parts,
                switches: Some(1),
                statistics: None,
            })
        };
        fake.kernel.borrow_mut().payload = answer(13);
        let json = serde_json::to_value(Status::look(&fake.host())).unwrap();
        assert_eq!(json["payload"]["left_out"]["xen_l1_update"], "not proven for this build of Xen");
        assert!(json["payload"]["switches"]["xen_l1_update"].is_null());
        assert_eq!(json["payload"]["switches"]["xen_table_refs"], false);
        let without = payload_without(&BUILD_ID, &[("l1_update", "mod_l1_entry is another")]);
        std::fs::write(fake.payload(), without).unwrap();
        let text = Status::look(&fake.host()).to_string();
        assert!(text.contains("xen_l1_update left out: mod_l1_entry is another"), "{text}");
        for all in [15, 0] {
            fake.kernel.borrow_mut().payload = answer(all);
            assert!(Status::look(&fake.host()).payload.left_out.is_empty());
        }
    }

    #[test]
    fn says_what_the_modules_leave_out() {
        let fake = loaded();
        for (files, part) in [(SWITCH_FILES, "fork"), (POOL_FILES, "pmd")] {
            fake.write(&format!("{files}/left_out"), format!("{part}: f (12) is not known\n").as_bytes());
        }
        let status = Status::look(&fake.host());
        assert_eq!(status.pvmmu_left_out["fork"], "f (12) is not known");
        assert!(!status.pvmmu.as_ref().unwrap().contains_key("left_out"));
        let text = status.to_string();
        assert!(text.contains("fork left out: f (12) is not known"), "{text}");
        assert!(text.contains("pmd left out: f (12) is not known"), "{text}");
    }

    #[test]
    fn what_cannot_be_read_is_not_zero() {
        let fake = loaded();
        fake.remove(&format!("{POOL_FILES}/pte/worst_case"));
        fake.write(&format!("{POOL_FILES}/pte/hits"), b"\xff\xfe");
        fake.remove(&format!("{POOL_FILES}/policy"));
        let json = serde_json::to_value(Status::look(&fake.host())).unwrap();
        assert!(json["pool"]["levels"]["pte"]["worst_case"].is_null());
        assert!(json["pool"]["levels"]["pte"]["hits"].is_null());
        assert!(json["pool"]["policy"].is_null());
        fake.kernel.borrow_mut().is_root = false;
        assert_eq!(Status::look(&fake.host()).payload.loaded, None);
        let text = prometheus::text(&Status::look(&fake.host())).unwrap();
        assert!(!text.contains("part=\"payload\"") && !text.contains("hits_total{level=\"pte\"}"), "{text}");
    }

    #[test]
    fn says_what_a_killed_verify_left() {
        let fake = Fake::dom0();
        assert!(Status::look(&fake.host()).verify.is_none());
        fake.write("/sys/module/trapless_table_test/refcnt", b"0\n");
        let text = Status::look(&fake.host()).to_string();
        assert!(text.contains("left trapless_table_test: trapless pagetable unload"), "{text}");
    }

    #[test]
    fn what_is_not_loaded() {
        let status = Status::look(&Fake::dom0().host());
        assert_eq!(status.payload.loaded, Some(false));
        assert!(status.pool.is_none() && status.pvmmu.is_none());
        assert!(status.to_string().contains("pool     not loaded"));
        let fake = Fake::dom0();
        fake.write("/state/payload", b"CHECKED");
        assert_eq!(Status::look(&fake.host()).payload.loaded, Some(false));
        assert_eq!(Status::look(&Fake::domu().host()).payload.loaded, None);
    }
}
