// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether the running Xen loads only live patches that are signed with a key it knows.
//!
//! Released Xen up to [`NEVER`] has no code for it. For a later one the file of the configuration beside Xen's image is
//! read, which may be of another build than the one that runs: so the file is named, and what files of one release do
//! not agree on is not known. Xen itself says it only in hypfs, if built with that.

use serde::Serialize;

use super::host::Host;
use super::platform::Xen;

/// The last release whose source was read for it and has nothing.
const NEVER: (u32, u32) = (4, 20);
/// What switches it on in a build, by the patches of Xen's developers.
const OPTION: &str = "CONFIG_PAYLOAD_VERIFY";

/// What was found.
#[derive(Debug, Serialize, PartialEq, Eq)]
pub struct Signature {
    /// Whether a payload without one is refused; None if it cannot be known from here.
    pub needed: Option<bool>,
    pub because: String,
}

impl Signature {
    /// Of the Xen that runs; its dom0 loads live patches.
    pub fn look(host: &Host, xen: &Xen) -> Self {
        let release = xen.release.split_once('.');
        let release = release.and_then(|(major, minor)| Some((major.parse().ok()?, minor.parse().ok()?)));
        if release.is_some_and(|release: (u32, u32)| release <= NEVER) {
            let because = format!("Xen {} as released verifies no signatures", xen.release);
            return Signature { needed: Some(false), because };
        }
        let mut configurations: Vec<_> = std::fs::read_dir(host.path("/boot"))
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|file| file.file_name().into_string().ok())
            .filter(|name| {
                name.strip_prefix("xen-").and_then(|name| name.strip_prefix(&xen.release)).is_some_and(
                    |rest| rest.starts_with(|c: char| !c.is_ascii_digit()) && rest.ends_with(".config"),
                )
            })
            .collect();
        configurations.sort();
        let on = |name: &String| {
            let text = host.text(format!("/boot/{name}"))?;
            // A file without the option's room says nothing about it.
            text.contains("CONFIG_LIVEPATCH").then(|| text.lines().any(|line| line == format!("{OPTION}=y")))
        };
        let found: Option<Vec<bool>> = configurations.iter().map(on).collect();
        match found.as_deref() {
            Some([first, rest @ ..]) if rest.iter().all(|other| other == first) => Signature {
                needed: Some(*first),
                because: format!(
                    "{OPTION} is {} in /boot/{}",
                    if *first { "on" } else { "off" },
                    configurations.join(", /boot/")
                ),
            },
            _ => Signature {
                needed: None,
                because: format!(
                    "/boot has no configuration of Xen {} that says whether it verifies signatures",
                    xen.release
                ),
            },
        }
    }

    /// For a person.
    pub fn sentence(&self) -> String {
        const STEPS: &str = "docs/packaging.md, Signing";
        match self.needed {
            Some(false) => format!("live patches need no signature: {}", self.because),
            Some(true) => {
                format!("live patches must be signed: {}; trapless-sign does it ({STEPS})", self.because)
            }
            None => format!(
                "whether live patches must be signed is not known: {}; xenhypfs cat /buildinfo/config | grep \
                 PAYLOAD_VERIFY may tell ({STEPS})",
                self.because
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::fake::Fake;
    use super::super::platform::Platform;
    use super::*;

    fn of(minor: &str, configurations: &[(&str, &str)]) -> Signature {
        let fake = Fake::dom0();
        fake.write("/sys/hypervisor/version/minor", minor.as_bytes());
        for (file, text) in configurations {
            fake.write(&format!("/boot/{file}"), text.as_bytes());
        }
        let Platform::Xen(xen) = Platform::look(&fake.host()) else { panic!("no Xen") };
        Signature::look(&fake.host(), &xen)
    }

    const ON: &str = "CONFIG_LIVEPATCH=y\nCONFIG_PAYLOAD_VERIFY=y\n";
    const OFF: &str = "CONFIG_LIVEPATCH=y\n# CONFIG_PAYLOAD_VERIFY is not set\n";

    #[test]
    fn old_releases_verify_nothing() {
        for minor in ["17", "20"] {
            // Whatever another release's file says.
            let found = of(minor, &[("xen-4.21-amd64.config", ON)]);
            assert_eq!(found.needed, Some(false), "{found:?}");
            assert!(found.sentence().contains("need no signature: Xen 4."), "{}", found.sentence());
        }
    }

    #[test]
    fn later_ones_as_they_are_configured() {
        for (files, needed) in [
            (&[][..], None),
            (&[("xen-4.21-amd64.config", ON)][..], Some(true)),
            (&[("xen-4.21-amd64.config", OFF)], Some(false)),
            (&[("xen-4.21-amd64.config", "")], None),
            // Of two builds of one release, only what both say.
            (&[("xen-4.21-amd64.config", ON), ("xen-4.21.1.config", OFF)], None),
            (&[("xen-4.21-amd64.config", ON), ("xen-4.21.1.config", ON)], Some(true)),
            // Of other releases.
            (&[("xen-4.2-amd64.config", ON), ("xen-4.211.config", ON), ("xen-4.20-amd64.config", ON)], None),
        ] {
            let found = of("21", files);
            assert_eq!(found.needed, needed, "{files:?}: {found:?}");
            assert!(found.sentence().contains("packaging.md") == (needed != Some(false)));
        }
        // A number that is none.
        assert_eq!(of("x", &[]).needed, None);
    }
}
