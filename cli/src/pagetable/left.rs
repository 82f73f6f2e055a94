// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a `trapless pagetable verify` that was killed leaves beside the parts: its modules for tests, and a device that
//! is kept for one of them. While a verify runs these are there as well.

use super::host::Host;

/// The module that makes calls about page tables, and its file before `.ko`.
pub const TABLE_TEST: &str = "trapless_table_test";
/// The module that lets a device write.
pub const DEVICE_TEST: &str = "trapless_device_test";

const DEVICES: &str = "/sys/bus/pci/devices";

/// The modules for tests that are loaded, the device's first: it may have a page that the payload knows.
pub fn modules(host: &Host) -> Vec<&'static str> {
    [DEVICE_TEST, TABLE_TEST].into_iter().filter(|name| host.has_module(name)).collect()
}

/// The devices whose `driver_override` names our module, by their addresses.
pub fn devices(host: &Host) -> Vec<String> {
    let entries = std::fs::read_dir(host.path(DEVICES)).into_iter().flatten().flatten();
    let mut devices: Vec<String> = entries
        .filter(|entry| {
            std::fs::read_to_string(entry.path().join("driver_override"))
                .is_ok_and(|text| text.trim() == DEVICE_TEST)
        })
        .filter_map(|entry| entry.file_name().into_string().ok())
        .collect();
    devices.sort();
    devices
}

/// Let any driver have the device again, as before.
///
/// # Errors
/// The kernel's.
pub fn give_back(host: &Host, device: &str) -> std::io::Result<()> {
    super::control::put(&host.path(DEVICES).join(device).join("driver_override"), "")
}

/// In words, if there is something.
pub fn sentence(host: &Host) -> Option<String> {
    let devices = devices(host).into_iter().map(|device| format!("the driver_override of {device}"));
    let what: Vec<String> = modules(host).into_iter().map(str::to_owned).chain(devices).collect();
    (!what.is_empty()).then(|| what.join(", "))
}
