// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The host: kernel, processors, and the settings that limit trackers.

use std::path::Path;

use anyhow::Result;
use serde::Serialize;

use super::signing::Signing;
use super::{Section, hanging};
use crate::output::number_of;

/// The properties of the host that figures depend on.
#[derive(Debug, Serialize)]
pub struct Host {
    pub kernel: String,
    pub machine: String,
    pub cpus: usize,
    pub page_size: usize,
    pub settings: Vec<Setting>,
    pub signing: Signing,
}

/// A sysctl, which may be missing.
#[derive(Debug, Serialize)]
pub struct Setting {
    pub name: &'static str,
    pub value: Option<String>,
    /// The value's effect on tracking.
    pub means: &'static str,
}

impl Host {
    /// # Errors
    /// When the kernel does not report the number of processors.
    pub fn look() -> Result<Self> {
        let uname = rustix::system::uname();
        Ok(Host {
            kernel: format!("{} {}", uname.sysname().to_string_lossy(), uname.release().to_string_lossy()),
            machine: uname.machine().to_string_lossy().into_owned(),
            cpus: std::thread::available_parallelism()?.get(),
            page_size: libdirty::page_size(),
            signing: Signing::look(Path::new("/")),
            settings: vec![
                setting("vm.unprivileged_userfaultfd", |value| match value {
                    Some("1") => "uffd-sync needs no privilege",
                    Some(_) => "uffd-sync needs CAP_SYS_PTRACE or access to /dev/userfaultfd",
                    None => "this kernel has no userfaultfd, or one before Linux 5.2",
                }),
                setting(
                    "vm.max_map_count",
                    |_| "mprotect stops at about half as many dirty pages that are not neighbours, and reports it",
                ),
                setting("kernel.yama.ptrace_scope", |value| match value {
                    None | Some("0") => "processes of the same user can be tracked",
                    Some("1") => "without CAP_SYS_PTRACE only descendants can be tracked",
                    Some("2") => "tracking another process needs CAP_SYS_PTRACE",
                    Some(_) => "no other process can be tracked",
                }),
            ],
        })
    }
}

fn setting(name: &'static str, means: fn(Option<&str>) -> &'static str) -> Setting {
    let path = Path::new("/proc/sys").join(name.replace('.', "/"));
    let value = std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned());
    Setting { name, means: means(value.as_deref()), value }
}

/// # Errors
/// As [`Host::look`], or when it cannot be written as JSON.
pub fn section() -> Result<Section> {
    let host = Host::look()?;
    let summary = format!(
        "{}, {}, {}, pages of {} KiB",
        host.kernel,
        host.machine,
        number_of(host.cpus, "CPU"),
        host.page_size / 1024
    );
    let mut text = format!("  {summary}\n");
    for setting in &host.settings {
        let value = setting.value.as_deref().unwrap_or("absent");
        text.push_str(&hanging(&format!("  {:27} {value:>7}  ", setting.name), setting.means));
    }
    let signing = host.signing.sentence();
    text.push_str(&hanging("  ", &signing));
    let mut summary = vec![summary];
    if host.signing.needed {
        summary.push(signing);
    }
    Ok(Section { name: "host", works: true, summary, text, json: serde_json::to_value(&host)? })
}
