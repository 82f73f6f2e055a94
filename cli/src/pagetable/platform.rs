// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's platform: whether there are PV page tables, and which hypervisor handles them.
//!
//! Everything here is only read, before anything is loaded. An uncertain answer is reported together with what it is
//! based on.

use serde::Serialize;

use super::host::Host;

/// XENFEAT_dom0 of Xen's public headers: the hardware domain.
const FEATURE_DOM0: u32 = 1 << 11;

/// What the kernel runs on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Platform {
    /// Bare metal, or another hypervisor.
    NotXen,
    Xen(Xen),
}

/// The Xen of which this kernel is a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Xen {
    pub guest: Guest,
    pub is_dom0: bool,
    /// Such as 4.17.
    pub release: String,
    /// The same with what the distribution adds.
    pub version: String,
    /// The raw file; see [`super::image::BuildId::may_be`].
    pub build_id: Vec<u8>,
}

/// How the guest is virtualised: only [`Guest::Pv`] has page tables that Xen types.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Guest {
    Pv,
    /// PVH, HVM, or unknown: its page tables are its own.
    Other(String),
}

impl Platform {
    pub fn look(host: &Host) -> Self {
        if host.text("/sys/hypervisor/type").as_deref() != Some("xen") {
            return Platform::NotXen;
        }
        let text = |name: &str| host.text(format!("/sys/hypervisor/{name}")).unwrap_or_default();
        let release = format!("{}.{}", text("version/major"), text("version/minor"));
        let features = u32::from_str_radix(&text("properties/features"), 16).unwrap_or(0);
        let guest = match text("guest_type").as_str() {
            "PV" => Guest::Pv,
            "" => Guest::Other("unknown".to_owned()),
            other => Guest::Other(other.to_owned()),
        };
        Platform::Xen(Xen {
            guest,
            is_dom0: features & FEATURE_DOM0 != 0,
            version: format!("{release}{}", text("version/extra")),
            release,
            build_id: std::fs::read(host.path("/sys/hypervisor/properties/buildid")).unwrap_or_default(),
        })
    }
}

impl std::fmt::Display for Platform {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Platform::NotXen => f.write_str("not a guest of Xen"),
            Platform::Xen(xen) => {
                let guest = match &xen.guest {
                    Guest::Pv => "PV",
                    Guest::Other(name) => name,
                };
                write!(f, "{guest} {} on Xen {}", if xen.is_dom0 { "dom0" } else { "domU" }, xen.version)
            }
        }
    }
}

/// Whether the IOMMU's mappings of this domain follow its page types.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Follows {
    /// Nothing if it cannot be known yet.
    pub answer: Option<bool>,
    /// The source of the answer, or why there is none.
    pub because: String,
}

impl Follows {
    /// Query all sources, the most reliable first.
    pub fn look(host: &Host, xen: &Xen) -> Self {
        if let Ok(Some(payload)) = host.kernel.payload() {
            return Follows {
                answer: Some(payload.iommu_follows),
                because: "the payload, which is applied, says so".into(),
            };
        }
        if !xen.is_dom0 {
            let because = if has_passed_through_device(host) {
                "a device is passed through; whether the host has the payload, and an IOMMU, is known when the module is loaded"
            } else {
                "no passed-through device found; loading the module will show"
            };
            return Follows { answer: None, because: because.into() };
        }
        match host.kernel.xen_command_line() {
            Err(why) => Follows { answer: None, because: why },
            Ok(line) => Follows {
                answer: by_command_line(&line),
                because: format!("by Xen's command line: {}", line.trim()),
            },
        }
    }
}

fn has_passed_through_device(host: &Host) -> bool {
    std::fs::read_dir(host.path("/sys/bus/pci/devices")).is_ok_and(|mut devices| devices.next().is_some())
}

/// How Xen 4.17 reads its command line, for a PV dom0: relaxed unless strict is asked for. `None` if the options
/// contradict each other. Whether the machine has an IOMMU at all is not known from it.
fn by_command_line(line: &str) -> Option<bool> {
    let (mut iommu, mut strict, mut through) = (true, false, false);
    for option in line.split_ascii_whitespace() {
        let Some((name, values)) = option.split_once('=') else {
            if option == "no-iommu" {
                iommu = false;
            }
            continue;
        };
        for value in values.split(',') {
            let set = |to: &mut bool, name: &str| {
                if let Some(on) = boolean(value, name) {
                    *to = on;
                }
            };
            match name {
                "iommu" => {
                    set(&mut strict, "dom0-strict");
                    set(&mut through, "dom0-passthrough");
                    match truth(value) {
                        Some(on) => iommu = on,
                        None if value == "force" || value == "required" => iommu = true,
                        None => {}
                    }
                }
                "dom0-iommu" => {
                    set(&mut strict, "strict");
                    set(&mut through, "passthrough");
                }
                _ => {}
            }
        }
    }
    match (iommu, strict, through) {
        (false, _, _) => Some(false),
        (true, true, true) => None,
        (true, strict, _) => Some(strict),
    }
}

/// Xen's way to write that `name` is on or off: `name`, `no-name`, `name=yes`.
fn boolean(value: &str, name: &str) -> Option<bool> {
    let (is, rest) = value.strip_prefix("no-").map_or((true, value), |rest| (false, rest));
    match rest.strip_prefix(name)? {
        "" => Some(is),
        rest if is => truth(rest.strip_prefix('=')?),
        _ => None,
    }
}

fn truth(value: &str) -> Option<bool> {
    match value {
        "1" | "yes" | "on" | "true" | "enable" => Some(true),
        "0" | "no" | "off" | "false" | "disable" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::fake::Fake;
    use super::super::hypercall::Payload;
    use super::*;

    #[test]
    fn reads_xens_command_line() {
        for (line, answer) in [
            ("", Some(false)),
            ("console=com1 dom0_mem=4G", Some(false)),
            ("iommu=verbose,force dom0-iommu=strict dom0_mem=1G", Some(true)),
            ("dom0-iommu=strict=yes", Some(true)),
            ("dom0-iommu=no-strict", Some(false)),
            ("dom0-iommu=strict dom0-iommu=strict=off", Some(false)),
            ("dom0-iommu=map-reserved,strict", Some(true)),
            ("iommu=dom0-strict", Some(true)),
            ("iommu=off dom0-iommu=strict", Some(false)),
            ("dom0-iommu=passthrough", Some(false)),
            ("dom0-iommu=strict,passthrough", None),
            ("xdom0-iommu=strict strict dom0-iommu=strictly", Some(false)),
        ] {
            assert_eq!(by_command_line(line), answer, "{line}");
        }
    }

    #[test]
    fn reports_who_we_are() {
        let fake = Fake::dom0();
        assert_eq!(Platform::look(&fake.host()).to_string(), "PV dom0 on Xen 4.17.7");
        fake.write("/sys/hypervisor/properties/features", b"000220f0\n");
        fake.write("/sys/hypervisor/guest_type", b"PVH\n");
        assert_eq!(Platform::look(&fake.host()).to_string(), "PVH domU on Xen 4.17.7");
        fake.write("/sys/hypervisor/type", b"kvm\n");
        assert_eq!(Platform::look(&fake.host()), Platform::NotXen);
    }

    #[test]
    fn the_payload_knows_better_than_the_command_line() {
        let fake = Fake::dom0();
        let follows = || match Platform::look(&fake.host()) {
            Platform::Xen(xen) => Follows::look(&fake.host(), &xen),
            Platform::NotXen => unreachable!(),
        };
        assert_eq!(follows().answer, Some(true));
        fake.kernel.borrow_mut().payload = Some(Payload {
            abi: 3,
            iommu_follows: false,
            is_evicted: false,
            parts: 7,
            switches: None,
            statistics: None,
        });
        assert_eq!(follows().answer, Some(false));
        fake.kernel.borrow_mut().payload = None;
        fake.kernel.borrow_mut().command_line = Err("Xen cannot be asked".into());
        assert_eq!(follows(), Follows { answer: None, because: "Xen cannot be asked".into() });
    }

    proptest! {
        #[test]
        fn takes_any_command_line(line in "[ -~]{0,200}") {
            by_command_line(&line);
        }
    }

    proptest! {
        // Each case makes a tree of files.
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn takes_any_sysfs(bytes: Vec<u8>) {
            let fake = Fake::dom0();
            for name in ["guest_type", "version/major", "version/extra", "properties/features", "properties/buildid"] {
                fake.write(&format!("/sys/hypervisor/{name}"), &bytes);
            }
            let _ = Platform::look(&fake.host()).to_string();
        }
    }
}
