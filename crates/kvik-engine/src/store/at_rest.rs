//! Stores that no process has open: erasing blocks in them.

use std::path::Path;

use kvik_cache::tier::{Record, SlotId};

use super::StoreError;
use super::directory::{Directory, Lock, Missing, open_private};
use super::format::Header;
use super::recover::{read_superblock, scan};
use super::slab::Slab;

/// Maximum bytes of a block, so that all offsets in a file fit their type.
const PAYLOAD_BYTES_MAX: u64 = 1 << 31;

/// The blocks of a store that are to be erased.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Picked {
    /// All of them, and the files of the store as well.
    All,
    /// The blocks in these slots.
    Slots(Vec<SlotId>),
}

/// Result of erasing blocks in the stores of a directory.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct AtRest {
    /// Number of stores that were read.
    pub stores: usize,
    /// Number of stores that other processes, or engines of this one, have open: they were not touched.
    pub in_use: usize,
    /// Number of blocks erased.
    pub blocks: usize,
    /// Bytes of disk freed.
    pub bytes: u64,
}

/// Erases blocks in all stores of a directory that are not open: `pick` chooses them from the blocks of each store.
///
/// # Errors
/// If a file cannot be changed. Files that cannot be read hold no blocks, and stay as they are.
pub fn erase_at_rest(
    dir: &Path,
    mut pick: impl FnMut(Vec<(SlotId, Record)>) -> Picked,
) -> Result<AtRest, StoreError> {
    let mut erased = AtRest::default();
    for directory in Directory::all(dir) {
        match directory.lock() {
            Ok(lock) => erase_in(&directory, lock, &mut pick, &mut erased)?,
            Err(StoreError::InUse { .. }) => erased.in_use += 1,
            Err(error) => return Err(error),
        }
    }
    Ok(erased)
}

fn erase_in(
    directory: &Directory,
    lock: Lock,
    pick: &mut impl FnMut(Vec<(SlotId, Record)>) -> Picked,
    erased: &mut AtRest,
) -> Result<(), StoreError> {
    let Some(slab) = slab(directory) else { return Ok(()) };
    erased.stores += 1;
    let mut records = Vec::new();
    scan(&slab.headers, slab.creation, slab.payload_bytes, u32::MAX, |slot, header| {
        if let Header::Block { record, .. } = header {
            records.push((slot, record));
        }
    });
    let (count, before) = (records.len(), directory.bytes());
    match pick(records) {
        Picked::All => {
            drop((slab, lock));
            directory.remove()?;
            erased.blocks += count;
        }
        Picked::Slots(slots) => {
            for slot in slots {
                slab.erase(slot).map_err(StoreError::io(&directory.payloads()))?;
                erased.blocks += 1;
            }
        }
    }
    erased.bytes += before.saturating_sub(directory.bytes());
    Ok(())
}

/// Opens the files of a store; `None` if they are invalid.
fn slab(directory: &Directory) -> Option<Slab> {
    let headers = open_private(&directory.headers(), Missing::Fail).ok()?;
    let payloads = open_private(&directory.payloads(), Missing::Fail).ok()?;
    let superblock = read_superblock(&headers).ok()?;
    (superblock.payload_bytes <= PAYLOAD_BYTES_MAX).then_some(Slab {
        headers,
        payloads,
        creation: superblock.creation,
        payload_bytes: superblock.payload_bytes,
    })
}
