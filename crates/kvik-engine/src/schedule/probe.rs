//! Predicts the cache hits of a request without running it.

use kvik_cache::tier::{ByLevel, Level};
use kvik_cache::{Match, StopReason, Token};

use super::namespaces::{Place, Sharers};
use super::prefixes::Prefixes;
use super::ram::Ram;
use super::reuse::{forkable, will_leave};
use super::running::Running;
use super::sequence::{Sequence, Sharing};
use crate::api::{PinnedPrompt, Probe, Request, Wants};

impl Prefixes {
    /// The match that `request` would find if it were admitted now, next to the running sequences.
    pub(super) fn probe(&mut self, request: &Request, running: &Running) -> Probe {
        self.keep_time();
        let prompt = &request.prompt[..];
        if let Some(probe) = self.probe_part(request) {
            return probe;
        }
        // The last token is computed if its logits or its hidden state are wanted.
        let is_wanted = request.max_tokens > 0 || request.wants != Wants::Text;
        let reuse_max = prompt.len() - usize::from(is_wanted);
        let (known, added) = match request.reuse {
            false => (Match { tokens: 0, stop: StopReason::Private, evicted: None }, ByLevel::default()),
            true => {
                let tenant = (request.tenant, Sharers::of(request));
                let place = self.tenants.shared_place(tenant, prompt, &self.ram.cache);
                self.lookup_disk(&place, prompt, self.lookup_ram(&place, (prompt, reuse_max), running))
            }
        };
        let known_tokens = known.tokens.min(reuse_max);
        let added = added.at_most(known_tokens.saturating_sub(known.tokens - added.total()));
        Probe {
            prompt_tokens: prompt.len(),
            known_tokens,
            loaded: added,
            retokenised: request.retokenised_tokens(),
            stop: known.stop,
            evicted: known.evicted,
            at: self.ram.cache.now(),
        }
    }

    /// The prediction for a request that reads its compressed prefix, if all of that is there.
    fn probe_part(&mut self, request: &Request) -> Option<Probe> {
        let (prefix, retention) = request.kept_prefix.zip(request.retention)?;
        let Request { salt, tenant, ref prompt, ref adapters, .. } = *request;
        let tokens = prompt.get(..prefix)?.to_vec();
        let kept =
            PinnedPrompt { tokens, adapters: adapters.clone(), salt, tenant, retention: Some(retention) };
        let cached = self.cached_part(&kept, &retention);
        cached.is_whole().then(|| Probe {
            prompt_tokens: prompt.len(),
            known_tokens: prefix,
            loaded: ByLevel::of(Level::Disk, cached.disk),
            retokenised: request.retokenised_tokens(),
            stop: StopReason::Retained,
            evicted: None,
            at: self.ram.cache.now(),
        })
    }

    /// The match of a prompt, of which at most `reuse_max` tokens are reused, in RAM: the cache, and the running
    /// sequences.
    fn lookup_ram(&self, place: &Place, (prompt, reuse_max): (&[Token], usize), running: &Running) -> Match {
        let shares = |running: &&Sequence| Some(running.sharing) == place.id.map(Sharing::Namespace);
        let sharers = running.iter().filter(shares);
        let cached = place.lookup(prompt, &self.ram.cache);
        lookup_running(sharers, (prompt, reuse_max), cached, &self.ram)
    }

    /// The match of a prompt in RAM and on disk, and the tokens that the disk adds.
    fn lookup_disk(&self, place: &Place, prompt: &[Token], ram: Match) -> (Match, ByLevel) {
        match ram.stop {
            StopReason::Complete | StopReason::StillComputing => (ram, ByLevel::default()),
            _ => self.disk.lookup(&place.roots, prompt, ram, self.now()),
        }
    }
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
