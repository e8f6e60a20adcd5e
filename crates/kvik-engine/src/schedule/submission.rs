//! What is refused at once, and how a request enters the queue.

use kvik_cache::{BLOCK_POSITIONS, Token, blocks_for};

use super::answer::{Answer, Rules};
use super::job::JobId;
use super::sequence::{Sequence, Sharing};
use super::{EngineConfig, Scheduler};
use crate::api::{EventSink, Request, RequestError};
use crate::panics::contain;
use crate::text::constraint::Guide;

/// What a request is checked against before it is submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    context_tokens: usize,
    blocks: usize,
    choices_max: u32,
    vocab_len: usize,
}

/// A request that keeps within the limits, with its constraint compiled.
pub struct Submission {
    /// What is asked for.
    pub request: Request,
    /// The compiled constraint, when the request has one.
    pub guide: Option<Guide>,
    /// Where the events go.
    pub sink: Box<dyn EventSink>,
}

impl Limits {
    /// The limits of an engine with `blocks` KV blocks and `vocab_len` logits.
    pub fn new(config: &EngineConfig, blocks: usize, vocab_len: usize) -> Limits {
        let EngineConfig { context_tokens, choices_max, .. } = *config;
        Limits { context_tokens, blocks, choices_max, vocab_len }
    }

    /// Refuses what can never be served.
    pub fn check(&self, request: &Request) -> Result<(), RequestError> {
        let prompt_tokens = request.prompt.len();
        let unknown = request.prompt.iter().find(|&&token| token as usize >= self.vocab_len);
        if prompt_tokens == 0 {
            return Err(RequestError::EmptyPrompt);
        }
        if let Some(&token) = unknown {
            return Err(RequestError::UnknownToken { token, vocab: self.vocab_len });
        }
        if request.choices == 0 || request.choices > self.choices_max {
            let choices = request.choices;
            return Err(RequestError::BadChoices { choices, choices_max: self.choices_max });
        }
        if prompt_tokens > self.context_tokens {
            let context_tokens = self.context_tokens;
            return Err(RequestError::PromptTooLong { prompt_tokens, context_tokens });
        }
        if blocks_for(prompt_tokens) > self.blocks {
            let needed_blocks = blocks_for(prompt_tokens);
            return Err(RequestError::OverBudget { needed_blocks, budget_blocks: self.blocks });
        }
        Ok(())
    }

    /// Tokens that an answer may have: what is asked for, as far as context and budget hold it.
    /// The last one is never stored, hence one more than there are positions left.
    fn answer_tokens(&self, request: &Request) -> usize {
        let positions = self.context_tokens.min(self.blocks * BLOCK_POSITIONS);
        request.max_tokens.min(positions - request.prompt.len() + 1)
    }
}

impl Scheduler {
    /// Puts a request into the queue. It must keep within `limits`. A panic in that fails the request.
    pub fn submit(&mut self, submission: Submission, limits: &Limits) {
        let Submission { request, guide, sink } = submission;
        let job = self.results.open(sink, request.prompt.len(), request.choices, self.now());
        if let Err(error) = contain(|| self.enqueue(job, request, guide, limits)) {
            self.fail(job, error.clone());
            self.mistrust(&error);
        }
    }

    fn enqueue(&mut self, job: JobId, mut request: Request, guide: Option<Guide>, limits: &Limits) {
        let tokens_max = limits.answer_tokens(&request);
        let prompt = std::mem::take(&mut request.prompt);
        let sharing = self.sharing(&request, &prompt);
        let tenant = request.tenant;
        if !self.queue.serves(tenant) && !self.running.serves(tenant) {
            self.turns.come_back(tenant);
        }
        let rules = Rules::new(request, tokens_max, self.results.vocabulary());
        let answer = Answer::new(&rules, 0, &prompt, guide);
        self.queue.push(Sequence::new(job, sharing, answer, prompt));
    }

    /// Private requests have a namespace of their own in which nothing is ever published.
    fn sharing(&mut self, request: &Request, prompt: &[Token]) -> Sharing {
        if request.reuse {
            let id = self.shared_namespace(request.tenant, request.salt, prompt);
            self.settle_owner(id, request.tenant, request.salt);
            return Sharing::Namespace(id);
        }
        let id = self.namespace(request.salt);
        let roots = self.roots[&id];
        if let Some(disk) = &mut self.disk {
            disk.note_private(&roots, prompt);
        }
        let id = self.cache.namespace(&self.config.namespaces().private(request.salt));
        self.settle_owner(id, request.tenant, request.salt);
        Sharing::Private(id)
    }
}
