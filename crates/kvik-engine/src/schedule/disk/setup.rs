//! Configuration of a disk tier, and the absent tier, which holds nothing.

use std::ops::RangeInclusive;
use std::path::Path;

use kvik_cache::tier::{Record, Relation, SlotId, Tier, WritePolicy};
use kvik_kernels::KV_LAYOUT_VERSION;

use crate::stats::DiskRole;
use crate::store::remote::RemoteStore;
use crate::store::{
    BlockStore, Buffers, HostStore, Opened, Store, StoreConfig, StoreError, Waker, bytes_allowed,
};

/// Memory for blocks being read from and written to disk.
const BUFFER_BYTES: usize = 64 << 20;
/// Number of buffers, whatever the size of a block.
const BUFFERS: RangeInclusive<usize> = 8..=4096;

/// Returns the seconds since 1970.
pub type WallClock = Box<dyn Fn() -> u64 + Send>;

/// How the tier is set up.
pub struct DiskSetup {
    /// Which block is in which slot.
    pub tier: Tier,
    /// The bytes of the slots.
    pub store: Box<dyn BlockStore>,
    /// Prompts known from files of other models and KV formats, by content key.
    pub related: Vec<(Relation, u64)>,
    /// Maximum number of blocks loaded at the start.
    pub warm_blocks: usize,
    /// Maximum number of blocks being written; the other buffers of the store are for reading.
    pub writes_max: usize,
    /// Which blocks are written.
    pub writes: DiskWrites,
    /// Seconds since 1970 when the scheduler's clock was at zero.
    pub epoch_s: u64,
    /// The wall clock, which runs on while the machine sleeps. Without one, the time of day is that of the scheduler's
    /// clock behind `epoch_s`.
    pub wall: Option<WallClock>,
    /// Woken by `store`, and by the store of `remote`, when something is completed.
    pub waker: Waker,
    /// The store that nodes share.
    pub remote: Option<RemoteSetup>,
}

/// Which blocks are written to the disk, and how many bytes a day.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DiskWrites {
    /// Which of them.
    pub policy: WritePolicy,
    /// Bytes of a day (UTC) after which only pinned prompts are written; unlimited when `None`. Writes in progress may
    /// exceed it by the bytes of the transfer buffers.
    pub day_bytes_max: Option<u64>,
}

/// The shared store, and what is written to it.
pub struct RemoteSetup {
    /// Blocks of all nodes.
    pub store: Box<dyn RemoteStore>,
    /// The prefixes that this node writes.
    pub writes: RemoteWrites,
    /// Bytes of a block.
    pub block_bytes: usize,
}

/// Which prefixes a node writes to the shared store.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum RemoteWrites {
    /// Prefixes of prompts that were used a second time.
    #[default]
    Reused,
    /// As `Reused` first, then everything else that is computed.
    All,
}

/// A tier on an open store, and what was found in it.
pub struct DiskOpened {
    /// The tier.
    pub setup: DiskSetup,
    /// Number of blocks the store has room for.
    pub slots: u32,
    /// Number of blocks found.
    pub held: usize,
    /// Whether this process writes it.
    pub role: DiskRole,
    /// Messages for the operator.
    pub notes: Vec<String>,
}

/// Number of transfer buffers for blocks of `block_bytes` bytes.
pub fn buffers(block_bytes: usize) -> usize {
    (BUFFER_BYTES / block_bytes).clamp(*BUFFERS.start(), *BUFFERS.end())
}

/// How many of these buffers may be used for writing; the others are for reading.
pub fn writes_max(buffers: usize) -> usize {
    buffers - buffers / 4
}

/// Names what determines the bits of a model's blocks in addition to the model: the KV format, as `kv` names it, and
/// `place`, where they are computed. Other instruction sets and devices may round differently, and a loaded block must
/// equal a computed one.
pub fn bits_name(kv: &str, place: &str) -> String {
    format!("{kv}, layout {KV_LAYOUT_VERSION}, {place}")
}

/// The configuration of a store for a model's blocks of `payload_bytes` each, in a directory that takes `bytes_max`
/// bytes, or less if the disk has less room. `kv` names the KV format and `place` where the blocks are computed.
pub fn store_config(
    (dir, bytes_max): (&Path, u64),
    model: [u8; 32],
    (kv, place): (&str, &str),
    payload_bytes: usize,
) -> StoreConfig {
    StoreConfig {
        dir: dir.to_owned(),
        bytes_max: bytes_allowed(dir).map_or(bytes_max, |allowed| allowed.min(bytes_max)),
        model,
        kv_format: bits_name(kv, place),
        payload_bytes,
        buffers: buffers(payload_bytes),
    }
}

/// Corrects the uses that a clock far ahead has written, also on disk: another start would correct them to its own time.
fn correct_uses(records: &mut [(SlotId, Record)], store: &mut Store, now_s: u64) {
    for (slot, record) in records {
        let use_ = record.use_.at(now_s);
        if use_ != record.use_ {
            record.use_ = use_;
            store.touch(*slot, use_);
        }
    }
}

impl DiskSetup {
    /// Opens the store that `config` describes, and builds a tier from its records. At most `warm_blocks` are loaded
    /// when the scheduler starts; the time is now `epoch_s` seconds since 1970.
    ///
    /// # Errors
    /// As [`Store::open`].
    pub fn open(config: &StoreConfig, warm_blocks: usize, epoch_s: u64) -> Result<DiskOpened, StoreError> {
        let waker = Waker::default();
        let wake = waker.clone();
        let Opened { mut store, slots, mut records, notes, related } =
            Store::open(config, move || wake.wake())?;
        let (held, role) = (records.len(), store.role());
        correct_uses(&mut records, &mut store, epoch_s);
        let (tier, surplus) = Tier::with(slots, records);
        surplus.into_iter().for_each(|slot| store.erase(slot));
        let (store, writes_max) = (Box::new(store), writes_max(config.buffers));
        let setup = DiskSetup {
            tier,
            store,
            related,
            warm_blocks,
            writes_max,
            writes: DiskWrites::default(),
            epoch_s,
            wall: None,
            waker,
            remote: None,
        };
        Ok(DiskOpened { setup, slots, held, role, notes })
    }

    /// No disk: a tier without slots.
    pub fn none() -> DiskSetup {
        DiskSetup {
            tier: Tier::new(0),
            store: Box::new(HostStore::alone(Buffers::new(0, 0), 0, Waker::default())),
            related: Vec::new(),
            warm_blocks: 0,
            writes_max: 0,
            writes: DiskWrites::default(),
            epoch_s: 0,
            wall: None,
            waker: Waker::default(),
            remote: None,
        }
    }
}
