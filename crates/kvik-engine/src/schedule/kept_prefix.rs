//! Prefixes of which a part is kept: made once, then shared, immutable and durable like any prompt.
//!
//! The first request that asks for one computes the prefix, keeps what its policy keeps and publishes that under a
//! name of its own; those that follow find it in RAM or on disk and begin behind it. Both read the same
//! bytes, so both answer the same.

use kvik_cache::{BLOCK_POSITIONS, Identity, NamespaceId, SeqId, StopReason};

use super::Scheduler;
use super::admission::Outcome;
use super::disk::{Disk, Spilled, Stored, Wanted};
use super::forget::kept;
use super::growth::extend;
use super::prefix::Reused;
use super::queue::Candidate;
use super::ram::Ram;
use super::sequence::Sequence;
use super::tenants::Tenants;
use crate::api::RequestError;
use crate::model::batch::{Retainer, Runner};
use crate::retain::Ragged;

/// What names the part of a prefix that a policy keeps.
#[derive(Debug, Clone, Copy)]
pub(super) struct KeptName {
    pub(super) namespace: NamespaceId,
    /// Of the prefix, where it is stored exactly.
    identity: Identity,
    /// Tokens of the prefix.
    tokens: usize,
}

/// The name of what a sequence keeps of its prefix, when it shares that.
pub(super) fn name_of_kept(
    sequence: &Sequence,
    tenants: &mut Tenants,
    ram: &mut Ram,
    disk: &mut Disk,
) -> Option<KeptName> {
    let tokens = sequence.kept_prefix()?;
    let own = sequence.publishes_in()?;
    let identity = tenants.namespaces.roots(own).identity_after(&sequence.tokens[..tokens]);
    let policy = sequence.forgetting.as_ref()?.retention.to_string();
    let salt = sequence.answer.request().salt;
    let namespace = tenants.namespaces.kept(salt, &policy, &mut ram.cache);
    tenants.register(namespace, (sequence.tenant, salt), ram, disk);
    Some(KeptName { namespace, identity, tokens })
}

impl Scheduler {
    /// Admits the sequence at `index` of the queue with what is kept of its prefix already, or lets it wait while
    /// that is read. `None` if it must compute the prefix: nothing is kept, or the logits of its last token are wanted.
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
        let room = self.running.is_empty() || self.ram.has_room(missing, self.running.len());
        if !room || self.ram.cache.reserve(id, (before + missing) * BLOCK_POSITIONS).is_err() {
            self.ram.cache.abandon(id);
            return Some(self.no_room(index));
        }
        if grows {
            extend(&mut storage, &self.ram.cache.table(id)[before..], tokens, retainer);
        }
        let mut waiting = self.queue.admit(index, passed);
        if let Some(forgetting) = &mut waiting.sequence.forgetting {
            forgetting.begin_with(name.tokens, storage);
        }
        self.start(waiting, id, Reused { tokens: name.tokens, stop: StopReason::Retained, evicted: None });
        self.results.note_retained(self.running.find(id).expect("it has just started"));
        Some(Outcome::Admitted)
    }

    /// Whether the sequence at `index` of the queue waits for the disk, which has what is kept of its prefix.
    fn fetch_kept(&mut self, index: usize, name: &KeptName, retainer: &mut dyn Retainer) -> bool {
        let tokens = kept::key(&name.identity, name.blocks_max(retainer));
        let known = self.ram.cache.lookup(name.namespace, &tokens).tokens;
        let (disk, queue, mut context) = self.loading();
        let waiting = &mut queue[index];
        let wanted = Wanted { namespace: name.namespace, tokens: &tokens, known };
        let waits = disk.fetch(&mut waiting.fetch, wanted, &mut context);
        if !waits && known == 0 {
            // It may still be worth reading the prefix itself.
            waiting.fetch = Default::default();
        }
        waits
    }

    /// Leases what is kept of a prefix to `id`; none if it is not all there.
    fn lease_kept(&mut self, id: SeqId, name: &KeptName, retainer: &mut dyn Retainer) -> Option<Ragged> {
        let cache = &mut self.ram.cache;
        cache.lease(id, name.namespace, &kept::key(&name.identity, name.blocks_max(retainer)));
        let (layout, blocks) = (retainer.layout(), cache.table(id));
        let (header, blocks) = blocks.split_at_checked(kept::header_blocks(layout, name.tokens))?;
        let bytes: Vec<u8> = header.iter().flat_map(|&block| retainer.bytes(block)).collect();
        let kept = kept::decode(layout, name.tokens, &bytes)?;
        let counts: Vec<Vec<usize>> = kept.iter().map(|heads| heads.iter().map(Vec::len).collect()).collect();
        let whole = Ragged::blocks_needed(layout, &counts) == blocks.len();
        whole.then(|| Ragged::new(layout, 0, name.tokens, kept, blocks).frozen())
    }

    /// Publishes what a sequence has kept of its prefix, in the blocks of `to`, and hands it to the disk. Where another
    /// sequence has published the same before, its blocks take the place of these.
    pub(super) fn share_kept(
        &mut self,
        id: SeqId,
        to: SeqId,
        storage: Ragged,
        retainer: &mut dyn Retainer,
    ) -> Ragged {
        let sequence = self.running.find(id).expect("its pass is under way");
        let (job, lifetime) = (sequence.job, sequence.lifetime);
        let name = name_of_kept(sequence, &mut self.tenants, &mut self.ram, &mut self.disk);
        let Some(KeptName { namespace, identity, tokens }) = name else { return storage };
        let layout = retainer.layout().clone();
        let (header, cache) = (kept::encode(&layout, tokens, &storage.kept()), &mut self.ram.cache);
        for (&block, bytes) in cache.table(to).iter().zip(header.chunks(layout.block_bytes())) {
            retainer.replace_bytes(block, bytes);
        }
        let key = kept::key(&identity, cache.table(to).len());
        cache.set_lifetime(to, lifetime);
        cache.publish(to, &key);
        if lifetime.pin
            && let Err(limit) = cache.pin(namespace, &key)
        {
            self.results.fail_later(job, RequestError::PinLimit(limit));
        }
        let blocks = &self.ram.cache.table(to)[kept::header_blocks(&layout, tokens)..];
        let storage = Ragged::new(&layout, 0, tokens, storage.kept(), blocks).frozen();
        let (now, stored) = (self.now(), Stored { seq: to, namespace, tokens: &key, prompt: &key, lifetime });
        self.disk.spill_later(Spilled::default(), &stored, &mut self.ram, now);
        storage
    }
}

impl KeptName {
    /// Blocks that what is kept of the prefix can have: no head keeps more than all.
    fn blocks_max(&self, retainer: &mut dyn Retainer) -> usize {
        kept::header_blocks(retainer.layout(), self.tokens) + self.tokens / BLOCK_POSITIONS
    }
}
