//! Models on disk, their names, and the hub they come from.
//!
//! A [`Shelf`] is a directory that users and processes may share: `names/` has a manifest for each name, `hub/` the
//! downloaded files. A name exists only with its files: the manifest is written last and removed first, each time
//! atomically, so that a process killed at any time leaves either the old or the new state.
//!
//! Nothing is trusted: names, manifests and the hub's responses are checked before they become paths, downloads
//! before they become files. The crate knows neither models nor engines, and no async: a download runs on the
//! caller's thread and a few of its own.
#![forbid(unsafe_code)]

mod alike;
mod disk;
mod download;
mod error;
mod hub;
mod kind;
mod machine;
mod manifest;
mod name;
mod progress;
mod proxy;
mod shelf;
mod short_name;
mod source;
mod split;
#[cfg(test)]
#[allow(clippy::unwrap_used)] // a test may fail where it stands
mod tests;
pub mod tls;

pub use alike::alike;
pub use error::ShelfError;
pub use hub::{FoundRepository, Hub};
pub use kind::Kind;
pub use machine::is_loopback;
pub use manifest::{Manifest, ShelfFile};
pub use name::ModelName;
pub use progress::{Progress, Quiet};
pub use proxy::ProxyError;
pub use shelf::{DefaultModel, Listing, Removed, Shelf};
pub use short_name::{Short, ShortName};
pub use source::{HubSpec, ModelSource};
pub use split::parts_of;
