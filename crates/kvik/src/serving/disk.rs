//! Opens the disk tier: its directory, its size, and the log line when it is unavailable.

use std::{path::Path, time::Instant};

use kvik_cache::tier::Tier;
use kvik_engine::{
    schedule::disk::DiskSetup,
    store::{Opened, Store, StoreConfig, Waker, bytes_allowed},
};
use kvik_kernels::KV_LAYOUT_VERSION;

use super::budget::KvBudget;
use crate::clock::unix_seconds;
use crate::settings::{model::CacheArgs, size::ByteSize};

/// Memory for blocks being read from and written to disk.
const BUFFER_BYTES: usize = 64 << 20;
/// Number of buffers, whatever the size of a block.
const BUFFERS: std::ops::RangeInclusive<usize> = 8..=4096;
/// The start fills one part in this many of the RAM budget.
const WARM_SHARE: usize = 2;

/// The open disk tier, or what stands for it.
pub(crate) struct OpenDisk {
    pub(crate) setup: DiskSetup,
    /// Its line in the banner.
    pub(crate) line: String,
}

/// Opens the disk tier of a model that is computed at `place`. Without it the server runs all the same, and the log says
/// why.
pub(crate) fn open(args: &CacheArgs, budget: &KvBudget, model: [u8; 32], place: &str) -> Option<OpenDisk> {
    let dir = args.cache_disk.directory()?;
    match open_in(&dir, args.cache_disk_size, budget, (model, place)) {
        Ok(disk) => Some(disk),
        Err(error) => {
            tracing::warn!("serving without a disk cache: {error:#}");
            None
        }
    }
}

/// Buffers for blocks on their way.
pub(super) fn buffers(budget: &KvBudget) -> usize {
    (BUFFER_BYTES / budget.stored_bytes).clamp(*BUFFERS.start(), *BUFFERS.end())
}

/// Those of them that blocks may be written from; the others are for reading.
pub(super) fn writes_max(buffers: usize) -> usize {
    buffers - buffers / 4
}

fn open_in(
    dir: &Path,
    size: ByteSize,
    budget: &KvBudget,
    (model, place): ([u8; 32], &str),
) -> anyhow::Result<OpenDisk> {
    let allowed = bytes_allowed(dir).map_or(size.0, |allowed| allowed.min(size.0));
    let buffers = buffers(budget);
    let config = StoreConfig {
        dir: dir.to_owned(),
        bytes_max: allowed,
        model,
        // Other instruction sets and devices may round differently, and a loaded block must equal a computed one.
        kv_format: format!("{}, layout {KV_LAYOUT_VERSION}, {place}", budget.kv),
        payload_bytes: budget.stored_bytes,
        buffers,
    };
    let started = Instant::now();
    let waker = Waker::default();
    let wake = waker.clone();
    let Opened { mut store, slots, records, notes, related } = Store::open(&config, move || wake.wake())?;
    notes.iter().for_each(|note| tracing::info!("disk cache: {note}"));
    let held = records.len();
    let (tier, surplus) = Tier::with(slots, records);
    surplus.into_iter().for_each(|slot| store.erase(slot));
    let took_ms = started.elapsed().as_secs_f64() * 1e3;
    tracing::info!("disk cache: {held} blocks found, opened in {took_ms:.1} ms");
    let line = format!("{} in {}, {held} of {slots} blocks held", ByteSize(allowed), dir.display());
    let setup = DiskSetup {
        tier,
        store: Box::new(store),
        related,
        warm_blocks: budget.blocks / WARM_SHARE,
        writes_max: writes_max(buffers),
        epoch_s: unix_seconds(),
        waker,
    };
    Ok(OpenDisk { setup, line })
}
