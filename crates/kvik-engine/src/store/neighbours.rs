//! The other stores in the same directory: their content keys, their writers, and their removal when space is short.

use std::path::Path;

use kvik_cache::tier::{Relation, SlotId};

use super::directory::{Directory, Missing, open_private};
use super::format::{HEADER_BYTES, Header, HeaderLocation, Superblock};
use super::recover::{read_superblock, scan};
use super::slab::header_offset;
use super::system::free_bytes;

/// Maximum content keys of other models and formats: 16 MiB of headers, half a MiB of memory.
pub(super) const CONTENT_KEYS_MAX: u32 = 65_536;

/// How much this store grows before the others are measured again: other processes may own them and
/// let them grow too.
const MEASURE_BYTES: u64 = 64 << 20;

/// By default the stores of a directory take one part in this many of the free space.
const FREE_SHARE: u64 = 10;

/// Default bytes of all stores under `root`: a tenth of the space that would be free without them.
///
/// # Errors
/// If the system does not report the free space.
pub fn bytes_allowed(root: &Path) -> std::io::Result<u64> {
    // The last ancestor of a relative path is empty, and none exists if its first folder does not.
    let existing = root.ancestors().find(|path| path.exists()).unwrap_or(Path::new("."));
    let free = free_bytes(existing)?;
    let held: u64 = Directory::all(root).map(|store| store.bytes()).sum();
    Ok(free.saturating_add(held) / FREE_SHARE)
}

/// The processes that write stores under `root` now, `None` for one whose id is not known.
pub fn writers(root: &Path) -> Vec<Option<u32>> {
    let mut writers: Vec<Option<u32>> = Directory::all(root).filter_map(|store| store.is_held()).collect();
    writers.sort_unstable();
    writers.dedup();
    writers
}

/// The neighbours of `own`, least recently used first.
fn neighbours(own: &Directory) -> Vec<Directory> {
    let mut stores: Vec<_> = Directory::all(own.root()).filter(|store| store.name() != own.name()).collect();
    stores.sort_by_cached_key(|store| (store.used(), store.name().to_owned()));
    stores
}

/// The content keys of the neighbours' blocks, with the relation of each store to `model`. Reads at most
/// [`CONTENT_KEYS_MAX`] headers, starting with the most recently used store.
pub(super) fn content_keys(own: &Directory, model: &[u8; 32]) -> Vec<(Relation, u64)> {
    let mut found = Vec::new();
    let mut unread = CONTENT_KEYS_MAX;
    for store in neighbours(own).iter().rev() {
        let Ok(headers) = open_private(&store.headers(), Missing::Fail) else { continue };
        let Ok(Ok(superblock)) = read_superblock(&headers) else { continue };
        let relation = match superblock.model == *model {
            true => Relation::OtherKvFormat,
            false => Relation::OtherModel,
        };
        let Superblock { creation, payload_bytes, .. } = superblock;
        let file = HeaderLocation { creation, slot: SlotId(0), payload_bytes };
        // What cannot be read explains no miss.
        let _ = scan(&headers, file, 0..unread, |_, header| {
            unread -= 1;
            if let Header::Block { record, .. } = header {
                found.push((relation, record.content_key));
            }
        });
    }
    found
}

/// Keeps this store and its neighbours within one limit.
#[derive(Debug)]
pub(super) struct DiskBudget {
    own: Directory,
    bytes_max: u64,
    /// Bytes of the neighbours when they were last measured.
    neighbour_bytes: u64,
    /// Bytes of the own store at which they are measured again.
    measure_at: u64,
}

impl DiskBudget {
    /// Allows `bytes_max` for `own` and its neighbours together.
    pub(super) fn new(own: Directory, bytes_max: u64) -> DiskBudget {
        DiskBudget { own, bytes_max, neighbour_bytes: 0, measure_at: 0 }
    }

    /// Whether the own store may take `own_bytes`. Removes neighbours that are not in use to make room,
    /// least recently used first.
    pub(super) fn admits(&mut self, own_bytes: u64) -> bool {
        let fits = own_bytes.saturating_add(self.neighbour_bytes) <= self.bytes_max;
        if !fits || own_bytes >= self.measure_at {
            self.neighbour_bytes = make_room(&self.own, self.bytes_max.saturating_sub(own_bytes));
            self.measure_at = own_bytes.saturating_add(MEASURE_BYTES);
        }
        own_bytes.saturating_add(self.neighbour_bytes) <= self.bytes_max
    }
}

/// Removes neighbours of `own` that are not in use until they hold at most `bytes`; returns the bytes
/// they then hold.
fn make_room(own: &Directory, bytes: u64) -> u64 {
    let stores = neighbours(own);
    let sizes: Vec<u64> = stores.iter().map(Directory::bytes).collect();
    let mut held: u64 = sizes.iter().sum();
    for (store, store_bytes) in stores.iter().zip(sizes) {
        if held > bytes && store_bytes > 0 && matches!(store.remove(), Ok(true)) {
            tracing::info!("disk cache: removed {} to make room ({store_bytes} bytes)", store.name());
            held -= store_bytes;
        }
    }
    held
}

/// Bytes of disk of a store in which `written` slots have ever been written.
pub(super) fn store_bytes(written: u32, slot_bytes: u64) -> u64 {
    header_offset(SlotId(0)) + u64::from(written) * slot_bytes
}

const _: () = assert!(CONTENT_KEYS_MAX as usize * HEADER_BYTES == 16 << 20);
