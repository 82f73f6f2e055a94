// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Whether a spare device reaches a semi-writable page: the module trapless_device_test has one page, which the device
//! is made to write as an ordinary page, as a semi-writable one, and as an ordinary one again.
//!
//! Invariant: the device is one that nobody uses, and nobody uses it afterwards: no driver before, none after. It is
//! given to the module by its `driver_override`, which is empty before and after.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, ensure};
use serde::Serialize;

use super::super::control::put;
use super::super::host::Host;
use super::super::part::Sources;
use super::super::plan::choose_module;
use super::super::platform::{Follows, Xen};
use super::super::unload::remove;
use super::Unknown;
use crate::output::printable;

pub use super::super::left::DEVICE_TEST as MODULE;
/// An NVMe controller's class: the one kind of device that is made to write by rules that all of its kind follow.
const NVME: &str = "0x010802";
/// How often: another process may have Xen flush the IOMMU just when a flush of the payload's would be missed.
const ROUNDS: u32 = 4;

/// What the device did.
#[derive(Debug, Serialize)]
pub struct Gate {
    pub device: String,
    /// Rounds in which all was as it must be.
    pub rounds: u32,
    /// The outcomes of the last round, as the module said them.
    pub ordinary: String,
    pub semi_writable: String,
    pub released: String,
}

impl Gate {
    pub fn holds(&self) -> bool {
        self.rounds == ROUNDS
    }

    /// What is wrong if it does not hold, or not known.
    pub fn failure(&self) -> anyhow::Error {
        match self.semi_writable.as_str() {
            "written" | "torn" => anyhow!("device {} wrote a semi-writable page", self.device),
            _ => Unknown(format!(
                "nothing is known of what {} can write: it did not do as it was told",
                self.device
            ))
            .into(),
        }
    }
}

/// A device that may be used, and the module for it.
pub struct Spare {
    device: String,
    module: PathBuf,
    sysfs: PathBuf,
}

impl Spare {
    /// Look for the device; nothing is changed.
    ///
    /// # Errors
    /// Why it may not be used, or cannot be.
    pub fn find(host: &Host, xen: &Xen, sources: &Sources, device: &str) -> Result<Self, String> {
        // As lspci prints it, where there is one PCI domain.
        let name =
            if device.matches(':').count() == 1 { format!("0000:{device}") } else { device.to_owned() };
        let is_address = name.bytes().all(|c| c.is_ascii_hexdigit() || c == b':' || c == b'.');
        let sysfs = host.path("/sys/bus/pci/devices").join(&name);
        if !is_address || !sysfs.is_dir() {
            return Err(format!("there is no device {}; lspci -D lists them", printable(device)));
        }
        if let Ok(driver) = std::fs::read_link(sysfs.join("driver")) {
            let driver = driver.file_name().unwrap_or_default().to_string_lossy().into_owned();
            return Err(format!(
                "device {name} is used by the driver {}, so it is not spare",
                printable(&driver)
            ));
        }
        let text = |file: &str| {
            let text = std::fs::read_to_string(sysfs.join(file))
                .map_err(|error| format!("device {name}: {file}: {error}"));
            text.map(|text| text.trim().to_owned())
        };
        let class = text("class")?;
        if class != NVME {
            return Err(format!(
                "device {name} is of class {}; only an NVMe controller ({NVME}) can be made to write a page",
                printable(&class)
            ));
        }
        let wanted_by = text("driver_override")?;
        if wanted_by != "(null)" {
            return Err(format!("device {name} is kept for the driver {}", printable(&wanted_by)));
        }
        let iommu = Follows::look(host, xen);
        if iommu.answer == Some(false) {
            return Err(format!(
                "the IOMMU does not keep devices of this dom0 from page tables, with trapless or without ({})",
                printable(&iommu.because)
            ));
        }
        if host.has_module(MODULE) {
            return Err(format!("module {MODULE} is loaded: trapless pagetable unload"));
        }
        let module = choose_module(host, sources, MODULE)?;
        Ok(Spare { device: name, module, sysfs })
    }

    /// Let the device write; the payload alone is loaded.
    ///
    /// # Errors
    /// The module's and the kernel's, and where Xen has no IOMMU for this domain. [`take_out`](Self::take_out) is for
    /// the caller, in any case.
    pub fn write(&self, host: &Host) -> Result<Gate> {
        let state = host.kernel.payload().map_err(anyhow::Error::msg)?;
        ensure!(
            state.is_some_and(|state| state.iommu_follows),
            "this host's IOMMU does not follow page types, so no device is kept from any page"
        );
        put(&self.sysfs.join("driver_override"), MODULE)
            .with_context(|| format!("device {}", self.device))?;
        host.kernel.insert(MODULE, &self.module, &format!("device={}", self.device)).map_err(|not| {
            anyhow!("{MODULE} cannot be loaded for {}: {}: {}", self.device, not.error, not.said.join("; "))
        })?;
        let files = host.path(Path::new("/sys/module").join(MODULE).join("parameters"));
        let make = |what: &str| put(&files.join("do"), what).with_context(|| format!("{MODULE}: {what}"));
        let result = || -> Result<String> {
            let text =
                std::fs::read_to_string(files.join("result")).with_context(|| format!("{MODULE}: result"))?;
            Ok(text.trim().to_owned())
        };
        let mut found = Gate {
            device: self.device.clone(),
            rounds: 0,
            ordinary: String::new(),
            semi_writable: String::new(),
            released: String::new(),
        };
        for _ in 0..ROUNDS {
            // The IOMMU has its translation cached from the first write; nothing comes between it and the mark that
            // would have it dropped for another reason.
            make("write")?;
            make("mark")?;
            let before = result()?;
            make("write")?;
            found.semi_writable = result()?;
            make("release")?;
            make("write")?;
            found.released = result()?;
            found.ordinary = before;
            if (found.ordinary.as_str(), found.semi_writable.as_str(), found.released.as_str())
                != ("written", "blocked", "written")
            {
                break;
            }
            found.rounds += 1;
        }
        Ok(found)
    }

    /// Take the module out and give the device back, whatever was done with them.
    ///
    /// # Errors
    /// What stays.
    pub fn take_out(&self, host: &Host) -> Result<()> {
        if host.has_module(MODULE) {
            remove(host, MODULE).with_context(|| format!("module {MODULE} stays"))?;
        }
        let file = self.sysfs.join("driver_override");
        if std::fs::read_to_string(&file).is_ok_and(|text| text.trim() == MODULE) {
            put(&file, "").with_context(|| format!("driver_override of {} stays", self.device))?;
        }
        Ok(())
    }
}
