//! One choice of one request: its tokens, and how many of them are stored.

use std::cmp::Ordering;

use kvik_cache::{Cache, Lifetime, NamespaceId, SeqId, TenantId, Token, whole_blocks};

use super::answer::Answer;
use super::disk::{Spilled, Stored};
use super::job::JobId;
use super::prefix::common_prefix;
use crate::api::FinishReason;

/// A sequence, waiting or running.
#[derive(Debug)]
pub(super) struct Sequence {
    /// Its name in the cache; a new one each time it is admitted.
    pub(super) id: SeqId,
    pub(super) job: JobId,
    pub(super) choice: u32,
    pub(super) tenant: TenantId,
    /// The prompt, then what was generated.
    pub(super) tokens: Vec<Token>,
    pub(super) prompt_len: usize,
    /// Leading tokens whose keys and values are in its blocks.
    pub(super) stored: usize,
    /// The most that `stored` ever was: what it lost of them is computed again after a preemption.
    pub(super) furthest: usize,
    pub(super) sharing: Sharing,
    /// How long what it leaves in the cache is to be kept.
    pub(super) lifetime: Lifetime,
    pub(super) answer: Answer,
    /// Which of its blocks the disk has been given.
    pub(super) spilled: Spilled,
    /// Whether it was ever admitted.
    pub(super) started: bool,
    pub(super) ended: Option<FinishReason>,
}

/// With whom a sequence shares blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Sharing {
    /// With everybody in the namespace.
    Namespace(NamespaceId),
    /// With nobody: it neither looks up nor publishes.
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
            prompt_len: prompt.len(),
            tokens: prompt,
            stored: 0,
            furthest: 0,
            sharing,
            spilled: Spilled::default(),
            started: false,
            ended: None,
        }
    }

    /// Another choice at the end of the same prompt, without blocks. This one must have
    /// generated nothing yet.
    pub(super) fn sibling(&self, choice: u32) -> Sequence {
        Sequence {
            id: SeqId(0),
            choice,
            tokens: self.tokens.clone(),
            stored: 0,
            answer: self.answer.sibling(choice, &self.tokens),
            ended: None,
            spilled: Spilled::default(),
            ..*self
        }
    }

    /// The tokens that it was asked to continue.
    pub(super) fn prompt(&self) -> &[Token] {
        &self.tokens[..self.prompt_len]
    }

    /// The tokens that are in its blocks.
    pub(super) fn stored_tokens(&self) -> &[Token] {
        &self.tokens[..self.stored]
    }

    /// What the disk may take of its blocks: the whole ones, and the last one too when it has `ended`. None when
    /// it is private.
    pub(super) fn stored_blocks(&self, ended: bool) -> Option<Stored<'_>> {
        let Sharing::Namespace(namespace) = self.sharing else { return None };
        let tokens = if ended { self.stored_tokens() } else { whole_blocks(self.stored_tokens()) };
        Some(Stored { seq: self.id, namespace, tokens, prompt: self.prompt(), lifetime: self.lifetime })
    }

    /// Ends it in the cache. What it computed stays there, unless it is private.
    pub(super) fn release(&self, cache: &mut Cache) {
        match self.sharing {
            Sharing::Namespace(_) => cache.finish(self.id, self.stored_tokens()),
            Sharing::Private(_) => cache.abandon(self.id),
        }
    }

    /// Tokens still to be computed.
    pub(super) fn missing(&self) -> usize {
        self.tokens.len() - self.stored
    }

    /// Whether its next row is one of several: a prompt, or what a preemption lost.
    pub(super) fn in_prefill(&self) -> bool {
        self.missing() > 1 || self.stored < self.prompt_len
    }

    /// Tokens that may come from the cache: the last one is computed, for its logits.
    pub(super) fn reuse_max(&self) -> usize {
        match self.sharing {
            Sharing::Private(_) => 0,
            Sharing::Namespace(_) if self.answer.is_wanted() => self.tokens.len() - 1,
            Sharing::Namespace(_) => self.tokens.len(),
        }
    }

    /// Positions it may come to need: its last token is never stored.
    pub(super) fn positions_max(&self) -> usize {
        self.tokens.len() + self.answer.tokens_left().saturating_sub(1)
    }

    /// Leading tokens in common with `other`.
    pub(super) fn common(&self, other: &Sequence) -> usize {
        common_prefix(&self.tokens, &other.tokens)
    }

    /// Older requests first, then lower choices.
    pub(super) fn by_age(&self, other: &Sequence) -> Ordering {
        (self.job, self.choice).cmp(&(other.job, other.choice))
    }
}

#[cfg(test)]
impl Sequence {
    /// A sequence of request 0 that was never admitted, and that wants one token.
    pub(super) fn fake(tenant: TenantId, tokens: Vec<Token>) -> Sequence {
        use kvik_cache::{CacheConfig, Namespaces, Policy};

        let config = CacheConfig { blocks: 1, policy: Policy::Lru, ghosts: 0, pinned_max: 0 };
        let namespaces = Namespaces { model: [0; 32], kv_format: "f32/f32", adapter: None };
        let namespace = Cache::new(config).unwrap().namespace(&namespaces.shared([0; 16]));
        let prompt = crate::api::KeptPrompt { tokens: tokens.clone(), salt: [0; 16], tenant };
        let vocabulary = crate::text::stream::Vocabulary::new::<&[u8]>([]);
        let rules = super::answer::Rules::new(prompt.request(), 1, &vocabulary);
        Sequence::new(JobId(0), Sharing::Namespace(namespace), Answer::new(&rules, 0, &tokens, None), tokens)
    }
}
