//! The other stores of the same directory: what they hold, and their removal when space is short.

use std::path::Path;

use kvik_cache::tier::{Relation, SlotId};

use super::directory::{Directory, Missing, open_private};
use super::format::{HEADER_BYTES, Header};
use super::recover::{read_superblock, scan};
use super::slab::header_offset;

/// Lineages of other models and formats that are remembered: 16 MiB of headers, half a MiB of memory.
pub(super) const LINEAGES_MAX: u32 = 65_536;

/// How much this store may grow before the others are measured again: they may belong to other
/// processes, which grow too.
const MEASURE_BYTES: u64 = 64 << 20;

/// The share of the free space that all stores of a directory take when nothing else is said.
const FREE_SHARE: u64 = 10;

/// Bytes that all stores under `root` may take: a tenth of what would be free without them.
///
/// # Errors
/// When the system does not say what is free, as where neither `root` nor what it lies in exists.
pub fn bytes_allowed(root: &Path) -> std::io::Result<u64> {
    let existing = root.ancestors().find(|path| path.exists()).unwrap_or(root);
    let found = rustix::fs::statvfs(existing)?;
    let held: u64 = Directory::all(root).map(|store| store.bytes()).sum();
    Ok(found.f_bavail.saturating_mul(found.f_frsize).saturating_add(held) / FREE_SHARE)
}

/// The stores beside `own`, the one that was used longest ago first.
fn beside(own: &Directory) -> Vec<Directory> {
    let mut stores: Vec<_> = Directory::all(own.root()).filter(|store| store.name() != own.name()).collect();
    stores.sort_by_cached_key(|store| (store.used(), store.name().to_owned()));
    stores
}

/// What prompts the other stores hold: how each is related to `model`, and its lineage. The most
/// recently used store comes first, and [`LINEAGES_MAX`] headers are read in all.
pub(super) fn lineages(own: &Directory, model: &[u8; 32]) -> Vec<(Relation, u64)> {
    let mut found = Vec::new();
    let mut unread = LINEAGES_MAX;
    for store in beside(own).iter().rev() {
        let Ok(headers) = open_private(&store.headers(), Missing::Fail) else { continue };
        let Ok(superblock) = read_superblock(&headers) else { continue };
        let relation = match superblock.model == *model {
            true => Relation::OtherKvFormat,
            false => Relation::OtherModel,
        };
        scan(&headers, superblock.creation, superblock.payload_bytes, unread, |_, header| {
            unread -= 1;
            if let Header::Block { record, .. } = header {
                found.push((relation, record.content_key));
            }
        });
    }
    found
}

/// Keeps this store and its neighbours within one budget.
#[derive(Debug)]
pub(super) struct Room {
    own: Directory,
    bytes_max: u64,
    /// What the neighbours held when they were last measured.
    beside_bytes: u64,
    /// Size of the own store from which they are measured again.
    measure_at: u64,
}

impl Room {
    /// `bytes_max` for `own` and everything beside it.
    pub(super) fn new(own: Directory, bytes_max: u64) -> Room {
        Room { own, bytes_max, beside_bytes: 0, measure_at: 0 }
    }

    /// Whether the own store may take `own_bytes`. Neighbours that nobody uses are removed for it,
    /// the one used longest ago first.
    pub(super) fn admits(&mut self, own_bytes: u64) -> bool {
        let fits = own_bytes.saturating_add(self.beside_bytes) <= self.bytes_max;
        if !fits || own_bytes >= self.measure_at {
            self.beside_bytes = make_room(&self.own, self.bytes_max.saturating_sub(own_bytes));
            self.measure_at = own_bytes.saturating_add(MEASURE_BYTES);
        }
        own_bytes.saturating_add(self.beside_bytes) <= self.bytes_max
    }
}

/// Removes neighbours of `own` until they hold at most `bytes`, as far as nobody uses them; returns
/// what they then hold.
fn make_room(own: &Directory, bytes: u64) -> u64 {
    let stores = beside(own);
    let sizes: Vec<u64> = stores.iter().map(Directory::bytes).collect();
    let mut held: u64 = sizes.iter().sum();
    for (store, store_bytes) in stores.iter().zip(sizes) {
        if held > bytes && store_bytes > 0 && store.remove().is_ok() {
            tracing::info!("disk cache: removed {} to make room ({store_bytes} bytes)", store.name());
            held -= store_bytes;
        }
    }
    held
}

/// Bytes of disk of a store with `written` slots that have ever been written.
pub(super) fn store_bytes(written: u32, slot_bytes: u64) -> u64 {
    header_offset(SlotId(0)) + u64::from(written) * slot_bytes
}

const _: () = assert!(LINEAGES_MAX as usize * HEADER_BYTES == 16 << 20);
