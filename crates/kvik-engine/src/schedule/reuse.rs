//! What of a waiting sequence is computed already, and taking it over.
//!
//! Full blocks are found in the cache as soon as they are complete. The last block of a running
//! sequence, not full yet, is known to that sequence only: a newcomer that shares its tokens
//! starts as a fork of it. So reuse is exact to the token also among those that run.

use kvik_cache::{Admission, BLOCK_POSITIONS, Cache, Eviction, SeqId, StopReason, blocks_for};

use super::Scheduler;
use super::sequence::{Sequence, Sharing};
use crate::model::batch::Runner;

/// Positions beyond its tokens that a sequence is admitted with.
pub(super) const HEADROOM: usize = BLOCK_POSITIONS;

/// Leading tokens of a sequence that are computed.
#[derive(Debug, Clone, Copy)]
pub(super) struct Known {
    pub(super) tokens: usize,
    /// The running sequence that has them, when the cache alone does not.
    running: Option<SeqId>,
}

/// What a sequence starts with.
#[derive(Debug, Clone, Copy)]
pub(super) struct Reused {
    pub(super) tokens: usize,
    /// Why it is not more.
    pub(super) stop: StopReason,
    /// How what comes next was evicted; none when it was not.
    pub(super) evicted: Option<Eviction>,
}

impl Scheduler {
    /// Leading tokens that a waiting sequence need not compute.
    pub(super) fn known(&self, sequence: &Sequence) -> Known {
        let Sharing::Namespace(namespace) = sequence.sharing else {
            return Known { tokens: 0, running: None };
        };
        let tokens = self.cache.lookup(namespace, &sequence.tokens).tokens.min(sequence.reuse_max());
        // Comparing tokens is for those that can have more: the same full blocks and a longer tail.
        let longer = self.running.iter().filter(|running| {
            running.sharing == sequence.sharing
                && running.stored > tokens
                && running.stored / BLOCK_POSITIONS == tokens / BLOCK_POSITIONS
        });
        let shared = |running: &Sequence| {
            let common = running.common(sequence).min(running.stored).min(sequence.reuse_max());
            (common, Some(running.id))
        };
        let best = longer.map(shared).max().filter(|&(shared, _)| shared > tokens);
        let (tokens, running) = best.unwrap_or((tokens, None));
        Known { tokens, running }
    }

    /// Takes over what is known of a sequence, and blocks for the rest of its tokens and some
    /// more, so that it does not have to ask for the next one at once. While others run, one
    /// block for each of them must remain: else the next that grows would preempt the newcomer.
    pub(super) fn take_blocks(
        &mut self,
        index: usize,
        id: SeqId,
        known: Known,
        headroom: usize,
        runner: &mut dyn Runner,
    ) -> Option<Reused> {
        let sequence = &self.waiting[index].sequence;
        let positions = sequence.positions_max().min(sequence.tokens.len() + headroom);
        let needed = blocks_for(positions) - known.tokens / BLOCK_POSITIONS;
        let stats = self.cache.stats();
        if !self.running.is_empty() && needed + self.running.len() > stats.free + stats.evictable {
            return None;
        }
        let newcomer = Newcomer { sequence, id, positions };
        let parent = known.running.and_then(|id| self.running.iter().find(|running| running.id == id));
        match parent {
            Some(parent) => newcomer.fork(parent, known.tokens, &mut self.cache, runner),
            None => newcomer.lease(&mut self.cache, runner),
        }
    }
}

/// A sequence on its way from the queue to the running ones.
struct Newcomer<'a> {
    sequence: &'a Sequence,
    /// Its name when it runs.
    id: SeqId,
    /// Positions that it gets blocks for.
    positions: usize,
}

impl Newcomer<'_> {
    /// Takes what the cache has.
    fn lease(&self, cache: &mut Cache, runner: &mut dyn Runner) -> Option<Reused> {
        let (Sharing::Namespace(namespace) | Sharing::Private(namespace)) = self.sequence.sharing;
        let admission = Admission {
            seq: self.id,
            namespace,
            prompt: &self.sequence.tokens,
            reuse_max: self.sequence.reuse_max(),
            positions: self.positions,
            retain: self.sequence.retain,
        };
        let admitted = cache.admit(admission).ok()?;
        if let Some(copy) = admitted.copy {
            runner.copy_partial(copy.from, copy.to, copy.positions);
        }
        let stop = match self.sequence.sharing {
            Sharing::Namespace(_) => admitted.stop,
            Sharing::Private(_) => StopReason::Private,
        };
        Some(Reused { tokens: admitted.reused, stop, evicted: admitted.evicted })
    }

    /// Takes the first `tokens` tokens of a running sequence.
    fn fork(
        &self,
        parent: &Sequence,
        tokens: usize,
        cache: &mut Cache,
        runner: &mut dyn Runner,
    ) -> Option<Reused> {
        let prompt = &self.sequence.tokens;
        let copy = cache.fork(parent.id, self.id, &prompt[..tokens]).ok()?;
        if let Some(copy) = copy {
            runner.copy_partial(copy.from, copy.to, copy.positions);
        }
        cache.retain(self.id, self.sequence.retain);
        if cache.reserve(self.id, self.positions).is_err() {
            cache.abandon(self.id);
            return None;
        }
        let whole = parent.tokens.starts_with(prompt);
        let stop = if whole { StopReason::Complete } else { StopReason::Diverged };
        Some(Reused { tokens, stop, evicted: None })
    }
}

/// Leading tokens that `waiting` will be able to reuse at the end of the prefill of `running`.
pub(super) fn will_compute(running: &Sequence, waiting: &Sequence) -> usize {
    if !running.in_prefill() || running.sharing != waiting.sharing {
        return 0;
    }
    running.common(waiting).min(waiting.reuse_max())
}
