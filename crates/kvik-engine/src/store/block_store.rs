//! The interface of a block store, as the scheduler uses it.

use kvik_cache::Identity;
use kvik_cache::tier::{Record, SlotId, Use};

use super::{Buffer, Completed, Store};
use crate::stats::HostStats;

/// Moves bytes of blocks to and from slots, in the background. No call waits for the disk.
pub trait BlockStore: Send {
    /// Bytes of a slot.
    fn payload_bytes(&self) -> usize;
    /// A buffer for a block; `None` while all are in use.
    fn buffer(&mut self) -> Option<Buffer>;
    /// Writes a block that was placed in `slot`.
    fn write(&mut self, slot: SlotId, record: &Record, payload: Buffer);
    /// Reads the block `identity` from `slot`.
    fn read(&mut self, ticket: u64, slot: SlotId, identity: Identity, into: Buffer);
    /// Records a use of a stored block.
    fn touch(&mut self, slot: SlotId, use_: Use);
    /// Records whether a stored block is pinned.
    fn pin(&mut self, slot: SlotId, pinned: bool);
    /// Empties a slot and frees its disk space.
    fn erase(&mut self, slot: SlotId);
    /// Number of slots that are to be emptied and may still hold their blocks.
    fn erasing(&self) -> usize {
        0
    }
    /// Frees memory that serves only as a cache or a buffer.
    fn trim(&mut self) {}
    /// Removes and returns the next completed operation.
    fn completed(&mut self) -> Option<Completed>;
    /// Statistics of its part in the host's memory, if blocks in use are in a device's memory.
    fn host(&self) -> Option<HostStats> {
        None
    }
    /// Whether a slot is read from the host's memory.
    fn is_in_host(&self, _: SlotId) -> bool {
        false
    }
}

impl BlockStore for Store {
    fn payload_bytes(&self) -> usize {
        Store::payload_bytes(self)
    }

    fn buffer(&mut self) -> Option<Buffer> {
        Store::buffer(self)
    }

    fn write(&mut self, slot: SlotId, record: &Record, payload: Buffer) {
        Store::write(self, slot, record, payload);
    }

    fn read(&mut self, ticket: u64, slot: SlotId, identity: Identity, into: Buffer) {
        Store::read(self, ticket, slot, identity, into);
    }

    fn touch(&mut self, slot: SlotId, use_: Use) {
        Store::touch(self, slot, use_);
    }

    fn pin(&mut self, slot: SlotId, pinned: bool) {
        Store::pin(self, slot, pinned);
    }

    fn erase(&mut self, slot: SlotId) {
        Store::erase(self, slot);
    }

    fn erasing(&self) -> usize {
        Store::erasing(self)
    }

    fn trim(&mut self) {
        Store::trim(self);
    }

    fn completed(&mut self) -> Option<Completed> {
        Store::completed(self)
    }
}
