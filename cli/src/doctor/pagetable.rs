// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Page tables of Xen PV: whether this host gains anything, and what prevents it.

use std::fmt::Write as _;

use anyhow::Result;

use super::{Section, hanging};
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
        text.push_str(&hanging(&format!("  {:12} {serves:6} ", gain.part), &gain.why));
    }
    if let Some(signature) = &survey.signature {
        text.push_str(&hanging("  ", &printable(&signature.sentence())));
    }
    for refusal in &survey.refusals {
        let would = if survey.benefits { "load would refuse: " } else { "nothing to gain: " };
        text.push_str(&hanging(&format!("  {would}"), &printable(refusal)));
    }
    let mut summary = vec![printable(&survey.host)];
    if survey.refusals.is_empty() {
        let there = "everything that load needs is installed: trapless pagetable load";
        let _ = writeln!(text, "  {there}");
        summary.push(there.into());
    } else if survey.benefits {
        summary.push(format!("load would refuse: {}", printable(&survey.refusals.join("; "))));
    } else {
        summary.push("nothing to gain here".into());
    }
    summary.extend(
        survey
            .signature
            .iter()
            .filter(|found| found.needed != Some(false))
            .map(|found| printable(&found.sentence())),
    );
    Ok(Section {
        name: "pagetable",
        works: survey.is_fine(),
        summary,
        text,
        json: serde_json::to_value(&survey)?,
    })
}
