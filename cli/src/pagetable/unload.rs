// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Unloads the parts, the guest's before the hypervisor's.
//!
//! With all parts goes what a verify that was killed has left: see `left`.
//!
//! Invariant: if one part cannot be unloaded, the others still are, unless it needs them; each part that stays is
//! named with the reason. Parts that are not loaded are ignored.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use super::control::put;
use super::host::Host;
use super::left;
use super::livepatch::{Livepatch, State};
use super::part::{PARTS, PAYLOAD, POOL_FILES, Part, Say};
use super::platform::Platform;

/// The waits for busy pages, and for tasks that are leaving a module.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(400);
/// So many calls of an eviction may bring nothing: one looks through 4 GiB of memory, or 1,024 domain ids.
const IDLE_CALLS: u32 = 1_500;
/// Calls after an error, each preceded by a pause.
const FAILED_CALLS: u32 = 20;

/// Unload these parts, or all. With `evict` no domain can keep the payload: its pages are taken back.
///
/// # Errors
/// When parts stay, with a line for each.
pub fn unload(host: &Host, only: &[Part], evict: bool, say: Say<'_>) -> Result<()> {
    if !host.kernel.is_root() {
        bail!("refused, and nothing was changed:\n  only root may unload: try sudo");
    }
    let mut stays = Vec::new();
    if only.is_empty() {
        for name in left::modules(host) {
            match remove(host, name) {
                Ok(()) => say(format!("verify   {name} taken out: one that was killed left it")),
                Err(why) => stays.push(format!("module {name} stays: {why:#}")),
            }
        }
        for device in left::devices(host) {
            match left::give_back(host, &device) {
                Ok(()) => {
                    say(format!("verify   {device} given back: one that was killed kept it for its test"))
                }
                Err(why) => stays.push(format!("driver_override of {device} stays: {why}")),
            }
        }
    }
    for part in PARTS.into_iter().rev().filter(|part| only.is_empty() || only.contains(part)) {
        match take_out(host, part, evict) {
            Ok(true) => say(format!("{part:8} taken out")),
            Ok(false) => say(format!("{part:8} is not loaded")),
            Err(why) => stays.push(format!("{part} stays: {why:#}")),
        }
    }
    if stays.is_empty() {
        return Ok(());
    }
    bail!("not everything was taken out:\n  {}", stays.join("\n  "))
}

/// Print what [`unload`] would do.
///
/// # Errors
/// When Xen's payloads cannot be listed.
pub fn rehearse(host: &Host, only: &[Part], say: Say<'_>) -> Result<()> {
    if let Some(what) = left::sentence(host).filter(|_| only.is_empty()) {
        say(format!("verify   would be taken out: {what}"));
    }
    for part in PARTS.into_iter().rev().filter(|part| only.is_empty() || only.contains(part)) {
        let is_there = match part.module() {
            Some(name) => host.has_module(name),
            None => match livepatch(host)? {
                Some(livepatch) => livepatch.state()?.is_some(),
                None => false,
            },
        };
        say(format!("{part:8} {}", if is_there { "would be taken out" } else { "is not loaded" }));
    }
    Ok(())
}

/// Unload one part. Returns whether it was loaded.
///
/// # Errors
/// When it stays.
pub fn take_out(host: &Host, part: Part, evict: bool) -> Result<bool> {
    match part.module() {
        None => payload(host, evict),
        Some(name) => module(host, part, name),
    }
}

fn module(host: &Host, part: Part, name: &str) -> Result<bool> {
    if !host.has_module(name) {
        return Ok(false);
    }
    if part == Part::Pool {
        give_back(host)?;
    }
    remove(host, name)?;
    Ok(true)
}

/// Remove a module.
///
/// # Errors
/// When it stays.
pub fn remove(host: &Host, name: &str) -> Result<()> {
    for tries in 1.. {
        let Err(error) = host.kernel.remove(name) else { break };
        match error.raw_os_error() {
            Some(libc::ENOENT) => break,
            Some(libc::EAGAIN | libc::EBUSY) if tries < TRIES && !host.kernel.stopped(PAUSE) => {}
            Some(libc::EAGAIN) => bail!("module {name} is in use ({error}); see lsmod, and try again"),
            Some(libc::EBUSY) => bail!(
                "this kernel cannot remove {name} ({error}): it was built without module unloading, or its load did not end"
            ),
            _ => return Err(error).with_context(|| format!("module {name} cannot be removed")),
        }
    }
    Ok(())
}

/// Make every page of the pool ordinary while its module is loaded and can name one that fails.
fn give_back(host: &Host) -> Result<()> {
    let switch = host.path(Path::new(POOL_FILES).join("enabled"));
    for tries in 1.. {
        match put(&switch, "0") {
            Ok(()) => break,
            // A module without control files has no page, either.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => break,
            Err(_) if tries < TRIES && !host.kernel.stopped(PAUSE) => {}
            Err(error) => {
                return Err(error)
                    .context("some pages cannot be given back, and dmesg names them; the pool is disabled");
            }
        }
    }
    Ok(())
}

fn payload(host: &Host, evict: bool) -> Result<bool> {
    let Some(livepatch) = livepatch(host)? else { return Ok(false) };
    let Some(state) = livepatch.state()? else { return Ok(false) };
    if state == State::Applied {
        if let Some(above) = above(&livepatch)? {
            bail!("the live patch {above} is applied on top of it: revert and unload that one first");
        }
        if evict {
            take_pages_back(host)?;
        } else if host.has_module("trapless_pagetable") {
            bail!("the pool uses it");
        }
        let marked = host.kernel.payload().ok().flatten().and_then(|payload| payload.statistics);
        if let Some(statistics) = marked.filter(|statistics| statistics.semi_writable > 0) {
            let held = statistics.held;
            bail!(
                "{} pages are semi-writable, {held} are held after a failed flush: another domain's pool uses it, or pages could not be given back; --evict takes the first back",
                statistics.semi_writable
            );
        }
    }
    livepatch.unload()?;
    Ok(true)
}

/// The live patch that was applied after ours: Xen reverts only the last one.
fn above(livepatch: &Livepatch<'_>) -> Result<Option<String>> {
    let list = livepatch.list()?;
    let other = list.iter().find(|listed| listed.name != PAYLOAD && listed.state == State::Applied);
    Ok(other.map(|other| crate::output::printable(&other.name)))
}

/// Take every semi-writable page of every domain back.
///
/// # Errors
/// When some stay. No new ones are admitted then, either.
fn take_pages_back(host: &Host) -> Result<()> {
    let (mut idle, mut failed, mut least) = (0, 0, u64::MAX);
    loop {
        let now = host.kernel.evict().map_err(|why| anyhow!(why))?;
        if now.is_done {
            return Ok(());
        }
        idle = if now.left < least { 0 } else { idle + 1 };
        least = least.min(now.left);
        let is_asked_to_stop = host.kernel.stopped(if now.error == 0 { Duration::ZERO } else { PAUSE });
        failed += u32::from(now.error != 0);
        if is_asked_to_stop || idle == IDLE_CALLS || failed == FAILED_CALLS {
            let why = if now.error == 0 {
                String::new()
            } else {
                let error = std::io::Error::from_raw_os_error(now.error.saturating_abs());
                format!(", domain {}: {error}", now.domain)
            };
            bail!(
                "{} pages are still semi-writable{why}; no new ones are admitted: run it again, destroy that domain, or let things be as they were with trapless pagetable load",
                now.left
            );
        }
    }
}

/// Access to Xen's payloads; nothing outside dom0, which has none.
fn livepatch(host: &Host) -> Result<Option<Livepatch<'_>>> {
    match Platform::look(host) {
        Platform::Xen(xen) if xen.is_dom0 => Ok(Some(Livepatch::find(host, &xen)?)),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::super::control::Settings;
    use super::super::fake::Fake;
    use super::super::hypercall::{Eviction, Payload, Statistics};
    use super::super::load::load;
    use super::super::plan::Wanted;
    use super::*;

    fn loaded(fake: Fake) -> Fake {
        load(&fake.host(), &Wanted::default(), &Settings::default(), &mut |_| {}).unwrap();
        fake
    }

    fn stays(fake: &Fake, says: &[&str]) {
        let error = unload(&fake.host(), &[], false, &mut |_| {}).unwrap_err().to_string();
        assert!(says.iter().all(|says| error.contains(says)), "{says:?} is missing in {error:?}");
    }

    #[test]
    fn takes_out_what_is_there_in_reverse() {
        let fake = loaded(Fake::dom0());
        fake.kernel.borrow_mut().done.clear();
        let mut said = Vec::new();
        unload(&fake.host(), &[], false, &mut |line| said.push(line)).unwrap();
        assert!(fake.loaded().is_empty());
        assert_eq!(fake.kernel.borrow().done, ["-trapless_pvmmu", "-trapless_pagetable"]);
        unload(&fake.host(), &[], false, &mut |line| said.push(line)).unwrap();
        assert_eq!(said.len(), 6);
        assert!(said[3..].iter().all(|line| line.contains("is not loaded")), "{said:?}");
    }

    const SPARE: &str = "/sys/bus/pci/devices/0000:00:05.0/driver_override";

    fn left_by_verify() -> Fake {
        let fake = Fake::dom0();
        fake.write("/state/payload", b"APPLIED");
        for name in [left::TABLE_TEST, left::DEVICE_TEST] {
            fake.write(&format!("/sys/module/{name}/refcnt"), b"0\n");
        }
        fake.write(SPARE, format!("{}\n", left::DEVICE_TEST).as_bytes());
        fake.write("/sys/bus/pci/devices/0000:00:06.0/driver_override", b"vfio-pci\n");
        fake
    }

    #[test]
    fn what_a_killed_verify_left_goes_as_well() {
        let fake = left_by_verify();
        let mut said = Vec::new();
        rehearse(&fake.host(), &[], &mut |line| said.push(line)).unwrap();
        assert!(said[0].contains("trapless_table_test, the driver_override of 0000:00:05.0"), "{said:?}");
        unload(&fake.host(), &[Part::Pool], false, &mut |_| {}).unwrap();
        assert_eq!(left::modules(&fake.host()).len(), 2, "only what is named");
        said.clear();
        unload(&fake.host(), &[], false, &mut |line| said.push(line)).unwrap();
        assert!(fake.loaded().is_empty() && left::sentence(&fake.host()).is_none());
        assert_eq!(fake.kernel.borrow().done, ["-trapless_device_test", "-trapless_table_test"]);
        assert_eq!(fake.read(SPARE).as_deref(), Some(""));
        assert_eq!(
            fake.read("/sys/bus/pci/devices/0000:00:06.0/driver_override").as_deref(),
            Some("vfio-pci")
        );
        for says in
            ["trapless_table_test taken out", "trapless_device_test taken out", "0000:00:05.0 given back"]
        {
            assert!(said.iter().any(|line| line.contains(says)), "{says}: {said:?}");
        }
    }

    #[test]
    fn what_a_killed_verify_left_and_stays_is_named() {
        let fake = left_by_verify();
        fake.kernel.borrow_mut().stuck.insert(left::TABLE_TEST, libc::EAGAIN);
        fake.remove(SPARE);
        stays(&fake, &["module trapless_table_test stays: module trapless_table_test is in use"]);
        assert!(fake.loaded().is_empty() && left::modules(&fake.host()) == [left::TABLE_TEST]);
    }

    #[test]
    fn only_what_is_named() {
        let fake = loaded(Fake::dom0());
        rehearse(&fake.host(), &[], &mut |_| {}).unwrap();
        unload(&fake.host(), &[Part::Pvmmu], false, &mut |_| {}).unwrap();
        assert_eq!(fake.loaded(), ["payload", "pool"]);
        let error = unload(&fake.host(), &[Part::Payload], false, &mut |_| {}).unwrap_err().to_string();
        assert!(error.contains("the pool uses it"), "{error}");
        assert_eq!(fake.loaded(), ["payload", "pool"]);
    }

    #[test]
    fn what_stays_does_not_keep_the_rest() {
        let fake = loaded(Fake::dom0());
        fake.kernel.borrow_mut().stuck.insert("trapless_pvmmu", libc::EAGAIN);
        stays(&fake, &["pvmmu stays: module trapless_pvmmu is in use"]);
        assert_eq!(fake.loaded(), ["pvmmu"]);
        let fake = loaded(Fake::dom0());
        fake.kernel.borrow_mut().stuck.insert("trapless_pagetable", libc::EAGAIN);
        stays(&fake, &["pool stays", "payload stays: the pool uses it"]);
        assert_eq!(fake.loaded(), ["payload", "pool"]);
        let fake = loaded(Fake::dom0());
        fake.write("/state/refuse-revert", b"");
        stays(&fake, &["payload stays: xen-livepatch revert"]);
        assert_eq!(fake.loaded(), ["payload"]);
    }

    /// Another domain has pages.
    fn with_pages() -> Fake {
        let fake = loaded(Fake::dom0());
        let statistics = Statistics {
            semi_writable: 12,
            held: 1,
            marked: 0,
            released: 0,
            flushes: 0,
            skipped_map: 0,
            skipped_unmap: 0,
        };
        fake.kernel.borrow_mut().payload = Some(Payload {
            abi: 3,
            iommu_follows: true,
            is_evicted: false,
            parts: 7,
            switches: None,
            statistics: Some(statistics),
        });
        fake
    }

    fn evict(fake: &Fake) -> Result<(), String> {
        fake.kernel.borrow_mut().done.clear();
        unload(&fake.host(), &[], true, &mut |_| {}).map_err(|error| error.to_string())
    }

    #[test]
    fn pages_of_another_domain_keep_the_payload() {
        let fake = with_pages();
        stays(&fake, &["12 pages are semi-writable", "--evict"]);
        assert_eq!(fake.loaded(), ["payload"]);
    }

    #[test]
    fn pages_of_another_domain_are_taken_back() {
        let fake = with_pages();
        let more = |left, error| Ok(Eviction { is_done: false, left, domain: 3, error });
        fake.kernel.borrow_mut().evictions = [more(9, 0), more(9, -libc::ENOMEM), more(2, 0)].into();
        evict(&fake).unwrap();
        assert!(fake.loaded().is_empty());
        assert_eq!(fake.kernel.borrow().done.iter().filter(|done| *done == "evict").count(), 4);
    }

    #[test]
    fn a_pool_that_stays_does_not_keep_the_payload() {
        let fake = with_pages();
        fake.kernel.borrow_mut().stuck.insert("trapless_pagetable", libc::EAGAIN);
        let error = evict(&fake).unwrap_err();
        assert!(error.contains("pool stays") && !error.contains("payload stays"), "{error}");
        assert_eq!(fake.loaded(), ["pool"]);
    }

    #[test]
    fn an_eviction_that_does_not_end() {
        let fake = with_pages();
        let stuck = Ok(Eviction { is_done: false, left: 5, domain: 3, error: -libc::ENOMEM });
        fake.kernel.borrow_mut().evictions = vec![stuck; 50].into();
        let error = evict(&fake).unwrap_err();
        assert!(error.contains("5 pages are still semi-writable, domain 3: Cannot allocate"), "{error}");
        let fake = with_pages();
        fake.kernel.borrow_mut().evictions = [Err("the payload is too old".into())].into();
        assert!(evict(&fake).unwrap_err().contains("too old"));
        assert_eq!(fake.loaded(), ["payload"]);
    }

    #[test]
    fn what_is_applied_on_top_goes_first() {
        let fake = with_pages();
        fake.write("/state/other", b"APPLIED");
        let error = evict(&fake).unwrap_err();
        assert!(error.contains("the live patch xsa-999 is applied on top"), "{error}");
        assert!(!fake.kernel.borrow().done.contains(&"evict".to_owned()));
    }

    #[test]
    fn pages_that_cannot_be_given_back_keep_the_pool() {
        let fake = loaded(Fake::dom0());
        // A write to a directory fails, like one to the file if a page cannot be released.
        fake.remove(&format!("{POOL_FILES}/enabled"));
        fake.write(&format!("{POOL_FILES}/enabled/x"), b"");
        stays(&fake, &["pool stays: some pages cannot be given back", "payload stays"]);
        assert_eq!(fake.loaded(), ["payload", "pool"]);
    }

    #[test]
    fn a_domu_has_no_payload_to_take_out() {
        let fake = loaded(Fake::domu());
        assert_eq!(fake.loaded(), ["pool", "pvmmu"]);
        unload(&fake.host(), &[], false, &mut |_| {}).unwrap();
        assert!(fake.loaded().is_empty());
        fake.kernel.borrow_mut().is_root = false;
        assert!(unload(&fake.host(), &[], false, &mut |_| {}).unwrap_err().to_string().contains("only root"));
    }
}
