//! Predicts the cache hits of a request without running it.

use kvik_cache::tier::{ByLevel, Level};
use kvik_cache::{Match, StopReason, Token};

use super::forget::Forgetting;
use super::namespaces::{Place, Sharers};
use super::prefix::ReuseLimits;
use super::prefixes::Prefixes;
use super::ram::Ram;
use super::reuse::{forkable, will_leave};
use super::running::Running;
use super::sequence::{Sequence, Sharing};
use super::submission::{forgetting, shares_its_own_only};
use crate::api::{PinnedPrompt, Probe, Request, Wants};
use crate::config::EngineConfig;

impl Prefixes {
    /// The match that `request` would find if it were admitted now, next to the running sequences.
    pub(super) fn probe(&mut self, request: &Request, running: &Running, config: &EngineConfig) -> Probe {
        self.keep_time();
        let (found, loaded) = match request.reuse {
            false => (stopped(0, StopReason::Private), ByLevel::default()),
            true => self.predict(request, running, config),
        };
        Probe {
            prompt_tokens: request.prompt.len(),
            known_tokens: found.tokens,
            loaded,
            retokenised: request.retokenised_tokens(),
            stop: found.stop,
            evicted: found.evicted,
            at: self.ram.cache.now(),
        }
    }

    /// The match of a request that is not private, and those of its tokens that are loaded from below RAM.
    fn predict(&self, request: &Request, running: &Running, config: &EngineConfig) -> (Match, ByLevel) {
        let prompt = &request.prompt[..];
        let limits = limits(request, forgetting(request, self, config).as_ref());
        if let Some(part) = self.predict_part(request, limits) {
            return part;
        }
        let place = self.place_of(request);
        let ram = self.lookup_ram(&place, (prompt, limits.reuse_max()), running);
        let chooses_part = request.chooses_part() && !place.is_derived();
        let part = chooses_part.then(|| self.longest_part(request, (&place, prompt), ram.tokens)).flatten();
        if let Some(part) = part {
            return (stopped(part.name.tokens, StopReason::Retained), ByLevel::default());
        }
        let (known, added) = self.lookup_disk(&place, (prompt, self.readable(prompt, limits)), ram);
        let tokens = known.tokens.min(limits.reuse_max());
        let added = added.at_most(tokens.saturating_sub(known.tokens - added.total()));
        let found = match known.stop {
            _ if request.wants.pools_all() => stopped(tokens, StopReason::Pooled),
            _ if tokens == limits.observed_from() => stopped(tokens, StopReason::Retained),
            _ => Match { tokens, ..known },
        };
        (found, added)
    }

    /// The prediction for a request that reads its compressed prefix, if all of that is there and within its limits.
    fn predict_part(&self, request: &Request, limits: ReuseLimits) -> Option<(Match, ByLevel)> {
        let (prefix, retention) = request.kept_prefix.zip(request.retention)?;
        let Request { salt, tenant, ref prompt, ref adapters, .. } = *request;
        let tokens = prompt.get(..prefix).filter(|_| prefix <= limits.unobserved)?.to_vec();
        let kept =
            PinnedPrompt { tokens, adapters: adapters.clone(), salt, tenant, retention: Some(retention) };
        let cached = self.cached_part(&kept, &retention);
        let loaded = ByLevel::of(Level::Disk, cached.disk);
        cached.is_whole().then(|| (stopped(prefix, StopReason::Retained), loaded))
    }

    /// Where a request that is not private would share its blocks.
    fn place_of(&self, request: &Request) -> Place {
        let (sharers, cache) = (Sharers::of(request), &self.ram.cache);
        match shares_its_own_only(request) {
            true => self.tenants.namespaces.place(sharers, cache),
            false => self.tenants.shared_place((request.tenant, sharers), &request.prompt, cache),
        }
    }

    /// Number of leading tokens of a prompt that the disk is asked for: all, though the last one may be computed, unless
    /// attention is observed or a state is needed, which must be before the tokens that are computed.
    fn readable(&self, prompt: &[Token], limits: ReuseLimits) -> usize {
        let observes = limits.observed_from() < prompt.len();
        let is_cut = observes || self.ram.auxiliary.state_bytes > 0;
        if is_cut { limits.reuse_max() } else { prompt.len() }
    }

    /// The match of a prompt, of which at most `reuse_max` tokens are reused, in RAM: the cache, and the running
    /// sequences.
    fn lookup_ram(&self, place: &Place, (prompt, reuse_max): (&[Token], usize), running: &Running) -> Match {
        let shares = |running: &&Sequence| Some(running.sharing) == place.id.map(Sharing::Namespace);
        let sharers = running.iter().filter(shares);
        let cached = place.lookup_up_to(prompt, reuse_max, &self.ram.cache);
        lookup_running(sharers, (prompt, reuse_max), cached, &self.ram)
    }

    /// The match of a prompt in RAM and, of its first `readable` tokens, on disk, and the tokens that the disk adds.
    fn lookup_disk(&self, place: &Place, prompt: (&[Token], usize), ram: Match) -> (Match, ByLevel) {
        if matches!(ram.stop, StopReason::Complete | StopReason::StillComputing) {
            return (ram, ByLevel::default());
        }
        let (found, added) = self.disk.lookup(&place.roots, prompt, ram, self.now());
        // The disk knows what it has, and RAM what it has lost: a request asks RAM when the disk's blocks are there.
        let is_open = matches!(found.stop, StopReason::FirstSeen | StopReason::Diverged);
        let is_longer = is_open && found.tokens > ram.tokens;
        let lost = is_longer.then(|| place.lookup_lost(prompt.0, found.tokens, &self.ram.cache)).flatten();
        (lost.unwrap_or(found), added)
    }
}

/// How much of a request's prompt it may reuse where it shares.
fn limits(request: &Request, forgetting: Option<&Forgetting>) -> ReuseLimits {
    // The last token is computed if its logits or its hidden state are wanted.
    let is_wanted = request.max_tokens > 0 || request.wants != Wants::Text;
    let unobserved = match request.wants.pools_all() {
        true => 0,
        false => request.prompt.len() - usize::from(is_wanted),
    };
    ReuseLimits { observed: forgetting.map_or(usize::MAX, Forgetting::reuse_max), unobserved }
}

/// A match that ends after `tokens` tokens, not because of an eviction.
fn stopped(tokens: usize, stop: StopReason) -> Match {
    Match { tokens, stop, evicted: None }
}

/// The match of `prompt` including running sequences: the last block of each belongs to it alone, and one may be about
/// to compute more of the prompt.
fn lookup_running<'a>(
    sharers: impl Iterator<Item = &'a Sequence>,
    (prompt, reuse_max): (&[Token], usize),
    cached: Match,
    ram: &Ram,
) -> Match {
    let (reusable, cached_tokens) = (&prompt[..reuse_max], cached.tokens.min(reuse_max));
    let mut known = cached;
    let mut coming = 0;
    for running in sharers {
        let tokens = forkable(running, reusable, cached_tokens, &ram.cache);
        if tokens > known.tokens {
            let whole = tokens == reuse_max && running.tokens.starts_with(prompt);
            let stop = if whole { StopReason::Complete } else { StopReason::Diverged };
            known = Match { tokens, stop, evicted: None };
        }
        coming = coming.max(will_leave(running, reusable, &ram.auxiliary));
    }
    if coming > known.tokens {
        return Match { stop: StopReason::StillComputing, evicted: None, ..known };
    }
    known
}
