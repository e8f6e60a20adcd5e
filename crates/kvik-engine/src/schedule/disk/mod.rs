//! The disk tier, as the scheduler uses it. [`kvik_cache::tier`] decides and a [`BlockStore`] moves bytes; this module
//! connects both to the blocks of sequences.
//!
//! ```text
//!   a sequence computes ── spill ──► slot        in the background, a copy at a time
//!   a request waits ────── load ───► blocks      a sequence in the cache that reads instead of computing
//! ```
//!
//! A load is a sequence like any other, with blocks of its own that are published as they fill. So requests that wait
//! for it find its blocks in the cache, and no other part needs to know where they came from.
//!
//! An absent tier is a tier that holds nothing: it has no slots.
//!
//! | module     | cares about                                                    |
//! |------------|----------------------------------------------------------------|
//! | `setup`    | how a tier is configured, and where its bytes are              |
//! | `find`     | the stored part of a prompt, and why it is not longer          |
//! | `spill`    | copying computed blocks to slots                               |
//! | `writes`   | which blocks are worth writing, and when                       |
//! | `load`     | reading slots into blocks                                      |
//! | `fetch`    | how long a waiting request waits for a load                    |
//! | `prefetch` | loading prefixes before any request wants them                 |
//! | `release`  | unpinning and dropping                                         |
//! | `deleted`  | dropping the blocks of deleted prompts                         |
//! | `follow`   | what another process writes, and taking over from it           |
//! | `remote`   | the shared store                                               |
//! | `lookup`   | lookups in the shared store                                    |
//! | `share`    | offering blocks to the shared store                            |

mod deleted;
mod fetch;
mod find;
mod follow;
mod load;
mod lookup;
mod prefetch;
mod release;
mod remote;
mod setup;
mod share;
mod spill;
mod states;
mod writes;

use std::time::Duration;

use kvik_cache::tier::{self, ByLevel, CostModel, DiskShare, Level, Observed, Relation, SlotId, Tier};
use kvik_cache::{AuxiliaryState, Identity, NamespaceId};
use rustc_hash::{FxHashMap, FxHashSet};

use super::namespaces::NamespaceTable;
use super::ram::Ram;
use crate::stats::{DiskStats, WriteStats};
use crate::store::BlockStore;
use remote::Remote;

pub use deleted::forget_at_rest;
pub use setup::{
    DiskOpened, DiskSetup, DiskWrites, RemoteSetup, RemoteWrites, WallClock, bits_name, buffers,
    store_config, writes_max,
};

pub(super) use fetch::{Fetch, Wanted};
pub(super) use follow::Erased;
pub(super) use share::Offered;
pub(super) use spill::{SpillContext, Spilled, Stored};
pub(super) use states::StateBehind;

/// How often the wall clock is read.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// The disk tier of one scheduler.
pub(super) struct Disk {
    tier: Tier,
    store: Box<dyn BlockStore>,
    cost: CostModel,
    /// Auxiliary state that sequences hold in addition to blocks.
    auxiliary: AuxiliaryState,
    /// Prefixes being read, oldest first.
    loads: Vec<load::Load>,
    /// Copies of sequences that have ended.
    unfinished: Vec<spill::Unfinished>,
    /// States on their way to the disk.
    states: states::StateWrites,
    /// Prefixes that were hot before the start and whose tenants are not registered yet, the best first.
    found: Vec<tier::Chain>,
    /// Prefixes to be loaded when the scheduler is idle, the best last.
    candidates: Vec<prefetch::Candidate>,
    /// Prompts that are stored for another model or in another KV format, by content key.
    related: FxHashMap<u64, Relation>,
    /// Content keys of private prompts: their own tenant may know that they were private.
    private: FxHashSet<u64>,
    /// Changes of another process in slots that are being read.
    unobserved: Vec<Observed>,
    /// Prefixes that another process has erased, to be dropped from RAM.
    erased: Vec<Erased>,
    epoch_s: u64,
    wall: Option<WallClock>,
    /// When to look at the wall clock next.
    next_look: Duration,
    next_ticket: u64,
    /// Blocks being written.
    writing: usize,
    writes_max: usize,
    /// Which blocks are written.
    write_policy: writes::Writes,
    /// The store that nodes share, if configured.
    remote: Option<Remote>,
}

/// The parts of the scheduler that a load uses: blocks in RAM, and the namespaces of what it reads.
pub(super) struct LoadContext<'a> {
    pub(super) ram: &'a mut Ram,
    pub(super) namespaces: &'a NamespaceTable,
    /// Number of running sequences.
    pub(super) running: usize,
    pub(super) now: Duration,
}

/// Counts `tokens` tokens whose blocks are read like this: all as those of the slowest tier, for which a request waits;
/// none if nothing is read, as where others have computed them meanwhile.
fn tokens_of(tokens: usize, reads: ByLevel) -> ByLevel {
    reads.slowest().map_or_else(ByLevel::default, |level| ByLevel::of(level, tokens))
}

impl Disk {
    pub(super) fn new(setup: DiskSetup, auxiliary: AuxiliaryState) -> Disk {
        let DiskSetup {
            tier, store, related, epoch_s, wall, writes_max, writes, warm_blocks, remote, ..
        } = setup;
        Disk {
            // Hot prefixes come back without recurrent states, without which no sequence could continue.
            found: if auxiliary.state_bytes > 0 { Vec::new() } else { tier.warmest(warm_blocks, epoch_s) },
            write_policy: writes::Writes::new(writes, &auxiliary, &*store),
            tier,
            store,
            cost: CostModel::default(),
            auxiliary,
            loads: Vec::new(),
            unfinished: Vec::new(),
            states: states::StateWrites::default(),
            candidates: Vec::new(),
            related: related.into_iter().map(|(relation, key)| (key, relation)).collect(),
            private: FxHashSet::default(),
            unobserved: Vec::new(),
            erased: Vec::new(),
            epoch_s,
            wall,
            next_look: Duration::ZERO,
            next_ticket: 0,
            writing: 0,
            writes_max,
            remote: remote.map(Remote::new),
        }
    }

    /// Counts slots by the tier that they are read from.
    fn reads<'a>(&self, slots: impl IntoIterator<Item = &'a SlotId>) -> ByLevel {
        let mut reads = ByLevel::default();
        slots.into_iter().for_each(|&slot| reads[self.store.level(slot)] += 1);
        reads
    }

    /// Whether there is no disk.
    pub(super) fn is_absent(&self) -> bool {
        self.tier.stats().slots == 0
    }

    /// Follows the wall clock, which runs on while the machine sleeps and may be set forward; looks at most once a second.
    /// A clock that is set back is not followed: what is written until it is right again would expire too early. Returns
    /// how far it was ahead.
    pub(super) fn follow_wall_clock(&mut self, now: Duration) -> Duration {
        let Some(wall) = self.wall.as_ref().filter(|_| now >= self.next_look) else { return Duration::ZERO };
        self.next_look = now + LOOK_EVERY;
        let epoch_s = self.epoch_s.max(wall().saturating_sub(now.as_secs()));
        Duration::from_secs(epoch_s - std::mem::replace(&mut self.epoch_s, epoch_s))
    }

    /// Follows a wall clock if there is no disk, at the start of the scheduler's clock.
    pub(super) fn set_wall_clock(&mut self, wall: WallClock) {
        if self.is_absent() {
            (self.epoch_s, self.wall) = (wall(), Some(wall));
        }
    }

    /// Whether a wall clock is followed.
    pub(super) fn has_wall_clock(&self) -> bool {
        self.wall.is_some()
    }

    /// Seconds since 1970, by the monotonic clock since the wall clock was last followed.
    fn wall_s(&self, now: Duration) -> u64 {
        self.epoch_s.saturating_add(now.as_secs())
    }

    /// What the wall clock shows, by which written bytes are counted and which may be set back; `now_s` if there is none.
    fn shown_s(&self, now_s: u64) -> u64 {
        self.wall.as_ref().map_or(now_s, |wall| wall())
    }

    /// When the first stored block expires, by the scheduler's clock.
    pub(super) fn next_expiry(&self) -> Option<Duration> {
        let at_s = self.tier.next_expiry_s()?.saturating_sub(self.epoch_s);
        Some(Duration::from_secs(at_s))
    }

    /// Statistics, for blocks of `block_bytes` bytes; `None` if there is no disk.
    pub(super) fn stats(&self, block_bytes: usize, now: Duration) -> Option<DiskStats> {
        let copies = self.unfinished.iter().map(spill::Unfinished::blocks_left).sum::<usize>();
        (!self.is_absent()).then(|| DiskStats {
            role: self.store.role(),
            tier: self.tier.stats(),
            writing: self.writing + copies + self.states.count(),
            writes: self.write_stats(now),
            loads: self.loads.len(),
            prefetch_candidates: self.candidates.len(),
            load_rate: self.cost.load_rate(Level::Disk, block_bytes),
            host: self.store.host(),
            host_load_rate: self.cost.load_rate(Level::Host, block_bytes),
            compute_rate: self.compute_rate(),
        })
    }

    /// Measured prefill rate in prompt tokens per second, also if there is no disk.
    pub(super) fn compute_rate(&self) -> Option<f64> {
        self.cost.compute_rate()
    }

    fn write_stats(&self, now: Duration) -> WriteStats {
        let (wear, now_s) = (self.store.wear(), self.shown_s(self.wall_s(now)));
        WriteStats {
            policy: self.write_policy.policy(),
            waiting_blocks: self.write_policy.blocks_waiting(),
            today_bytes: wear.today(now_s),
            year_bytes: wear.year(now_s),
        }
    }

    /// The namespaces of everything that is being read, written or prefetched.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = NamespaceId> {
        let loads = self.loads.iter().map(|load| load.namespace);
        let unfinished = self.unfinished.iter().map(|copy| copy.namespace);
        loads
            .chain(unfinished)
            .chain(self.states.namespaces())
            .chain(self.remote.iter().flat_map(|remote| remote.copies.namespaces()))
            .chain(self.candidates.iter().map(|candidate| candidate.namespace))
    }

    /// The identities that stored blocks continue: blocks, and the roots of namespaces that have any.
    pub(super) fn continued(&self) -> FxHashSet<Identity> {
        self.tier.used().map(|(_, record)| record.parent).collect()
    }

    /// Sets a tenant's share of the tier.
    pub(super) fn set_share(&mut self, owner: u64, share: DiskShare) {
        self.tier.set_share(owner, share);
    }

    /// Takes back the shares of all tenants, to be set again for those that there still are.
    pub(super) fn withdraw_shares(&mut self) {
        self.tier.withdraw_shares();
    }

    /// Records that `tokens` prompt tokens were computed in `elapsed`.
    pub(super) fn note_computed(&mut self, tokens: usize, elapsed: Duration) {
        self.cost.computed(tokens, elapsed);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};

    use kvik_cache::{CacheConfig, Lifetime, Match, Policy, SeqId, StopReason, Token};

    use super::*;
    use crate::config::EngineConfig;
    use crate::schedule::namespaces::Sharers;

    fn table() -> NamespaceTable {
        NamespaceTable::new(&EngineConfig {
            context_tokens: 100,
            parallel_max: 1,
            waiting_max: 1,
            choices_max: 1,
            prefill_rows_max: 16,
            prefill_rows_mixed_max: 16,
            draft_rows_max: 16,
            draft_sources: crate::stats::DraftSources::ALL,
            block_bytes: 1,
            model_digest: [0; 32],
            kv_format: "f32/f32".to_owned(),
            repeat: Default::default(),
            kv_heads: vec![1],
            tile_heads: vec![1],
            auxiliary: AuxiliaryState::default(),
            latent: false,
            calibration: None,
            gates: None,
        })
    }

    #[test]
    fn the_wall_clock_is_followed_forward_once_a_second() {
        let shown_s = Arc::new(AtomicU64::new(0));
        let shown = shown_s.clone();
        let wall: WallClock = Box::new(move || shown.load(Ordering::Relaxed));
        let setup = DiskSetup { epoch_s: 1_000, wall: Some(wall), ..DiskSetup::none() };
        let mut disk = Disk::new(setup, AuxiliaryState::default());
        let looks = [
            (0, 1_000, 1_000, 0),
            (900, 9_000, 1_000, 0),
            (1_000, 9_001, 9_001, 8_000),
            (2_500, 60, 9_002, 0),
            (3_600, 9_500, 9_500, 497),
        ];
        for (now_ms, shows_s, expect_s, ahead_s) in looks {
            let now = Duration::from_millis(now_ms);
            shown_s.store(shows_s, Ordering::Relaxed);
            let ahead = disk.follow_wall_clock(now);
            assert_eq!((disk.wall_s(now), ahead.as_secs()), (expect_s, ahead_s), "after {now_ms} ms");
        }
    }

    #[test]
    fn a_disk_that_was_slow_once_is_written_to_again() {
        let mut disk = Disk::new(DiskSetup::none(), AuxiliaryState::default());
        disk.note_computed(1000, Duration::from_secs(1));
        disk.cost.loaded(ByLevel::of(Level::Disk, 1), Duration::from_millis(160));
        let refusals = (0..100).take_while(|_| !disk.is_worth_writing(160)).count();
        assert!((5..20).contains(&refusals), "{refusals} refusals of a disk ten times too slow");
    }

    #[test]
    fn a_tier_that_is_absent_holds_nothing() {
        let config = CacheConfig { blocks: 8, policy: Policy::Lru, ghosts: 0, pinned_max: 0 };
        let (mut ram, mut table, now) =
            (Ram::new(config, AuxiliaryState::default(), false).unwrap(), table(), Duration::from_secs(9));
        let namespace = table.shared(Sharers::plain([0; 16]), &mut ram.cache);
        let (roots, tokens) = (*table.roots(namespace), (0..40).collect::<Vec<Token>>());
        let mut disk = Disk::new(DiskSetup::none(), AuxiliaryState::default());
        disk.note_private(&roots, &tokens);
        disk.add_candidates(&[namespace], &table);
        let stored = Stored {
            seq: SeqId(1),
            namespace,
            tokens: &tokens,
            prompt: &tokens,
            lifetime: Lifetime::default(),
        };
        disk.spill_later(Spilled::default(), &stored, &mut ram, now);
        assert_eq!(ram.cache.stats().sequences, 0, "it holds no blocks for a copy");
        let new = Match { tokens: 0, stop: StopReason::FirstSeen, evicted: None };
        assert_eq!(
            disk.lookup(&roots, (&tokens[..], tokens.len()), new, now),
            (new, ByLevel::default()),
            "not even why it knows nothing"
        );
        let mut context = LoadContext { ram: &mut ram, namespaces: &table, running: 0, now };
        let (mut fetch, wanted) =
            (Fetch::default(), Wanted { namespace, tokens: &tokens, known: 0, ttl: None });
        assert!(!disk.fetch(&mut fetch, wanted, &mut context) && fetch.verdict_for(0).is_none());
        assert!(disk.loads().is_empty() && !disk.has_candidates() && !disk.drop_unfinished(&mut ram));
        assert_eq!(
            (disk.stats(1, now).is_none(), disk.next_expiry(), disk.next_deadline()),
            (true, None, None)
        );
        assert_eq!(disk.clear(None, now), 0);
    }
}
