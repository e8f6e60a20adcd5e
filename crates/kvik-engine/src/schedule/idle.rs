//! Idle time: compresses prefixes that are used often or are about to be evicted, one at a time.
//!
//! The work is a request without a client: it is submitted when no request is open, and dropped when one arrives. Its
//! blocks stay in the cache, as those of a request whose client left. A request that allows it reads the compressed
//! form of the longest prefix of its tokens if that is longer than its exact match.

use kvik_cache::retain::Retention;
use kvik_cache::{BLOCK_POSITIONS, NamespaceId, TenantId, Token, whole_blocks};
use kvik_model::batch::Runner;

use super::Scheduler;
use super::forget::Forgetting;
use super::job::JobId;
use super::kept_parts::{CompressedPrefix, KeptName};
use super::kept_prefix::name;
use super::limits::RequestLimits;
use super::namespaces::Sharers;
use super::prefix::common_prefix;
use super::sequence::{Sequence, Sharing};
use crate::api::{AdapterMix, Event, EventSink, PinnedPrompt, Request};

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

    fn push(&mut self, seen: Seen) {
        self.seen.retain(|other| other.part != seen.part);
        self.seen.push(seen);
        if self.seen.len() > SEEN_MAX {
            self.seen.remove(0);
        }
    }
}

/// The event sink of the idle job, which has no client.
struct Nobody;

impl EventSink for Nobody {
    fn send(&mut self, _: Event) -> bool {
        true
    }

    fn is_closed(&self) -> bool {
        false
    }
}

impl Scheduler {
    /// Sets the retention policy for compressing prefixes in idle time; `None` stops it.
    pub fn set_retain_idle(&mut self, retention: Option<Retention>) {
        self.drop_idle_job();
        let retention = retention.map(|retention| self.of_prefix(&retention));
        self.idle = Idle { retention, submitted: self.idle.submitted, ..Idle::default() };
    }

    /// Records the prefix that a sequence leaves in the cache when it ends.
    pub(super) fn note_seen(&mut self, sequence: &Sequence) {
        let Some(retention) = self.idle.retention else { return };
        let (tenant, request) = (sequence.tenant, sequence.answer.request());
        let (sharers, adapters) = (Sharers::of(request), &request.adapters);
        let own = self.tenants.namespaces.shared(sharers, &mut self.ram.cache);
        let tokens = whole_blocks(sequence.stored_tokens());
        // A prefix with a time to live is not retained in another form.
        let lasts = sequence.publishes_in() == Some(own) && sequence.lifetime.ttl.is_none();
        if !lasts || tokens.len() < TOKENS_MIN || self.idle.is_job(sequence.job) {
            return;
        }
        let mut see = |tokens: &[Token], uses: u32| {
            let part =
                name((tenant, sharers), tokens, &retention, &mut self.tenants, &mut self.ram, &mut self.disk);
            let (salt, adapters) = (sharers.salt, adapters.clone());
            Seen { tenant, salt, adapters, namespace: own, tokens: tokens.to_vec(), part, uses }
        };
        let whole_common = |other: &Seen| {
            let common = common_prefix(&other.tokens, tokens);
            common - common % BLOCK_POSITIONS
        };
        let shared = self.idle.seen.iter().enumerate().filter(|(_, other)| other.namespace == own);
        let longest = shared.map(|(index, other)| (whole_common(other), index)).max();
        let longest = longest.filter(|&(common, _)| common >= TOKENS_MIN);
        let whole = see(tokens, 1);
        if let Some((common, index)) = longest {
            let other = &self.idle.seen[index];
            let (extends, uses) = (common == other.tokens.len(), other.uses);
            match extends && uses == 1 {
                // The same conversation, one turn later.
                true => drop(self.idle.seen.remove(index)),
                false => {
                    let uses = if extends { uses + 1 } else { 2 };
                    let often = see(&tokens[..common], uses);
                    self.idle.push(often);
                }
            }
        }
        if !self.idle.seen.iter().any(|seen| seen.part == whole.part) {
            self.idle.push(whole);
        }
    }

    /// Continues the work in idle time.
    pub(super) fn use_idle_time(&mut self, runner: &dyn Runner) {
        self.end_making();
        if !self.results.is_empty() {
            return;
        }
        let Some((index, replaces)) = self.next_seen() else { return };
        let seen = self.idle.seen.remove(index);
        let Seen { tenant, salt, ref adapters, ref tokens, .. } = seen;
        let (tokens, adapters) = (tokens.clone(), adapters.clone());
        let kept = PinnedPrompt { tokens, adapters, salt, tenant, retention: self.idle.retention };
        let request = Request { lifetime: Default::default(), ..kept.request() };
        let limits = RequestLimits::new(&self.config, self.ram.config.blocks, runner.vocab_len())
            .with_adapters(runner.adapters_len());
        if limits.check(&request).is_err() {
            return;
        }
        let job = self.results.open(Box::new(Nobody), request.prompt.len(), 1, self.now());
        self.idle.submitted += 1;
        self.idle.making = Some(Making { job, seen, replaces });
        self.enqueue(job, request, None, &limits);
    }

    /// Whether there is work for idle time.
    pub(super) fn has_idle_work(&self) -> bool {
        self.idle.making.is_some() || (self.results.is_empty() && self.next_seen().is_some())
    }

    /// Drops the prefix that is being compressed, because a request has arrived.
    pub(super) fn drop_idle_job(&mut self) {
        if let Some(making) = self.idle.making.take() {
            drop(self.take_job(making.job));
            self.idle.seen.insert(0, making.seen);
        }
    }

    /// Drops the exact prefix that was about to be evicted, once its compressed form is made.
    fn end_making(&mut self) {
        let over = self.idle.making.as_ref().is_some_and(|making| !self.results.has(making.job));
        let Some(Making { seen, replaces, .. }) = self.idle.making.take_if(|_| over) else { return };
        if replaces && self.is_kept(&seen.part) {
            self.ram.cache.evict_prefix(seen.namespace, &seen.tokens);
        }
    }

    /// The prefix to compress next, and whether the result replaces it: one that is used often, or the oldest if little
    /// room is free, but never the latest.
    fn next_seen(&self) -> Option<(usize, bool)> {
        self.idle.retention?;
        let wants = |seen: &Seen| {
            let known = self.ram.cache.lookup(seen.namespace, &seen.tokens).tokens;
            known == seen.tokens.len() && !self.is_kept(&seen.part)
        };
        let stats = self.ram.cache.stats();
        let nearly_full = stats.free * FREE_SHARE < stats.blocks;
        let all = || self.idle.seen.iter().enumerate();
        let often = all().find(|(_, seen)| seen.uses > 1 && wants(seen)).map(|(index, _)| (index, false));
        let older = self.idle.seen.len().saturating_sub(1);
        let oldest = || all().take(older).find(|(_, seen)| seen.uses == 1 && wants(seen));
        often.or_else(|| oldest().filter(|_| nearly_full).map(|(index, _)| (index, true)))
    }

    /// Whether all of a compressed prefix is in RAM.
    fn is_kept(&self, part: &KeptName) -> bool {
        let key = part.key(self.kept_parts.blocks(part).unwrap_or(0));
        !key.is_empty() && self.ram.cache.lookup(part.namespace, &key).tokens == key.len()
    }

    /// Lets the sequence at `index` of the queue, if it may, read the compressed form of the longest prefix of its
    /// tokens that is longer than its exact match of `known` tokens.
    pub(super) fn choose_part(&mut self, index: usize, known: usize) {
        if !self.queue[index].sequence.chooses_part() {
            return;
        }
        let part = self.longest_part(index, known);
        let forgetting = part.map(|part| Box::new(Forgetting::of_prefix(part.retention, part.name.tokens)));
        self.queue[index].sequence.forgetting = forgetting;
    }

    fn longest_part(&mut self, index: usize, known: usize) -> Option<CompressedPrefix> {
        let sequence = &self.queue[index].sequence;
        let request = sequence.answer.request();
        let own = self.tenants.namespaces.shared(Sharers::of(request), &mut self.ram.cache);
        if sequence.sharing != Sharing::Namespace(own) {
            return None;
        }
        let roots = *self.tenants.namespaces.roots(own);
        let exact = known + self.disk.tokens_after(&roots, &sequence.tokens, known, self.now());
        // The last token is computed, for its logits.
        let most = request.kept_prefix?.min(sequence.tokens.len() - 1);
        let identities = roots.identity.blocks(whole_blocks(&sequence.tokens[..most]));
        let longer: Vec<_> = identities.skip(exact / BLOCK_POSITIONS).collect();
        let parts = longer.iter().rev().flat_map(|identity| self.kept_parts.of(identity));
        // Each head ends within a tile: a prefix that is hardly compressed may need more room than the exact one.
        let shorter = |part: &&CompressedPrefix| (part.blocks + 2) * BLOCK_POSITIONS < part.name.tokens;
        parts.filter(shorter).find(|part| self.is_kept(&part.name)).cloned()
    }
}
