//! Compressed prefixes: made once, then shared, immutable and durable like any prompt.
//!
//! The first request that asks for one computes the prefix, applies its retention policy and publishes the retained
//! positions under a name of their own; later requests find them in RAM or on disk and start after them. Both read the
//! same bytes, so both answer the same.

use kvik_cache::retain::Retention;
use kvik_cache::tier::Level;
use kvik_cache::{BLOCK_POSITIONS, Cache, Lifetime, SeqId, StopReason, TenantId, Token, whole_blocks};
use kvik_model::batch::{Retainer, Runner};

use super::disk::{Spilled, Stored, Wanted};
use super::forget::{Forgetting, kept};
use super::growth::extend;
use super::job::JobId;
use super::jobs::Jobs;
use super::kept_parts::{CompressedPrefix, CompressedPrefixes, KeptName};
use super::namespaces::{Place, Sharers};
use super::prefix::Reused;
use super::prefixes::Prefixes;
use super::queue::{Candidate, Waiting};
use super::results::Results;
use super::sequence::{Sequence, Sharing};
use super::start::{Outcome, no_room, release_for, start};
use crate::api::{Cached, Evicted, PinnedPrompt, Request, RequestError};
use crate::retain::Ragged;

/// Lets a waiting sequence, if it may, read the compressed form of the longest prefix of its tokens that is longer than
/// its exact match of `known` tokens.
pub(super) fn choose_part(sequence: &mut Sequence, known: usize, prefixes: &Prefixes) {
    if !sequence.chooses_part() {
        return;
    }
    let request = sequence.answer.request();
    let own = prefixes.tenants.namespaces.place(Sharers::of(request), &prefixes.ram.cache);
    let shares_in_it = own.id.map(Sharing::Namespace) == Some(sequence.sharing);
    let part =
        if shares_in_it { prefixes.longest_part(request, (&own, sequence.prompt()), known) } else { None };
    let forgetting = part.map(|part| Forgetting::of_prefix(part.retention, part.name.tokens));
    sequence.forgetting = forgetting.map(Box::new);
}

/// Admits the sequence at `index` of the queue with its compressed prefix, or lets it wait while that is read from disk.
/// `None` if it must compute the prefix: no compressed form exists, or the logits of its last token are wanted.
pub(super) fn admit_kept(
    index: usize,
    passed: &[Candidate],
    jobs: &mut Jobs,
    prefixes: &mut Prefixes,
    runner: &mut dyn Runner,
) -> Option<Outcome> {
    let waiting = &mut jobs.queue[index];
    let name = prefixes.name_of_kept(&waiting.sequence)?;
    if name.tokens > waiting.sequence.unobserved_reuse_max() {
        return None;
    }
    let retainer = runner.retainer()?;
    if fetch_kept(waiting, &name, jobs.running.len(), prefixes, retainer) {
        return Some(Outcome::Held);
    }
    let ram = &mut prefixes.ram;
    let id = ram.new_seq();
    let Some(mut storage) = lease_kept(id, &name, &mut ram.cache, retainer) else {
        ram.cache.abandon(id);
        return None;
    };
    let (before, tokens) = (ram.cache.table(id).len(), waiting.sequence.tokens.len());
    let grows = tokens > name.tokens;
    let missing = if grows { storage.blocks_missing(retainer.layout(), tokens) } else { 0 };
    let left_free = jobs.running.reserve(None).unwrap_or(0);
    let room = jobs.running.is_empty()
        || jobs.has_place(&jobs.queue[index].sequence)
            && ram.has_room(missing + left_free, jobs.running.len());
    if !room || ram.cache.reserve(id, (before + missing) * BLOCK_POSITIONS).is_err() {
        ram.cache.abandon(id);
        if release_for(index, jobs, prefixes) {
            return admit_kept(index, passed, jobs, prefixes, runner);
        }
        return Some(no_room(index, jobs, prefixes));
    }
    if grows {
        extend(&mut storage, &ram.cache.table(id)[before..], tokens, retainer);
    }
    ram.cache.set_lifetime(id, jobs.queue[index].sequence.lifetime);
    let mut waiting = jobs.queue.admit(index, name.tokens, passed);
    if let Some(forgetting) = &mut waiting.sequence.forgetting {
        forgetting.begin_with(name.tokens, storage);
    }
    start_behind(waiting, id, &name, before, jobs, prefixes);
    Some(Outcome::Admitted)
}

/// Starts a sequence after its compressed prefix, which occupies `blocks` blocks.
fn start_behind(
    waiting: Waiting,
    id: SeqId,
    name: &KeptName,
    blocks: usize,
    jobs: &mut Jobs,
    prefixes: &mut Prefixes,
) {
    let (job, lifetime) = (waiting.sequence.job, waiting.sequence.lifetime);
    prefixes.note_kept(&waiting.sequence, name, blocks);
    prefixes.note_use_on_disk(name, blocks, lifetime);
    start(
        waiting,
        id,
        Reused { tokens: name.tokens, stop: StopReason::Retained, evicted: None },
        jobs,
        prefixes,
    );
    let results = &mut jobs.results;
    results.note_retained(jobs.running.find(id).expect("it has just started"));
    let report = &mut results.job(job).report;
    if report.loaded[Level::Disk] > 0 {
        // A compressed prefix is usable only as a whole.
        report.loaded[Level::Disk] += report.cached_tokens - report.loaded.total();
    }
    if lifetime.pin {
        prefixes.pin_kept(job, name, blocks, results);
    }
}

/// Whether a waiting sequence waits for the disk, which holds its compressed prefix.
fn fetch_kept(
    waiting: &mut Waiting,
    name: &KeptName,
    running: usize,
    prefixes: &mut Prefixes,
    retainer: &mut dyn Retainer,
) -> bool {
    if waiting.asked_for_kept {
        return false;
    }
    let tokens = name.key(blocks_max(name, retainer));
    let known = prefixes.ram.cache.lookup(name.namespace, &tokens).tokens;
    let (disk, mut context) = prefixes.loading(running);
    let wanted = Wanted { namespace: name.namespace, tokens: &tokens, known, ttl: None };
    let waits = disk.fetch(&mut waiting.fetch, wanted, &mut context);
    waiting.asked_for_kept = !waits;
    if !waits && known == 0 {
        // It may still be worth reading the exact prefix.
        waiting.fetch = Default::default();
    }
    waits
}

/// Leases a compressed prefix to `id`; `None` if it is not complete.
fn lease_kept(id: SeqId, name: &KeptName, cache: &mut Cache, retainer: &mut dyn Retainer) -> Option<Ragged> {
    cache.lease(id, name.namespace, &name.key(blocks_max(name, retainer)));
    let (layout, blocks) = (retainer.layout(), cache.table(id));
    let (header, blocks) = blocks.split_at_checked(kept::header_blocks(layout, name.tokens))?;
    let bytes: Vec<u8> = header.iter().flat_map(|&block| retainer.bytes(block)).collect();
    let kept = kept::decode(layout, name.tokens, &bytes)?;
    let counts: Vec<Vec<usize>> = kept.iter().map(|heads| heads.iter().map(Vec::len).collect()).collect();
    let whole = Ragged::blocks_needed(layout, &counts) == blocks.len();
    whole.then(|| Ragged::new(layout, 0, name.tokens, kept, blocks).frozen())
}

/// Publishes the compressed prefix of a sequence, in the blocks of `to`, and queues it for the disk. If another sequence
/// has published the same before, its blocks replace these.
pub(super) fn share_kept(
    sequence: &Sequence,
    to: SeqId,
    storage: Ragged,
    prefixes: &mut Prefixes,
    results: &mut Results,
    retainer: &mut dyn Retainer,
) -> Ragged {
    let Some(name) = prefixes.name_of_kept(sequence) else { return storage };
    let (KeptName { namespace, tokens, .. }, lifetime) = (name, sequence.lifetime);
    let layout = retainer.layout().clone();
    let (header, cache) = (kept::encode(&layout, tokens, &storage.kept()), &mut prefixes.ram.cache);
    for (&block, bytes) in cache.table(to).iter().zip(header.chunks(layout.block_bytes())) {
        retainer.replace_bytes(block, bytes);
    }
    let count = cache.table(to).len();
    let key = name.key(count);
    cache.set_lifetime(to, lifetime);
    cache.publish(to, &key);
    prefixes.note_kept(sequence, &name, count);
    if lifetime.pin {
        prefixes.pin_kept(sequence.job, &name, count, results);
    }
    let blocks = &prefixes.ram.cache.table(to)[kept::header_blocks(&layout, tokens)..];
    let storage = Ragged::new(&layout, 0, tokens, storage.kept(), blocks).frozen();
    let stored = Stored { seq: to, namespace, tokens: &key, prompt: &key, lifetime };
    let now = prefixes.now();
    prefixes.disk.spill_later(Spilled::default(), &stored, &mut prefixes.ram, now);
    storage
}

/// Maximum number of blocks of a compressed prefix: no head retains more than all positions.
fn blocks_max(name: &KeptName, retainer: &mut dyn Retainer) -> usize {
    kept::header_blocks(retainer.layout(), name.tokens) + name.tokens / BLOCK_POSITIONS
}

/// Compressed prefixes by name: listed, pinned, looked up and dropped.
impl Prefixes {
    /// The longest compressed prefix in RAM of a request's `tokens`, if it is longer than their exact match of `known`
    /// tokens in the request's `own` namespace.
    pub(super) fn longest_part(
        &self,
        request: &Request,
        (own, tokens): (&Place, &[Token]),
        known: usize,
    ) -> Option<CompressedPrefix> {
        let exact = known + self.disk.tokens_after(&own.roots, tokens, known, self.now());
        // The last token is computed, for its logits.
        let most = request.kept_prefix?.min(tokens.len() - 1);
        let identities = own.roots.identity.blocks(whole_blocks(&tokens[..most]));
        let longer: Vec<_> = identities.skip(exact / BLOCK_POSITIONS).collect();
        let parts = longer.iter().rev().flat_map(|identity| self.kept_parts.of(identity));
        // Each head ends within a tile: a prefix that is hardly compressed may need more room than the exact one.
        let shorter = |part: &&CompressedPrefix| (part.blocks + 2) * BLOCK_POSITIONS < part.name.tokens;
        parts.filter(shorter).find(|part| self.is_kept(&part.name)).cloned()
    }

    /// The name of a sequence's compressed prefix, if it shares one.
    pub(super) fn name_of_kept(&mut self, sequence: &Sequence) -> Option<KeptName> {
        let prefix = &sequence.tokens[..sequence.kept_prefix()?];
        sequence.publishes_in()?;
        let retention = &sequence.forgetting.as_ref()?.retention;
        let owner = (sequence.tenant, Sharers::of(sequence.answer.request()));
        Some(self.name(owner, prefix, retention))
    }

    /// The name of the compressed form of a tenant's `prefix`, which is whole blocks, under `retention`.
    pub(super) fn name(
        &mut self,
        (tenant, sharers): (TenantId, Sharers),
        prefix: &[Token],
        retention: &Retention,
    ) -> KeptName {
        let Prefixes { tenants, ram, disk, .. } = self;
        let own = tenants.namespaces.shared(sharers, &mut ram.cache);
        let identity = tenants.namespaces.roots(own).identity_after(prefix);
        let namespace = tenants.namespaces.kept(sharers, retention, &mut ram.cache);
        tenants.register(namespace, (tenant, sharers.salt), ram, disk);
        KeptName { namespace, identity, tokens: prefix.len() }
    }

    /// Whether all of a compressed prefix is in RAM.
    pub(super) fn is_kept(&self, part: &KeptName) -> bool {
        let key = part.key(self.kept_parts.blocks(part).unwrap_or(0));
        !key.is_empty() && self.ram.cache.lookup(part.namespace, &key).tokens == key.len()
    }

    /// Lists the compressed prefix that a sequence has made or read.
    fn note_kept(&mut self, sequence: &Sequence, name: &KeptName, blocks: usize) {
        let Some(forgetting) = &sequence.forgetting else { return };
        let sharers = Sharers::of(sequence.answer.request());
        let roots = self.tenants.namespaces.place(sharers, &self.ram.cache).roots;
        let chain = CompressedPrefixes::chain(roots.identity.blocks(&sequence.tokens[..name.tokens]));
        self.kept_parts.note(*name, forgetting.retention, blocks, chain);
    }

    /// Records a use of a compressed prefix on disk, if it is there: its time to live begins anew.
    fn note_use_on_disk(&mut self, name: &KeptName, blocks: usize, lifetime: Lifetime) {
        let now = self.now();
        let end = self.tenants.namespaces.roots(name.namespace).identity_after(&name.key(blocks));
        self.disk.note_use(&end, lifetime, now);
    }

    /// Pins a compressed prefix in RAM and, if it is there by now, on disk; fails the request if the pin limit is
    /// reached.
    fn pin_kept(&mut self, job: JobId, name: &KeptName, blocks: usize, results: &mut Results) {
        let key = name.key(blocks);
        if let Err(limit) = self.ram.cache.pin(name.namespace, &key) {
            return results.fail_later(job, RequestError::PinLimit(limit));
        }
        let roots = self.tenants.namespaces.roots(name.namespace);
        self.disk.pin(&roots.identity_after(&key), true);
    }

    /// How much of a prompt's compressed form is there: all of it or nothing.
    pub(super) fn cached_part(&self, prompt: &PinnedPrompt, retention: &Retention) -> Cached {
        let tokens = whole_blocks(&prompt.tokens).len();
        let Some(name) = self.known_name(prompt, retention) else {
            return Cached { tokens, ram: 0, disk: 0, pinned: false };
        };
        let key = name.key(self.kept_parts.blocks(&name).unwrap_or(0));
        if key.is_empty() {
            return Cached { tokens, ram: 0, disk: 0, pinned: false };
        }
        let ram = self.ram.cache.lookup(name.namespace, &key).tokens;
        let roots = self.tenants.namespaces.roots(name.namespace);
        let disk = self.disk.tokens_after(roots, &key, ram, self.now());
        let whole = |is_there: bool| if is_there { tokens } else { 0 };
        let in_ram = ram == key.len();
        let pinned = self.ram.cache.is_pinned(name.namespace, &key);
        Cached { tokens, ram: whole(in_ram), disk: whole(!in_ram && ram + disk >= key.len()), pinned }
    }

    /// Unpins and drops the compressed form of a prompt, in RAM and on disk; returns the number of RAM blocks dropped.
    pub(super) fn release_part(&mut self, prompt: &PinnedPrompt, retention: &Retention) -> usize {
        // A compressed prefix that is not listed can only be on disk.
        let name = self.known_name(prompt, retention).unwrap_or_else(|| {
            let owner = (prompt.tenant, Sharers::of_kept(prompt));
            self.name(owner, whole_blocks(&prompt.tokens), &self.of_prefix(retention))
        });
        self.drop_part(&name).blocks
    }

    /// Unpins and drops the compressed prefix with this name.
    pub(super) fn drop_part(&mut self, name: &KeptName) -> Evicted {
        self.kept_parts.remove(name);
        // Its first block contains the identity of the prefix: no other entry begins with it.
        let first = name.key(1);
        self.disk.give_up(&mut self.ram, |namespace, copied| {
            namespace == name.namespace && copied.starts_with(&first)
        });
        let pins = self.ram.cache.unpin_under(name.namespace, &first);
        let roots = *self.tenants.namespaces.roots(name.namespace);
        self.disk.forget(&roots, &first);
        Evicted { blocks: self.ram.cache.evict_prefix(name.namespace, &first), pins }
    }

    /// The name of a prompt's compressed form, if its namespace exists.
    fn known_name(&self, prompt: &PinnedPrompt, retention: &Retention) -> Option<KeptName> {
        let (table, cache) = (&self.tenants.namespaces, &self.ram.cache);
        let (sharers, prefix) = (Sharers::of_kept(prompt), whole_blocks(&prompt.tokens));
        let namespace = table.known_kept(sharers, &self.of_prefix(retention), cache)?;
        let identity = table.place(sharers, cache).roots.identity_after(prefix);
        Some(KeptName { namespace, identity, tokens: prefix.len() })
    }

    /// The retention policy for a prefix, with byte budgets converted to tokens. The result is part of the name, so
    /// every maker and every lookup of a compressed prefix must use this function.
    pub(super) fn of_prefix(&self, retention: &Retention) -> Retention {
        retention.resolve(self.block_bytes / BLOCK_POSITIONS).of_prefix()
    }
}
