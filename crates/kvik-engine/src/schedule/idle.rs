//! Idle time: compresses prefixes that are used often or are about to be evicted, one at a time.
//!
//! The work is a request without a client: it is submitted when no request is open, and dropped when one arrives. Its
//! blocks stay in the cache, as those of a request whose client left. A request that allows it reads the compressed
//! form of the longest prefix of its tokens if that is longer than its exact match.

use kvik_cache::retain::Retention;
use kvik_cache::{BLOCK_POSITIONS, Cache, DeletedPrompts, NamespaceId, TenantId, Token, whole_blocks};
use kvik_model::batch::Runner;

use super::job::JobId;
use super::jobs::Jobs;
use super::kept_parts::KeptName;
use super::limits::RequestLimits;
use super::namespaces::Sharers;
use super::prefix::common_prefix;
use super::prefixes::Prefixes;
use super::results::Results;
use super::sequence::Sequence;
use crate::api::{AdapterMix, Nobody, PinnedPrompt, Request};
use crate::config::EngineConfig;

/// Minimum number of tokens of a prefix that is worth compressing.
const TOKENS_MIN: usize = 256;
/// Maximum number of prefixes that are remembered.
const SEEN_MAX: usize = 64;
/// The pool is nearly full if less than 1 / `FREE_SHARE` of it is free.
const FREE_SHARE: usize = 4;

/// The state of the work in idle time.
#[derive(Debug, Default)]
pub(super) struct Idle {
    /// The retention policy for compressed prefixes; `None` if idle time is not used.
    retention: Option<Retention>,
    /// Prefixes that were used, the least recently used first.
    seen: Vec<Seen>,
    /// The prefix that is being compressed.
    making: Option<Making>,
    /// Idle jobs submitted so far.
    pub(super) submitted: u64,
}

/// A prefix that was used, in whole blocks.
#[derive(Debug, Clone)]
struct Seen {
    tenant: TenantId,
    salt: [u8; 16],
    adapters: Option<AdapterMix>,
    namespace: NamespaceId,
    tokens: Vec<Token>,
    part: KeptName,
    /// Number of requests that began with it and continued differently.
    uses: u32,
}

#[derive(Debug)]
struct Making {
    job: JobId,
    seen: Seen,
    /// Whether the exact prefix is dropped afterwards: it was about to be evicted.
    replaces: bool,
}

impl Idle {
    /// Whether this is the idle job.
    pub(super) fn is_job(&self, job: JobId) -> bool {
        self.making.as_ref().is_some_and(|making| making.job == job)
    }

    /// Drops all entries: their ids belong to a cache that is gone.
    pub(super) fn clear(&mut self) {
        self.seen.clear();
        self.making = None;
    }

    /// The namespaces that must stay.
    pub(super) fn namespaces(&self) -> impl Iterator<Item = NamespaceId> {
        let making = self.making.iter().map(|making| &making.seen);
        self.seen.iter().chain(making).flat_map(|seen| [seen.namespace, seen.part.namespace])
    }

    /// Sets the retention policy for compressed prefixes, and drops what is known of prefixes; `None` stops the work.
    pub(super) fn set_retention(&mut self, retention: Option<Retention>) {
        *self = Idle { retention, submitted: self.submitted, ..Idle::default() };
    }

    /// Records the prefix that a sequence leaves in the cache when it ends.
    pub(super) fn note_seen(&mut self, sequence: &Sequence, prefixes: &mut Prefixes) {
        let Some(retention) = self.retention else { return };
        let (tenant, request) = (sequence.tenant, sequence.answer.request());
        let (sharers, adapters) = (Sharers::of(request), &request.adapters);
        let own = prefixes.tenants.namespaces.shared(sharers, &mut prefixes.ram.cache);
        let tokens = whole_blocks(sequence.stored_tokens());
        // A prefix with a time to live is not retained in another form.
        let lasts = sequence.publishes_in() == Some(own) && sequence.lifetime.ttl.is_none();
        if !lasts || tokens.len() < TOKENS_MIN || self.is_job(sequence.job) {
            return;
        }
        let mut see = |tokens: &[Token], uses: u32| {
            let part = prefixes.name((tenant, sharers), tokens, &retention);
            let (salt, adapters) = (sharers.salt, adapters.clone());
            Seen { tenant, salt, adapters, namespace: own, tokens: tokens.to_vec(), part, uses }
        };
        let whole_common = |other: &Seen| {
            let common = common_prefix(&other.tokens, tokens);
            common - common % BLOCK_POSITIONS
        };
        let shared = self.seen.iter().enumerate().filter(|(_, other)| other.namespace == own);
        let longest = shared.map(|(index, other)| (whole_common(other), index)).max();
        let longest = longest.filter(|&(common, _)| common >= TOKENS_MIN);
        let whole = see(tokens, 1);
        if let Some((common, index)) = longest {
            let other = &self.seen[index];
            let (extends, uses) = (common == other.tokens.len(), other.uses);
            match extends && uses == 1 {
                // The same conversation, one turn later.
                true => drop(self.seen.remove(index)),
                false => {
                    let uses = if extends { uses + 1 } else { 2 };
                    self.push(see(&tokens[..common], uses));
                }
            }
        }
        if !self.seen.iter().any(|seen| seen.part == whole.part) {
            self.push(whole);
        }
    }

    fn push(&mut self, seen: Seen) {
        self.seen.retain(|other| other.part != seen.part);
        self.seen.push(seen);
        if self.seen.len() > SEEN_MAX {
            self.seen.remove(0);
        }
    }

    /// The next request without a client, with its limits, if no request is open and a prefix is to be compressed.
    pub(super) fn next_job(
        &mut self,
        results: &mut Results,
        prefixes: &Prefixes,
        config: &EngineConfig,
        runner: &dyn Runner,
    ) -> Option<(JobId, Request, RequestLimits)> {
        let (index, replaces) = results.is_empty().then(|| self.next_seen(prefixes)).flatten()?;
        let seen = self.seen.remove(index);
        let Seen { tenant, salt, ref adapters, ref tokens, .. } = seen;
        let (tokens, adapters) = (tokens.clone(), adapters.clone());
        let kept = PinnedPrompt { tokens, adapters, salt, tenant, retention: self.retention };
        let request = Request { lifetime: Default::default(), ..kept.request() };
        let limits = RequestLimits::new(config, prefixes.ram.config.blocks, runner.vocab_len())
            .with_adapters(runner.adapters_len());
        limits.check(&request).ok()?;
        let job = results.open(Box::new(Nobody), request.prompt.len(), 1, prefixes.now());
        results.job(job).in_idle_time = true;
        self.submitted += 1;
        self.making = Some(Making { job, seen, replaces });
        Some((job, request, limits))
    }

    /// Whether there is work for idle time.
    pub(super) fn has_work(&self, results: &Results, prefixes: &Prefixes) -> bool {
        self.making.is_some() || (results.is_empty() && self.next_seen(prefixes).is_some())
    }

    /// Drops the prefix that is being compressed, because a request has arrived.
    pub(super) fn drop_job(&mut self, jobs: &mut Jobs, cache: &mut Cache) {
        if let Some(making) = self.making.take() {
            drop(jobs.take(making.job, cache));
            self.seen.insert(0, making.seen);
        }
    }

    /// Drops what is known of prefixes in these namespaces that belong to deleted prompts alone, and the work on one of
    /// them.
    pub(super) fn forget_deleted(
        &mut self,
        (namespaces, prompts): (&[NamespaceId], &DeletedPrompts),
        jobs: &mut Jobs,
        cache: &mut Cache,
    ) {
        let is_gone = |seen: &Seen| namespaces.contains(&seen.namespace) && prompts.are_gone(&seen.tokens);
        if self.making.as_ref().is_some_and(|making| is_gone(&making.seen)) {
            self.drop_job(jobs, cache);
        }
        self.seen.retain(|seen| !is_gone(seen));
    }

    /// Drops the exact prefix that was about to be evicted, once its compressed form is made.
    pub(super) fn end_making(&mut self, results: &Results, prefixes: &mut Prefixes) {
        let over = self.making.as_ref().is_some_and(|making| !results.has(making.job));
        let Some(Making { seen, replaces, .. }) = self.making.take_if(|_| over) else { return };
        if replaces && prefixes.is_kept(&seen.part) {
            prefixes.ram.cache.evict_prefix(seen.namespace, &seen.tokens);
        }
    }

    /// The prefix to compress next, and whether the result replaces it: one that is used often, or the oldest if little
    /// room is free, but never the latest.
    fn next_seen(&self, prefixes: &Prefixes) -> Option<(usize, bool)> {
        self.retention?;
        let cache = &prefixes.ram.cache;
        let wants = |seen: &Seen| {
            let known = cache.lookup(seen.namespace, &seen.tokens).tokens;
            known == seen.tokens.len() && !prefixes.is_kept(&seen.part)
        };
        let stats = cache.stats();
        let nearly_full = stats.free * FREE_SHARE < stats.blocks;
        let all = || self.seen.iter().enumerate();
        let often = all().find(|(_, seen)| seen.uses > 1 && wants(seen)).map(|(index, _)| (index, false));
        let older = self.seen.len().saturating_sub(1);
        let oldest = || all().take(older).find(|(_, seen)| seen.uses == 1 && wants(seen));
        often.or_else(|| oldest().filter(|_| nearly_full).map(|(index, _)| (index, true)))
    }
}
