//! The cache tiers below the memory that a model computes in: the host's if that is a GPU's, the disk, and the store
//! that nodes share.

use kvik_engine::{schedule::disk::DiskSetup, store::Waker};
use kvik_remote::records::Records;
use kvik_session::KvBudget;

use super::{disk, host, remote};
use crate::settings::model::CacheArgs;

/// Open tiers, each behind the one above it.
pub(super) struct OpenTiers {
    /// The engine's setup.
    pub(super) setup: Option<DiskSetup>,
    /// Records that nodes exchange, if they share a store.
    pub(super) records: Option<Records>,
    /// The banner's lines about the disk, and about the store.
    pub(super) disk_line: Option<String>,
    pub(super) remote_line: Option<String>,
}

impl OpenTiers {
    /// Opens the tiers of the flags for the blocks of a model that is computed on the device `place`; includes
    /// `host_bytes` of the host's memory if that is a GPU.
    ///
    /// # Errors
    /// If the flags are invalid. A tier that is unavailable is left out, and the log gives the reason.
    pub(super) fn open(
        args: &CacheArgs,
        budget: &KvBudget,
        (model, place): ([u8; 32], &str),
        host_bytes: Option<u64>,
    ) -> anyhow::Result<OpenTiers> {
        let disk = disk::open(args, budget, model, place);
        let disk = match host_bytes {
            Some(bytes) => host::above(disk, bytes, budget),
            None => disk,
        };
        let waker = disk.as_ref().map_or_else(Waker::default, |disk| disk.setup.waker.clone());
        let remote = remote::open(&args.remote, budget, (model, place), waker)?;
        let disk_line = disk.as_ref().map(|disk| disk.line.clone());
        let remote_line = remote.as_ref().map(|remote| remote.line.clone());
        let (setup, records) = remote::behind(disk, remote);
        Ok(OpenTiers { setup, records, disk_line, remote_line })
    }
}
