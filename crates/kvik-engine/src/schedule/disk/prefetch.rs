//! Prefetching: loads prefixes at the start, before any request wants them. Pinned prefixes come first, then the
//! hottest ones, one at a time while no request waits, within a budget. Prefixes that other nodes have used are fetched
//! as long as the caller that asked for them waits.

use std::time::Duration;

use kvik_cache::tier::{Chain, SlotId};
use kvik_cache::{BLOCK_POSITIONS, Identity, NamespaceId, Token, whole_blocks};
use rustc_hash::FxHashMap;

use super::load::{Prefix, Reason};
use super::{Disk, LoadContext};
use crate::schedule::namespaces::NamespaceTable;

/// Maximum time for one prefix; a request that waits for it too has a patience of its own.
const PREFETCH_TIME: Duration = Duration::from_secs(30);

/// Cost of loading while no request waits for it, as a share of the time that it saves a request that would wait:
/// bandwidth and RAM that others may need.
const IDLE_COST: f64 = 0.1;

/// How long a prefix that other nodes have used stays here without being used.
const WARM_TTL: Duration = Duration::from_secs(3600);

/// A prefix that may be prefetched.
#[derive(Debug)]
pub(super) struct Candidate {
    pub(super) namespace: NamespaceId,
    source: Source,
}

/// Where a candidate is.
#[derive(Debug)]
enum Source {
    /// On disk.
    Disk(Chain),
    /// Possibly in the shared store; the tokens.
    Remote(Vec<Token>),
}

impl Candidate {
    fn is_remote(&self) -> bool {
        matches!(self.source, Source::Remote(_))
    }
}

impl Disk {
    /// Makes candidates of the prefixes in these namespaces that were hot when the previous process ended; once.
    pub(crate) fn add_candidates(&mut self, namespaces: &[NamespaceId], table: &NamespaceTable) {
        let roots: FxHashMap<Identity, NamespaceId> =
            namespaces.iter().map(|&id| (table.roots(id).identity, id)).collect();
        let (mine, others): (Vec<Chain>, Vec<Chain>) =
            std::mem::take(&mut self.found).into_iter().partition(|chain| roots.contains_key(&chain.root));
        self.found = others;
        // The best ones last, where they are popped.
        let mine = mine.into_iter().rev();
        let candidates = mine.map(|chain| {
            let namespace = roots[&chain.root];
            Candidate { namespace, source: Source::Disk(chain) }
        });
        self.candidates.splice(0..0, candidates);
    }

    /// Whether there are candidates left.
    pub(crate) fn has_candidates(&self) -> bool {
        !self.candidates.is_empty()
    }

    /// Drops all candidates: their namespace ids belong to another cache.
    pub(crate) fn drop_candidates(&mut self) {
        self.candidates.clear();
    }

    /// Makes candidates of prefixes that other nodes use, ahead of all others, the best first.
    pub(crate) fn add_remote_candidates(&mut self, prefixes: Vec<(NamespaceId, Vec<Token>)>) {
        let prefixes = prefixes.into_iter().rev();
        self.candidates.extend(
            prefixes.map(|(namespace, tokens)| Candidate { namespace, source: Source::Remote(tokens) }),
        );
    }

    /// Remaining candidates of other nodes, including those being fetched.
    pub(crate) fn remote_candidates(&self) -> usize {
        let left = self.candidates.iter().filter(|candidate| candidate.is_remote()).count();
        left + self.fetches()
    }

    /// Drops the candidates of other nodes.
    pub(crate) fn drop_remote_candidates(&mut self) {
        self.candidates.retain(|candidate| !candidate.is_remote());
    }

    /// Starts to load the next candidate, unless a load is in progress. No request may be waiting.
    pub(crate) fn prefetch(&mut self, context: &mut LoadContext<'_>) {
        while let Some(Candidate { namespace, source }) = self.next_candidate() {
            let prefix = match source {
                Source::Disk(chain) => self.disk_prefix(namespace, chain, context),
                Source::Remote(tokens) => self.remote_prefix(namespace, tokens, context),
            };
            let Some(prefix) = prefix else { continue };
            let time = prefix.remote_part.as_ref().map_or(PREFETCH_TIME, |part| part.patience);
            if self.start_load(prefix, context.now + time, Reason::Prefetch, context).is_some() {
                return;
            }
        }
    }

    /// The missing part of a candidate that is on disk.
    fn disk_prefix(
        &self,
        namespace: NamespaceId,
        chain: Chain,
        context: &mut LoadContext<'_>,
    ) -> Option<Prefix> {
        let known = context.ram.cache.lookup(namespace, &chain.tokens).tokens / BLOCK_POSITIONS;
        if known == chain.slots.len() {
            // A request has loaded it already.
            self.pin_as_on_disk(namespace, &chain.tokens, context);
            return None;
        }
        let slots = self.still_there(&chain, known, self.wall_s(context.now));
        Some(Prefix { namespace, tokens: chain.tokens, slots, pieces: Vec::new(), remote_part: None })
    }

    /// The missing part of a candidate that other nodes use.
    fn remote_prefix(
        &self,
        namespace: NamespaceId,
        mut tokens: Vec<Token>,
        context: &LoadContext<'_>,
    ) -> Option<Prefix> {
        tokens.truncate(whole_blocks(&tokens).len());
        let roots = context.namespaces.roots(namespace);
        let known = context.ram.cache.lookup(namespace, &tokens).tokens / BLOCK_POSITIONS;
        let local = known + self.find(roots, &tokens, known * BLOCK_POSITIONS, context.now).slots.len();
        let remote_part = self.remote_part(roots, &tokens, local, WARM_TTL).filter(|_| local == known)?;
        Some(Prefix {
            namespace,
            tokens,
            slots: Vec::new(),
            pieces: Vec::new(),
            remote_part: Some(remote_part),
        })
    }

    /// The best candidate that is worth loading, unless a load is in progress.
    fn next_candidate(&mut self) -> Option<Candidate> {
        if !self.loads.is_empty() {
            return None;
        }
        while let Some(candidate) = self.candidates.pop() {
            if self.is_worth_loading(&candidate) {
                return Some(candidate);
            }
        }
        None
    }

    /// Whether the time that a prefix is expected to save exceeds the cost of loading it. A use saves the wait for a
    /// load, or less if computing is faster.
    fn is_worth_loading(&self, candidate: &Candidate) -> bool {
        let Source::Disk(chain) = &candidate.source else { return true };
        let load_s = self.cost.load_time(self.reads(&chain.slots)).map_or(1.0, |time| time.as_secs_f64());
        let compute_s = self.cost.compute_time(chain.tokens.len()).map_or(load_s, |time| time.as_secs_f64());
        chain.expected_uses * load_s.min(compute_s) > IDLE_COST * load_s
    }

    /// The slots of a candidate from its block `known` on, if the disk still has all of them: as many blocks may be
    /// there that end with other tokens.
    fn still_there(&self, chain: &Chain, known: usize, now_s: u64) -> Vec<SlotId> {
        let found = self.tier.find(&chain.root, &chain.tokens, now_s);
        let whole = found.tokens == chain.tokens.len() && found.slots.len() == chain.slots.len();
        if whole { found.slots[known.min(found.slots.len())..].to_vec() } else { Vec::new() }
    }
}
