//! What is refused at once: the limits of an engine, and a request that keeps within them.

use kvik_cache::{BLOCK_POSITIONS, blocks_for};

use crate::api::{EventSink, Request, RequestError};
use crate::config::EngineConfig;
use crate::text::constraint::Guide;

/// What a request is checked against before it is submitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RequestLimits {
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

impl RequestLimits {
    /// The limits of an engine with `blocks` KV blocks and `vocab_len` logits.
    pub fn new(config: &EngineConfig, blocks: usize, vocab_len: usize) -> RequestLimits {
        let EngineConfig { context_tokens, choices_max, .. } = *config;
        RequestLimits { context_tokens, blocks, choices_max, vocab_len }
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
    pub(super) fn answer_tokens(&self, request: &Request) -> usize {
        let positions = self.context_tokens.min(self.blocks * BLOCK_POSITIONS);
        request.max_tokens.min(positions - request.prompt.len() + 1)
    }
}
