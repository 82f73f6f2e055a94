// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each part would do for this host, before anything is loaded, for the doctor.

use serde::Serialize;

use super::host::Host;
use super::linux::Linux;
use super::part::Part;
use super::plan::{ONLY_ROOT, Wanted, plan, served};
use super::platform::{Follows, Platform};
use super::signature::Signature;

/// The result.
#[derive(Debug, Serialize)]
pub struct Survey {
    pub host: String,
    /// Whether anything can be gained here; false is not an error of the host.
    pub benefits: bool,
    /// None where nothing can be gained.
    pub iommu: Option<Follows>,
    /// Of the payload; None where it is not loaded from.
    pub signature: Option<Signature>,
    pub parts: Vec<Gain>,
    /// Why `trapless pagetable load` would refuse; none if it would not.
    pub refusals: Vec<String>,
}

/// The result for one part.
#[derive(Debug, Serialize)]
pub struct Gain {
    pub part: Part,
    /// None if only loading it will show.
    pub serves: Option<bool>,
    pub why: String,
}

impl Survey {
    /// Of the running host.
    pub fn look() -> Self {
        Survey::of(&Host::new("/".into(), Box::new(Linux::new())))
    }

    /// Whether the accelerator works here as far as we can see, or is not needed.
    pub fn is_fine(&self) -> bool {
        !self.benefits || self.refusals.iter().all(|refusal| refusal == ONLY_ROOT)
    }

    fn of(host: &Host) -> Self {
        let platform = Platform::look(host);
        let xen = match served(&platform) {
            Ok(xen) => xen,
            Err(why) => {
                return Survey {
                    host: platform.to_string(),
                    benefits: false,
                    iommu: None,
                    signature: None,
                    parts: Vec::new(),
                    refusals: vec![why],
                };
            }
        };
        let iommu = Follows::look(host, xen);
        let (payload, pool) = if xen.is_dom0 {
            let payload = "shorter validation and updates of page tables, for every PV domain of the host";
            let pool = match iommu.answer {
                Some(true) => {
                    "strict: saves an IOMMU unmap, map and flush each time a page becomes a table, if Xen uses an IOMMU"
                }
                Some(false) => "relaxed: caches tables; this dom0 pays no IOMMU flush that it could save",
                None => "caches tables; whether it saves IOMMU flushes is known when the payload is loaded",
            };
            (Gain::new(Part::Payload, Some(true), payload), Gain::new(Part::Pool, Some(true), pool))
        } else {
            let payload = "up to the host: its dom0 loads it, for every PV domain";
            let pool = "on a host whose Xen has the payload: caches tables, and saves IOMMU flushes with a passed-through device";
            (Gain::new(Part::Payload, Some(false), payload), Gain::new(Part::Pool, None, pool))
        };
        let pvmmu = Gain::new(
            Part::Pvmmu,
            Some(true),
            "fewer hypercalls and traps in fork, exec, exit and page faults",
        );
        Survey {
            host: platform.to_string(),
            benefits: true,
            iommu: Some(iommu),
            signature: xen.is_dom0.then(|| Signature::look(host, xen)),
            parts: vec![payload, pool, pvmmu],
            refusals: plan(host, &Wanted::default()).err().unwrap_or_default(),
        }
    }
}

impl Gain {
    fn new(part: Part, serves: Option<bool>, why: &str) -> Self {
        Gain { part, serves, why: why.to_owned() }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::Fake;
    use super::*;

    fn serves(fake: &Fake) -> [Option<bool>; 3] {
        let survey = Survey::of(&fake.host());
        assert!(survey.benefits && survey.is_fine(), "{survey:?}");
        [0, 1, 2].map(|n| survey.parts[n].serves)
    }

    #[test]
    fn who_gains_what() {
        assert_eq!(serves(&Fake::dom0()), [Some(true), Some(true), Some(true)]);
        let relaxed = Fake::dom0();
        relaxed.kernel.borrow_mut().command_line = Ok("dom0_mem=4G".into());
        assert_eq!(serves(&relaxed), [Some(true), Some(true), Some(true)]);
        let domu = Fake::domu();
        assert_eq!(serves(&domu), [Some(false), None, Some(true)]);
        domu.write("/sys/bus/pci/devices/0000:00:00.0/vendor", b"0x8086\n");
        assert!(Survey::of(&domu.host()).iommu.unwrap().because.contains("passed through"));
        assert!(
            Survey::of(&relaxed.host()).signature.is_some() && Survey::of(&domu.host()).signature.is_none()
        );
    }

    #[test]
    fn who_is_not_root_gets_a_warning_but_the_host_is_fine() {
        let fake = Fake::dom0();
        fake.kernel.borrow_mut().is_root = false;
        let survey = Survey::of(&fake.host());
        assert!(survey.is_fine() && survey.refusals == [ONLY_ROOT], "{survey:?}");
    }

    #[test]
    fn nothing_to_gain_is_no_fault() {
        let fake = Fake::dom0();
        fake.write("/sys/hypervisor/guest_type", b"PVH\n");
        let survey = Survey::of(&fake.host());
        assert!(!survey.benefits && survey.is_fine() && survey.refusals.len() == 1);
        fake.remove("/sys/hypervisor/type");
        assert!(!Survey::of(&fake.host()).benefits);
    }

    #[test]
    fn what_is_missing_is_reported() {
        let fake = Fake::dom0();
        std::fs::remove_dir_all(fake.path("/usr/lib/trapless")).unwrap();
        let survey = Survey::of(&fake.host());
        assert!(survey.benefits && !survey.is_fine());
        assert!(survey.refusals[0].contains("payload: no payload for the running Xen 4.17.7"), "{survey:?}");
    }
}
