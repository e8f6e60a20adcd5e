//! Drives the cache with the blocks of recorded requests, without a model.
//!
//! Defines replays and their report. Reads no file and no clock: requests come in as lists of block ids with the
//! times at which they were made, the time that an operation takes as a function.
//!
//! Each request is looked up, admitted and finished at once; then the cache is shrunk to its capacity. One id of
//! the trace stands for one block of the cache (in the Mooncake traces, for 512 tokens), and differs from others by
//! its tokens as in real use.

mod optimum;
mod restart;
mod trace;

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

pub use optimum::optimum;
pub use restart::{RestartConfig, RestartReport, Stop, replay_restarts};
use rustc_hash::FxHashSet;
pub use trace::{Capacity, TraceRequest};

use crate::admission::Admission;
use crate::cache::{Cache, CacheConfig, CacheError};
use crate::evict::Policy;
use crate::ids::{BLOCK_POSITIONS, NamespaceId, SeqId, Token};
use crate::lifetime::Lifetime;
use crate::namespace::Namespaces;

/// Evicted blocks remembered, as in the server.
const GHOSTS: usize = 1 << 16;

/// The result of a replay.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ReplayReport {
    /// The capacity between requests.
    pub capacity: Capacity,
    /// The eviction policy.
    pub policy: Policy,
    /// Requests replayed.
    pub requests: usize,
    /// Blocks of their prompts: `hits + first_seen + recomputed`.
    pub blocks: usize,
    /// Blocks found in the cache.
    pub hits: usize,
    /// Blocks that occur for the first time: no cache could have had them.
    pub first_seen: usize,
    /// Blocks recomputed though they occurred before.
    pub recomputed: usize,
    /// Blocks evicted.
    pub evicted: u64,
    /// Nodes of the prefix tree at the end.
    pub nodes: usize,
    /// Time of a lookup.
    pub lookup: Latency,
    /// Time of an insertion: admission, publication, and eviction down to the capacity.
    pub insert: Latency,
}

/// Percentiles of the duration of an operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Latency {
    /// The median.
    pub p50: Duration,
    /// The 99th percentile.
    pub p99: Duration,
    /// The maximum.
    pub max: Duration,
}

impl ReplayReport {
    /// Fraction of all blocks that were found.
    pub fn hit_rate(&self) -> f64 {
        self.hits as f64 / self.blocks.max(1) as f64
    }
}

/// Replays `requests` in order, for policies that measure ages in blocks used: the cache's clock stands still.
/// `clock` returns the time since any fixed moment.
pub fn replay(
    requests: &[TraceRequest],
    capacity: Capacity,
    policy: Policy,
    clock: impl FnMut() -> Duration,
) -> Result<ReplayReport, CacheError> {
    replay_timed(requests, &[], capacity, policy, clock)
}

/// Replays `requests` in order, each at its time; a request without one is made when the one before it is.
pub fn replay_timed(
    requests: &[TraceRequest],
    times: &[Duration],
    capacity: Capacity,
    policy: Policy,
    clock: impl FnMut() -> Duration,
) -> Result<ReplayReport, CacheError> {
    let mut replay = Replay::new(requests, capacity, policy, clock)?;
    for (index, request) in requests.iter().enumerate() {
        times.get(index).into_iter().for_each(|&at| replay.cache.set_now(at));
        replay.step(request);
    }
    Ok(replay.report())
}

struct Replay<Clock> {
    cache: Cache,
    namespace: NamespaceId,
    kept_max: usize,
    clock: Clock,
    seen: FxHashSet<u64>,
    lookups: Vec<Duration>,
    inserts: Vec<Duration>,
    report: ReplayReport,
}

impl<Clock: FnMut() -> Duration> Replay<Clock> {
    /// The pool has room for the longest request in addition to the capacity, so that a request never evicts before
    /// it has been inserted.
    fn new(
        requests: &[TraceRequest],
        capacity: Capacity,
        policy: Policy,
        clock: Clock,
    ) -> Result<Replay<Clock>, CacheError> {
        let kept_max = match capacity {
            Capacity::Blocks(blocks) => blocks,
            Capacity::Unlimited => requests.iter().map(Vec::len).sum(),
        };
        let longest = requests.iter().map(Vec::len).max().unwrap_or(0);
        let blocks = kept_max.saturating_add(longest);
        let mut cache = Cache::new(CacheConfig { blocks, policy, ghosts: GHOSTS, pinned_max: 0 })?;
        let namespaces = Namespaces { model: [0; 32], kv_format: "replay", adapter: None };
        Ok(Replay {
            namespace: cache.namespace(&namespaces.shared([0; 16])),
            cache,
            kept_max,
            clock,
            seen: FxHashSet::default(),
            lookups: Vec::with_capacity(requests.len()),
            inserts: Vec::with_capacity(requests.len()),
            report: ReplayReport::empty(capacity, policy),
        })
    }

    fn step(&mut self, request: &[u64]) {
        let prompt: Vec<Token> = request.iter().flat_map(|&id| tokens_of(id)).collect();
        let started = (self.clock)();
        let known = self.cache.lookup(self.namespace, &prompt);
        let found = (self.clock)();
        self.insert(&prompt);
        let inserted = (self.clock)();
        self.lookups.push(found.saturating_sub(started));
        self.inserts.push(inserted.saturating_sub(found));
        self.count(request, known.tokens / BLOCK_POSITIONS);
    }

    fn insert(&mut self, prompt: &[Token]) {
        let seq = SeqId(0);
        let (namespace, reuse_max, positions) = (self.namespace, prompt.len(), prompt.len());
        let lifetime = Lifetime::default();
        let admission = Admission { seq, namespace, prompt, reuse_max, positions, lifetime };
        self.cache.admit(admission).expect("the pool has room for the longest request");
        self.cache.finish(seq, prompt);
        self.cache.shrink(self.kept_max);
    }

    fn count(&mut self, request: &[u64], hits: usize) {
        let first_seen = request.iter().filter(|&&id| self.seen.insert(id)).count();
        self.report.requests += 1;
        self.report.blocks += request.len();
        self.report.hits += hits;
        self.report.first_seen += first_seen;
        self.report.recomputed += request.len().saturating_sub(hits + first_seen);
    }

    fn report(self) -> ReplayReport {
        let stats = self.cache.stats();
        ReplayReport {
            evicted: stats.totals.evicted,
            nodes: stats.nodes,
            lookup: Latency::of(self.lookups),
            insert: Latency::of(self.inserts),
            ..self.report
        }
    }
}

impl ReplayReport {
    fn empty(capacity: Capacity, policy: Policy) -> ReplayReport {
        ReplayReport {
            capacity,
            policy,
            requests: 0,
            blocks: 0,
            hits: 0,
            first_seen: 0,
            recomputed: 0,
            evicted: 0,
            nodes: 0,
            lookup: Latency::default(),
            insert: Latency::default(),
        }
    }
}

impl Latency {
    /// The percentiles of a list of samples; all zero when it is empty.
    pub fn of(mut samples: Vec<Duration>) -> Latency {
        samples.sort_unstable();
        let rank = |share: f64| {
            let index = (samples.len() as f64 * share).ceil() as usize;
            samples.get(index.saturating_sub(1)).copied().unwrap_or_default()
        };
        Latency { p50: rank(0.50), p99: rank(0.99), max: rank(1.0) }
    }
}

/// The tokens of the block that `id` stands for, which differ for different ids.
fn tokens_of(id: u64) -> [Token; BLOCK_POSITIONS] {
    let mut tokens = [0; BLOCK_POSITIONS];
    (tokens[0], tokens[1]) = (id as Token, (id >> Token::BITS) as Token);
    tokens
}

/// Error: the capacity is neither a number of blocks nor `unlimited`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither a number of blocks nor `unlimited`")]
pub struct BadCapacity(pub String);

impl FromStr for Capacity {
    type Err = BadCapacity;

    fn from_str(text: &str) -> Result<Capacity, BadCapacity> {
        match text {
            "unlimited" => Ok(Capacity::Unlimited),
            number => number.parse().map(Capacity::Blocks).map_err(|_| BadCapacity(text.to_owned())),
        }
    }
}

impl fmt::Display for Capacity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Capacity::Blocks(blocks) => blocks.fmt(f),
            Capacity::Unlimited => f.pad("unlimited"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(capacity: Capacity, requests: &[&[u64]]) -> [u64; 4] {
        let requests: Vec<TraceRequest> = requests.iter().map(|request| request.to_vec()).collect();
        let report = replay(&requests, capacity, Policy::Lru, || Duration::ZERO).unwrap();
        [report.hits as u64, report.first_seen as u64, report.recomputed as u64, report.evicted]
    }

    #[test]
    fn figures_worked_out_by_hand() {
        let trace: [&[u64]; 4] = [&[1, 2, 3], &[1, 4], &[1, 2, 3], &[1 << 40, 2]];
        // 2 stands for a prefix, so after another first block it would have another id; it still counts as seen.
        assert_eq!(figures(Capacity::Unlimited, &trace), [4, 5, 1, 0]);
        // After [1 2 3], [1 4]: 1 and 4 are newest, then 2; 3 is evicted. The third request finds 1 2, computes 3,
        // and 4 is evicted; the last one finds nothing, and 3 and 2 are evicted.
        assert_eq!(figures(Capacity::Blocks(3), &trace), [3, 5, 2, 4]);
        assert_eq!(figures(Capacity::Blocks(0), &trace), [0, 5, 5, 10]);
    }

    #[test]
    fn ranks_of_samples() {
        let latency = Latency::of((1..=200).rev().map(Duration::from_micros).collect());
        assert_eq!(latency.p50, Duration::from_micros(100));
        assert_eq!(latency.p99, Duration::from_micros(198));
        assert_eq!(latency.max, Duration::from_micros(200));
        assert_eq!(Latency::of(vec![]), Latency::default());
    }

    #[test]
    fn capacities_are_read_as_written() {
        for capacity in [Capacity::Blocks(1000), Capacity::Unlimited] {
            assert_eq!(capacity.to_string().parse(), Ok(capacity));
        }
        assert_eq!("1k".parse::<Capacity>(), Err(BadCapacity("1k".to_owned())));
    }
}
