//! Looks up the stored part of a prompt, decides whether reading it is worth while, and explains why no more is known.

use std::time::Duration;

use kvik_cache::tier::{ByLevel, Found, Relation, SlotId};
use kvik_cache::{BLOCK_POSITIONS, Followers, Identity, Match, StopReason, Token};

use super::states::{StoredState, before_pieces};
use super::{Disk, tokens_of};
use crate::schedule::namespaces::Roots;

/// Maximum number of private prompts that are remembered.
const PRIVATE_MAX: usize = 1 << 14;

/// The stored part of a prompt that is worth loading.
#[derive(Debug, Default)]
pub(super) struct Worth {
    /// Blocks.
    pub(super) slots: Vec<SlotId>,
    /// The pieces of the state after them; empty if no layer has a state.
    pub(super) pieces: Vec<SlotId>,
    /// Number of tokens before that state.
    pub(super) end: Option<usize>,
}

/// The stored part of a prompt behind the tokens that are known.
struct Loadable {
    worth: Worth,
    /// Number of tokens that it adds.
    tokens: usize,
    /// Number of blocks and pieces in each tier.
    reads: ByLevel,
    /// Why its last block was left out, or what continued it, if that is known.
    cut: Option<StopReason>,
}

impl Disk {
    /// Blocks stored after the whole blocks among the first `known` tokens.
    pub(super) fn find(&self, roots: &Roots, tokens: &[Token], known: usize, now: Duration) -> Found {
        if self.is_absent() {
            // The known blocks need not be named.
            return Found::default();
        }
        let (whole, rest) = tokens.split_at(known - known % BLOCK_POSITIONS);
        self.tier.find(&roots.identity_after(whole), rest, self.wall_s(now))
    }

    /// Like [`find`](Self::find), truncated to where a sequence can continue, with the state that it continues from if
    /// layers have one.
    fn find_usable(
        &self,
        roots: &Roots,
        tokens: &[Token],
        known: usize,
        now: Duration,
    ) -> (Found, Option<StoredState>) {
        let mut found = self.find(roots, tokens, known, now);
        if found.expired <= found.tokens {
            // What is left out below is not left out because it has expired.
            found.expired = 0;
        }
        self.leave_out_unusable(&mut found, known);
        if self.auxiliary.state_bytes == 0 || found.slots.is_empty() {
            return (found, None);
        }
        let whole = known - known % BLOCK_POSITIONS;
        // Where the state is, windowed layers see other blocks than at the end of the prefix.
        let sees = |end: usize| !self.lacks_part(&found, known, end);
        let stored = self.find_state(roots, &tokens[..whole + found.tokens], known, now, sees);
        found.tokens = stored.as_ref().map_or(0, |state| state.tokens - whole);
        found.slots.truncate(found.tokens.div_ceil(BLOCK_POSITIONS));
        (found, stored)
    }

    /// The tokens that followed `tokens` in stored blocks of a namespace, at most `most`.
    pub(crate) fn followers(
        &self,
        roots: &Roots,
        tokens: &[Token],
        most: usize,
        now: Duration,
    ) -> Option<Followers> {
        let mut found = self.tier.followers(&roots.identity, tokens, most, self.wall_s(now))?;
        before_pieces(&mut found.tokens);
        Some(found).filter(|found| !found.tokens.is_empty())
    }

    /// Whether a block is stored or being written.
    pub(crate) fn holds(&self, identity: &Identity, now: Duration) -> bool {
        self.tier.holds(identity, self.wall_s(now))
    }

    /// Number of tokens after the first `known` that could be loaded.
    pub(crate) fn tokens_after(&self, roots: &Roots, tokens: &[Token], known: usize, now: Duration) -> usize {
        let (found, _) = self.find_usable(roots, tokens, known, now);
        found.tokens.saturating_sub(known % BLOCK_POSITIONS)
    }

    /// The match of a prompt in RAM and on disk, of which the first `readable` tokens are looked up, and the tokens that
    /// the disk adds.
    pub(crate) fn lookup(
        &self,
        roots: &Roots,
        (prompt, readable): (&[Token], usize),
        ram: Match,
        now: Duration,
    ) -> (Match, ByLevel) {
        let because = |stop| (Match { stop, evicted: None, ..ram }, ByLevel::default());
        let stored = match self.loadable(roots, &prompt[..readable], ram.tokens, now) {
            Ok(stored) => stored,
            Err(reason) => {
                let reason = reason.or_else(|| self.miss_reason(roots, prompt, ram.stop, ram.tokens));
                return reason.map_or((ram, ByLevel::default()), because);
            }
        };
        if !self.cost.pays(self.cost.load_time(stored.reads), stored.tokens) {
            return because(StopReason::RecomputeWasCheaper);
        }
        let tokens = ram.tokens + stored.tokens;
        let stop = match stored.cut {
            _ if tokens == readable => StopReason::Complete,
            Some(cut) => cut,
            None if self.ends_within_a_block(&stored.worth, tokens) => StopReason::Diverged,
            None => StopReason::FirstSeen,
        };
        (Match { tokens, stop, evicted: None }, tokens_of(stored.tokens, stored.reads))
    }

    /// Whether the last of the stored blocks, of which `tokens` tokens of a prompt match, holds more than match.
    fn ends_within_a_block(&self, worth: &Worth, tokens: usize) -> bool {
        let partial = tokens % BLOCK_POSITIONS;
        let last = worth.slots.last().map(|&slot| self.tier.record(slot).tokens.as_slice().len());
        partial > 0 && last.is_some_and(|tokens| tokens > partial)
    }

    /// The slots of a prompt that are worth loading; and, if more is stored, why that is not worth it.
    pub(super) fn worth_loading(
        &mut self,
        roots: &Roots,
        tokens: &[Token],
        known: usize,
        now: Duration,
    ) -> (Worth, Option<StopReason>) {
        match self.loadable(roots, tokens, known, now) {
            Ok(stored) if self.cost.decide(stored.reads, stored.tokens) => (stored.worth, stored.cut),
            Ok(_) => (Worth::default(), Some(StopReason::RecomputeWasCheaper)),
            Err(reason) => (Worth::default(), reason),
        }
    }

    /// The stored part of a prompt, of which the first `known` tokens are in RAM; if it has no more of them, the reason,
    /// if that is known.
    fn loadable(
        &self,
        roots: &Roots,
        tokens: &[Token],
        known: usize,
        now: Duration,
    ) -> Result<Loadable, Option<StopReason>> {
        let (mut found, state) = self.find_usable(roots, tokens, known, now);
        let cut = (state.is_none() && self.trim(&mut found)).then_some(StopReason::RecomputeWasCheaper);
        let in_block = known % BLOCK_POSITIONS;
        let expired = (found.expired > found.tokens.max(in_block)).then_some(StopReason::Expired);
        if found.tokens <= in_block {
            return Err(cut.or(expired));
        }
        let cut = cut.or(expired.filter(|_| state.is_none()));
        let pieces = state.map_or_else(Vec::new, |state| state.pieces);
        let reads = self.reads(found.slots.iter().chain(&pieces));
        let end = (!pieces.is_empty()).then_some(known - in_block + found.tokens);
        let worth = Worth { slots: found.slots, pieces, end };
        Ok(Loadable { worth, tokens: found.tokens - in_block, reads, cut })
    }

    /// Removes the last blocks after which windowed layers could not continue because the part that they see is
    /// missing. The parts before the first `known` tokens are in RAM.
    fn leave_out_unusable(&self, found: &mut Found, known: usize) {
        let first = known / BLOCK_POSITIONS;
        while let Some(last) = found.slots.len().checked_sub(1) {
            if !self.lacks_part(found, known, first * BLOCK_POSITIONS + found.tokens) {
                return;
            }
            found.slots.pop();
            found.tokens = last * BLOCK_POSITIONS;
        }
    }

    /// Whether the blocks found after the first `known` tokens lack a part that windowed layers see at position `end`.
    fn lacks_part(&self, found: &Found, known: usize, end: usize) -> bool {
        let first = known / BLOCK_POSITIONS;
        let seen =
            self.auxiliary.first_part(end).saturating_sub(first)..end.div_ceil(BLOCK_POSITIONS) - first;
        found.slots.get(seen).unwrap_or_default().iter().any(|&slot| self.tier.record(slot).lacks_part)
    }

    /// Removes a partial last block that takes longer to load than to compute; returns whether it did.
    fn trim(&self, found: &mut Found) -> bool {
        let partial = found.tokens % BLOCK_POSITIONS;
        let last = self.reads(found.slots.last());
        let costs = self.cost.load_time(last).zip(self.cost.compute_time(partial));
        let costly = costs.is_some_and(|(load, compute)| load > compute);
        let trims = partial > 0 && found.slots.len() > 1 && costly;
        if trims {
            found.slots.pop();
            found.tokens -= partial;
        }
        trims
    }

    /// Why a prompt that its tenant may remember is not found: it was private, or it was computed for another model or
    /// in another format. `None` if RAM, which matches `known` tokens and stops for `stop`, has at least the first
    /// block or another reason.
    pub(crate) fn miss_reason(
        &self,
        roots: &Roots,
        tokens: &[Token],
        stop: StopReason,
        known: usize,
    ) -> Option<StopReason> {
        if self.is_absent() || stop != StopReason::FirstSeen || known >= BLOCK_POSITIONS {
            return None;
        }
        let key = roots.first_content_key(tokens);
        if self.private.contains(&key) {
            return Some(StopReason::Private);
        }
        self.related.get(&key).map(|relation| match relation {
            Relation::OtherModel => StopReason::OtherModel,
            Relation::OtherKvFormat => StopReason::OtherKvFormat,
        })
    }

    /// Records that a prompt was computed privately.
    pub(crate) fn note_private(&mut self, roots: &Roots, tokens: &[Token]) {
        if self.is_absent() {
            return;
        }
        if self.private.len() >= PRIVATE_MAX {
            self.private.clear();
        }
        self.private.insert(roots.first_content_key(tokens));
    }
}
