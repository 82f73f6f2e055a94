// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Loads the parts, and unloads those that were loaded if a later one fails.
//!
//! Invariant: after an error nothing is loaded that was not loaded before, or the message names what could not be
//! unloaded. A part that was loaded before is never unloaded.

use std::time::Duration;

use anyhow::{Context, Result, anyhow, bail};

use super::control::{self, Settings};
use super::host::{Host, NotInserted};
use super::livepatch::Livepatch;
use super::part::{Part, Say};
use super::plan::{Action, Step, Wanted, plan, served};
use super::platform::Platform;
use super::unload::take_out;

/// Load the wanted parts that are not loaded yet; then apply the settings.
///
/// # Errors
/// With all reasons that are known in advance, or with the failure and what was undone.
pub fn load(host: &Host, wanted: &Wanted, settings: &Settings, say: Say<'_>) -> Result<()> {
    let steps = steps(host, wanted)?;
    let mut done = Vec::new();
    let mut bring = || -> Result<()> {
        for step in &steps {
            if bring_in(host, step, wanted, say)? {
                done.push(step.part);
            }
            if host.kernel.stopped(Duration::ZERO) {
                bail!("a signal requested the end");
            }
        }
        if settings.is_some() {
            control::set(host, settings)?;
        }
        Ok(())
    };
    let Err(error) = bring() else { return Ok(()) };
    Err(undo(host, &done, error))
}

/// Print what [`load`] would do.
///
/// # Errors
/// As [`load`] before it changes anything.
pub fn rehearse(host: &Host, wanted: &Wanted, say: Say<'_>) -> Result<()> {
    for Step { part, action } in steps(host, wanted)? {
        say(match action {
            Action::There => format!("{part:8} is loaded already"),
            Action::Leave(why) => format!("{part:8} would be left out: {why}"),
            Action::Load { file, is_optional } => {
                let unless =
                    if is_optional { ", unless it says that it does not serve this host" } else { "" };
                format!("{part:8} would be loaded from {}{unless}", file.display())
            }
        });
    }
    Ok(())
}

fn steps(host: &Host, wanted: &Wanted) -> Result<Vec<Step>> {
    plan(host, wanted)
        .map_err(|refusals| anyhow!("refused, and nothing was changed:\n  {}", refusals.join("\n  ")))
}

/// Whether something was loaded.
fn bring_in(host: &Host, step: &Step, wanted: &Wanted, say: Say<'_>) -> Result<bool> {
    let part = step.part;
    let (file, is_optional) = match &step.action {
        Action::There => {
            say(format!("{part:8} is loaded already"));
            if part == Part::Payload && is_evicted(host) {
                host.kernel.admit().map_err(|why| anyhow!(why))?;
                say(format!("{:8} semi-writable pages are admitted again", ""));
            }
            return Ok(false);
        }
        Action::Leave(why) => {
            say(format!("{part:8} left out: {why}"));
            return Ok(false);
        }
        Action::Load { file, is_optional } => (file, *is_optional),
    };
    let is_dom0 = match part.module() {
        None => {
            let platform = Platform::look(host);
            let xen = served(&platform).map_err(|why| anyhow!(why))?;
            Livepatch::find(host, xen)?.load(file).with_context(|| format!("{part}: not loaded"))?;
            say(format!("{part:8} loaded from {}", file.display()));
            let bytes = std::fs::read(file).unwrap_or_default();
            for (switch, why) in super::image::left_out(&bytes).unwrap_or_default() {
                say(format!("{:8} without {switch}: {why}", ""));
            }
            return Ok(true);
        }
        Some(_) => matches!(Platform::look(host), Platform::Xen(xen) if xen.is_dom0),
    };
    let name = part.module().unwrap_or_default();
    // Its own before the operator's, which may be the contrary.
    let parameters =
        if part == Part::Pool { format!("{UNMARKED} {}", wanted.pool_parameters) } else { String::new() };
    match host.kernel.insert(name, file, parameters.trim_end()) {
        Ok(()) if host.has_module(name) => {
            say(format!("{part:8} loaded from {}", file.display()));
            Ok(true)
        }
        Ok(()) => bail!("{part}: the kernel accepted {} but has no module {name}", file.display()),
        Err(refused) if is_optional && does_not_serve(&refused, is_dom0) => {
            say(format!("{part:8} left out: {}", sentence(part, &refused)));
            Ok(false)
        }
        Err(refused) => bail!("{part}: not loaded: {}", sentence(part, &refused)),
    }
}

/// Where the IOMMU does not follow page types the pool saves no flush; it caches tables nevertheless.
const UNMARKED: &str = "unmarked=1";

/// Whether an eviction was begun, and not ended by unloading the payload.
fn is_evicted(host: &Host) -> bool {
    matches!(host.kernel.payload(), Ok(Some(payload)) if payload.is_evicted)
}

/// Whether the pool's module reports that there is nothing to save here, which is not a failure.
fn does_not_serve(refused: &NotInserted, is_dom0: bool) -> bool {
    match refused.error.raw_os_error() {
        Some(libc::EOPNOTSUPP | libc::EACCES) => true,
        // A domU cannot know whether its host has the payload.
        Some(libc::ENODEV) => !is_dom0,
        // The kernel itself returns that number for an unsigned module; then the module logged nothing.
        Some(libc::EPERM) => !is_dom0 && !refused.said.is_empty(),
        _ => false,
    }
}

/// The meaning of an error number of a module's load, with the kernel's own messages about it.
fn sentence(part: Part, refused: &NotInserted) -> String {
    let means = match (refused.error.raw_os_error(), part) {
        (Some(libc::ENODEV), Part::Pool) => {
            "Xen has no payload that answers this domain, or this is not a PV domain"
        }
        (Some(libc::ENODEV), _) => "this is not a PV domain of Xen",
        (Some(libc::EPROTO), _) => "payload and module have different versions: load both from one build",
        (Some(libc::EACCES), Part::Pool) => {
            "dom0 has taken all semi-writable pages back, and admits no new ones"
        }
        (Some(libc::EOPNOTSUPP), Part::Pool) => {
            "this domain's IOMMU mappings do not follow page types: nothing to save"
        }
        (Some(libc::EOPNOTSUPP), _) => "the kernel preempts its own code: boot without preempt=full",
        (Some(libc::ENOENT), _) => "this build of the kernel is unknown: a function is missing or differs",
        (Some(libc::EBUSY), _) => {
            "a BPF program or a kernel livepatch holds a kernel function that it needs, or kernel.ftrace_enabled is 0"
        }
        (Some(libc::ENOEXEC), _) => "the file is not for this kernel",
        (Some(libc::ENOMEM), _) => "no memory",
        (Some(libc::EINVAL), _) => "a parameter is wrong, or the file is not for this kernel",
        (Some(libc::EEXIST), _) => "it was loaded by another process at the same time",
        (Some(libc::EPERM | libc::EACCES | libc::EKEYREJECTED), _) => {
            "this kernel takes only modules that are signed with a key it knows (Secure Boot), or we are not root"
        }
        _ => "the kernel refused",
    };
    let said = match refused.said.as_slice() {
        [] => "; see dmesg".to_owned(),
        lines => format!("; the kernel's log: {}", crate::output::printable(&lines.join(" / "))),
    };
    format!("{means} ({}{said})", refused.error)
}

fn undo(host: &Host, done: &[Part], error: anyhow::Error) -> anyhow::Error {
    let mut text = format!("{error:#}");
    host.kernel.begin_clean_up();
    for part in done.iter().rev() {
        match take_out(host, *part, false) {
            Ok(_) => text.push_str(&format!("\n  {part} was taken out again")),
            Err(stays) => text.push_str(&format!("\n  {part} STAYS LOADED: {stays:#}")),
        }
    }
    if done.is_empty() {
        text.push_str("\n  nothing was changed");
    }
    anyhow!(text)
}

#[cfg(test)]
mod tests {
    use super::super::fake::Fake;
    use super::super::hypercall::Payload;
    use super::super::part::POOL_FILES;
    use super::*;

    fn attempt(fake: &Fake, wanted: &Wanted, settings: &Settings) -> (Result<()>, Vec<String>) {
        let mut said = Vec::new();
        let result = load(&fake.host(), wanted, settings, &mut |line| said.push(line));
        (result, said)
    }

    fn fails(fake: &Fake, says: &str) {
        let error = attempt(fake, &Wanted::default(), &Settings::default()).0.unwrap_err().to_string();
        assert!(error.contains(says), "{says:?} is missing in {error:?}");
    }

    #[test]
    fn loads_once() {
        let fake = Fake::dom0();
        let wanted = Wanted { pool_parameters: "max_tables=9".into(), ..Wanted::default() };
        let (result, said) = attempt(&fake, &wanted, &Settings::default());
        assert!(result.is_ok() && said.len() == 3, "{said:?}");
        assert_eq!(fake.loaded(), ["payload", "pool", "pvmmu"]);
        let (result, said) = attempt(&fake, &wanted, &Settings::default());
        assert!(result.is_ok() && said.iter().all(|line| line.contains("already")), "{said:?}");
        assert_eq!(
            fake.kernel.borrow().done,
            ["+trapless_pagetable unmarked=1 max_tables=9", "+trapless_pvmmu"]
        );
        let calls = fake.read("/state/calls").unwrap();
        assert_eq!(calls.lines().filter(|call| call.starts_with("apply")).count(), 1, "{calls}");
    }

    #[test]
    fn a_rehearsal_changes_nothing() {
        let fake = Fake::dom0();
        let mut said = Vec::new();
        rehearse(&fake.host(), &Wanted::default(), &mut |line| said.push(line)).unwrap();
        assert!(said.len() == 3 && said.iter().all(|line| line.contains("would be loaded")), "{said:?}");
        assert!(fake.loaded().is_empty());
    }

    #[test]
    fn if_a_later_part_fails_the_earlier_ones_are_unloaded() {
        for (module, errno, says) in [
            ("trapless_pagetable", libc::EPROTO, "different versions"),
            ("trapless_pagetable", libc::ENODEV, "no payload that answers"),
            ("trapless_pvmmu", libc::ENOENT, "this is what the kernel said"),
            ("trapless_pvmmu", libc::EKEYREJECTED, "signed"),
            ("trapless_pvmmu", libc::EBUSY, "BPF"),
        ] {
            let fake = Fake::dom0();
            fake.kernel.borrow_mut().broken.insert(module, errno);
            fails(&fake, says);
            assert!(fake.loaded().is_empty(), "{module} {errno}");
        }
        let fake = Fake::dom0();
        fake.write("/state/refuse-apply", b"");
        fails(&fake, "differs from what the payload expects");
        assert!(fake.loaded().is_empty());
    }

    #[test]
    fn what_was_there_before_stays() {
        let fake = Fake::dom0();
        fake.write("/state/payload", b"APPLIED");
        fake.kernel.borrow_mut().broken.insert("trapless_pvmmu", libc::ENOENT);
        fails(&fake, "pool was taken out again");
        assert_eq!(fake.loaded(), ["payload"]);
    }

    #[test]
    fn a_payload_that_a_killed_verify_left_off_is_refused_until_it_is_unloaded() {
        let fake = Fake::dom0();
        fake.write("/state/payload", b"APPLIED");
        let answer = |switches| {
            Some(Payload {
                abi: 3,
                iommu_follows: true,
                is_evicted: false,
                parts: 15,
                switches: Some(switches),
                statistics: None,
            })
        };
        fake.kernel.borrow_mut().payload = answer(0);
        fails(&fake, "switches off, as a verify that was killed leaves it: trapless pagetable unload first");
        assert!(fake.kernel.borrow().done.is_empty());
        fake.kernel.borrow_mut().payload = answer(1);
        let (result, said) = attempt(&fake, &Wanted::default(), &Settings::default());
        assert!(result.is_ok() && said[0].contains("is loaded already"), "{said:?}");
        // With pvmmu an operator may have turned all of it off.
        fake.kernel.borrow_mut().payload = answer(0);
        assert!(attempt(&fake, &Wanted::default(), &Settings::default()).0.is_ok());
    }

    #[test]
    fn what_cannot_be_undone_is_named() {
        let fake = Fake::dom0();
        fake.kernel.borrow_mut().broken.insert("trapless_pvmmu", libc::ENOENT);
        fake.kernel.borrow_mut().stuck.insert("trapless_pagetable", libc::EAGAIN);
        fails(&fake, "pool STAYS LOADED");
        assert_eq!(fake.loaded(), ["payload", "pool"]);
    }

    #[test]
    fn a_pool_with_nothing_to_save_is_no_failure() {
        let fake = Fake::dom0();
        fake.kernel.borrow_mut().broken.insert("trapless_pagetable", libc::EOPNOTSUPP);
        assert!(attempt(&fake, &Wanted::default(), &Settings::default()).0.is_ok());
        assert_eq!(fake.loaded(), ["payload", "pvmmu"]);
        let domu = Fake::domu();
        domu.kernel.borrow_mut().broken.insert("trapless_pagetable", libc::ENODEV);
        assert!(attempt(&domu, &Wanted::default(), &Settings::default()).0.is_ok());
        assert_eq!(domu.loaded(), ["pvmmu"]);
        let domu = Fake::domu();
        domu.kernel.borrow_mut().broken.insert("trapless_pagetable", libc::ENODEV);
        let only = Wanted { only: vec![Part::Pool], ..Wanted::default() };
        assert!(attempt(&domu, &only, &Settings::default()).0.is_err());
    }

    #[test]
    fn settings_are_part_of_it() {
        let fake = Fake::dom0();
        let settings =
            Settings { policy: Some("number".into()), limit_number: Some(300), limit_percent: None };
        assert!(attempt(&fake, &Wanted::default(), &settings).0.is_ok());
        assert_eq!(fake.read(&format!("{POOL_FILES}/policy")).as_deref(), Some("number"));
        assert_eq!(fake.read(&format!("{POOL_FILES}/limit_number")).as_deref(), Some("300"));
        // There is no pool to set anything of: the whole load fails.
        let fake = Fake::dom0();
        fake.kernel.borrow_mut().broken.insert("trapless_pagetable", libc::EOPNOTSUPP);
        let (result, _) = attempt(&fake, &Wanted::default(), &settings);
        assert!(result.unwrap_err().to_string().contains("not loaded"));
        assert!(fake.loaded().is_empty());
    }

    #[test]
    fn what_a_signal_undoes_is_tried_as_often_as_ever() {
        let fake = Fake::dom0();
        fake.kernel.borrow_mut().stop_from = Some(2);
        fake.kernel.borrow_mut().busy_removals = 3;
        fails(&fake, "pool was taken out again");
        assert!(fake.loaded().is_empty());
    }

    #[test]
    fn a_signal_undoes_it() {
        let fake = Fake::dom0();
        fake.kernel.borrow_mut().is_asked_to_stop = true;
        fails(&fake, "a signal");
        assert!(fake.loaded().is_empty());
    }
}
