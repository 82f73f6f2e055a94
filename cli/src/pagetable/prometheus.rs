// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The status as metrics, for node_exporter's textfile collector.
//!
//! Invariant: the collector sees the whole new file or the whole old one, never a part; a metric whose value could
//! not be read is not written.

use std::path::Path;

use anyhow::{Context, Result};
use prometheus::{IntCounter, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};

use super::control::POLICIES;
use super::part::PARTS;
use super::status::Status;
use crate::destination::{self, Readers};

const PREFIX: &str = "trapless_pagetable";

/// Replace a file by the metrics; readable by all, as the collector has a user of its own.
///
/// # Errors
/// When it cannot be written; the file is then unchanged.
pub fn write(status: &Status, file: &Path) -> Result<()> {
    destination::replace(file, text(status)?.as_bytes(), Readers::All)
        .with_context(|| format!("{} is not written", destination::name(file)))
}

/// The metrics in Prometheus' text format.
///
/// # Errors
/// When two metrics have one name.
pub fn text(status: &Status) -> Result<String> {
    let metrics = Metrics(Registry::new());
    let loaded = PARTS.map(|part| (part.to_string(), status.is_loaded(part).map(u64::from)));
    metrics.gauge("loaded", "Whether a part is loaded", "part", &loaded)?;
    let payload = &status.payload;
    let mut switches: Vec<(String, Option<u64>)> = Vec::new();
    for (name, on) in payload.switches.iter().flatten() {
        switches.push(((*name).to_owned(), Some(u64::from(*on))));
    }
    for (name, on) in status.pvmmu.iter().flatten() {
        switches.push((name.clone(), Some(u64::from(*on))));
    }
    if let Some(pool) = &status.pool {
        switches.push(("pool".to_owned(), pool.enabled.map(u64::from)));
    }
    metrics.gauge("enabled", "Whether a switch is on", "switch", &switches)?;
    if let Some(of) = &payload.statistics {
        let pages = [("semi_writable", of.semi_writable), ("held", of.held)];
        metrics.gauge(
            "xen_pages",
            "Pages that Xen keeps from devices; held: until their domain ends",
            "state",
            &some(pages),
        )?;
        let saved = [("map", of.skipped_map), ("unmap", of.skipped_unmap)];
        metrics.counter(
            "xen_iommu_calls_saved_total",
            "IOMMU calls that a mark saved",
            "call",
            &some(saved),
        )?;
        let moved = [("marked", of.marked), ("released", of.released)];
        metrics.counter("xen_pages_total", "Pages that changed their state", "change", &some(moved))?;
        let flushes = [("batch", of.flushes)];
        metrics.counter(
            "xen_flushes_total",
            "IOTLB flushes for marks and releases",
            "for",
            &some(flushes),
        )?;
    }
    let Some(pool) = &status.pool else { return metrics.encode() };
    let level = |of: fn(&super::status::Level) -> Option<u64>| {
        pool.levels.iter().map(|(name, level)| ((*name).to_owned(), of(level))).collect::<Vec<_>>()
    };
    metrics.gauge("cached_tables", "Tables ready in the cache", "level", &level(|l| l.cached))?;
    metrics.gauge("in_use_tables", "Tables of the pool that are in use", "level", &level(|l| l.in_use))?;
    metrics.counter("hits_total", "Allocations that the cache served", "level", &level(|l| l.hits))?;
    metrics.counter(
        "misses_total",
        "Allocations that found the cache empty",
        "level",
        &level(|l| l.misses),
    )?;
    let worst = "Allocations that tried the cache and then took the kernel's path";
    metrics.counter("worst_case_total", worst, "level", &level(|l| l.worst_case))?;
    metrics.plain_counter("shrunk_total", "Tables given back by shrinking", pool.shrunk)?;
    let limits = [("number", pool.limit_number), ("percent", pool.limit_percent)];
    let limits = limits.map(|(name, value)| (name.to_owned(), value));
    metrics.gauge("limit", "Cached tables above which the pool shrinks", "unit", &limits)?;
    let policies =
        POLICIES.map(|name| (name.to_owned(), pool.policy.as_deref().map(|now| u64::from(now == name))));
    metrics.gauge("policy", "The pool's shrinking policy", "policy", &policies)?;
    metrics.encode()
}

fn some<const N: usize>(values: [(&str, u64); N]) -> [(String, Option<u64>); N] {
    values.map(|(name, value)| (name.to_owned(), Some(value)))
}

/// Metrics with at most one label; values that are `None` are left out.
struct Metrics(Registry);

impl Metrics {
    fn gauge(&self, name: &str, help: &str, label: &str, values: &[(String, Option<u64>)]) -> Result<()> {
        let metric = IntGaugeVec::new(Opts::new(format!("{PREFIX}_{name}"), help), &[label])?;
        for (value_of, value) in values {
            if let Some(value) = value {
                metric.with_label_values(&[value_of]).set(i64::try_from(*value).unwrap_or(i64::MAX));
            }
        }
        Ok(self.0.register(Box::new(metric))?)
    }

    fn counter(&self, name: &str, help: &str, label: &str, values: &[(String, Option<u64>)]) -> Result<()> {
        let metric = IntCounterVec::new(Opts::new(format!("{PREFIX}_{name}"), help), &[label])?;
        for (value_of, value) in values {
            if let Some(value) = value {
                metric.with_label_values(&[value_of]).inc_by(*value);
            }
        }
        Ok(self.0.register(Box::new(metric))?)
    }

    fn plain_counter(&self, name: &str, help: &str, value: Option<u64>) -> Result<()> {
        let Some(value) = value else { return Ok(()) };
        let metric = IntCounter::new(format!("{PREFIX}_{name}"), help)?;
        metric.inc_by(value);
        Ok(self.0.register(Box::new(metric))?)
    }

    fn encode(&self) -> Result<String> {
        Ok(TextEncoder::new().encode_to_string(&self.0.gather())?)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::control::Settings;
    use super::super::fake::Fake;
    use super::super::load::load;
    use super::super::plan::Wanted;
    use super::*;

    fn status(fake: &Fake) -> Status {
        load(&fake.host(), &Wanted::default(), &Settings::default(), &mut |_| {}).unwrap();
        Status::look(&fake.host())
    }

    #[test]
    fn writes_what_the_collector_reads() {
        let text = text(&status(&Fake::dom0())).unwrap();
        for says in [
            "# TYPE trapless_pagetable_hits_total counter\n",
            "trapless_pagetable_hits_total{level=\"user_pgd\"} 1004\n",
            "# TYPE trapless_pagetable_cached_tables gauge\n",
            "trapless_pagetable_cached_tables{level=\"pte\"} 40\n",
            "trapless_pagetable_loaded{part=\"pool\"} 1\n",
            "trapless_pagetable_enabled{switch=\"fork\"} 1\n",
            "trapless_pagetable_policy{policy=\"adaptive\"} 1\n",
            "trapless_pagetable_policy{policy=\"none\"} 0\n",
            "trapless_pagetable_shrunk_total 0\n",
            "trapless_pagetable_limit{unit=\"number\"} 256\n",
        ] {
            assert!(text.contains(says), "{says:?} is missing in:\n{text}");
        }
    }

    #[test]
    fn the_file_is_for_all_to_read() {
        let fake = Fake::dom0();
        let status = status(&fake);
        fake.write("/metrics/trapless.prom", b"the one before");
        let file = fake.path("/metrics/trapless.prom");
        write(&status, &file).unwrap();
        assert!(fake.read("/metrics/trapless.prom").unwrap().starts_with("# HELP"));
        assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o644);
        let error = write(&status, &fake.path("/nowhere/trapless.prom")).unwrap_err();
        assert!(format!("{error:#}").contains("No such file"), "{error:#}");
    }
}
