//! A disk in memory whose operations can be held back, and a scheduler on it with a manual clock.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kvik_cache::Identity;
use kvik_cache::tier::{IoFault, Record, SlotId, Tier, Use};
use kvik_engine::config::EngineConfig;
use kvik_engine::schedule::disk::{DiskSetup, DiskWrites};
use kvik_engine::schedule::{RequestLimits, Scheduler};
use kvik_engine::store::BlockStore;
use kvik_engine::store::Waker;
use kvik_engine::store::{Buffer, Buffers, Completed};

use super::{ADAPTERS, BLOCK_BYTES, FakeRunner, VOCAB, World, cache_config, vocabulary};

/// The time of day when the clock is at zero.
pub const EPOCH_S: u64 = 1_800_000_000;
const SLOTS: u32 = 1000;

/// State that outlives the scheduler: the disk and the clock.
#[derive(Clone)]
pub struct MemoryDisk {
    state: Arc<Mutex<State>>,
    pub millis: Arc<AtomicU64>,
    /// Transfer buffers of a scheduler.
    buffers: usize,
    block_bytes: usize,
}

impl Default for MemoryDisk {
    fn default() -> MemoryDisk {
        MemoryDisk::of(BLOCK_BYTES)
    }
}

#[derive(Default)]
pub struct State {
    /// Stored blocks by slot.
    pub blocks: BTreeMap<u32, (Record, Vec<u8>)>,
    /// Whether completions of reads are held back, and how many are not.
    pub reads_stop: bool,
    pub reads_more: usize,
    /// Whether completions of writes are held back.
    pub writes_stop: bool,
    /// Whether evictions are held back, and those that are.
    pub evictions_stop: bool,
    pub evicting: Vec<SlotId>,
    reads: VecDeque<Completed>,
    writes: VecDeque<Completed>,
}

struct Handle {
    disk: MemoryDisk,
    buffers: Buffers,
}

impl MemoryDisk {
    /// A disk for blocks of so many bytes.
    pub fn of(block_bytes: usize) -> MemoryDisk {
        MemoryDisk { state: Arc::default(), millis: Arc::default(), buffers: 256, block_bytes }
    }

    /// The same with so many transfer buffers.
    pub fn with_buffers(self, buffers: usize) -> MemoryDisk {
        MemoryDisk { buffers, ..self }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Ends the evictions that were held back.
    pub fn end_evictions(&self) {
        let state = &mut *self.state();
        state.evicting.drain(..).for_each(|slot| drop(state.blocks.remove(&slot.0)));
    }

    pub fn pass(&self, time: Duration) {
        self.millis.fetch_add(time.as_millis() as u64, Ordering::Relaxed);
    }

    /// A scheduler that finds the blocks of the previous one.
    pub fn life(&self, config: EngineConfig, blocks: usize, warm_blocks: usize) -> World {
        self.life_with(config, blocks, warm_blocks, 64)
    }

    /// The same with at most `writes_max` blocks queued for the disk.
    pub fn life_with(
        &self,
        config: EngineConfig,
        blocks: usize,
        warm_blocks: usize,
        writes_max: usize,
    ) -> World {
        let limits = RequestLimits::new(&config, blocks, VOCAB).with_adapters(ADAPTERS);
        let mut runner =
            FakeRunner::new(blocks, config.batch_rows_max()).with_state(config.auxiliary.state_bytes);
        runner.millis = Some(self.millis.clone());
        let millis = self.millis.clone();
        let clock = Box::new(move || Duration::from_millis(millis.load(Ordering::Relaxed)));
        let mut scheduler =
            Scheduler::new(config, cache_config(blocks), Arc::new(vocabulary()), clock).unwrap();
        let setup = self.setup(warm_blocks, writes_max);
        scheduler.attach(setup);
        World { scheduler, runner, limits }
    }

    pub fn setup(&self, warm_blocks: usize, writes_max: usize) -> DiskSetup {
        let state = &mut *self.state();
        state.reads.clear();
        state.writes.clear();
        let records = state.blocks.iter().map(|(&slot, (record, _))| (SlotId(slot), *record));
        let (tier, surplus) = Tier::with(SLOTS, records);
        assert!(surplus.is_empty());
        let store =
            Box::new(Handle { disk: self.clone(), buffers: Buffers::new(self.buffers, self.block_bytes) });
        let (waker, related, epoch_s) = (Waker::default(), Vec::new(), EPOCH_S);
        let writes = DiskWrites::default();
        let (wall, remote) = (None, None);
        DiskSetup { tier, store, related, warm_blocks, writes_max, writes, epoch_s, wall, waker, remote }
    }
}

impl BlockStore for Handle {
    fn payload_bytes(&self) -> usize {
        self.disk.block_bytes
    }

    fn buffer(&mut self) -> Option<Buffer> {
        self.buffers.take()
    }

    fn write(&mut self, slot: SlotId, record: &Record, payload: Buffer) {
        let mut state = self.disk.state();
        state.blocks.insert(slot.0, (*record, payload.to_vec()));
        state.writes.push_back(Completed::Written { slot, result: Ok(Duration::ZERO) });
    }

    fn read(&mut self, ticket: u64, slot: SlotId, identity: Identity, mut into: Buffer) {
        let mut state = self.disk.state();
        let result = match state.blocks.get(&slot.0) {
            Some((record, bytes)) if record.identity == identity => {
                into.copy_from_slice(bytes);
                Ok((into, Duration::ZERO))
            }
            _ => Err(IoFault::Corrupt),
        };
        state.reads.push_back(Completed::Read { ticket, slot, result });
    }

    fn touch(&mut self, slot: SlotId, use_: Use) {
        if let Some((record, _)) = self.disk.state().blocks.get_mut(&slot.0) {
            record.use_ = use_;
        }
    }

    fn pin(&mut self, slot: SlotId, pinned: bool) {
        if let Some((record, _)) = self.disk.state().blocks.get_mut(&slot.0) {
            record.pinned = pinned;
        }
    }

    fn erase(&mut self, slot: SlotId) {
        self.disk.state().blocks.remove(&slot.0);
    }

    fn evict(&mut self, slot: SlotId) {
        let are_held = self.disk.state().evictions_stop;
        match are_held {
            true => self.disk.state().evicting.push(slot),
            false => self.erase(slot),
        }
    }

    fn evicting(&self) -> usize {
        self.disk.state().evicting.len()
    }

    fn completed(&mut self) -> Option<Completed> {
        let state = &mut *self.disk.state();
        let are_held = state.reads_stop && state.reads_more == 0;
        state.reads_more = state.reads_more.saturating_sub(1);
        let read = if are_held { None } else { state.reads.pop_front() };
        read.or_else(|| if state.writes_stop { None } else { state.writes.pop_front() })
    }
}
