//! The directory of the disk cache.

use std::path::PathBuf;

use super::{dirs, home};

/// The setting `--cache-disk`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DiskPlace {
    /// No disk cache.
    Off,
    /// The usual directory.
    Default,
    /// This directory.
    Directory(PathBuf),
}

impl std::str::FromStr for DiskPlace {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<DiskPlace, Self::Err> {
        Ok(match text {
            "off" => DiskPlace::Off,
            // An empty variable sets none; as a path it would be the working directory.
            "" | "default" => DiskPlace::Default,
            path => DiskPlace::Directory(home::path(path.into())),
        })
    }
}

impl DiskPlace {
    /// The directory; `None` when the disk cache is off.
    pub fn directory(&self) -> Option<PathBuf> {
        match self {
            DiskPlace::Off => None,
            DiskPlace::Default => Some(dirs::cache()?.join("kv")),
            DiskPlace::Directory(path) => Some(path.clone()),
        }
    }
}
