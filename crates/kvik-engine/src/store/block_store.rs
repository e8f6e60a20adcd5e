//! The interface of a block store, as the scheduler uses it.

use std::path::PathBuf;

use kvik_cache::Identity;
use kvik_cache::tier::{Level, Record, SlotId, Use, Wear};

use super::{Buffer, Completed};
use crate::stats::{DiskRole, HostStats};

/// Moves bytes of blocks to and from slots, in the background. No call waits for the disk.
pub trait BlockStore: Send {
    /// Bytes of a slot.
    fn payload_bytes(&self) -> usize;
    /// A buffer for a block, with unspecified bytes; `None` while all are in use, by the queues or by blocks that were read
    /// and not yet dropped.
    fn buffer(&mut self) -> Option<Buffer>;
    /// Writes a block into a slot, replacing its content. `record.identity` must be the child of `record.parent` with its
    /// tokens. Completes with [`Completed::Written`].
    fn write(&mut self, slot: SlotId, record: &Record, payload: Buffer);
    /// Reads the block `identity` from a slot. Completes with [`Completed::Read`] and `ticket`.
    fn read(&mut self, ticket: u64, slot: SlotId, identity: Identity, into: Buffer);
    /// Records the use of a slot's block. A hint: it has no completion and may be lost.
    fn touch(&mut self, slot: SlotId, use_: Use);
    /// Pins or unpins a slot's block, for the next start. Has no completion.
    fn pin(&mut self, slot: SlotId, pinned: bool);
    /// Erases the block of a slot and frees its disk space. Has no completion: [`erasing`](BlockStore::erasing) counts the
    /// blocks that are not erased yet. On a failing disk it is retried until the store is dropped; the next start may find
    /// the block again.
    fn erase(&mut self, slot: SlotId);
    /// Number of blocks that are to be erased and may still be there.
    fn erasing(&self) -> usize {
        0
    }
    /// Removes the block of a slot to make room, as [`erase`](BlockStore::erase) does, except that other processes keep their
    /// copies of it. Has no completion: the engine is woken when none is [`evicting`](BlockStore::evicting) any more.
    fn evict(&mut self, slot: SlotId);
    /// Number of blocks that are to be evicted and may still be there.
    fn evicting(&self) -> usize {
        0
    }
    /// Frees memory that serves only as a cache or a buffer.
    fn trim(&mut self) {}
    /// The next completed operation, if any. Never waits.
    fn completed(&mut self) -> Option<Completed>;
    /// Whether it writes. One that reads what another process writes drops writes, touches, pins, erasures and evictions.
    fn role(&self) -> DiskRole {
        DiskRole::Writer
    }
    /// The file beside it for answers as they were generated; `None` if nothing of it outlives the process.
    fn answers(&self) -> Option<PathBuf> {
        None
    }
    /// Bytes written to the disk so far.
    fn wear(&self) -> Wear {
        Wear::default()
    }
    /// Statistics of its part in the host's memory, if blocks in use are in a device's memory.
    fn host(&self) -> Option<HostStats> {
        None
    }
    /// The tier that a slot is read from.
    fn level(&self, _: SlotId) -> Level {
        Level::Disk
    }
}
