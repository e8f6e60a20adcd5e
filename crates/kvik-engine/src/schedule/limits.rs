//! The limits of an engine, against which requests are checked before they are submitted.

use std::sync::Arc;

use kvik_cache::retain::{HeadImportance, ModelShape, Points, Retention, RetentionError, Watch};
use kvik_cache::{AuxiliaryState, BLOCK_POSITIONS, blocks_for};
use kvik_text::constraint::Guide;

use crate::api::{EventSink, Request, RequestError, Wants};
use crate::config::EngineConfig;
use crate::retain::repeat::RepeatPrompt;

/// The limits against which a request is checked before it is submitted.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestLimits {
    context_tokens: usize,
    blocks: usize,
    choices_max: u32,
    vocab_len: usize,
    adapters: usize,
    /// Bytes of a position over all layers and heads.
    token_bytes: usize,
    /// KV heads of each layer.
    kv_heads: Arc<[usize]>,
    /// KV heads of each group of layers whose tiles are interchangeable.
    tile_heads: Arc<[usize]>,
    /// Auxiliary state that sequences hold in addition to blocks.
    auxiliary: AuxiliaryState,
    latent: bool,
    /// Whether sequences may have a retention policy.
    forgets: bool,
    calibration: Option<Arc<HeadImportance>>,
    /// Whether the model has gates.
    gated: bool,
    repeat: Arc<RepeatPrompt>,
}

/// A request within the limits, with its constraint compiled.
pub struct Submission {
    /// The request.
    pub request: Request,
    /// The compiled constraint, if the request has one.
    pub guide: Option<Guide>,
    /// The receiver of the events.
    pub sink: Box<dyn EventSink>,
}

impl RequestLimits {
    /// The limits of an engine with `blocks` KV blocks and `vocab_len` logits.
    pub fn new(config: &EngineConfig, blocks: usize, vocab_len: usize) -> RequestLimits {
        let EngineConfig { context_tokens, choices_max, block_bytes, .. } = *config;
        RequestLimits {
            context_tokens,
            blocks,
            choices_max,
            vocab_len,
            adapters: 0,
            token_bytes: block_bytes / BLOCK_POSITIONS,
            kv_heads: config.kv_heads.as_slice().into(),
            tile_heads: config.tile_heads.as_slice().into(),
            auxiliary: config.auxiliary,
            latent: config.latent,
            forgets: true,
            calibration: config.calibration.clone().map(Arc::new),
            gated: config.gates.is_some(),
            repeat: Arc::new(config.repeat.clone()),
        }
    }

    /// Sets the number of adapters.
    pub fn with_adapters(self, adapters: usize) -> RequestLimits {
        RequestLimits { adapters, ..self }
    }

    /// Sets whether sequences may have a retention policy.
    pub fn that_forget(self, forgets: bool) -> RequestLimits {
        RequestLimits { forgets, ..self }
    }

    /// Returns an error for a request that can never be served.
    pub fn check(&self, request: &Request) -> Result<(), RequestError> {
        let prompt_tokens = request.prompt.len();
        let asked = if let Wants::Logits(tokens) = &request.wants { &tokens[..] } else { &[] };
        let mut tokens = request.prompt.iter().chain(asked);
        let unknown = tokens.find(|&&token| token as usize >= self.vocab_len);
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
        check_wants(request)?;
        self.check_adapters(request)?;
        self.check_room(request)
    }

    fn check_adapters(&self, request: &Request) -> Result<(), RequestError> {
        let ids = request.adapters.iter().flat_map(|mix| mix.uses()).map(|used| used.adapter.0);
        match ids.into_iter().find(|&id| id as usize >= self.adapters) {
            None => Ok(()),
            Some(adapter) => Err(RequestError::UnknownAdapter { adapter, adapters: self.adapters }),
        }
    }

    /// Rejects a prompt whose stored positions exceed context or budget.
    fn check_room(&self, request: &Request) -> Result<(), RequestError> {
        let prompt_tokens = request.prompt.len();
        let room = self.room(request);
        if let Some(retention) = &room.retention {
            let shape = self.shape();
            shape.check_layers()?;
            if !self.forgets {
                return Err(RetentionError::Device.into());
            }
            retention.check_model(&shape)?;
            check_prefix(request)?;
            retention.check_prompt(prompt_tokens, self.context_tokens)?;
        }
        if prompt_tokens > room.context_tokens {
            let context_tokens = self.context_tokens;
            return Err(RequestError::PromptTooLong { prompt_tokens, context_tokens });
        }
        let needed_blocks = room.blocks(prompt_tokens);
        if needed_blocks > self.blocks {
            return Err(RequestError::OverBudget { needed_blocks, budget_blocks: self.blocks });
        }
        Ok(())
    }

    fn shape(&self) -> ModelShape<'_> {
        ModelShape {
            kv_heads: &self.kv_heads,
            windows: !self.auxiliary.is_nothing(),
            latent: self.latent,
            heads: self.calibration.as_deref(),
            gated: self.gated,
        }
    }

    /// Maximum number of tokens of an answer: as requested, as far as context and budget allow. The last one is never
    /// stored, hence one more than there are positions left.
    pub fn answer_tokens(&self, request: &Request) -> usize {
        let (room, prompt) = (self.room(request), request.prompt.len());
        let asked = prompt.saturating_add(request.max_tokens.saturating_sub(1)).min(room.context_tokens);
        if request.max_tokens == 0 || room.blocks(asked) <= self.blocks {
            return request.max_tokens.min(room.context_tokens - prompt + 1);
        }
        // The most tokens that fit: more tokens never take fewer blocks.
        let (mut fits, mut exceeds) = (prompt, asked);
        while exceeds - fits > 1 {
            let middle = fits.midpoint(exceeds);
            match room.blocks(middle) <= self.blocks {
                true => fits = middle,
                false => exceeds = middle,
            }
        }
        fits - prompt + 1
    }

    fn room(&self, request: &Request) -> Room {
        let retention = request.retention.map(|retention| retention.resolve(self.token_bytes));
        let streams = request.kept_prefix.is_none()
            && retention.is_some_and(|retention| retention.streams(self.context_tokens));
        // A stream that renews the RoPE rotation of its sinks never has a distance that the model does not know.
        let context_tokens = if streams { usize::MAX } else { self.context_tokens };
        let points = retention.map(|retention| match request.kept_prefix {
            Some(prefix) => retention.point_at(prefix),
            None => retention.points(request.prompt.len(), self.context_tokens),
        });
        let points = points.map(|points| points.in_groups(&self.tile_heads));
        let repeated = points.and_then(|points| points.next(0));
        let repeats = retention.is_some_and(|retention| retention.watch() == Watch::Repeat);
        let repeat_rows = repeated.filter(|_| repeats).map_or(0, |tokens| self.repeat.rows_max(tokens));
        let auxiliary = self.auxiliary;
        Room {
            auxiliary,
            context_tokens,
            retention,
            points,
            repeat_rows,
            keeps_prefix: request.kept_prefix.is_some(),
        }
    }
}

/// Checks requests for logits and embeddings: one choice and no tokens. All of the prompt is read, so that a prompt has
/// one embedding.
fn check_wants(request: &Request) -> Result<(), RequestError> {
    let besides = [
        ("choices", request.choices > 1),
        ("max_tokens", request.max_tokens > 0),
        ("constraint", request.constraint.is_some()),
        ("retain", request.retention.is_some()),
        ("kept_prefix", request.kept_prefix.is_some()),
    ];
    let field = besides.iter().find(|(_, asked)| *asked).filter(|_| request.wants != Wants::Text);
    field.map_or(Ok(()), |&(field, _)| Err(RequestError::NotText { field }))
}

/// Checks that a compressed prefix is a whole number of blocks of the prompt.
fn check_prefix(request: &Request) -> Result<(), RequestError> {
    let (Some(prefix), prompt_tokens) = (request.kept_prefix, request.prompt.len()) else { return Ok(()) };
    match prefix > 0 && prefix <= prompt_tokens && prefix.is_multiple_of(BLOCK_POSITIONS) {
        true => Ok(()),
        false => Err(RequestError::KeptPrefix { prefix, prompt_tokens }),
    }
}

/// The context and the blocks that a request needs.
struct Room {
    auxiliary: AuxiliaryState,
    /// Positions that its sequences may have.
    context_tokens: usize,
    retention: Option<Retention>,
    points: Option<Points>,
    /// Positions after the tokens that are needed while it repeats its prompt.
    repeat_rows: usize,
    /// True if it compresses a prefix, even if nothing follows.
    keeps_prefix: bool,
}

impl Room {
    /// Maximum number of blocks that a sequence of `tokens` needs at any time: for what it stores and, at a point, for
    /// the retained positions in addition.
    fn blocks(&self, tokens: usize) -> usize {
        let Some(points) = &self.points else { return self.auxiliary.needed(tokens) };
        let first = points.next(0);
        let forgets = first.is_some_and(|point| point < tokens || self.keeps_prefix);
        match forgets {
            true => {
                let stored = points.stored_max(tokens) + self.repeat_rows;
                // Each head ends within a tile, which may take a block more than its positions.
                blocks_for(stored) + blocks_for(points.kept_max(tokens)) + 2
            }
            false => blocks_for(tokens),
        }
    }
}
