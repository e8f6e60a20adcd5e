//! Waiting for the disk. A request that finds more of its prompt stored than is in RAM waits while that is read, at
//! most as long as computing it would take. A request that has nothing on disk never waits for others that have.

use std::time::Duration;

use kvik_cache::tier::{ByLevel, Level};
use kvik_cache::{BLOCK_POSITIONS, NamespaceId, SeqId, StopReason, Token};

use super::find::Worth;
use super::load::{EndedLoad, Load, Prefix, Reason};
use super::{Disk, LoadContext, tokens_of};
use crate::schedule::namespaces::Roots;
use crate::schedule::prefix::common_prefix;

/// Maximum time of a load while the compute rate is not known.
const PATIENCE: Duration = Duration::from_secs(2);
/// The estimate for computing may be too low; a load that is nearly done is not given up for that.
const GRACE: Duration = Duration::from_millis(20);

/// The disk's work for a waiting request.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Fetch {
    pub(super) wait: Wait,
    /// Tokens that were in RAM when the disk was asked.
    known: usize,
    /// Tokens that will be in RAM when the load ends, if there is one.
    promised: usize,
    /// Where the blocks were when the load began.
    reads: ByLevel,
    /// Tokens before those that come from the shared store, if some do.
    local: Option<usize>,
    /// The shared store's answer, as far as known.
    pub(super) asked: Asked,
    /// Why the disk did not help, if it had something.
    verdict: Option<StopReason>,
}

/// The wait state of a request.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Wait {
    /// The disk has not been asked.
    #[default]
    Unasked,
    /// The shared store has been asked.
    Asked { ticket: u64, until: Duration },
    /// There is something to be read, but the maximum number of loads is active.
    Capacity { until: Duration },
    /// The request waits for a load.
    Load { seq: SeqId, until: Duration },
    /// The request does not wait any more.
    Over,
}

/// The answer of the shared store to a request's lookup.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) enum Asked {
    /// Not asked yet.
    #[default]
    Unasked,
    /// The store has nothing.
    Nothing,
    /// The store does not respond.
    Down,
    /// The store has this many leading blocks.
    Found(usize),
}

/// The part of its prompt that a waiting request wants.
#[derive(Clone, Copy)]
pub(crate) struct Wanted<'a> {
    pub(crate) namespace: NamespaceId,
    /// The tokens that it may reuse.
    pub(crate) tokens: &'a [Token],
    /// How many of them are in RAM.
    pub(crate) known: usize,
    /// How long they stay without being used.
    pub(crate) ttl: Option<Duration>,
}

impl Fetch {
    /// Whether its request may be considered for admission, when `loads` more loads may start. Each request that waits
    /// for capacity takes one of them.
    pub(crate) fn may_go_on(&self, loads: &mut usize, now: Duration) -> bool {
        match self.wait {
            Wait::Unasked | Wait::Over => true,
            Wait::Load { .. } | Wait::Asked { .. } => false,
            Wait::Capacity { until } if now >= until => true,
            Wait::Capacity { .. } => {
                let free = *loads > 0;
                *loads = loads.saturating_sub(1);
                free
            }
        }
    }

    /// Whether neither the disk nor the shared store was asked.
    pub(crate) fn is_unasked(&self) -> bool {
        self.wait == Wait::Unasked && self.asked == Asked::Unasked
    }

    /// Whether the request waits for this load.
    pub(crate) fn waits_for(&self, load: SeqId) -> bool {
        matches!(self.wait, Wait::Load { seq, .. } if seq == load)
    }

    /// Whether the request waits until more loads may start.
    pub(crate) fn waits_for_capacity(&self) -> bool {
        matches!(self.wait, Wait::Capacity { .. })
    }

    /// A request that waits until more loads may start, or for this long.
    #[cfg(test)]
    pub(crate) fn without_capacity(until: Duration) -> Fetch {
        Fetch { wait: Wait::Capacity { until }, ..Fetch::default() }
    }

    /// When the wait ends: no request waits longer than computing would take.
    pub(crate) fn until(&self) -> Option<Duration> {
        match self.wait {
            Wait::Asked { until, .. } | Wait::Capacity { until } | Wait::Load { until, .. } => Some(until),
            Wait::Unasked | Wait::Over => None,
        }
    }

    /// The tokens among `cached` that were loaded.
    pub(crate) fn loaded(&self, cached: usize) -> ByLevel {
        let cached = cached.min(self.promised);
        let local = self.local.unwrap_or(cached).min(cached);
        let mut loaded = tokens_of(local.saturating_sub(self.known), self.reads);
        loaded[Level::Remote] = cached - local.max(self.known).min(cached);
        loaded
    }

    /// Why the disk did not help a request that reuses `reused` tokens, if it had something. What has expired is no reason for
    /// one that reuses more than was there: others have computed it meanwhile.
    pub(crate) fn verdict_for(&self, reused: usize) -> Option<StopReason> {
        self.verdict.filter(|why| *why != StopReason::Expired || reused <= self.promised)
    }

    /// Why no more of a prompt is read, given what the disk and the shared store say of it, and whether `more` of it is
    /// fetched from there. That the rest has expired here says less than anything of the store, which may have it.
    fn why_no_more(
        &self,
        disk: Option<StopReason>,
        store: Option<StopReason>,
        more: bool,
    ) -> Option<StopReason> {
        match disk {
            Some(StopReason::Expired) if more => None,
            Some(StopReason::Expired) => store.or_else(|| self.unasked_remote(StopReason::Expired)).or(disk),
            _ => disk.or(store),
        }
    }

    /// Ends the wait for a load; its request continues with what is there.
    pub(crate) fn end_with(&mut self, load: &EndedLoad) {
        if self.waits_for(load.seq) {
            self.wait = Wait::Over;
            if self.promised > load.tokens {
                self.verdict = Some(load.verdict);
                // The tokens that others compute meanwhile were not loaded.
                self.promised = load.tokens;
            }
        }
    }

    fn give_up(&mut self) {
        self.give_up_for(StopReason::RecomputeWasCheaper);
    }

    fn give_up_for(&mut self, why: StopReason) {
        (self.wait, self.verdict) = (Wait::Over, Some(why));
    }
}

impl Disk {
    /// Returns whether a waiting request keeps waiting, because the disk has more of its prompt than is known.
    pub(crate) fn fetch(
        &mut self,
        fetch: &mut Fetch,
        wanted: Wanted<'_>,
        context: &mut LoadContext<'_>,
    ) -> bool {
        match fetch.wait {
            Wait::Unasked => self.look_up_remote(fetch, wanted, context) || self.ask(fetch, wanted, context),
            Wait::Asked { .. } => true,
            Wait::Capacity { until } if context.now >= until => {
                fetch.give_up();
                false
            }
            Wait::Capacity { .. } => self.loads_left() == 0 || self.ask(fetch, wanted, context),
            Wait::Load { .. } => true,
            Wait::Over => false,
        }
    }

    /// Looks up what a request wants and starts to load it; returns whether the request waits for that.
    fn ask(&mut self, fetch: &mut Fetch, wanted: Wanted<'_>, context: &mut LoadContext<'_>) -> bool {
        let Wanted { namespace, tokens, known, .. } = wanted;
        let roots = context.namespaces.roots(namespace);
        let (worth, near_verdict) = self.worth_loading(roots, tokens, known, context.now);
        let until = fetch.until();
        let (prefix, far_verdict) = self.prefix(fetch, wanted, roots, worth);
        let verdict = fetch.why_no_more(near_verdict, far_verdict, prefix.remote_part.is_some());
        *fetch = Fetch { wait: Wait::Over, known, promised: known, verdict, ..*fetch };
        if prefix.slots.is_empty() && prefix.remote_part.is_none() {
            return false;
        }
        let promised = common_prefix(tokens, &prefix.tokens);
        let deadline = context.now + self.patience(&prefix, known, promised);
        let until = until.unwrap_or(deadline);
        // No request waits for less than a block until others are done.
        let small = promised < known + BLOCK_POSITIONS;
        let full = self.loads_left() == 0;
        let load = match self.covering(namespace, &tokens[..promised]) {
            Some(load) => (!small).then_some(load),
            None if full => None,
            None => self.start_load(prefix, deadline, Reason::Wanted, context),
        };
        match load {
            Some(seq) => {
                // This may be another request's load, which reads the same blocks from elsewhere.
                let load = self.load(seq);
                let reads = load.map_or_else(ByLevel::default, |load| load.reads);
                let local = load.and_then(Load::local);
                let wait = Wait::Load { seq, until };
                *fetch = Fetch { wait, known, promised, reads, local, ..*fetch };
            }
            // If there is no room for a load, there is none for the sequence either, unless no sequence runs.
            None if !small && (full || context.running > 0) => fetch.wait = Wait::Capacity { until },
            None => fetch.give_up(),
        }
        fetch.wait != Wait::Over
    }

    /// The prefix to read: blocks on disk, followed by blocks of other nodes; and, if the store has such blocks and
    /// they are not fetched, why not.
    fn prefix(
        &mut self,
        fetch: &Fetch,
        wanted: Wanted<'_>,
        roots: &Roots,
        worth: Worth,
    ) -> (Prefix, Option<StopReason>) {
        let Wanted { namespace, tokens: wanted, known, ttl } = wanted;
        let Worth { mut slots, pieces, end } = worth;
        let first = known / BLOCK_POSITIONS;
        let mut tokens = wanted[..first * BLOCK_POSITIONS].to_vec();
        tokens.extend(slots.iter().flat_map(|&slot| self.tier.record(slot).tokens.as_slice()));
        tokens.truncate(end.unwrap_or(usize::MAX));
        let local = common_prefix(wanted, &tokens) / BLOCK_POSITIONS;
        let (remote_part, verdict) = match self.worth_fetching(fetch, (roots, wanted), local, ttl) {
            Ok(remote_part) => (remote_part, None),
            Err(why) => (None, Some(why)),
        };
        if let Some(remote_part) = &remote_part {
            // A partial last block is replaced by a whole one.
            slots.truncate(local - first);
            tokens = wanted[..remote_part.blocks.end * BLOCK_POSITIONS].to_vec();
        }
        (Prefix { namespace, tokens, slots, pieces, remote_part }, verdict)
    }

    fn load(&self, seq: SeqId) -> Option<&Load> {
        self.loads.iter().find(|load| load.seq == seq)
    }

    /// A load that reads all of these tokens.
    fn covering(&self, namespace: NamespaceId, tokens: &[Token]) -> Option<SeqId> {
        let covers =
            |load: &&Load| load.namespace == namespace && common_prefix(tokens, &load.tokens) >= tokens.len();
        self.loads.iter().find(covers).map(|load| load.seq)
    }

    /// Ends the wait of a request whose load has progressed far enough or whose patience has ended.
    pub(crate) fn end_wait(&mut self, fetch: &mut Fetch, now: Duration) {
        self.answer_lookup(fetch, now);
        let Wait::Load { seq, until } = fetch.wait else { return };
        let Some(load) = self.load(seq) else { return };
        // A state is of use to others only when the load has ended.
        if load.ready_tokens().len() >= fetch.promised && !load.reads_state() {
            fetch.wait = Wait::Over;
        } else if now >= until {
            fetch.promised = fetch.promised.min(load.ready_tokens().len());
            fetch.give_up_for(load.why_no_more(now));
        }
    }

    /// How long to wait for the rest of `promised` tokens, of which `known` are there: as long as computing would take,
    /// and for other nodes as long as they are expected to take.
    fn patience(&self, prefix: &Prefix, known: usize, promised: usize) -> Duration {
        let compute = |tokens| self.cost.compute_time(tokens).map_or(PATIENCE, |compute| compute + GRACE);
        match &prefix.remote_part {
            None => compute(promised.saturating_sub(known)),
            Some(remote_part) if prefix.slots.is_empty() => remote_part.patience,
            Some(remote_part) => {
                let local = (remote_part.blocks.start * BLOCK_POSITIONS).saturating_sub(known);
                compute(local) + remote_part.patience
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use kvik_cache::StopReason::{Expired, RecomputeWasCheaper, RemoteDown, RemoteSlower};

    use super::*;

    #[test]
    fn what_has_expired_here_says_less_than_the_store() {
        let (found, expired, cheaper) = (Asked::Found(9), Some(Expired), Some(RecomputeWasCheaper));
        for (asked, disk, store, more, expected) in [
            (Asked::Nothing, expired, None, false, expired),
            (Asked::Down, expired, None, false, Some(RemoteDown)),
            (found, expired, Some(RemoteSlower), false, Some(RemoteSlower)),
            (found, expired, None, true, None),
            (found, cheaper, Some(RemoteSlower), false, cheaper),
            (found, None, Some(RemoteSlower), false, Some(RemoteSlower)),
        ] {
            let why = Fetch { asked, ..Fetch::default() }.why_no_more(disk, store, more);
            assert_eq!(why, expected, "{asked:?}, {disk:?}, {store:?}, {more}");
        }
    }

    /// While the request waited for 96 tokens, others have computed what came after them.
    #[test]
    fn what_has_expired_is_no_reason_for_one_that_reuses_more_than_was_there() {
        for (why, reused, expected) in [
            (Expired, 96, Some(Expired)),
            (Expired, 97, None),
            (RecomputeWasCheaper, 97, Some(RecomputeWasCheaper)),
        ] {
            let fetch = Fetch { promised: 96, verdict: Some(why), ..Fetch::default() };
            assert_eq!(fetch.verdict_for(reused), expected, "{why:?} of {reused}");
        }
    }
}
