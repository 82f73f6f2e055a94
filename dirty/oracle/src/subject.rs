// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Who is judged: a back end of libdirty, or a plug-in.

mod library;
mod plugin;

use std::fmt;
use std::path::PathBuf;

use libdirty::BackendKind;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::outcome::Stop;
use crate::tracker::{Record, Tracker};
use crate::workload::Target;

/// Who is judged.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    /// A back end of libdirty.
    #[serde(serialize_with = "write_name", deserialize_with = "read_name")]
    Backend(BackendKind),
    /// A shared object with the interface of `dirty_conformance.h`.
    Plugin(PathBuf),
}

impl Subject {
    /// What it promises.
    ///
    /// # Errors
    /// When the plug-in cannot be loaded, or is none.
    pub fn record(&self) -> Result<Record, String> {
        match self {
            Subject::Backend(kind) => Ok(kind.capabilities().into()),
            Subject::Plugin(file) => plugin::load(file).map(|loaded| loaded.record()),
        }
    }

    /// Track process `pid`.
    ///
    /// # Errors
    /// A skip when it cannot, here.
    pub fn open(&self, target: Target, pid: i32) -> Result<Box<dyn Tracker>, Stop> {
        match self {
            Subject::Backend(kind) => library::open(*kind, target, pid),
            Subject::Plugin(file) => plugin::load(file).map_err(Stop::fail)?.open(pid),
        }
    }

    /// The name of a plug-in, by its own word; of a back end, its name.
    ///
    /// # Errors
    /// As of [`Subject::record`].
    pub fn name(&self) -> Result<String, String> {
        match self {
            Subject::Backend(kind) => Ok(kind.name().into()),
            Subject::Plugin(file) => plugin::load(file).map(|loaded| loaded.name()),
        }
    }
}

impl From<BackendKind> for Subject {
    fn from(kind: BackendKind) -> Self {
        Subject::Backend(kind)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Backend(kind) => f.pad(kind.name()),
            Subject::Plugin(file) => f.pad(&file.display().to_string()),
        }
    }
}

fn write_name<S: Serializer>(kind: &BackendKind, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(kind.name())
}

fn read_name<'de, D: Deserializer<'de>>(deserializer: D) -> Result<BackendKind, D::Error> {
    String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
}
