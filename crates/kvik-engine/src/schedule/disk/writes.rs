//! The write policy at work: which blocks of a sequence are written and when, the ends that wait, the budget of a day.

use std::time::Duration;

use kvik_cache::tier::{ByLevel, End, Ends, Level, Wear, WritePolicy};
use kvik_cache::{AuxiliaryState, BLOCK_POSITIONS, Lifetime, NamespaceId, SeqId, Token, whole_blocks};

use super::Disk;
use super::setup::DiskWrites;
use super::spill::{Spilled, Stored, ttl_s};
use crate::schedule::ram::Ram;
use crate::store::BlockStore;

/// The write policy of a tier, and what it knows.
pub(super) struct Writes {
    policy: WritePolicy,
    day_bytes_max: Option<u64>,
    ends: Ends<LastUse>,
}

/// The last use of an end: it lives on from then, however late it is written.
#[derive(Debug, Clone, Copy)]
struct LastUse {
    lifetime: Lifetime,
    at: Duration,
}

impl Writes {
    /// The policy `wanted`, where blocks can wait. States and windows are gone when their sequence moves on, so where
    /// there are any everything is written as it is computed; and so is what a GPU computes, since the host's memory
    /// below it holds only what is written.
    pub(super) fn new(wanted: DiskWrites, auxiliary: &AuxiliaryState, store: &dyn BlockStore) -> Writes {
        let waits = auxiliary.is_nothing() && store.host().is_none();
        Writes {
            policy: if waits { wanted.policy } else { WritePolicy::All },
            day_bytes_max: wanted.day_bytes_max,
            ends: Ends::default(),
        }
    }

    /// The policy in force.
    pub(super) fn policy(&self) -> WritePolicy {
        self.policy
    }

    /// Blocks that wait to be written until they leave RAM.
    pub(super) fn blocks_waiting(&self) -> usize {
        self.ends.blocks_waiting()
    }

    /// Leading blocks of a running sequence that are written now, pinned ones not counted.
    pub(super) fn due_while_running(&self, spilled: &Spilled) -> usize {
        match self.policy {
            WritePolicy::All => usize::MAX,
            WritePolicy::Reused => spilled.reused_blocks(),
            WritePolicy::Auto => 0,
        }
    }

    /// Whether the budget of a day, if there is one, has not been used up.
    pub(super) fn has_budget(&self, wear: &Wear, now_s: u64) -> bool {
        self.day_bytes_max.is_none_or(|max| wear.today(now_s) < max)
    }

    /// Forgets the ends that are unwanted.
    pub(super) fn forget(&mut self, is_unwanted: impl Fn(NamespaceId, &[Token]) -> bool) {
        self.ends.retain(|end| !is_unwanted(end.namespace, &end.tokens));
    }
}

impl Disk {
    /// Takes note of a sequence that has ended: what is worth writing now is held until it is copied, and the rest waits.
    pub(crate) fn spill_ended(
        &mut self,
        spilled: Spilled,
        stored: &Stored<'_>,
        ram: &mut Ram,
        now: Duration,
    ) {
        let due = match self.write_policy.policy {
            WritePolicy::All => stored.tokens.len(),
            WritePolicy::Reused => spilled.reused_tokens(),
            WritePolicy::Auto => self.add_end(stored, now),
        };
        let tokens = &stored.tokens[..due.min(stored.tokens.len())];
        // The end of what others share has a use of its own, which counts when it is written.
        let is_shared = self.write_policy.policy == WritePolicy::Auto && due > spilled.tokens();
        if is_shared {
            self.keep_spilled(&spilled, ttl_s(stored.lifetime.ttl), self.wall_s(now));
        }
        let spilled = if is_shared { Spilled::default() } else { spilled };
        self.spill_later(spilled, &Stored { tokens, ..*stored }, ram, now);
    }

    /// Lets the end of a sequence wait. Returns how many of its tokens other conversations begin with.
    pub(crate) fn add_end(&mut self, stored: &Stored<'_>, now: Duration) -> usize {
        if self.write_policy.policy != WritePolicy::Auto || self.is_absent() {
            return 0;
        }
        let Stored { namespace, tokens, prompt, lifetime, .. } = *stored;
        let end = End {
            namespace,
            tokens: whole_blocks(tokens).to_vec(),
            prompt_len: prompt.len(),
            more: LastUse { lifetime, at: now },
        };
        self.write_policy.ends.add(end, now)
    }

    /// Writes the ends that are about to leave RAM, if that pays: they are likely to go on, and reading them is faster
    /// than computing them.
    pub(crate) fn spill_leaving(&mut self, ram: &mut Ram, now: Duration) {
        let leaving = self.write_policy.ends.leave(Ends::<LastUse>::safe_blocks(ram.config.blocks), now);
        for end in leaving {
            if self.is_worth_writing(end.tokens.len()) {
                self.spill_end(&end, ram);
            }
        }
    }

    /// Writes the ends that are likely to go on after the next start, the latest first.
    pub(crate) fn spill_likely(&mut self, ram: &mut Ram, now: Duration) {
        let likely = self.write_policy.ends.take_likely(now);
        likely.iter().for_each(|end| self.spill_end(end, ram));
    }

    /// Writes all that waits, the latest first.
    pub(crate) fn spill_waiting(&mut self, ram: &mut Ram) {
        let waiting = self.write_policy.ends.take_all();
        waiting.iter().for_each(|end| self.spill_end(end, ram));
    }

    /// Forgets the ends and the states in namespaces that are gone.
    pub(crate) fn keep_ends(&mut self, is_there: impl Fn(NamespaceId) -> bool) {
        self.write_policy.forget(|namespace, _| !is_there(namespace));
        self.states.forget(|namespace, _| !is_there(namespace));
    }

    /// Holds what RAM still has of an end until it is copied.
    fn spill_end(&mut self, end: &End<LastUse>, ram: &mut Ram) {
        let End { namespace, ref tokens, prompt_len, more: LastUse { lifetime, at } } = *end;
        if ram.cache.has_namespace(namespace) {
            let prompt = tokens.get(..prompt_len).unwrap_or_default();
            let stored = Stored { seq: SeqId(0), namespace, tokens, prompt, lifetime };
            // From its beginning: what was on disk when it ended may be gone.
            self.hold(Spilled::default(), &stored, ram, at);
        }
    }

    /// Whether reading an end of so many tokens from the disk is faster than computing it, as far as both are known. A
    /// decision against it makes the next one more lenient: what is not written is not read, and measures nothing.
    pub(super) fn is_worth_writing(&mut self, tokens: usize) -> bool {
        self.cost.decide(ByLevel::of(Level::Disk, tokens / BLOCK_POSITIONS), tokens)
    }
}
