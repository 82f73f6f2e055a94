// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The parts that can be loaded, in their order: the hypervisor's first, then the guest's.

use std::path::{Path, PathBuf};

use clap::ValueEnum;
use serde::Serialize;

use super::host::Host;
use super::module_file::SUFFIXES;

/// The output while parts are loaded and unloaded, one line each.
pub type Say<'a> = &'a mut dyn FnMut(String);

/// Name of the payload in Xen, and of its file before `.livepatch`.
pub const PAYLOAD: &str = "trapless_pagetable";

/// Control files of the pool.
pub const POOL_FILES: &str = "/sys/kernel/trapless_pagetable";
/// Control files of the other parts, one a switch.
pub const SWITCH_FILES: &str = "/sys/kernel/trapless_pvmmu";

/// A part that can be loaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Part {
    /// The hypervisor's payload (dom0)
    Payload,
    /// The cache of semi-writable page tables: module trapless_pagetable
    Pool,
    /// The parts against the rest of the PV tax: module trapless_pvmmu
    Pvmmu,
}

/// Every part, in the order of loading.
pub const PARTS: [Part; 3] = [Part::Payload, Part::Pool, Part::Pvmmu];

impl Part {
    /// The kernel module that it is, if it is one.
    pub fn module(self) -> Option<&'static str> {
        match self {
            Part::Payload => None,
            Part::Pool => Some("trapless_pagetable"),
            Part::Pvmmu => Some("trapless_pvmmu"),
        }
    }
}

impl std::fmt::Display for Part {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(match self {
            Part::Payload => "payload",
            Part::Pool => "pool",
            Part::Pvmmu => "pvmmu",
        })
    }
}

/// Where files are searched, each list in order.
#[derive(Debug, Default, Clone)]
pub struct Sources {
    /// Named by the operator: no other is used.
    pub payload: Option<PathBuf>,
    /// The same for modules, which contain their names.
    pub modules: Vec<PathBuf>,
    /// A folder that is searched before the system's: with files, or a build tree.
    pub from: Option<PathBuf>,
}

impl Sources {
    /// Files that could be the payload, those that exist.
    pub fn payloads(&self, host: &Host) -> Vec<PathBuf> {
        if let Some(file) = &self.payload {
            return vec![file.clone()];
        }
        let name = format!("{PAYLOAD}.livepatch");
        let mut folders: Vec<PathBuf> = Vec::new();
        if let Some(from) = &self.from {
            folders.extend([from.clone(), from.join("pagetable/xen")]);
        }
        let installed = host.path("/usr/lib/trapless");
        let mut versions: Vec<_> =
            std::fs::read_dir(&installed).into_iter().flatten().flatten().map(|entry| entry.path()).collect();
        versions.sort();
        folders.push(installed);
        folders.extend(versions);
        existing(folders.into_iter().map(|folder| folder.join(&name))).collect()
    }

    /// Files that could be this module, those that exist.
    pub fn modules(&self, host: &Host, name: &str) -> Vec<PathBuf> {
        if !self.modules.is_empty() {
            return self.modules.clone();
        }
        let mut folders: Vec<PathBuf> = Vec::new();
        if let Some(from) = &self.from {
            let parts =
                ["pool", "pvmmu", "table_test", "device_test"].map(|part| format!("pagetable/{part}"));
            folders.extend(std::iter::once(from.clone()).chain(parts.map(|part| from.join(part))));
        }
        let installed = host.path(Path::new("/lib/modules").join(host.kernel.release()));
        folders.extend(["updates/dkms", "updates", "extra"].map(|folder| installed.join(folder)));
        let names = SUFFIXES.map(|suffix| format!("{name}.{suffix}"));
        folders
            .iter()
            .filter_map(|folder| existing(names.iter().map(|name| folder.join(name))).next())
            .collect()
    }
}

fn existing(files: impl Iterator<Item = PathBuf>) -> impl Iterator<Item = PathBuf> {
    files.filter(|file| file.is_file())
}
