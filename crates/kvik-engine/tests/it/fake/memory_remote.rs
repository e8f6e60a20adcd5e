//! A store in memory that nodes share, whose operations can be held back, lost and refused.

use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kvik_cache::Identity;
use kvik_cache::tier::runs;
use kvik_engine::config::EngineConfig;
use kvik_engine::schedule::disk::{DiskSetup, RemoteSetup, RemoteWrites};
use kvik_engine::schedule::{RequestLimits, Scheduler};
use kvik_engine::store::remote::{Chain, Expected, RemoteDone, RemoteStats, RemoteStore};

use super::memory_disk::MemoryDisk;
use super::{ADAPTERS, BLOCK_BYTES, FakeRunner, VOCAB, World, cache_config, vocabulary};

/// What all nodes see.
#[derive(Clone, Default)]
pub struct MemoryRemote(Arc<Mutex<RemoteState>>);

#[derive(Default)]
pub struct RemoteState {
    /// Runs by their owner and their last block.
    pub values: BTreeMap<(u64, Identity), Vec<u8>>,
    /// Whether it refuses to be asked.
    pub down: bool,
    /// Whether nothing is completed any more.
    pub stops: bool,
    /// Whether fetches, unlike lookups, are never completed.
    pub fetches_stop: bool,
    /// What a block takes, as it says.
    pub block: Duration,
    /// How often it was told that it is too slow, by all nodes.
    pub too_slow: u64,
    /// Lookups so far, of all nodes.
    pub lookups: u64,
    /// Fetches so far, of all nodes.
    pub fetches: u64,
    /// Cancellations that came because it was late.
    pub late: u64,
    /// Blocks that it takes before it is told to take more; none for all.
    pub room: Option<usize>,
    /// Blocks of the longest runs; 0 for the usual.
    pub run_max: usize,
}

/// One node's connection.
struct Handle {
    remote: MemoryRemote,
    done: VecDeque<RemoteDone>,
    stats: RemoteStats,
}

/// Where a node's time comes from and what its disk has: its disk, or the clock of one that is not there.
pub struct Node<'a> {
    pub disk: &'a MemoryDisk,
    /// Whether the disk is there.
    pub has_disk: bool,
    pub writes: RemoteWrites,
}

impl MemoryRemote {
    pub fn state(&self) -> MutexGuard<'_, RemoteState> {
        self.0.lock().unwrap()
    }

    /// A scheduler that shares this store with others.
    pub fn node(&self, node: &Node<'_>, config: EngineConfig, blocks: usize) -> World {
        let limits = RequestLimits::new(&config, blocks, VOCAB).with_adapters(ADAPTERS);
        let mut runner = FakeRunner::new(blocks, config.batch_rows_max());
        runner.millis = Some(node.disk.millis.clone());
        let millis = node.disk.millis.clone();
        let clock = Box::new(move || Duration::from_millis(millis.load(Ordering::Relaxed)));
        let mut scheduler =
            Scheduler::new(config, cache_config(blocks), Arc::new(vocabulary()), clock).unwrap();
        let setup = if node.has_disk { node.disk.setup(0, 64) } else { DiskSetup::none() };
        scheduler.attach(DiskSetup { remote: Some(self.setup(node.writes)), ..setup });
        World { scheduler, runner, limits }
    }

    pub fn setup(&self, writes: RemoteWrites) -> RemoteSetup {
        let (done, stats) = (VecDeque::new(), RemoteStats::default());
        let store = Box::new(Handle { remote: self.clone(), done, stats });
        RemoteSetup { store, writes, block_bytes: BLOCK_BYTES }
    }
}

impl RemoteStore for Handle {
    fn run_max(&self) -> usize {
        match self.remote.state().run_max {
            0 => 4,
            run_max => run_max,
        }
    }

    fn expected(&self) -> Option<Expected> {
        let state = self.remote.state();
        (!state.down).then_some(Expected { latency: Duration::from_millis(2), block: state.block })
    }

    fn too_slow(&mut self) {
        self.remote.state().too_slow += 1;
    }

    fn look_up(&mut self, ticket: u64, chain: Chain) {
        let mut state = self.remote.state();
        state.lookups += 1;
        let is_there = |block: &Identity| state.values.contains_key(&(chain.owner, *block));
        let blocks = chain.blocks.iter().rposition(is_there).map_or(0, |last| last + 1);
        self.stats.lookups += 1;
        self.stats.hits += u64::from(blocks > 0);
        self.done.push_back(RemoteDone::Found { ticket, blocks });
    }

    fn fetch(&mut self, ticket: u64, chain: Chain, blocks: Range<usize>) {
        let run_max = self.run_max();
        let mut state = self.remote.state();
        state.fetches += 1;
        let mut failed = false;
        for run in runs(blocks.end, run_max).filter(|run| run.end > blocks.start) {
            match state.values.get(&(chain.owner, chain.blocks[run.end - 1])) {
                Some(bytes) => {
                    let (first, bytes) = (run.start, bytes.clone());
                    self.done.push_back(RemoteDone::Read { ticket, first, bytes });
                }
                None => failed = true,
            }
        }
        self.done.push_back(RemoteDone::Ended { ticket, failed });
    }

    fn cancel(&mut self, ticket: u64, late: bool) {
        self.remote.state().late += u64::from(late);
        let theirs = |done: &RemoteDone| {
            let (RemoteDone::Found { ticket, .. }
            | RemoteDone::Read { ticket, .. }
            | RemoteDone::Ended { ticket, .. }) = done;
            *ticket
        };
        self.done.retain(|done| theirs(done) != ticket);
    }

    fn wants(&mut self, owner: u64, end: &Identity, _: usize, _: Option<Duration>) -> bool {
        !self.remote.state().values.contains_key(&(owner, *end))
    }

    fn room(&self) -> usize {
        self.remote.state().room.unwrap_or(usize::MAX)
    }

    fn offer(&mut self, owner: u64, end: Identity, bytes: Vec<u8>, _: Option<Duration>) {
        let blocks = bytes.len() / BLOCK_BYTES;
        self.stats.written_blocks += blocks as u64;
        if let Some(room) = &mut self.remote.state().room {
            *room = room.checked_sub(blocks).expect("no more is offered than there is room for");
        }
        self.remote.state().values.insert((owner, end), bytes);
    }

    fn done(&mut self) -> Option<RemoteDone> {
        let state = self.remote.state();
        let comes = |done: &RemoteDone| !state.fetches_stop || matches!(done, RemoteDone::Found { .. });
        let at = self.done.iter().position(comes).filter(|_| !state.stops)?;
        self.done.remove(at)
    }

    fn stats(&self) -> RemoteStats {
        RemoteStats { is_up: !self.remote.state().down, ..self.stats }
    }
}
