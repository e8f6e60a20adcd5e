//! Stores that no process has open: erasing blocks in them.

use std::path::Path;

use kvik_cache::tier::{Record, SlotId};

use super::StoreError;
use super::answer_log::{erase_answers, owner_of};
use super::directory::{Directory, Lock, Locked};
use super::format::Header;
use super::recover::{Unusable, open_files, scan};
use super::slab::{Removal, Slab};

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

/// Erases blocks in all stores of a directory that are not open: `pick` chooses them from the blocks of each store. What is
/// left of blocks that were never written to their end is erased as well: nobody knows whose they are.
///
/// # Errors
/// The first failure to open, read or change a file, after the other stores have been handled: blocks may be left. Files that
/// are none of a store hold no blocks, and stay as they are.
pub fn erase_at_rest(
    dir: &Path,
    mut pick: impl FnMut(Vec<(SlotId, Record)>) -> Picked,
) -> Result<AtRest, StoreError> {
    let (mut erased, mut all_handled) = (AtRest::default(), Ok(()));
    for directory in Directory::every(dir).map_err(StoreError::io(dir))? {
        let handled = directory.lock().and_then(|locked| match locked {
            Locked::Here(lock) => erase_in(&directory, &lock, &mut pick, &mut erased),
            Locked::Elsewhere(_) => {
                erased.in_use += 1;
                Ok(())
            }
        });
        all_handled = all_handled.and(handled);
    }
    all_handled.map(|()| erased)
}

/// Erases the generated answers of a tenant with this salt, or of all, beside the stores of a directory. Those that a
/// process has open are its own to erase.
///
/// # Errors
/// The first failure to open or change a file, after the others have been handled.
pub fn erase_answers_at_rest(dir: &Path, salt: Option<[u8; 16]>) -> Result<(), StoreError> {
    let (owner, mut all_erased) = (salt.map(owner_of), Ok(()));
    for path in Directory::every_answers(dir).map_err(StoreError::io(dir))? {
        let erased = erase_answers(&path, owner.as_ref()).map_err(StoreError::io(&path));
        all_erased = all_erased.and(erased.map(|_| ()));
    }
    all_erased
}

fn erase_in(
    directory: &Directory,
    lock: &Lock,
    pick: &mut impl FnMut(Vec<(SlotId, Record)>) -> Picked,
    erased: &mut AtRest,
) -> Result<(), StoreError> {
    let Some(slab) = slab(directory)? else { return Ok(()) };
    erased.stores += 1;
    let (mut records, mut partial) = (Vec::new(), Vec::new());
    let all_read = scan(&slab.headers, slab.location(SlotId(0)), 0..u32::MAX, |slot, header| match header {
        Header::Block { record, .. } => records.push((slot, record)),
        Header::Writing => partial.push(slot),
        Header::Vacant | Header::Nothing => {}
    });
    let all_read = all_read.map_err(StoreError::io(&directory.headers()));
    let remove =
        |slot| slab.remove(slot, Removal::Erasure).map(drop).map_err(StoreError::io(&directory.payloads()));
    let (count, before) = (records.len(), directory.bytes());
    partial.into_iter().try_for_each(&remove)?;
    match pick(records) {
        // What could not be read was not picked.
        Picked::All if all_read.is_err() => {}
        Picked::All => {
            drop(slab);
            directory.remove_files(lock)?;
            erased.blocks += count;
        }
        Picked::Slots(slots) => {
            for slot in slots {
                remove(slot)?;
                erased.blocks += 1;
            }
        }
    }
    erased.bytes += before.saturating_sub(directory.bytes());
    all_read
}

/// Opens the files of a store; `None` if they are none of a store.
fn slab(directory: &Directory) -> Result<Option<Slab>, StoreError> {
    match open_files(directory) {
        Ok((files, found)) if found.payload_bytes <= PAYLOAD_BYTES_MAX => {
            Ok(Some(Slab::new(files, found.creation, found.payload_bytes)))
        }
        Ok(_) | Err(Unusable::Replaceable(_)) => Ok(None),
        Err(Unusable::Failed(error)) => Err(error),
    }
}
