//! Offering computed blocks to the store that nodes share, behind everything else.
//!
//! A prefix that was used a second time is worth having elsewhere; so is, where the operator says so, all that is computed,
//! with what room is left. Its blocks are held while they are copied, a few megabytes a step, in steps in which nobody
//! waits. When the store does not keep up, or somebody always waits, or room is short, the rest is dropped: whoever comes
//! back to the prefix offers it again.

use std::ops::Range;
use std::time::Duration;

use kvik_cache::tier::{run_after, runs};
use kvik_cache::{Identity, NamespaceId, SeqId, Token, whole_blocks};

use super::setup::RemoteWrites;
use super::spill::SpillContext;
use super::{Disk, LoadContext};
use crate::schedule::ram::Ram;
use crate::store::remote::RemoteStore;

/// Prefixes that wait to be offered at most.
const COPIES_MAX: usize = 64;
/// Bytes that are copied in one step at most, one run aside.
const STEP_BYTES: usize = 4 << 20;
/// How long a prefix waits for room, and for steps in which nobody waits.
const PATIENCE: Duration = Duration::from_secs(5);

/// Tokens that are computed, and are offered to other nodes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Offered<'a> {
    pub(crate) namespace: NamespaceId,
    pub(crate) tokens: &'a [Token],
    /// How long they are kept without a use.
    pub(crate) ttl: Option<Duration>,
    /// Whether somebody came back to them.
    pub(crate) is_reused: bool,
}

/// What waits to be offered: prefixes that were used again first, and of equals the oldest.
#[derive(Debug, Default)]
pub(super) struct Copies(Vec<SharedCopy>);

/// A prefix whose blocks are held until they are copied.
#[derive(Debug)]
struct SharedCopy {
    /// Its name in the cache.
    seq: SeqId,
    namespace: NamespaceId,
    owner: u64,
    /// Whole blocks.
    tokens: Vec<Token>,
    /// Their names.
    blocks: Vec<Identity>,
    /// Blocks that were offered, or that the store has.
    offered: usize,
    ttl: Option<Duration>,
    /// When a part of it was taken last.
    since: Duration,
    is_reused: bool,
}

impl Copies {
    pub(super) fn namespaces(&self) -> impl Iterator<Item = NamespaceId> {
        self.0.iter().map(|copy| copy.namespace)
    }

    /// Blocks that were not offered yet.
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

    /// Those beyond the limit.
    fn surplus(&mut self) -> Vec<SharedCopy> {
        self.0.split_off(self.0.len().min(COPIES_MAX))
    }

    /// Takes out those that are `unwanted`.
    fn give_up(&mut self, unwanted: impl Fn(&SharedCopy) -> bool) -> Vec<SharedCopy> {
        self.0.extract_if(.., |copy| unwanted(copy)).collect()
    }
}

impl Disk {
    /// Whether prefixes are offered that nobody has come back to yet.
    pub(crate) fn shares_all(&self) -> bool {
        self.remote.as_ref().is_some_and(|remote| remote.writes == RemoteWrites::All)
    }

    /// Puts the whole blocks of a prefix on the list of what is offered to other nodes, unless they have all of it.
    pub(crate) fn share(&mut self, prefix: &Offered<'_>, context: &mut LoadContext<'_>) {
        let Offered { namespace, tokens, ttl, is_reused } = *prefix;
        let (roots, tokens) = (context.namespaces.roots(namespace), whole_blocks(tokens));
        let is_shared = self.shares(roots);
        let Some(remote) = self.remote.as_mut().filter(|_| is_shared) else { return };
        if remote.store.expected().is_none() {
            return;
        }
        let blocks: Vec<Identity> = roots.identity.blocks(tokens).collect();
        if !wants_some(&mut *remote.store, roots.owner, &blocks) {
            return;
        }
        let (seq, cache) = (context.ram.new_seq(), &mut context.ram.cache);
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
            since: context.now,
            is_reused,
        });
        remote.copies.surplus().iter().for_each(|copy| cache.abandon(copy.seq));
    }

    /// Offers what fits into one step, unless somebody waits; the sequences that need not be held any more.
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

    /// When the first that waits to be offered has waited long enough.
    pub(crate) fn next_copy_deadline(&self) -> Option<Duration> {
        let copies = self.remote.iter().flat_map(|remote| &remote.copies.0);
        copies.map(|copy| copy.since + PATIENCE).min()
    }

    /// Gives up what waits to be offered and is unwanted. Whether there was any.
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
    /// Offers the next run of the first prefix that the store wants. It ends early when a device has a fault, after which
    /// what it gives is not what the block holds.
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
            if !is_whole || !store.wants(copy.owner, &end, run.len()) {
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
            store.offer(copy.owner, end, bytes, copy.ttl);
            return Progress::Offered(offered);
        }
        Progress::Ended
    }
}

/// Whether a store lacks a run of these blocks, and takes it now.
fn wants_some(store: &mut dyn RemoteStore, owner: u64, blocks: &[Identity]) -> bool {
    let mut runs = runs(blocks.len(), store.run_max());
    runs.any(|run| store.wants(owner, &blocks[run.end - 1], run.len()))
}

impl SharedCopy {
    /// The next run to be offered.
    fn next_run(&self, run_max: usize) -> Option<Range<usize>> {
        run_after(self.offered, self.blocks.len(), run_max)
    }
}

/// What came of offering a run.
enum Progress {
    /// So many bytes were taken.
    Offered(usize),
    /// Others wait to be written.
    NoRoom,
    /// There is nothing left of the prefix.
    Ended,
}
