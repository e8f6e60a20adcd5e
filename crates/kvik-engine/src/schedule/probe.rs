//! What a request would find, without running it.

use std::time::Duration;

use kvik_cache::tier::Found;
use kvik_cache::{BLOCK_POSITIONS, Match, NamespaceId, StopReason, Token};

use super::Scheduler;
use super::disk::Disk;
use super::sequence::{Sequence, Sharing, common_prefix};
use crate::api::{Probe, Request};

impl Scheduler {
    /// What `request` would find if it were admitted now. Only its namespace is noted, when
    /// nobody has asked in it before, and what has outlived its time goes, as at every step.
    pub fn probe(&mut self, request: &Request) -> Probe {
        self.cache.set_now(self.now());
        let prompt = &request.prompt;
        // The last token is computed for its logits, when an answer is wanted.
        let reuse_max = prompt.len() - usize::from(request.max_tokens > 0);
        let (known, from_disk) = match request.reuse {
            false => (Match { tokens: 0, stop: StopReason::Private, evicted: None }, 0),
            true => {
                let namespace = self.shared_namespace(request.tenant, request.salt, prompt);
                self.below(namespace, prompt, self.above(namespace, prompt))
            }
        };
        let known_tokens = known.tokens.min(reuse_max);
        let in_ram = known.tokens - from_disk;
        Probe {
            prompt_tokens: prompt.len(),
            known_tokens,
            disk_tokens: known_tokens.saturating_sub(in_ram),
            stop: known.stop,
            evicted: known.evicted,
            at: self.now(),
        }
    }

    /// What RAM has of a prompt: the cache, and the sequences that run.
    fn above(&self, namespace: NamespaceId, prompt: &[Token]) -> Match {
        let sharers = self.running.iter().filter(|running| running.sharing == Sharing::Namespace(namespace));
        beside(sharers, prompt, self.cache.lookup(namespace, prompt))
    }

    /// What RAM and disk have of a prompt, and how many tokens of that the disk adds.
    fn below(&self, namespace: NamespaceId, prompt: &[Token], ram: Match) -> (Match, usize) {
        let settled = matches!(ram.stop, StopReason::Complete | StopReason::StillComputing);
        let Some(disk) = self.disk.as_ref().filter(|_| !settled) else { return (ram, 0) };
        let roots = &self.roots[&namespace];
        let (whole, rest) = prompt.split_at(ram.tokens - ram.tokens % BLOCK_POSITIONS);
        let mut found = disk.tier.find(&roots.identity_after(whole), rest, disk.wall_s(self.now()));
        let trimmed = disk.trim(&mut found);
        let tokens = whole.len() + found.tokens;
        let because = |stop| (Match { stop, evicted: None, ..ram }, 0);
        if tokens <= ram.tokens {
            let unknown = ram.stop == StopReason::FirstSeen && ram.tokens < BLOCK_POSITIONS;
            let elsewhere = || disk.elsewhere(roots, prompt).filter(|_| unknown);
            let cheaper = trimmed.then_some(StopReason::RecomputeWasCheaper);
            let expired = whole.len() + found.expired > ram.tokens;
            let expired = cheaper.or(expired.then_some(StopReason::Expired));
            return expired.or_else(elsewhere).map_or((ram, 0), because);
        }
        if !disk.would_load(&found, tokens - ram.tokens) {
            return because(StopReason::RecomputeWasCheaper);
        }
        let stop = match tokens == prompt.len() {
            true => StopReason::Complete,
            false if trimmed => StopReason::RecomputeWasCheaper,
            false if disk.goes_on(&found) => StopReason::Diverged,
            false => StopReason::FirstSeen,
        };
        (Match { tokens, stop, evicted: None }, tokens - ram.tokens)
    }
}

impl Disk {
    /// Whether loading looks faster than computing `tokens`, as far as both are known.
    fn would_load(&self, found: &Found, tokens: usize) -> bool {
        let load = self.cost.load_time(found.slots.len()).unwrap_or(Duration::ZERO);
        self.cost.compute_time(tokens).is_none_or(|compute| load < compute)
    }

    /// Whether the last block found holds more than was found of it.
    fn goes_on(&self, found: &Found) -> bool {
        let head = found.tokens % BLOCK_POSITIONS;
        let last = found.slots.last().map(|&slot| self.tier.record(slot).tokens.as_slice().len());
        head > 0 && last.is_some_and(|tokens| tokens > head)
    }
}

/// What is known of `prompt` beside what the cache has: the last block of a running sequence, and
/// what one is about to compute.
fn beside<'a>(sharers: impl Iterator<Item = &'a Sequence>, prompt: &[Token], cached: Match) -> Match {
    let mut known = cached;
    let mut coming = 0;
    for running in sharers {
        let common = common_prefix(&running.tokens, prompt);
        let stored = common.min(running.stored);
        if stored > known.tokens {
            let stop = if common == prompt.len() { StopReason::Complete } else { StopReason::Diverged };
            known = Match { tokens: stored, stop, evicted: None };
        }
        if running.in_prefill() {
            coming = coming.max(common);
        }
    }
    if coming > known.tokens {
        return Match { stop: StopReason::StillComputing, evicted: None, ..known };
    }
    known
}
