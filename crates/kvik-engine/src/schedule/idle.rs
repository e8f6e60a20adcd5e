//! Idle time: of prefixes that are used often, or are about to be evicted, a part is kept, one at a time.
//!
//! The work is a request of nobody: it is submitted when nobody asks for anything, and dropped when somebody does.
//! What it computed up to then stays, as that of a request whose client left. A request that allows it reads the part
//! of the longest prefix of its tokens where less is known of it exactly.

use kvik_cache::retain::Retention;
use kvik_cache::{BLOCK_POSITIONS, NamespaceId, TenantId, Token, whole_blocks};

use super::Scheduler;
use super::forget::Forgetting;
use super::job::JobId;
use super::kept_parts::{KeptName, KeptPart};
use super::kept_prefix::name;
use super::limits::RequestLimits;
use super::namespaces::Sharers;
use super::prefix::common_prefix;
use super::sequence::{Sequence, Sharing};
use crate::api::{AdapterMix, Event, EventSink, KeptPrompt, Request};
use crate::model::batch::Runner;

/// Tokens of a prefix of which it is worth keeping a part.
const TOKENS_MIN: usize = 256;
/// Prefixes remembered at most.
const SEEN_MAX: usize = 64;
/// The pool is nearly full when less than one part in so many is free.
const FREE_SHARE: usize = 4;

/// What idle time is used for.
#[derive(Debug, Default)]
pub(super) struct Idle {
    /// How parts are kept; `None` where idle time is not used.
    retention: Option<Retention>,
    /// Prefixes that were used, the least recently used first.
    seen: Vec<Seen>,
    /// The part that is being made.
    making: Option<Making>,
    /// Requests of nobody so far.
    pub(super) submitted: u64,
}

/// A prefix that was used, whole blocks.
#[derive(Debug, Clone)]
struct Seen {
    tenant: TenantId,
    salt: [u8; 16],
    adapters: Option<AdapterMix>,
    namespace: NamespaceId,
    tokens: Vec<Token>,
    part: KeptName,
    /// Requests that began with it and went on differently.
    uses: u32,
}

#[derive(Debug)]
struct Making {
    job: JobId,
    seen: Seen,
    /// The exact prefix is dropped then: it was about to be evicted.
    replaces: bool,
}

impl Idle {
    /// Whether this is the request of nobody.
    pub(super) fn is_job(&self, job: JobId) -> bool {
        self.making.as_ref().is_some_and(|making| making.job == job)
    }

    /// Names in the cache have ended.
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

/// Nobody listens to the request of nobody.
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
    /// From now on parts are kept in idle time as `retention` says; or no longer.
    pub fn set_retain_idle(&mut self, retention: Option<Retention>) {
        self.drop_idle_job();
        let retention = retention.map(|retention| self.of_prefix(&retention));
        self.idle = Idle { retention, submitted: self.idle.submitted, ..Idle::default() };
    }

    /// Notes what a sequence that ends leaves in the cache.
    pub(super) fn note_seen(&mut self, sequence: &Sequence) {
        let Some(retention) = self.idle.retention else { return };
        let (tenant, request) = (sequence.tenant, sequence.answer.request());
        let (sharers, adapters) = (Sharers::of(request), &request.adapters);
        let own = self.tenants.namespaces.shared(sharers, &mut self.ram.cache);
        let tokens = whole_blocks(sequence.stored_tokens());
        // What is to be forgotten after some time is not kept in another form.
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

    /// Goes on with what idle time is used for.
    pub(super) fn use_idle_time(&mut self, runner: &dyn Runner) {
        self.end_making();
        if !self.results.is_empty() {
            return;
        }
        let Some((index, replaces)) = self.next_seen() else { return };
        let seen = self.idle.seen.remove(index);
        let Seen { tenant, salt, ref adapters, ref tokens, .. } = seen;
        let (tokens, adapters) = (tokens.clone(), adapters.clone());
        let kept = KeptPrompt { tokens, adapters, salt, tenant, retention: self.idle.retention };
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

    /// Whether there is something to do in idle time.
    pub(super) fn has_idle_work(&self) -> bool {
        self.idle.making.is_some() || (self.results.is_empty() && self.next_seen().is_some())
    }

    /// Somebody asks for something: what is being made is dropped.
    pub(super) fn drop_idle_job(&mut self) {
        if let Some(making) = self.idle.making.take() {
            drop(self.take_job(making.job));
            self.idle.seen.insert(0, making.seen);
        }
    }

    /// Where a part was made of what was about to be evicted, that is dropped now.
    fn end_making(&mut self) {
        let over = self.idle.making.as_ref().is_some_and(|making| !self.results.has(making.job));
        let Some(Making { seen, replaces, .. }) = self.idle.making.take_if(|_| over) else { return };
        if replaces && self.is_kept(&seen.part) {
            self.ram.cache.evict_prefix(seen.namespace, &seen.tokens);
        }
    }

    /// The prefix of which a part is made next, and whether the part takes its place: one that is used often, or the
    /// oldest where little is free, but never the latest.
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

    /// Whether all of a part is in RAM.
    fn is_kept(&self, part: &KeptName) -> bool {
        let key = part.key(self.kept_parts.blocks(part).unwrap_or(0));
        !key.is_empty() && self.ram.cache.lookup(part.namespace, &key).tokens == key.len()
    }

    /// Lets the sequence at `index` of the queue, when it may, read what is kept of the longest prefix of its tokens,
    /// where `known` tokens or less are known exactly.
    pub(super) fn choose_part(&mut self, index: usize, known: usize) {
        if !self.queue[index].sequence.chooses_part() {
            return;
        }
        let part = self.longest_part(index, known);
        let forgetting = part.map(|part| Box::new(Forgetting::of_prefix(part.retention, part.name.tokens)));
        self.queue[index].sequence.forgetting = forgetting;
    }

    fn longest_part(&mut self, index: usize, known: usize) -> Option<KeptPart> {
        let sequence = &self.queue[index].sequence;
        let request = sequence.answer.request();
        let own = self.tenants.namespaces.shared(Sharers::of(request), &mut self.ram.cache);
        if sequence.sharing != Sharing::Namespace(own) {
            return None;
        }
        let roots = *self.tenants.namespaces.roots(own);
        let exact = known + self.disk.tokens_after(&roots, &sequence.tokens, known, self.now());
        // Its last token is computed, for its logits.
        let most = request.kept_prefix?.min(sequence.tokens.len() - 1);
        let identities = roots.identity.blocks(whole_blocks(&sequence.tokens[..most]));
        let longer: Vec<_> = identities.skip(exact / BLOCK_POSITIONS).collect();
        let parts = longer.iter().rev().flat_map(|identity| self.kept_parts.of(identity));
        // Heads end within a tile each: a part that is hardly shorter may need more room than the prefix.
        let shorter = |part: &&KeptPart| (part.blocks + 2) * BLOCK_POSITIONS < part.name.tokens;
        parts.filter(shorter).find(|part| self.is_kept(&part.name)).cloned()
    }
}
