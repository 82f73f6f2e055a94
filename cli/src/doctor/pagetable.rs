// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Page tables of Xen PV: whether this host gains anything, and what keeps it from that.

use std::fmt::Write as _;

use anyhow::Result;

use super::Section;
use crate::output::printable;
use crate::pagetable::Survey;

/// # Errors
/// When it cannot be written as JSON.
pub fn section() -> Result<Section> {
    let survey = Survey::look();
    let mut text = String::new();
    let _ = writeln!(text, "  {}", printable(&survey.host));
    if let Some(iommu) = &survey.iommu {
        let follows = match iommu.answer {
            Some(true) => "follow page types",
            Some(false) => "do not follow page types",
            None => "may or may not follow page types",
        };
        let _ = writeln!(text, "  this domain's IOMMU mappings {follows} ({})", printable(&iommu.because));
    }
    for gain in &survey.parts {
        let serves = match gain.serves {
            Some(true) => "serves",
            Some(false) => "no",
            None => "maybe",
        };
        let _ = writeln!(text, "  {:12} {serves:6} {}", gain.part, gain.why);
    }
    for refusal in &survey.refusals {
        let would = if survey.benefits { "load would refuse: " } else { "nothing to gain: " };
        let _ = writeln!(text, "  {would}{}", printable(refusal));
    }
    if survey.refusals.is_empty() {
        let _ = writeln!(text, "  everything that is to be loaded is there: trapless pagetable load");
    }
    Ok(Section { name: "pagetable", works: survey.is_fine(), text, json: serde_json::to_value(&survey)? })
}
