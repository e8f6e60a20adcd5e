//! Stores that no process has open: erasing blocks in them.

use std::path::Path;

use kvik_cache::tier::{Record, SlotId};

use super::StoreError;
use super::answer_log::{erase_answers, owner_of};
use super::directory::{Directory, Lock, Locked, Missing, open_private};
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
        match directory.lock()? {
            Locked::Here(lock) => erase_in(&directory, &lock, &mut pick, &mut erased)?,
            Locked::Elsewhere(_) => erased.in_use += 1,
        }
    }
    Ok(erased)
}

/// Erases the generated answers of a tenant with this salt, or of all, beside the stores of a directory. Those that a
/// process has open are its own to erase.
///
/// # Errors
/// If a file cannot be changed.
pub fn erase_answers_at_rest(dir: &Path, salt: Option<[u8; 16]>) -> Result<(), StoreError> {
    let owner = salt.map(owner_of);
    for path in Directory::all(dir).map(|directory| directory.answers()) {
        erase_answers(&path, owner.as_ref()).map_err(StoreError::io(&path))?;
    }
    Ok(())
}

fn erase_in(
    directory: &Directory,
    lock: &Lock,
    pick: &mut impl FnMut(Vec<(SlotId, Record)>) -> Picked,
    erased: &mut AtRest,
) -> Result<(), StoreError> {
    let Some(slab) = slab(directory) else { return Ok(()) };
    erased.stores += 1;
    let mut records = Vec::new();
    scan(&slab.headers, slab.location(SlotId(0)), 0..u32::MAX, |slot, header| {
        if let Header::Block { record, .. } = header {
            records.push((slot, record));
        }
    });
    let (count, before) = (records.len(), directory.bytes());
    match pick(records) {
        Picked::All => {
            drop(slab);
            directory.remove_files(lock)?;
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
    let superblock = read_superblock(&headers).ok()?.ok()?;
    let is_sound = superblock.payload_bytes <= PAYLOAD_BYTES_MAX;
    is_sound.then(|| Slab::new((headers, payloads), superblock.creation, superblock.payload_bytes))
}
