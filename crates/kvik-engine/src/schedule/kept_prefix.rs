//! Compressed prefixes: made once, then shared, immutable and durable like any prompt.
//!
//! The first request that asks for one computes the prefix, applies its retention policy and publishes the retained
//! positions under a name of their own; later requests find them in RAM or on disk and start after them. Both read the
//! same bytes, so both answer the same.

use std::sync::Arc;

use kvik_cache::retain::Retention;
use kvik_cache::{BLOCK_POSITIONS, SeqId, StopReason, TenantId, Token, whole_blocks};
use kvik_model::batch::{Retainer, Runner};

use super::Scheduler;
use super::admission::Outcome;
use super::disk::{Disk, Spilled, Stored, Wanted};
use super::forget::kept;
use super::growth::extend;
use super::job::JobId;
use super::kept_parts::{CompressedPrefixes, KeptName};
use super::namespaces::Sharers;
use super::prefix::Reused;
use super::queue::{Candidate, Waiting};
use super::ram::Ram;
use super::sequence::Sequence;
use super::tenants::Tenants;
use crate::api::{Cached, Evicted, PinnedPrompt, RequestError};
use crate::retain::Ragged;

/// The name of a sequence's compressed prefix, if it shares one.
pub(super) fn name_of_kept(
    sequence: &Sequence,
    tenants: &mut Tenants,
    ram: &mut Ram,
    disk: &mut Disk,
) -> Option<KeptName> {
    let prefix = &sequence.tokens[..sequence.kept_prefix()?];
    sequence.publishes_in()?;
    let retention = &sequence.forgetting.as_ref()?.retention;
    let owner = (sequence.tenant, Sharers::of(sequence.answer.request()));
    Some(name(owner, prefix, retention, tenants, ram, disk))
}

/// The name of the compressed form of a tenant's `prefix`, which is whole blocks, under `retention`.
pub(super) fn name(
    (tenant, sharers): (TenantId, Sharers),
    prefix: &[Token],
    retention: &Retention,
    tenants: &mut Tenants,
    ram: &mut Ram,
    disk: &mut Disk,
) -> KeptName {
    let own = tenants.namespaces.shared(sharers, &mut ram.cache);
    let identity = tenants.namespaces.roots(own).identity_after(prefix);
    let namespace = tenants.namespaces.kept(sharers, retention, &mut ram.cache);
    tenants.register(namespace, (tenant, sharers.salt), ram, disk);
    KeptName { namespace, identity, tokens: prefix.len() }
}

impl Scheduler {
    /// Admits the sequence at `index` of the queue with its compressed prefix, or lets it wait while that is read from
    /// disk. `None` if it must compute the prefix: no compressed form exists, or the logits of its last token are
    /// wanted.
    pub(super) fn admit_kept(
        &mut self,
        index: usize,
        passed: &[Candidate],
        runner: &mut dyn Runner,
    ) -> Option<Outcome> {
        let sequence = &self.queue[index].sequence;
        let name = name_of_kept(sequence, &mut self.tenants, &mut self.ram, &mut self.disk)?;
        if name.tokens > sequence.unobserved_reuse_max() {
            return None;
        }
        let retainer = runner.retainer()?;
        if self.fetch_kept(index, &name, retainer) {
            return Some(Outcome::Held);
        }
        let id = self.ram.new_seq();
        let Some(mut storage) = self.lease_kept(id, &name, retainer) else {
            self.ram.cache.abandon(id);
            return None;
        };
        let (before, tokens) = (self.ram.cache.table(id).len(), self.queue[index].sequence.tokens.len());
        let grows = tokens > name.tokens;
        let missing = if grows { storage.blocks_missing(retainer.layout(), tokens) } else { 0 };
        let left_free = self.running.reserve(None).unwrap_or(0);
        let room = self.running.is_empty()
            || self.has_place(&self.queue[index].sequence)
                && self.ram.has_room(missing + left_free, self.running.len());
        if !room || self.ram.cache.reserve(id, (before + missing) * BLOCK_POSITIONS).is_err() {
            self.ram.cache.abandon(id);
            if !self.somebody_gives_way(index) && self.release_disk_blocks() {
                return self.admit_kept(index, passed, runner);
            }
            return Some(self.no_room(index));
        }
        if grows {
            extend(&mut storage, &self.ram.cache.table(id)[before..], tokens, retainer);
        }
        let mut waiting = self.queue.admit(index, name.tokens, passed);
        if let Some(forgetting) = &mut waiting.sequence.forgetting {
            forgetting.begin_with(name.tokens, storage);
        }
        self.start_behind(waiting, id, &name, before);
        Some(Outcome::Admitted)
    }

    /// Starts a sequence after its compressed prefix, which occupies `blocks` blocks.
    fn start_behind(&mut self, waiting: Waiting, id: SeqId, name: &KeptName, blocks: usize) {
        let (job, pins) = (waiting.sequence.job, waiting.sequence.lifetime.pin);
        let chain = self.chain_of(&waiting.sequence, name);
        let retention = waiting.sequence.forgetting.as_ref().map(|forgetting| forgetting.retention);
        self.start(waiting, id, Reused { tokens: name.tokens, stop: StopReason::Retained, evicted: None });
        self.results.note_retained(self.running.find(id).expect("it has just started"));
        let report = &mut self.results.job(job).report;
        if report.disk_tokens > 0 {
            // A compressed prefix is usable only as a whole.
            report.disk_tokens = report.cached_tokens - report.host_tokens - report.remote_tokens;
        }
        if let Some(retention) = retention {
            self.kept_parts.note(*name, retention, blocks, chain);
        }
        if pins {
            self.pin_kept(job, name, blocks);
        }
    }

    /// The first 8 bytes of the identity of each block of an exact prefix.
    fn chain_of(&self, sequence: &Sequence, name: &KeptName) -> Arc<[u64]> {
        let sharers = Sharers::of(sequence.answer.request());
        let roots = self.tenants.namespaces.place(sharers, &self.ram.cache).roots;
        CompressedPrefixes::chain(roots.identity.blocks(&sequence.tokens[..name.tokens]))
    }

    /// Whether the sequence at `index` of the queue waits for the disk, which holds its compressed prefix.
    fn fetch_kept(&mut self, index: usize, name: &KeptName, retainer: &mut dyn Retainer) -> bool {
        if self.queue[index].asked_for_kept {
            return false;
        }
        let tokens = name.key(blocks_max(name, retainer));
        let known = self.ram.cache.lookup(name.namespace, &tokens).tokens;
        let (disk, queue, mut context) = self.loading();
        let waiting = &mut queue[index];
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
    fn lease_kept(&mut self, id: SeqId, name: &KeptName, retainer: &mut dyn Retainer) -> Option<Ragged> {
        let cache = &mut self.ram.cache;
        cache.lease(id, name.namespace, &name.key(blocks_max(name, retainer)));
        let (layout, blocks) = (retainer.layout(), cache.table(id));
        let (header, blocks) = blocks.split_at_checked(kept::header_blocks(layout, name.tokens))?;
        let bytes: Vec<u8> = header.iter().flat_map(|&block| retainer.bytes(block)).collect();
        let kept = kept::decode(layout, name.tokens, &bytes)?;
        let counts: Vec<Vec<usize>> = kept.iter().map(|heads| heads.iter().map(Vec::len).collect()).collect();
        let whole = Ragged::blocks_needed(layout, &counts) == blocks.len();
        whole.then(|| Ragged::new(layout, 0, name.tokens, kept, blocks).frozen())
    }

    /// Publishes the compressed prefix of a sequence, in the blocks of `to`, and queues it for the disk. If another
    /// sequence has published the same before, its blocks replace these.
    pub(super) fn share_kept(
        &mut self,
        id: SeqId,
        to: SeqId,
        storage: Ragged,
        retainer: &mut dyn Retainer,
    ) -> Ragged {
        let sequence = self.running.find(id).expect("its pass is under way");
        let (job, lifetime) = (sequence.job, sequence.lifetime);
        let retention = sequence.forgetting.as_ref().map(|forgetting| forgetting.retention);
        let name = name_of_kept(sequence, &mut self.tenants, &mut self.ram, &mut self.disk);
        let Some(name @ KeptName { namespace, tokens, .. }) = name else { return storage };
        let chain = self.chain_of(self.running.find(id).expect("its pass is under way"), &name);
        let layout = retainer.layout().clone();
        let (header, cache) = (kept::encode(&layout, tokens, &storage.kept()), &mut self.ram.cache);
        for (&block, bytes) in cache.table(to).iter().zip(header.chunks(layout.block_bytes())) {
            retainer.replace_bytes(block, bytes);
        }
        let count = cache.table(to).len();
        let key = name.key(count);
        cache.set_lifetime(to, lifetime);
        cache.publish(to, &key);
        if let Some(retention) = retention {
            self.kept_parts.note(name, retention, count, chain);
        }
        if lifetime.pin {
            self.pin_kept(job, &name, count);
        }
        let blocks = &self.ram.cache.table(to)[kept::header_blocks(&layout, tokens)..];
        let storage = Ragged::new(&layout, 0, tokens, storage.kept(), blocks).frozen();
        let (now, stored) = (self.now(), Stored { seq: to, namespace, tokens: &key, prompt: &key, lifetime });
        self.disk.spill_later(Spilled::default(), &stored, &mut self.ram, now);
        storage
    }
}

/// Maximum number of blocks of a compressed prefix: no head retains more than all positions.
fn blocks_max(name: &KeptName, retainer: &mut dyn Retainer) -> usize {
    kept::header_blocks(retainer.layout(), name.tokens) + name.tokens / BLOCK_POSITIONS
}

/// Compressed prefixes as pinned prompts: finding, pinning and releasing them.
impl Scheduler {
    /// Pins a compressed prefix in RAM and, if it is there by now, on disk; fails the request if the pin limit is
    /// reached.
    fn pin_kept(&mut self, job: JobId, name: &KeptName, blocks: usize) {
        let key = name.key(blocks);
        if let Err(limit) = self.ram.cache.pin(name.namespace, &key) {
            return self.results.fail_later(job, RequestError::PinLimit(limit));
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
    pub fn release_part(&mut self, prompt: &PinnedPrompt, retention: &Retention) -> usize {
        let name = self.known_name(prompt, retention);
        let (prefix, retention) = (whole_blocks(&prompt.tokens), self.of_prefix(retention));
        self.withdraw_pins(prompt.salt, |sequence| {
            let same = sequence.forgetting.as_ref().is_some_and(|it| it.retention == retention);
            same && sequence.kept_prefix() == Some(prefix.len()) && sequence.tokens.starts_with(prefix)
        });
        // A compressed prefix that is not listed can only be on disk.
        let name = name.unwrap_or_else(|| self.name_of_prompt(prompt, &retention));
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

    fn name_of_prompt(&mut self, prompt: &PinnedPrompt, retention: &Retention) -> KeptName {
        let owner = (prompt.tenant, Sharers::of_kept(prompt));
        let prefix = whole_blocks(&prompt.tokens);
        let retention = self.of_prefix(retention);
        name(owner, prefix, &retention, &mut self.tenants, &mut self.ram, &mut self.disk)
    }

    /// The retention policy for a prefix, with byte budgets converted to tokens. The result is part of the name, so
    /// every maker and every lookup of a compressed prefix must use this function.
    pub(super) fn of_prefix(&self, retention: &Retention) -> Retention {
        retention.resolve(self.config.block_bytes / BLOCK_POSITIONS).of_prefix()
    }
}
