// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What loading would do here, and all reasons for a refusal.
//!
//! Nothing is changed: all refusals that can be known in advance are found here at once, one line each. A part that
//! is loaded already needs nothing, even if its files are missing now.

use std::path::{Path, PathBuf};

use super::host::Host;
use super::hypercall::Payload;
use super::image;
use super::livepatch::{Livepatch, State};
use super::module_file;
use super::part::{PARTS, PAYLOAD, Part, Sources};
use super::platform::{Guest, Platform, Xen};

/// The request.
#[derive(Debug, Default, Clone)]
pub struct Wanted {
    /// These parts only; if empty, all that serve this host.
    pub only: Vec<Part>,
    pub sources: Sources,
    /// Parameters of the pool's module.
    pub pool_parameters: String,
}

/// What is to be done for one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    pub part: Part,
    pub action: Action,
}

/// The action for one part.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Nothing: it is loaded.
    There,
    /// Nothing: it would not serve this host, and was not requested by name.
    Leave(String),
    /// Load this file. An optional part is left out if its own load reports that it does not serve this host.
    Load { file: PathBuf, is_optional: bool },
}

/// The refusal that is the same on every host.
pub const ONLY_ROOT: &str = "only root may load: try sudo";

/// The steps in order, or every reason why not.
pub fn plan(host: &Host, wanted: &Wanted) -> Result<Vec<Step>, Vec<String>> {
    let platform = Platform::look(host);
    let xen = match served(&platform) {
        Ok(xen) => xen,
        Err(why) => return Err(vec![why]),
    };
    let mut refusals = Vec::new();
    if !host.kernel.is_root() {
        refusals.push(ONLY_ROOT.to_owned());
    }
    let mut steps = Vec::new();
    for part in PARTS {
        if !wanted.only.is_empty() && !wanted.only.contains(&part) {
            continue;
        }
        let action = match part.module() {
            None => payload(host, xen, wanted),
            Some(name) => module(host, xen, wanted, part, name),
        };
        match action {
            Ok(action) => steps.push(Step { part, action }),
            Err(why) => refusals.extend(why.into_iter().map(|why| format!("{part}: {why}"))),
        }
    }
    if refusals.is_empty() { Ok(steps) } else { Err(refusals) }
}

/// The hypervisor, if there are PV page tables to accelerate.
pub fn served(platform: &Platform) -> Result<&Xen, String> {
    match platform {
        Platform::NotXen => {
            Err("this kernel is not a guest of Xen: there are no PV page tables to accelerate".into())
        }
        Platform::Xen(xen) if xen.guest != Guest::Pv => Err(format!(
            "this is a {platform}: its page tables are its own, and Xen does not type them; only PV domains gain"
        )),
        Platform::Xen(xen) => Ok(xen),
    }
}

/// It may be another file than the one that load would choose, so it is not turned on.
const LEFT_OFF: &str = "it is applied with all its switches off, as a verify that was killed leaves it: trapless pagetable unload first";

/// Whether nothing of the applied payload is on, and no module is there by which an operator could have wanted that.
fn is_left_off(host: &Host) -> bool {
    let is_off = |payload: Payload| payload.parts != 0 && payload.switches == Some(0);
    !host.has_module("trapless_pvmmu") && host.kernel.payload().ok().flatten().is_some_and(is_off)
}

fn payload(host: &Host, xen: &Xen, wanted: &Wanted) -> Result<Action, Vec<String>> {
    if !xen.is_dom0 {
        let why = "only dom0 can load it, for all domains of the host";
        return if wanted.only.is_empty() { Ok(Action::Leave(why.into())) } else { Err(vec![why.into()]) };
    }
    let mut refusals = Vec::new();
    // Without root Xen cannot be queried; that refusal is there already.
    if host.kernel.is_root() {
        match Livepatch::find(host, xen).and_then(|livepatch| livepatch.list()) {
            Err(why) => refusals.push(format!("{why:#}")),
            Ok(list) => {
                if list.iter().any(|listed| listed.name == PAYLOAD && listed.state == State::Applied) {
                    return if is_left_off(host) {
                        Err(vec![LEFT_OFF.to_owned()])
                    } else {
                        Ok(Action::There)
                    };
                }
                refusals.extend(list.iter().filter(|listed| listed.name != PAYLOAD && listed.state == State::Applied).map(
                    |other| {
                        let name = crate::output::printable(&other.name);
                        format!("the live patch {name} is applied, and this one must be the first on Xen: unload that one first")
                    },
                ));
            }
        }
    }
    let file = choose_payload(host, xen, &wanted.sources).map_err(|why| refusals.push(why));
    match (file, refusals.is_empty()) {
        (Ok(file), true) => Ok(Action::Load { file, is_optional: false }),
        _ => Err(refusals),
    }
}

/// The first file that is for the running hypervisor.
pub fn choose_payload(host: &Host, xen: &Xen, sources: &Sources) -> Result<PathBuf, String> {
    let mut others = Vec::new();
    for file in sources.payloads(host) {
        match read(&file).and_then(|bytes| image::payload_is_for(&bytes).map_err(|why| format!("{why:#}"))) {
            Ok(id) if id.may_be(&xen.build_id) => return Ok(file),
            Ok(id) => others.push(format!("{} is for build {id}", file.display())),
            Err(why) => others.push(format!("{}: {why}", file.display())),
        }
    }
    let id = image::hex(&xen.build_id);
    let running = format!("no payload for the running Xen {} (build {id})", xen.version);
    // trapless-payload leaves a report if it refused to make one.
    let report = host.path(format!("/usr/lib/trapless/{id}/refused.txt"));
    Err(if report.is_file() {
        format!("{running}: trapless-payload refused to make one, see {}", report.display())
    } else if others.is_empty() {
        format!(
            "{running}: searched below /usr/lib/trapless; trapless-payload build makes it, --payload or --from name one"
        )
    } else {
        format!("{running}: {}; trapless-payload build makes it", others.join("; "))
    })
}

fn module(host: &Host, xen: &Xen, wanted: &Wanted, part: Part, name: &str) -> Result<Action, Vec<String>> {
    if host.has_module(name) {
        return Ok(Action::There);
    }
    let is_optional = part == Part::Pool && wanted.only.is_empty();
    let mut refusals = Vec::new();
    if part == Part::Pool && xen.is_dom0 && !wanted.only.is_empty() && !wanted.only.contains(&Part::Payload) {
        let applied = matches!(host.kernel.payload(), Ok(Some(_)));
        if host.kernel.is_root() && !applied {
            refusals.push("it needs the payload, which is not applied: load that too".to_owned());
        }
    }
    if host.text("/proc/sys/kernel/modules_disabled").as_deref() == Some("1") {
        refusals.push(
            "kernel.modules_disabled is 1: this kernel accepts no module until it is booted again".to_owned(),
        );
    }
    let file = choose_module(host, &wanted.sources, name).map_err(|why| refusals.push(why));
    match (file, refusals.is_empty()) {
        (Ok(file), true) => Ok(Action::Load { file, is_optional }),
        // A domU's host determines whether the pool can serve: without its module it is simply left out.
        _ if is_optional && !xen.is_dom0 => Ok(Action::Leave(refusals.join("; "))),
        _ => Err(refusals),
    }
}

/// The first file that is this module for the running kernel.
pub fn choose_module(host: &Host, sources: &Sources, name: &str) -> Result<PathBuf, String> {
    let release = host.kernel.release();
    let mut others = Vec::new();
    for file in sources.modules(host, name) {
        let read = module_file::read(&file).map_err(|error| error.to_string());
        match read.and_then(|bytes| image::module(&bytes).map_err(|why| format!("{why:#}"))) {
            // Another of the files that the operator named is this module.
            Ok(module) if module.name != name => {}
            Ok(module) if module.release == release => return Ok(file),
            Ok(module) => {
                let built = crate::output::printable(&module.release);
                others.push(format!("{} is for kernel {built}", file.display()));
            }
            Err(why) => others.push(format!("{}: {why}", file.display())),
        }
    }
    Err(if others.is_empty() {
        format!(
            "no module {name} for the running kernel {release}: searched in /lib/modules/{release}; DKMS builds it, --module or --from name one"
        )
    } else {
        format!("no module {name} for the running kernel {release}: {}", others.join("; "))
    })
}

fn read(file: &Path) -> Result<Vec<u8>, String> {
    std::fs::read(file).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::super::fake::{BUILD_ID, Fake, RELEASE, module_file, payload_file};
    use super::super::module_file::packed_by_xz;
    use super::*;

    fn refusals(fake: &Fake, wanted: &Wanted) -> Vec<String> {
        let reasons = plan(&fake.host(), wanted).unwrap_err();
        assert!(reasons.iter().all(|line| !line.contains('\n')), "a line each: {reasons:?}");
        assert!(fake.loaded().is_empty() && fake.kernel.borrow().done.is_empty(), "nothing is changed");
        reasons
    }

    fn refuses(fake: &Fake, says: &[&str]) {
        let reasons = refusals(fake, &Wanted::default());
        assert_eq!(reasons.len(), says.len(), "{reasons:?}");
        for (refusal, says) in reasons.iter().zip(says) {
            assert!(refusal.contains(says), "{says:?} is missing in {refusal:?}");
        }
    }

    fn only(parts: &[Part]) -> Wanted {
        Wanted { only: parts.to_vec(), ..Wanted::default() }
    }

    fn parts(fake: &Fake) -> Vec<(Part, bool)> {
        let steps = plan(&fake.host(), &Wanted::default()).unwrap();
        steps.iter().map(|step| (step.part, matches!(step.action, Action::Load { .. }))).collect()
    }

    #[test]
    fn a_host_that_has_everything() {
        assert_eq!(parts(&Fake::dom0()), [(Part::Payload, true), (Part::Pool, true), (Part::Pvmmu, true)]);
        assert_eq!(parts(&Fake::domu()), [(Part::Payload, false), (Part::Pool, true), (Part::Pvmmu, true)]);
        let relaxed = Fake::dom0();
        relaxed.kernel.borrow_mut().command_line = Ok("dom0_mem=4G".into());
        assert_eq!(parts(&relaxed), [(Part::Payload, true), (Part::Pool, true), (Part::Pvmmu, true)]);
    }

    #[test]
    fn what_it_runs_on() {
        let fake = Fake::dom0();
        fake.kernel.borrow_mut().is_root = false;
        refuses(&fake, &["only root"]);
        for guest in ["PVH", "HVM"] {
            fake.write("/sys/hypervisor/guest_type", guest.as_bytes());
            refuses(&fake, &[guest]);
        }
        fake.remove("/sys/hypervisor/guest_type");
        refuses(&fake, &["unknown dom0"]);
        fake.remove("/sys/hypervisor/type");
        refuses(&fake, &["not a guest of Xen"]);
    }

    #[test]
    fn files_that_do_not_fit() {
        let fake = Fake::dom0();
        let payload = "/usr/lib/trapless/4.17.7-1/trapless_pagetable.livepatch";
        let module = format!("/lib/modules/{RELEASE}/updates/dkms/trapless_pvmmu.ko");
        fake.write(payload, &payload_file(&[7; 20]));
        refuses(&fake, &["is for build 0707"]);
        fake.write(payload, b"no payload");
        fake.write(&module, &module_file("trapless_pvmmu", "6.1.0-55-amd64"));
        refuses(&fake, &["not a 64-bit ELF file", "is for kernel 6.1.0-55-amd64"]);
        fake.remove(payload);
        fake.remove(&module);
        refuses(&fake, &["searched below /usr/lib/trapless", "searched in /lib/modules"]);
        let report = format!("/usr/lib/trapless/{}/refused.txt", image::hex(&BUILD_ID));
        fake.write(&report, b"the reasons");
        refuses(&fake, &["trapless-payload refused to make one", "searched in /lib/modules"]);
        fake.remove(&report);
        // Debian 13's DKMS packs modules: the file is found, and its contents are looked at.
        let packed = format!("{module}.xz");
        fake.write(&packed, b"\xfd7zXZ\0 and no more");
        refuses(&fake, &["searched below", "trapless_pvmmu.ko.xz: "]);
        fake.write(&packed, &packed_by_xz(&module_file("trapless_pvmmu", "6.1.0-55-amd64")));
        refuses(&fake, &["searched below", "is for kernel 6.1.0-55-amd64"]);
        fake.write(payload, &payload_file(&BUILD_ID));
        fake.write(&packed, &packed_by_xz(&module_file("trapless_pvmmu", RELEASE)));
        assert!(plan(&fake.host(), &Wanted::default()).is_ok());
        fake.remove(payload);
        fake.remove(&packed);
        // The matching file is used, whatever its position.
        fake.write("/usr/lib/trapless/4.17.6-1/trapless_pagetable.livepatch", &payload_file(&[7; 20]));
        fake.write("/usr/lib/trapless/z/trapless_pagetable.livepatch", &payload_file(&BUILD_ID));
        fake.write(&module, &module_file("trapless_pvmmu", RELEASE));
        assert!(plan(&fake.host(), &Wanted::default()).is_ok());
    }

    #[test]
    fn files_that_are_named() {
        let fake = Fake::dom0();
        let mut wanted = Wanted::default();
        wanted.sources.payload = Some(fake.path("/nowhere"));
        wanted.sources.modules =
            vec![fake.path(&format!("/lib/modules/{RELEASE}/updates/dkms/trapless_pvmmu.ko"))];
        let reasons = refusals(&fake, &wanted);
        assert!(reasons[0].contains("/nowhere: No such file"), "{reasons:?}");
        assert!(reasons[1].contains("no module trapless_pagetable"), "{reasons:?}");
        fake.write("/build/pagetable/xen/trapless_pagetable.livepatch", &payload_file(&BUILD_ID));
        let from = Wanted {
            sources: Sources { from: Some(fake.path("/build")), ..Sources::default() },
            ..only(&[])
        };
        let steps = plan(&fake.host(), &from).unwrap();
        let file = fake.path("/build/pagetable/xen/trapless_pagetable.livepatch");
        assert_eq!(steps[0].action, Action::Load { file, is_optional: false });
    }

    #[test]
    fn the_way_to_xen() {
        let fake = Fake::dom0();
        fake.write("/state/other", b"APPLIED");
        refuses(&fake, &["xsa-999 is applied"]);
        fake.write("/state/unreachable", b"");
        refuses(&fake, &["failed to get the handler"]);
        fake.remove("/dev/xen/privcmd");
        refuses(&fake, &["modprobe xen-privcmd"]);
        std::fs::remove_dir_all(fake.path("/usr/lib/xen-4.17")).unwrap();
        refuses(&fake, &["install Debian's package xen-utils-4.17"]);
    }

    #[test]
    fn what_is_asked_for_by_name_must_serve() {
        assert!(refusals(&Fake::dom0(), &only(&[Part::Pool]))[0].contains("needs the payload"));
        assert!(refusals(&Fake::domu(), &only(&[Part::Payload]))[0].contains("only dom0"));
    }

    #[test]
    fn a_kernel_that_takes_no_modules() {
        let fake = Fake::dom0();
        fake.write("/proc/sys/kernel/modules_disabled", b"1\n");
        refuses(&fake, &["modules_disabled", "modules_disabled"]);
    }

    #[test]
    fn what_is_there_needs_no_file() {
        let fake = Fake::dom0();
        std::fs::remove_dir_all(fake.path("/usr/lib/trapless")).unwrap();
        std::fs::remove_dir_all(fake.path("/lib/modules")).unwrap();
        fake.write("/state/payload", b"APPLIED");
        for name in ["trapless_pagetable", "trapless_pvmmu"] {
            fake.write(&format!("/sys/module/{name}/refcnt"), b"0\n");
        }
        assert_eq!(parts(&fake), [(Part::Payload, false), (Part::Pool, false), (Part::Pvmmu, false)]);
    }
}
