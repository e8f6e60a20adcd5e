//! The disk tier: where computed blocks outlive the process.

use std::path::Path;
use std::time::Instant;

use kvik_engine::config::usual::WARM_SHARE;
use kvik_engine::schedule::disk::{DiskOpened, DiskSetup, store_config};
use kvik_engine::stats::DiskRole;
use kvik_engine::store::{StoreConfig, StoreError};
use kvik_memory::clock::unix_seconds;

use crate::budget::KvBudget;

/// An open disk tier.
pub struct DiskTier {
    /// The part of the engine.
    pub setup: DiskSetup,
    /// Its size in bytes, which is never more than a tenth of the free space.
    pub bytes_max: u64,
    /// Blocks that it can hold.
    pub slots: u32,
    /// Blocks that it holds.
    pub held: usize,
    /// Whether this process writes it.
    pub role: DiskRole,
}

/// Opens the tier in `dir`, which other processes may have open: one of them writes, the others read. It has at most `bytes_max` bytes, for the blocks of a model that is computed at `place`. At most
/// `buffers_max` blocks are on their way to and from it, in memory beside the budget.
///
/// # Errors
/// As [`DiskSetup::open`].
pub fn open_disk(
    (dir, bytes_max): (&Path, u64),
    budget: &KvBudget,
    (model, place): ([u8; 32], &str),
    buffers_max: usize,
) -> Result<DiskTier, StoreError> {
    let config = store_config((dir, bytes_max), model, (budget.kv.as_str(), place), budget.stored_bytes);
    let config = StoreConfig { buffers: config.buffers.min(buffers_max), ..config };
    let started = Instant::now();
    let opened = DiskSetup::open(&config, budget.blocks / WARM_SHARE, unix_seconds())?;
    let DiskOpened { setup, slots, held, role, notes } = opened;
    notes.iter().for_each(|note| tracing::info!("disk cache: {note}"));
    let took_ms = started.elapsed().as_secs_f64() * 1e3;
    tracing::info!("disk cache: {held} blocks found, opened in {took_ms:.1} ms");
    if role != DiskRole::Writer {
        tracing::info!("disk cache: this process {role}, and takes over when that ends");
    }
    let setup = DiskSetup { wall: Some(Box::new(unix_seconds)), ..setup };
    Ok(DiskTier { setup, bytes_max: config.bytes_max, slots, held, role })
}
