//! Offers computed blocks to the shared store, at lowest priority.
//!
//! A prefix that was used a second time is worth sharing; if the operator says so, everything else that is computed is
//! shared too, with the room that is left. Its blocks are held while they are copied, a few megabytes per step, in
//! steps in which no request waits. If the store does not keep up, a request always waits, or room is short, the rest
//! is dropped: the next request that reuses the prefix offers it again.

use std::ops::Range;
use std::time::Duration;

use kvik_cache::tier::{run_after, runs};
use kvik_cache::{Identity, NamespaceId, SeqId, Token, whole_blocks};

use super::Disk;
use super::setup::RemoteWrites;
use super::spill::SpillContext;
use crate::schedule::namespaces::NamespaceTable;
use crate::schedule::ram::Ram;
use crate::store::remote::RemoteStore;

/// Maximum number of prefixes that wait to be offered.
const COPIES_MAX: usize = 64;
/// Maximum number of bytes copied in one step, not counting the last run.
const STEP_BYTES: usize = 4 << 20;
/// How long a prefix waits for room, and for steps in which no request waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// Computed tokens that are offered to other nodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offered<'a> {
    pub(crate) namespace: NamespaceId,
    pub(crate) tokens: &'a [Token],
    /// How long they stay without being used.
    pub(crate) ttl: Option<Duration>,
    /// Whether a second request used them.
    pub(crate) is_reused: bool,
}

/// Prefixes that wait to be offered: reused ones first, and within each group the oldest first.
#[derive(Debug, Default)]
pub(super) struct Copies(Vec<SharedCopy>);

/// A prefix whose blocks are held until they are copied.
#[derive(Debug)]
struct SharedCopy {
    /// Its sequence in the cache.
    seq: SeqId,
    namespace: NamespaceId,
    owner: u64,
    /// Whole blocks.
    tokens: Vec<Token>,
    /// Their identities.
    blocks: Vec<Identity>,
    /// Number of leading blocks that were offered or that the store has.
    offered: usize,
    ttl: Option<Duration>,
    /// When the last part of it was offered.
    since: Duration,
    is_reused: bool,
}

impl Copies {
    pub(super) fn namespaces(&self) -> impl Iterator<Item = NamespaceId> {
        self.0.iter().map(|copy| copy.namespace)
    }

    /// Number of blocks that were not offered yet.
    pub(super) fn blocks_left(&self) -> usize {
        self.0.iter().map(|copy| copy.blocks.len() - copy.offered).sum()
    }

    fn push(&mut self, copy: SharedCopy) {
        let at = match copy.is_reused {
            true => self.0.partition_point(|other| other.is_reused),
            false => self.0.len(),
        };
        self.0.insert(at, copy);
    }

    /// Removes and returns the copies beyond the limit.
    fn surplus(&mut self) -> Vec<SharedCopy> {
        self.0.split_off(self.0.len().min(COPIES_MAX))
    }

    /// Removes and returns the copies that are `unwanted`.
    fn give_up(&mut self, unwanted: impl Fn(&SharedCopy) -> bool) -> Vec<SharedCopy> {
        self.0.extract_if(.., |copy| unwanted(copy)).collect()
    }
}

impl Disk {
    /// Whether prefixes are offered that were used only once.
    pub(crate) fn shares_all(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.writes == RemoteWrites::All)
    }

    /// Queues the whole blocks of a prefix to be offered to other nodes, unless they have all of it.
    pub(crate) fn share(
        &mut self,
        prefix: &Offered<'_>,
        ram: &mut Ram,
        namespaces: &NamespaceTable,
        now: Duration,
    ) {
        let Offered { namespace, tokens, ttl, is_reused } = *prefix;
        let (roots, tokens) = (namespaces.roots(namespace), whole_blocks(tokens));
        let is_shared = self.shares(roots);
        let Some(remote) = self.remote.as_mut().filter(|_| is_shared) else { return };
        if remote.store.expected().is_none() {
            return;
        }
        let blocks: Vec<Identity> = roots.identity.blocks(tokens).collect();
        if !wants_some(&mut *remote.store, (roots.owner, ttl), &blocks) {
            return;
        }
        let (seq, cache) = (ram.new_seq(), &mut ram.cache);
        if cache.lease(seq, namespace, tokens) < tokens.len() {
            return cache.abandon(seq);
        }
        remote.copies.push(SharedCopy {
            seq,
            namespace,
            owner: roots.owner,
            tokens: tokens.to_vec(),
            blocks,
            offered: 0,
            ttl,
            since: now,
            is_reused,
        });
        remote.copies.surplus().iter().for_each(|copy| cache.abandon(copy.seq));
    }

    /// Offers what fits into one step, unless a request waits; returns the sequences whose blocks can be released.
    pub(crate) fn share_some(&mut self, is_busy: bool, context: SpillContext<'_>) -> Vec<SeqId> {
        let Some(remote) = &mut self.remote else { return Vec::new() };
        let late = remote.copies.give_up(|copy| context.now >= copy.since + PATIENCE);
        let mut ended: Vec<SeqId> = late.iter().map(|copy| copy.seq).collect();
        let mut left = if is_busy { 0 } else { STEP_BYTES };
        while left > 0 && !remote.copies.0.is_empty() {
            match remote.copies.offer_next(&mut *remote.store, remote.block_bytes, context) {
                Progress::Offered(bytes) => left = left.saturating_sub(bytes),
                Progress::NoRoom => break,
                Progress::Ended => ended.push(remote.copies.0.remove(0).seq),
            }
        }
        ended
    }

    /// Whether something may be offered now.
    pub(crate) fn may_offer(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| {
            let next = remote.copies.0.first().and_then(|copy| copy.next_run(remote.store.run_max()));
            next.is_some_and(|run| run.len() <= remote.store.room())
        })
    }

    /// When the first waiting copy has waited long enough.
    pub(crate) fn next_copy_deadline(&self) -> Option<Duration> {
        let copies = self.remote.iter().flat_map(|remote| &remote.copies.0);
        copies.map(|copy| copy.since + PATIENCE).min()
    }

    /// Drops the waiting copies that are unwanted; returns whether there were any.
    pub(super) fn drop_copies(
        &mut self,
        ram: &mut Ram,
        is_unwanted: impl Fn(NamespaceId, &[Token]) -> bool,
    ) -> bool {
        let Some(remote) = &mut self.remote else { return false };
        let dropped = remote.copies.give_up(|copy| is_unwanted(copy.namespace, &copy.tokens));
        dropped.iter().for_each(|copy| ram.cache.abandon(copy.seq));
        !dropped.is_empty()
    }
}

impl Copies {
    /// Offers the next run of the first prefix that the store wants. Ends early if a device has a fault, after which
    /// the bytes read may differ from the block.
    fn offer_next(
        &mut self,
        store: &mut dyn RemoteStore,
        block_bytes: usize,
        context: SpillContext<'_>,
    ) -> Progress {
        let SpillContext { cache, runner, now, .. } = context;
        let Some(copy) = self.0.first_mut() else { return Progress::Ended };
        while let Some(run) = copy.next_run(store.run_max()) {
            if run.len() > store.room() {
                return Progress::NoRoom;
            }
            copy.offered = run.end;
            let (end, table) = (copy.blocks[run.end - 1], &cache.table(copy.seq)[run.clone()]);
            let is_whole = table.iter().all(|&block| cache.has_part(block));
            if !is_whole || !store.wants(copy.owner, &end, run.len(), copy.ttl) {
                continue;
            }
            let mut bytes = vec![0; run.len() * block_bytes];
            table
                .iter()
                .zip(bytes.chunks_mut(block_bytes))
                .for_each(|(&block, to)| runner.read_block(block, to));
            if runner.fault().is_some() {
                return Progress::Ended;
            }
            copy.since = now;
            let offered = bytes.len();
            store.offer(copy.owner, end, bytes, cache.longest_ttl(copy.seq, run.end - 1, copy.ttl));
            return Progress::Offered(offered);
        }
        Progress::Ended
    }
}

/// Whether a store lacks a run of these blocks and accepts it now.
fn wants_some(
    store: &mut dyn RemoteStore,
    (owner, ttl): (u64, Option<Duration>),
    blocks: &[Identity],
) -> bool {
    let mut runs = runs(blocks.len(), store.run_max());
    runs.any(|run| store.wants(owner, &blocks[run.end - 1], run.len(), ttl))
}

impl SharedCopy {
    /// The next run to be offered.
    fn next_run(&self, run_max: usize) -> Option<Range<usize>> {
        run_after(self.offered, self.blocks.len(), run_max)
    }
}

/// The result of offering a run.
enum Progress {
    /// This many bytes were taken.
    Offered(usize),
    /// The store's write queue is full.
    NoRoom,
    /// Nothing is left of the prefix.
    Ended,
}
