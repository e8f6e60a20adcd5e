//! The prefix of a waiting sequence that is computed already, and its reuse.
//!
//! Full blocks are found in the cache as soon as they are complete. The last block of a running sequence, not full yet,
//! is known to that sequence only: a new sequence that shares its tokens starts as a fork of it. So reuse is exact to
//! the token also among running sequences.

use kvik_cache::{Admission, AuxiliaryState, BLOCK_POSITIONS, Cache, Forked, SeqId, StopReason, Token};
use kvik_model::batch::Runner;

use super::prefix::{Known, Reused, common_prefix};
use super::ram::Ram;
use super::running::Running;
use super::sequence::{Sequence, Sharing};

/// Positions beyond its tokens that a sequence is admitted with.
pub(super) const HEADROOM: usize = BLOCK_POSITIONS;

/// The leading tokens that a waiting sequence need not compute.
pub(super) fn known(sequence: &Sequence, cache: &Cache, running: &Running) -> Known {
    let Sharing::Namespace(namespace) = sequence.sharing else { return Known::cached(0) };
    let cached = cache.lookup(namespace, sequence.reusable()).tokens;
    let sharers = running.iter().filter(|running| running.sharing == sequence.sharing);
    let forks =
        sharers.map(|running| (forkable(running, sequence.reusable(), cached, cache), Some(running.id)));
    let best = forks.max().filter(|&(tokens, _)| tokens > cached);
    let (tokens, running) = best.unwrap_or((cached, None));
    Known { tokens, running }
}

/// The leading `tokens` with which a fork of a running sequence can begin, if they may be more than the `cached` ones.
pub(super) fn forkable(running: &Sequence, tokens: &[Token], cached: usize, cache: &Cache) -> usize {
    // Tokens are compared only for a sequence that can have more: the same full blocks and a longer tail.
    let has_longer_tail =
        running.stored > cached && running.stored / BLOCK_POSITIONS == cached / BLOCK_POSITIONS;
    if !has_longer_tail || running.has_forgotten() {
        return 0;
    }
    let common = common_prefix(&running.tokens, tokens).min(running.stored);
    if cache.can_fork(running.id, common, running.stored) { common } else { 0 }
}

/// The running sequence whose prefill will leave the longest prefix of a waiting sequence, if that is longer than
/// `known` tokens. No foreground sequence waits for the background, which computes slowly.
pub(super) fn shared_prefill(
    waiting: &Sequence,
    known: usize,
    running: &Running,
    auxiliary: &AuxiliaryState,
) -> Option<SeqId> {
    let sources = if waiting.is_background() { running.len() } else { running.foreground() };
    let sharers = running.iter().take(sources).filter(|running| running.sharing == waiting.sharing);
    let shares = sharers.map(|running| (will_leave(running, waiting.reusable(), auxiliary), running.id));
    shares.max_by_key(|&(shared, _)| shared).filter(|&(shared, _)| shared > known).map(|(_, id)| id)
}

/// A sequence that is about to be admitted.
pub(super) struct Newcomer<'a> {
    pub(super) sequence: &'a Sequence,
    /// Its id when it runs.
    pub(super) id: SeqId,
    /// Positions beyond its tokens that it gets blocks for.
    pub(super) headroom: usize,
}

impl Newcomer<'_> {
    /// Takes over the known prefix of a sequence, and allocates blocks for the rest of its tokens and some more, so
    /// that it does not need the next one at once. While others run, one block for each of them must remain, and the
    /// reserve for the next compression: otherwise the next sequence that grows would preempt the new one.
    pub(super) fn take_blocks(
        &self,
        known: Known,
        ram: &mut Ram,
        running: &Running,
        runner: &mut dyn Runner,
    ) -> Option<Reused> {
        let needed = ram.needed(self.positions()) - known.tokens / BLOCK_POSITIONS;
        let left_free = running.reserve(Some(self.sequence)).unwrap_or(0);
        if !running.is_empty() && !ram.has_room(needed + left_free, running.len()) {
            return None;
        }
        match known.running.and_then(|id| running.find(id)) {
            Some(parent) => self.fork(parent, known.tokens, ram, runner),
            None => self.lease(ram, runner),
        }
    }

    /// Number of positions that it gets blocks for.
    fn positions(&self) -> usize {
        self.sequence.positions_max().min(self.sequence.reach() + self.headroom)
    }

    /// Takes over the prefix in the cache.
    fn lease(&self, ram: &mut Ram, runner: &mut dyn Runner) -> Option<Reused> {
        let (Sharing::Namespace(namespace) | Sharing::Private(namespace)) = self.sequence.sharing;
        let admission = Admission {
            seq: self.id,
            namespace,
            prompt: &self.sequence.tokens,
            reuse_max: self.sequence.reuse_max(),
            positions: self.positions(),
            lifetime: self.sequence.lifetime,
        };
        let admitted = ram.cache.admit(admission).ok()?;
        ram.carry_out(Forked { copy: admitted.copy, state: admitted.state }, runner);
        let stop = match self.sequence.sharing {
            Sharing::Namespace(_) => admitted.stop,
            Sharing::Private(_) => StopReason::Private,
        };
        Some(Reused { tokens: admitted.reused, stop, evicted: admitted.evicted })
    }

    /// Forks a running sequence after its first `tokens` tokens.
    fn fork(
        &self,
        parent: &Sequence,
        tokens: usize,
        ram: &mut Ram,
        runner: &mut dyn Runner,
    ) -> Option<Reused> {
        let prompt = &self.sequence.tokens;
        let begin = ram.cache.fork(parent.id, self.id, &prompt[..tokens]).ok()?;
        ram.carry_out(begin, runner);
        let cache = &mut ram.cache;
        cache.set_lifetime(self.id, self.sequence.lifetime);
        if cache.reserve(self.id, self.positions()).is_err() {
            cache.abandon(self.id);
            return None;
        }
        // A parent in the middle of its prefill has not computed everything that both share.
        let whole = parent.tokens.starts_with(prompt) && tokens == self.sequence.reuse_max();
        let stop = if whole { StopReason::Complete } else { StopReason::Diverged };
        Some(Reused { tokens, stop, evicted: None })
    }
}

/// Whether a running sequence is about to compute more than `known` tokens of a sequence that is admitted all the same.
pub(super) fn is_coming(
    admitted: &Sequence,
    known: usize,
    running: &Running,
    auxiliary: &AuxiliaryState,
) -> bool {
    let mut sharers = running.iter().filter(|running| running.sharing == admitted.sharing);
    sharers.any(|running| will_leave(running, admitted.reusable(), auxiliary) > known)
}

/// The leading `tokens` that a running sequence will leave for reuse when it has computed them; 0 if it will leave
/// nothing more. Auxiliary state is kept for others where the sequence comes by, and not where it already was: whoever
/// waited for that would wait for the whole prefill, in vain.
pub(super) fn will_leave(running: &Sequence, tokens: &[Token], auxiliary: &AuxiliaryState) -> usize {
    if !running.in_prefill() || running.has_forgotten() {
        return 0;
    }
    let common = common_prefix(&running.tokens, tokens).min(running.exact_until());
    if auxiliary.is_nothing() {
        return common;
    }
    // A state is kept at the end of a block, and where a sequence ends or begins its answer.
    let ends_there = common == running.tokens.len();
    let rest = if auxiliary.state_bytes > 0 && !ends_there { common % BLOCK_POSITIONS } else { 0 };
    if running.stored < common - rest { common - rest } else { 0 }
}
