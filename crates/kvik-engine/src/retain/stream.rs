//! Reads an endless text in constant memory, with a retention policy.
//!
//! The text is one long prompt: it is computed up to the next point, then compressed, and so on. At any time the
//! retained positions and the tokens since the last point are stored.

use std::io;
use std::sync::Arc;

use kvik_cache::retain::{
    HeadImportance, Keep, ModelShape, Points, PolicyState, Retention, RetentionError, Watch, decide,
};
use kvik_cache::{BlockId, Token, blocks_for};
use kvik_kernels::{KvLayout, Pool};
use kvik_model::batch::{Batch, Output, Row, Runner};
use kvik_model::observation::{Observation, Watched};
use kvik_model::{Model, ModelRunner};

use super::held::Held;
use super::ragged::Ragged;
use super::shape::{kv_heads, model_shape, tile_heads};
use super::sinks::Sinks;

/// Maximum number of rows computed at a time.
const ROWS_MAX: usize = 512;
/// Longer than any text: the stream is a prompt that does not end.
const ENDLESS: usize = usize::MAX / 4;

/// A model in the middle of a text.
pub struct Stream {
    runner: ModelRunner,
    layout: KvLayout,
    retention: Retention,
    /// The measured importance of the model's heads, if there is one.
    heads: Option<HeadImportance>,
    points: Points,
    passed: usize,
    /// Number of tokens read.
    tokens: usize,
    /// Blocks of the exact beginning, before the first point.
    exact: Vec<BlockId>,
    storage: Option<Kept>,
    /// Free blocks.
    spare: Vec<BlockId>,
    observation: Observation,
    state: PolicyState,
    sinks: Option<Sinks>,
}

/// Why a text cannot be read without end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// A share of an endless text is unbounded.
    #[error(
        "retain.keep: a share of a text without end grows without end; keep a number of tokens, as sinks:1024, or bytes"
    )]
    Share,
    /// The policy needs the whole prompt.
    #[error("retain.policy: {0} repeats the whole prompt, and a text without end has none; take sinks")]
    Repeat(&'static str),
    /// The policy needs gates, which are read with requests only.
    #[error("retain.policy: a text without end is read without gates; take sinks or keydiff")]
    Gates,
    /// The model does not support the retention.
    #[error(transparent)]
    Model(#[from] RetentionError),
    /// The memory cannot be allocated.
    #[error("no memory for what is kept: {0}")]
    Memory(#[from] io::Error),
}

/// The retained positions, and their blocks.
struct Kept {
    ragged: Ragged,
    blocks: Vec<BlockId>,
}

impl Stream {
    /// Allocates room for the positions that `retention` retains, and once more for those being moved; `heads` is the
    /// measured importance of the model's heads, if there is one.
    ///
    /// # Errors
    /// If it retains a share of all tokens, which is unbounded, if it needs a complete prompt, if the model does not
    /// support it, or if the memory cannot be allocated.
    pub fn new(
        model: Arc<Model>,
        pool: Pool,
        layout: KvLayout,
        (retention, heads): (Retention, Option<HeadImportance>),
    ) -> Result<Stream, StreamError> {
        let retention = retention.resolve(layout.token_bytes());
        if matches!(retention.keep, Keep::Share(_)) {
            return Err(StreamError::Share);
        }
        if retention.needs().gated {
            return Err(StreamError::Gates);
        }
        if retention.watch() == Watch::Repeat {
            return Err(StreamError::Repeat(retention.policy.name()));
        }
        let (config, kv_heads) = (model.config(), kv_heads(&layout));
        let shape = model_shape(config, &layout, &kv_heads);
        retention.check_model(&ModelShape { heads: heads.as_ref(), ..shape })?;
        let context = config.context;
        let points = retention.points(ENDLESS, context).in_groups(&tile_heads(&layout));
        let first = points.next(0).unwrap_or(context);
        // Heads that retain different numbers of positions each end within a tile.
        let blocks = 2 * blocks_for(points.stored_max(ENDLESS)) + blocks_for(first) + 4;
        let runner = ModelRunner::new(model, pool, layout.clone(), blocks, context)?;
        let spare = (0..blocks).map(|block| BlockId(block as u32)).collect();
        Ok(Stream {
            runner,
            layout,
            retention,
            heads,
            points,
            passed: 0,
            tokens: 0,
            exact: Vec::new(),
            storage: None,
            spare,
            observation: Observation::default(),
            state: PolicyState::default(),
            sinks: None,
        })
    }

    /// Reads the next tokens of the text; calls `logits` with those of each of them, `[vocab]`.
    pub fn read(&mut self, tokens: &[Token], logits: &mut dyn FnMut(&[f32])) {
        let mut rest = tokens;
        while !rest.is_empty() {
            let point = self.points.next(self.passed).unwrap_or(usize::MAX);
            if self.tokens == point {
                self.forget();
                continue;
            }
            let (next, later) = rest.split_at(rest.len().min(ROWS_MAX).min(point - self.tokens));
            self.compute(next, logits);
            rest = later;
        }
    }

    /// Number of tokens read so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// Number of blocks in use.
    pub fn blocks(&self) -> usize {
        self.exact.len() + self.storage.as_ref().map_or(0, |stored| stored.blocks.len())
    }

    fn compute(&mut self, tokens: &[Token], logits: &mut dyn FnMut(&[f32])) {
        let (first, end) = (self.tokens, self.tokens + tokens.len());
        self.reserve(end);
        let row = |(&token, position): (&Token, usize)| {
            let position = position as u32;
            Row { sequence: 0, token, position, cache_position: position, output: Output::Logits }
        };
        let rows: Vec<Row> = tokens.iter().zip(first..).map(row).collect();
        let watched = self.retention.watched(&self.points, self.passed, first..end);
        let rows_of = watched.start - first..watched.end - first;
        let (watch, observation) = (self.retention.watch(), &mut self.observation);
        let watched = Watched { rows: rows_of, watch, among: Vec::new(), repeated: None, observation };
        let mut watched: Vec<Watched<'_>> =
            Some(watched).filter(|it| !it.rows.is_empty()).into_iter().collect();
        let vocab = self.runner.vocab_len();
        held(&self.exact, self.storage.as_ref(), first).with_kv(|kv| {
            let batch = Batch { rows: &rows, sequences: &[*kv] };
            self.runner.forward(&batch, &mut watched).chunks_exact(vocab).for_each(&mut *logits);
        });
        self.tokens = end;
    }

    /// Allocates room for the first `tokens` tokens.
    fn reserve(&mut self, tokens: usize) {
        match &mut self.storage {
            None => {
                let missing = blocks_for(tokens).saturating_sub(self.exact.len());
                self.exact.extend(self.spare.split_off(self.spare.len() - missing));
            }
            Some(Kept { ragged, blocks }) => {
                let missing = ragged.blocks_missing(&self.layout, tokens);
                let added = self.spare.split_off(self.spare.len() - missing);
                added.iter().for_each(|&block| ragged.add_block(&self.layout, block));
                blocks.extend(added);
                ragged.reserve(&self.layout, tokens);
            }
        }
    }

    /// Applies the retention policy, and frees the other blocks.
    fn forget(&mut self) {
        let (exact, old) = (std::mem::take(&mut self.exact), self.storage.take());
        let held = held(&exact, old.as_ref(), self.tokens);
        let Stream { runner, retention, observation, .. } = self;
        let layers = 0..self.layout.layers().len();
        let facts: Vec<_> =
            layers.clone().map(|layer| held.facts(runner, layer, retention, observation, None)).collect();
        let decision = decide(retention, self.tokens, &facts, self.heads.as_ref(), &mut self.state);
        let needed = Ragged::blocks_needed(&self.layout, &Ragged::counts(&decision, 0));
        let blocks = self.spare.split_off(self.spare.len() - needed);
        let ragged = Ragged::new(&self.layout, 0, self.tokens, held.kept(&decision), &blocks);
        self.sinks = self.sinks.take().or_else(|| held.sinks(runner, retention.rotated_sinks()));
        layers.for_each(|layer| held.move_layer(runner, layer, (&decision, &ragged), self.sinks.as_ref()));
        observation.pass_point(retention, &decision);
        self.spare.extend(exact.into_iter().chain(old.into_iter().flat_map(|old| old.blocks)));
        self.storage = Some(Kept { ragged, blocks });
        self.passed = self.tokens;
    }
}

/// The stored positions of a stream that has read `tokens`.
fn held<'a>(exact: &'a [BlockId], kept: Option<&'a Kept>, tokens: usize) -> Held<'a> {
    Held { blocks: exact, storage: kept.map(|kept| &kept.ragged), tokens }
}
