//! Opens the disk tier: its directory, its size, and the log line when it is unavailable.

use std::{path::Path, time::Instant};

use kvik_engine::{
    config::usual::WARM_SHARE,
    schedule::disk::{DiskOpened, DiskSetup, store_config},
};

use super::budget::KvBudget;
use crate::causes::with_causes;
use crate::clock::unix_seconds;
use crate::settings::{model::CacheArgs, size::ByteSize};

/// An open disk tier, or the tier that replaces it.
pub(crate) struct OpenDisk {
    pub(crate) setup: DiskSetup,
    /// Its line in the banner.
    pub(crate) line: String,
}

/// Opens the disk tier of a model that is computed on the device `place`. If that fails, the server runs without it,
/// and the log gives the reason.
pub(crate) fn open(args: &CacheArgs, budget: &KvBudget, model: [u8; 32], place: &str) -> Option<OpenDisk> {
    let dir = args.cache_disk.directory()?;
    match open_in(&dir, args.cache_disk_size, budget, (model, place)) {
        Ok(disk) => Some(disk),
        Err(error) => {
            tracing::warn!("serving without a disk cache: {}", with_causes(&error));
            None
        }
    }
}

fn open_in(
    dir: &Path,
    size: ByteSize,
    budget: &KvBudget,
    (model, place): ([u8; 32], &str),
) -> anyhow::Result<OpenDisk> {
    let config = store_config((dir, size.0), model, (&budget.kv, place), budget.stored_bytes);
    let started = Instant::now();
    let opened = DiskSetup::open(&config, budget.blocks / WARM_SHARE, unix_seconds())?;
    let DiskOpened { setup, slots, held, notes } = opened;
    notes.iter().for_each(|note| tracing::info!("disk cache: {note}"));
    let took_ms = started.elapsed().as_secs_f64() * 1e3;
    tracing::info!("disk cache: {held} blocks found, opened in {took_ms:.1} ms");
    let line = format!("{} in {}, {held} of {slots} blocks held", ByteSize(config.bytes_max), dir.display());
    Ok(OpenDisk { setup, line })
}
