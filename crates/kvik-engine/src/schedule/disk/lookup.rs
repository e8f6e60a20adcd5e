//! Lookups in the shared store.
//!
//! A waiting request asks it once, while it queues, how much of its prompt it holds. What it holds beyond RAM and disk
//! becomes a part of the load, if fetching is expected to be faster than computing. The store estimates the time from
//! its measurements; without an estimate it is not asked, and a request that waited in vain has waited a small part of
//! what computing takes.

use std::time::Duration;

use kvik_cache::{BLOCK_POSITIONS, StopReason, Token};

use super::fetch::{Asked, Fetch, Wait};
use super::remote::{Remote, RemotePart};
use super::{Disk, LoadContext, Wanted};
use crate::schedule::namespaces::Roots;
use crate::store::remote::{Chain, Expected};

/// A lookup may take this many times its expected time, plus the grace.
const LATE: u32 = 4;
const LOOKUP_GRACE: Duration = Duration::from_millis(5);
/// Likewise for a fetch: beyond this, the store is more likely to have stopped than to be slow.
const FETCH_LATE: u32 = 2;
const FETCH_GRACE: Duration = Duration::from_millis(20);

/// How long fetched blocks stay if their request does not use them.
const UNUSED_TTL: Duration = Duration::from_secs(300);

impl Remote {
    /// Passes the answer to a waiting request, or ends its wait when its time is up.
    fn answer(&mut self, fetch: &mut Fetch, now: Duration) {
        let Wait::Asked { ticket, until } = fetch.wait else { return };
        let answer = self.answers.iter().find(|&&(answered, _)| answered == ticket);
        fetch.asked = match answer {
            Some(&(_, 0)) => Asked::Nothing,
            Some(&(_, blocks)) => Asked::Found(blocks),
            None if now >= until => {
                self.store.cancel(ticket, true);
                Asked::Down
            }
            None => return,
        };
        fetch.wait = Wait::Unasked;
    }
}

/// The leading whole blocks of a prompt.
fn chain(roots: &Roots, tokens: &[Token], blocks: usize) -> Chain {
    let names = roots.identity.blocks(&tokens[..blocks * BLOCK_POSITIONS]).collect();
    Chain { owner: roots.owner, blocks: names }
}

impl Disk {
    /// Asks the shared store once for what a waiting request wants; returns whether the request waits for the answer.
    pub(crate) fn look_up_remote(
        &mut self,
        fetch: &mut Fetch,
        wanted: Wanted<'_>,
        context: &LoadContext<'_>,
    ) -> bool {
        if self.remote.is_none() || fetch.wait != Wait::Unasked || fetch.asked != Asked::Unasked {
            return matches!(fetch.wait, Wait::Asked { .. });
        }
        fetch.asked = Asked::Nothing;
        let roots = *context.namespaces.roots(wanted.namespace);
        if !self.shares(&roots) {
            return false;
        }
        let known = wanted.known + self.tokens_after(&roots, wanted.tokens, wanted.known, context.now);
        let blocks = wanted.tokens.len() / BLOCK_POSITIONS;
        let missing = blocks.saturating_sub(known / BLOCK_POSITIONS);
        if missing == 0 {
            return false;
        }
        self.send_lookup(fetch, (&roots, wanted.tokens), (blocks, missing), context.now)
    }

    fn send_lookup(
        &mut self,
        fetch: &mut Fetch,
        (roots, tokens): (&Roots, &[Token]),
        (blocks, missing): (usize, usize),
        now: Duration,
    ) -> bool {
        let Some(remote) = &mut self.remote else { return false };
        let Some(expected) = remote.store.expected() else {
            fetch.asked = Asked::Down;
            return false;
        };
        if !self.cost.pays(Some(expected.time(1)), missing * BLOCK_POSITIONS) {
            remote.store.too_slow();
            return false;
        }
        let ticket = remote.ticket();
        remote.store.look_up(ticket, chain(roots, tokens, blocks));
        fetch.wait = Wait::Asked { ticket, until: now + expected.latency * LATE + LOOKUP_GRACE };
        true
    }

    /// Passes the shared store's answers to the requests that wait for them.
    pub(super) fn answer_lookup(&mut self, fetch: &mut Fetch, now: Duration) {
        if let Some(remote) = &mut self.remote {
            remote.answer(fetch, now);
        }
    }

    /// Discards answers that no request waits for.
    pub(crate) fn forget_answers(&mut self) {
        if let Some(remote) = &mut self.remote {
            remote.answers.clear();
        }
    }

    /// The whole blocks of a prompt from block `near` on, without comparing costs; `None` if the store does not
    /// respond.
    pub(super) fn remote_part(
        &self,
        roots: &Roots,
        tokens: &[Token],
        local: usize,
        ttl: Duration,
    ) -> Option<RemotePart> {
        let (blocks, remote) = (local..tokens.len() / BLOCK_POSITIONS, self.remote.as_ref()?);
        let expected = remote.store.expected().filter(|_| !blocks.is_empty() && self.shares(roots))?;
        let patience = patience(expected, blocks.len(), None);
        Some(RemotePart { chain: chain(roots, tokens, blocks.end), blocks, patience, ttl })
    }

    /// The part of a prompt that is worth fetching, given that RAM and disk have `near` whole blocks; or why what the
    /// store has is not worth fetching.
    pub(super) fn worth_fetching(
        &mut self,
        fetch: &Fetch,
        (roots, tokens): (&Roots, &[Token]),
        local: usize,
        ttl: Option<Duration>,
    ) -> Result<Option<RemotePart>, StopReason> {
        let shares = self.shares(roots);
        let (Asked::Found(found), Some(remote)) = (fetch.asked, &mut self.remote) else { return Ok(None) };
        let found = found.min(tokens.len() / BLOCK_POSITIONS);
        // The lookup was about the prompt, not about its compressed prefix.
        if found <= local || !shares {
            return Ok(None);
        }
        let Some(expected) = remote.store.expected() else { return Err(StopReason::RemoteDown) };
        let blocks = local..found;
        let tokens_fetched = blocks.len() * BLOCK_POSITIONS;
        if !self.cost.pays(Some(expected.time(blocks.len())), tokens_fetched) {
            remote.store.too_slow();
            return Err(StopReason::RemoteSlower);
        }
        let patience = patience(expected, blocks.len(), self.cost.compute_time(tokens_fetched));
        let ttl = ttl.map_or(UNUSED_TTL, |ttl| ttl.min(UNUSED_TTL));
        Ok(Some(RemotePart { chain: chain(roots, tokens, found), blocks, patience, ttl }))
    }
}

/// How long to wait for this many blocks, given the time in which they could be computed.
fn patience(expected: Expected, blocks: usize, compute: Option<Duration>) -> Duration {
    let late = expected.time(blocks) * FETCH_LATE + FETCH_GRACE;
    compute.map_or(late, |compute| late.min(compute))
}

impl Fetch {
    /// Reports that the shared store, which could have more of a prompt, does not respond.
    pub(crate) fn unasked_remote(&self, stop: StopReason) -> Option<StopReason> {
        let might_have = matches!(
            stop,
            StopReason::FirstSeen | StopReason::Diverged | StopReason::Evicted | StopReason::Expired
        );
        (might_have && self.asked == Asked::Down).then_some(StopReason::RemoteDown)
    }
}
