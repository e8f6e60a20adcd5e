//! A sequence is one choice of one request: its tokens, and the number of them that are stored.

use std::cmp::Ordering;

use kvik_cache::{
    BLOCK_POSITIONS, BlockId, Cache, Lifetime, NamespaceId, SeqId, TenantId, Token, blocks_for, whole_blocks,
};
use kvik_model::batch::Output;

use super::answer::Answer;
use super::disk::{Spilled, Stored, Wanted};
use super::draft::Drafter;
use super::forget::Forgetting;
use super::job::JobId;
use super::pooled::Pooled;
use super::prefix::{ReuseLimits, common_prefix};
use crate::api::{FinishReason, Pace, Retained, Wants};
use crate::retain::{Extent, Held, Ragged};

/// Urgency of a background sequence that lags behind its pace by all of its work; proportional for a smaller lag.
const URGENCY_OF_LAG: f64 = 10.0;
/// Maximum urgency, however large the lag.
const URGENCY_MAX: f64 = 3.0;
/// Maximum number of ranges of retained positions in a report: some megabytes as text.
const SHOWN_RANGES_MAX: usize = 1 << 18;

/// A sequence, waiting or running.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Its id in the cache; a new one each time it is admitted, and 0 before that.
    pub(super) id: SeqId,
    pub(super) job: JobId,
    pub(super) choice: u32,
    pub(super) tenant: TenantId,
    /// The prompt, then what was generated.
    pub(super) tokens: Vec<Token>,
    pub(super) prompt_len: usize,
    /// Leading tokens whose keys and values are in its blocks.
    pub(super) stored: usize,
    /// The value of `stored` when it was admitted.
    pub(super) began: usize,
    /// The maximum that `stored` ever had: after a preemption, tokens up to here are recomputed.
    pub(super) furthest: usize,
    /// Until this many tokens are stored it is computed alone: an earlier batch with it panicked and spoiled the states
    /// of the other sequences.
    pub(super) alone_until: usize,
    pub(super) sharing: Sharing,
    /// The lifetime of what it leaves in the cache.
    pub(super) lifetime: Lifetime,
    pub(super) answer: Answer,
    /// Its draft state.
    pub(super) drafter: Drafter,
    /// The sum of the hidden states of its prompt so far, if it wants them.
    pub(super) pooled: Pooled,
    /// The state of its retention policy, if it has one.
    pub(super) forgetting: Option<Box<Forgetting>>,
    /// The progress of spilling its blocks to disk.
    pub(super) spilled: Spilled,
    /// Number of rows that other prefills got during its own.
    pub(super) overtaken: usize,
    /// True if it was ever admitted, or the choice that it continues.
    pub(super) started: bool,
    pub(super) ended: Option<FinishReason>,
}

/// The sequences with which a sequence shares blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// All sequences of the namespace.
    Namespace(NamespaceId),
    /// None: it neither looks up nor publishes.
    Private(NamespaceId),
}

impl Sequence {
    /// The first choice of a request, which was never admitted.
    pub(super) fn new(job: JobId, sharing: Sharing, answer: Answer, prompt: Vec<Token>) -> Sequence {
        Sequence {
            id: SeqId(0),
            job,
            choice: 0,
            tenant: answer.request().tenant,
            lifetime: answer.request().lifetime,
            answer,
            drafter: Drafter::of_prompt(prompt.len()),
            pooled: Pooled::default(),
            prompt_len: prompt.len(),
            tokens: prompt,
            forgetting: None,
            stored: 0,
            began: 0,
            furthest: 0,
            alone_until: 0,
            sharing,
            spilled: Spilled::default(),
            overtaken: 0,
            started: false,
            ended: None,
        }
    }

    /// Another choice that starts at the end of the same prompt, without blocks, and its answer. `self` must have
    /// generated nothing yet.
    pub(super) fn sibling(&self, choice: u32, answer: Answer) -> Sequence {
        Sequence {
            id: SeqId(0),
            choice,
            tokens: self.tokens.clone(),
            stored: 0,
            answer,
            forgetting: self.forgetting.as_ref().map(|forgetting| Box::new(forgetting.anew())),
            ended: None,
            spilled: Spilled::default(),
            drafter: self.drafter.sibling(),
            pooled: Pooled::default(),
            ..*self
        }
    }

    /// The tokens of the request's prompt.
    pub(super) fn prompt(&self) -> &[Token] {
        &self.tokens[..self.prompt_len]
    }

    /// Whether its answer has begun.
    pub(super) fn has_begun(&self) -> bool {
        self.tokens.len() > self.prompt_len
    }

    /// Ends it for this reason, unless it has ended already.
    pub(super) fn end(&mut self, reason: FinishReason) {
        self.ended.get_or_insert(reason);
    }

    /// The tokens that are in its blocks.
    pub(super) fn stored_tokens(&self) -> &[Token] {
        &self.tokens[..self.stored]
    }

    /// The blocks that the disk may take: the whole ones, and the last one too if it has `ended`. `None` if it
    /// publishes nothing.
    pub(super) fn stored_blocks(&self, ended: bool) -> Option<Stored<'_>> {
        let namespace = self.publishes_in()?;
        let tokens = if ended { self.stored_tokens() } else { whole_blocks(self.stored_tokens()) };
        Some(Stored { seq: self.id, namespace, tokens, prompt: self.prompt(), lifetime: self.lifetime })
    }

    /// The part of its tokens to fetch from the tiers below RAM, which has `known` tokens of it.
    pub(super) fn wanted(&self, namespace: NamespaceId, known: usize) -> Wanted<'_> {
        Wanted { namespace, tokens: self.reusable(), known, ttl: self.lifetime.ttl }
    }

    /// Ends the sequence in the cache. Its blocks stay there, unless it is private.
    pub(super) fn release(&self, cache: &mut Cache) {
        if let Some(id) = self.forgetting.as_ref().and_then(|forgetting| forgetting.moves_to()) {
            cache.abandon(id);
        }
        match self.publishes_in() {
            Some(_) => cache.finish(self.id, self.stored_tokens()),
            None => cache.abandon(self.id),
        }
    }

    /// The namespace in which its new blocks are published; `None` if it is private or has dropped positions.
    pub(super) fn publishes_in(&self) -> Option<NamespaceId> {
        match self.sharing {
            Sharing::Namespace(namespace) if !self.has_forgotten() => Some(namespace),
            Sharing::Namespace(_) | Sharing::Private(_) => None,
        }
    }

    /// True if it has dropped positions, so that it stores fewer than all its tokens.
    pub(super) fn has_forgotten(&self) -> bool {
        self.forgetting.as_ref().is_some_and(|forgetting| forgetting.has_forgotten())
    }

    /// Restarts the sequence, without blocks.
    pub(super) fn restart(&mut self) {
        self.stored = 0;
        self.pooled = Pooled::default();
        self.forgetting = self.forgetting.take().map(|forgetting| Box::new(forgetting.anew()));
    }

    /// True if it ever had blocks: a choice that starts with the first token of another has none until it is admitted.
    pub(super) fn has_run(&self) -> bool {
        self.id != SeqId(0)
    }

    /// True if it must be alone in a batch.
    pub(super) fn is_suspect(&self) -> bool {
        self.stored < self.alone_until
    }

    /// Number of tokens still to be computed.
    pub(super) fn missing(&self) -> usize {
        self.tokens.len() - self.stored
    }

    /// Number of rows to compute before its next pass; during a pass, those that repeat its prompt. None once it has
    /// ended.
    pub(super) fn due(&self) -> usize {
        match &self.forgetting {
            _ if self.ended.is_some() => 0,
            Some(forgetting) if forgetting.pass.is_some() => forgetting.repeat().map_or(0, <[Token]>::len),
            _ => self.reach() - self.stored,
        }
    }

    /// Number of computed rows of the piece that it repeats.
    pub(super) fn repeated(&self) -> usize {
        self.forgetting.as_ref().map_or(0, |forgetting| forgetting.repeated())
    }

    /// Its stored positions; `blocks` are its blocks in the cache.
    pub(super) fn held<'a>(&'a self, blocks: &'a [BlockId]) -> Held<'a> {
        Held { blocks, storage: self.storage(), tokens: self.stored }
    }

    /// The storage of its retained positions, if a pass was made.
    pub(super) fn storage(&self) -> Option<&Ragged> {
        self.forgetting.as_ref().and_then(|forgetting| forgetting.storage.as_ref())
    }

    /// Number of its first blocks that may stay shared in a pass: those of the protected positions, if all are retained.
    /// Keys whose RoPE rotation is renewed cannot be shared.
    pub(super) fn shared_blocks(&self) -> usize {
        let Some(forgetting) = &self.forgetting else { return 0 };
        match &forgetting.storage {
            Some(storage) => storage.shared(),
            None if self.publishes_in().is_none() || forgetting.prefix.is_some() => 0,
            None if forgetting.retention.rotated_sinks() > 0 => 0,
            None => forgetting.retention.protect.min(self.stored) / BLOCK_POSITIONS,
        }
    }

    /// True if it reads a compressed prefix where one is listed, and has not started.
    pub(super) fn chooses_part(&self) -> bool {
        self.answer.request().chooses_part() && !self.started
    }

    /// Number of leading tokens that it reads and shares in compressed form.
    pub(super) fn kept_prefix(&self) -> Option<usize> {
        self.forgetting.as_ref().and_then(|forgetting| forgetting.prefix)
    }

    /// Report of its retained positions after the last pass, if one was made.
    pub(super) fn retained(&self) -> Option<Box<Retained>> {
        let forgetting = self.forgetting.as_ref()?;
        let (storage, tokens) = (forgetting.storage.as_ref()?, self.stored);
        let Extent { smallest, largest, total } = storage.stored(tokens);
        let kept = total as u64;
        Some(Box::new(Retained {
            retention: forgetting.retention,
            tokens,
            kept,
            dropped: storage.dropped(),
            smallest_head: smallest,
            largest_head: largest,
            tightened: forgetting.tightened(),
            positions: self
                .answer
                .request()
                .show_kept
                .then(|| storage.kept_ranges(SHOWN_RANGES_MAX))
                .flatten(),
        }))
    }

    /// Blocks for its retained positions if memory pressure forced a pass; `None` if its policy does not allow that.
    pub(super) fn blocks_to_tighten(&self) -> Option<usize> {
        self.forgetting.as_ref()?.blocks_to_tighten(self.tokens.len())
    }

    /// Blocks that a pass now would release. `None` before its prompt is computed, while it computes again what it had
    /// before a preemption, for its answer has read all of that, and if the last pass was recent: little is gained then.
    pub(super) fn gain(&self) -> Option<usize> {
        let forgetting = self.forgetting.as_ref().filter(|forgetting| forgetting.pass.is_none())?;
        let is_new = self.stored >= self.prompt_len.max(self.furthest);
        let goes_on = self.ended.is_none() && self.missing() > 0 && is_new;
        if !goes_on || forgetting.has_just_forgotten(self.stored) {
            return None;
        }
        let held = self.storage().map_or(self.stored, |storage| storage.stored(self.stored).largest);
        let gain = blocks_for(held).saturating_sub(self.blocks_to_tighten()?);
        (gain > 0).then_some(gain)
    }

    /// True if it is at a point and continues after it.
    pub(super) fn is_to_forget(&self) -> bool {
        let point = self.forgetting.as_ref().and_then(|forgetting| forgetting.next_point());
        let goes_on = self.missing() > 0 || self.kept_prefix() == Some(self.stored);
        point == Some(self.stored) && self.ended.is_none() && goes_on
    }

    /// Number of leading tokens for which it needs room now.
    pub(super) fn reach(&self) -> usize {
        let point = self.forgetting.as_ref().and_then(|forgetting| forgetting.next_point());
        point.map_or(self.tokens.len(), |point| point.min(self.tokens.len()))
    }

    /// Positions after its tokens that it needs while it repeats its prompt.
    pub(super) fn repeat_rows(&self) -> usize {
        self.forgetting.as_ref().map_or(0, |forgetting| forgetting.repeat_rows())
    }

    /// Number of leading tokens whose blocks others will be able to use.
    pub(super) fn exact_until(&self) -> usize {
        self.forgetting.as_ref().map_or(usize::MAX, |forgetting| forgetting.exact_until())
    }

    /// Maximum number of draft tokens: together with the token sampled anyway, no more than it may still generate.
    pub(super) fn draft_max(&self) -> usize {
        let decodes = self.ended.is_none() && self.missing() == 1 && self.stored >= self.prompt_len;
        let plain = self.forgetting.is_none() && self.answer.request().wants == Wants::Text;
        if decodes && plain { self.answer.tokens_left().saturating_sub(1) } else { 0 }
    }

    /// True if the model's prediction head, where there is one, may draft for it.
    pub(super) fn is_followed(&self) -> bool {
        let plain = self.forgetting.is_none() && self.answer.request().wants == Wants::Text;
        plain && !self.is_background() && self.ended.is_none() && self.answer.tokens_left() > 1
    }

    /// True if it has several rows to compute: a prompt, or what a preemption lost.
    pub(super) fn in_prefill(&self) -> bool {
        let passes = self.forgetting.as_ref().is_some_and(|forgetting| forgetting.pass.is_some());
        passes || self.missing() > 1 || self.stored < self.prompt_len
    }

    /// Those of its next `rows` tokens that are of its prompt and were never computed.
    pub(super) fn new_prompt_rows(&self, rows: usize) -> usize {
        let end = (self.stored + rows).min(self.prompt_len);
        end.saturating_sub(self.furthest.max(self.stored))
    }

    /// Number of tokens that may come from the cache: the last one is computed for its logits, as are those whose
    /// attention is observed.
    pub(super) fn reuse_max(&self) -> usize {
        self.reuse_limits().reuse_max()
    }

    /// The tokens that may come from the cache.
    pub(super) fn reusable(&self) -> &[Token] {
        &self.tokens[..self.reuse_max()]
    }

    /// The token from which on it must compute in order to observe attention; `usize::MAX` if it observes none.
    pub(super) fn observed_from(&self) -> usize {
        self.reuse_limits().observed_from()
    }

    fn reuse_limits(&self) -> ReuseLimits {
        let observed = self.forgetting.as_ref().map_or(usize::MAX, |forgetting| forgetting.reuse_max());
        ReuseLimits { observed, unobserved: self.unobserved_reuse_max() }
    }

    /// As [`reuse_max`](Self::reuse_max), if nothing were observed.
    pub(super) fn unobserved_reuse_max(&self) -> usize {
        match self.sharing {
            Sharing::Private(_) => 0,
            Sharing::Namespace(_) if self.pools_all() => 0,
            Sharing::Namespace(_) if self.answer.needs_the_last() => self.tokens.len() - 1,
            Sharing::Namespace(_) => self.tokens.len(),
        }
    }

    /// True if it needs hidden states before its last token.
    pub(super) fn pools_all(&self) -> bool {
        self.answer.request().wants.pools_all()
    }

    /// The output needed of the row at `position`.
    pub(super) fn output(&self, position: usize) -> Output {
        let last = position + 1 == self.tokens.len();
        match &self.answer.request().wants {
            Wants::Text => Output::logits_if(last && self.answer.is_wanted()),
            Wants::Logits(_) => Output::logits_if(last),
            Wants::Embedding(pooling) if pooling.needs(position, self.prompt_len) => Output::Hidden,
            Wants::Embedding(_) => Output::None,
        }
    }

    /// Maximum number of positions before its next point: its last token is never stored.
    pub(super) fn positions_max(&self) -> usize {
        let positions = self.tokens.len() + self.answer.tokens_left().saturating_sub(1);
        let point = self.forgetting.as_ref().and_then(|forgetting| forgetting.next_point());
        point.map_or(positions, |point| point.min(positions))
    }

    /// True if it is a background sequence.
    pub(super) fn is_background(&self) -> bool {
        self.answer.request().background.is_some()
    }

    /// Share by which it may lengthen the steps of the foreground: 0 unless it is a background sequence that lags
    /// behind its pace.
    pub(super) fn urgency(&self) -> f64 {
        let due = self.answer.request().background.as_ref().map_or(0.0, Pace::due);
        let all = self.positions_max().saturating_sub(self.began).max(1);
        let done = self.stored.saturating_sub(self.began) as f64 / all as f64;
        (URGENCY_OF_LAG * (due - done)).clamp(0.0, URGENCY_MAX)
    }

    /// Number of leading tokens in common with `other`.
    pub(super) fn common(&self, other: &Sequence) -> usize {
        common_prefix(&self.tokens, &other.tokens)
    }

    /// Older requests first, then lower choices. Background sequences count as younger than all others.
    pub(super) fn by_age(&self, other: &Sequence) -> Ordering {
        let age = |sequence: &Sequence| (sequence.is_background(), sequence.job, sequence.choice);
        age(self).cmp(&age(other))
    }
}

#[cfg(test)]
impl Sequence {
    /// A sequence of request 0 that was never admitted and wants one token.
    pub(super) fn fake(tenant: TenantId, tokens: Vec<Token>) -> Sequence {
        Sequence::fake_in(false, tenant, tokens)
    }

    /// As `fake`, in the `background` or not.
    pub(super) fn fake_in(background: bool, tenant: TenantId, tokens: Vec<Token>) -> Sequence {
        use kvik_cache::{CacheConfig, Namespaces, Policy};

        let config = CacheConfig { blocks: 1, policy: Policy::Lru, ghosts: 0, pinned_max: 0 };
        let namespaces = Namespaces { model: [0; 32], kv_format: "f32/f32", adapter: None };
        let namespace = Cache::new(config).unwrap().namespace(&namespaces.shared([0; 16]));
        let prompt = crate::api::PinnedPrompt {
            tokens: tokens.clone(),
            adapters: None,
            salt: [0; 16],
            tenant,
            retention: None,
        };
        let vocabulary = kvik_text::stream::Vocabulary::new::<&[u8]>([]);
        let background = background.then(Pace::default);
        let request = crate::api::Request { background, ..prompt.request() };
        let rules = super::answer::Rules::new(request, 1, &vocabulary);
        Sequence::new(JobId(0), Sharing::Namespace(namespace), Answer::new(&rules, &tokens, None), tokens)
    }
}

#[cfg(test)]
mod tests {
    use kvik_cache::retain::Retention;

    use super::*;

    /// The tokens behind were generated from all of it, and would be others if a part were missing now.
    #[test]
    fn what_is_computed_again_is_not_compressed_for_room() {
        let retention: Retention = "sinks:24,every=16,when=pressure".parse().unwrap();
        let mut sequence = Sequence::fake(TenantId(0), vec![7; 48]);
        sequence.tokens.extend([7; 80]);
        sequence.forgetting = Some(Box::new(Forgetting::new(retention, retention.points(48, 4096))));
        (sequence.stored, sequence.furthest) = (127, 127);
        assert_eq!(sequence.gain(), Some(5));
        sequence.stored = 96;
        assert_eq!(sequence.gain(), None);
    }
}
