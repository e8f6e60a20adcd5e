//! What a disk tier is made of, and the one that is absent: a tier that holds nothing.

use kvik_cache::Identity;
use kvik_cache::tier::{Record, Relation, SlotId, Tier, Use};

use crate::store::{BlockStore, Buffer, Completed, Waker};

/// How the tier is set up.
pub struct DiskSetup {
    /// Which block is in which slot.
    pub tier: Tier,
    /// The bytes of the slots.
    pub store: Box<dyn BlockStore>,
    /// Prompts known from files of other models and KV formats, by content key.
    pub related: Vec<(Relation, u64)>,
    /// Blocks loaded at the start at most.
    pub warm_blocks: usize,
    /// Blocks being written at most; the other buffers of the store are for reading.
    pub writes_max: usize,
    /// Seconds since 1970 when the scheduler's clock was at zero.
    pub epoch_s: u64,
    /// Woken by `store` when something is completed.
    pub waker: Waker,
}

impl DiskSetup {
    /// No disk: a tier without slots.
    pub fn none() -> DiskSetup {
        DiskSetup {
            tier: Tier::new(0),
            store: Box::new(NoStore),
            related: Vec::new(),
            warm_blocks: 0,
            writes_max: 0,
            epoch_s: 0,
            waker: Waker::default(),
        }
    }
}

/// The store of a tier without slots. Nothing is ever placed there, so there is nothing to write or read.
struct NoStore;

impl BlockStore for NoStore {
    fn payload_bytes(&self) -> usize {
        0
    }

    fn buffer(&mut self) -> Option<Buffer> {
        None
    }

    fn write(&mut self, _: SlotId, _: &Record, _: Buffer) {}

    fn read(&mut self, _: u64, _: SlotId, _: Identity, _: Buffer) {}

    fn touch(&mut self, _: SlotId, _: Use) {}

    fn pin(&mut self, _: SlotId, _: bool) {}

    fn erase(&mut self, _: SlotId) {}

    fn completed(&mut self) -> Option<Completed> {
        None
    }
}
