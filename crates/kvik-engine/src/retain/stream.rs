//! A text without end, read in constant memory by a model that forgets.
//!
//! The text is one long prompt: it is computed up to the next point, then thinned, and so on. What is stored at any
//! time is what the retention keeps and the tokens since the last point.

use std::io;
use std::sync::Arc;

use kvik_cache::retain::{Keep, LayerFacts, Points, PolicyState, Retention, Watch, decide};
use kvik_cache::{BlockId, Token, blocks_for};
use kvik_kernels::{KvLayout, Pool};

use super::move_layer;
use super::ragged::{Extent, Ragged};
use super::sinks::Sinks;
use crate::model::batch::{Batch, LayerTails, Retainer, Row, Runner, SequenceKv, StoredLayer};
use crate::model::observation::{Observation, Watched};
use crate::model::{Model, ModelRunner};

/// Rows computed at a time.
const ROWS_MAX: usize = 512;
/// Longer than any text: the stream is a prompt that does not end.
const ENDLESS: usize = usize::MAX / 4;

/// A model in the middle of a text.
pub struct Stream {
    runner: ModelRunner,
    layout: KvLayout,
    retention: Retention,
    points: Points,
    passed: usize,
    /// Tokens read.
    tokens: usize,
    /// Where the beginning is stored exactly, before the first point.
    exact: Vec<BlockId>,
    storage: Option<Kept>,
    /// Blocks of nobody.
    spare: Vec<BlockId>,
    observation: Observation,
    state: PolicyState,
    sinks: Option<Sinks>,
}

/// Why a text cannot be read without end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StreamError {
    /// A share of what has no end has no end.
    #[error(
        "retain.keep: a share of a text without end grows without end; keep a number of tokens, as sinks:1024, or bytes"
    )]
    Share,
    /// The policy looks at the whole.
    #[error("retain.policy: {0} repeats the whole prompt, and a text without end has none; take sinks")]
    Repeat(&'static str),
    /// The memory is not to be had.
    #[error("no memory for what is kept: {0}")]
    Memory(#[from] io::Error),
}

/// What was kept, and the blocks it lies in.
struct Kept {
    ragged: Ragged,
    blocks: Vec<BlockId>,
}

impl Stream {
    /// Room for what `retention` keeps, and once more for what is being moved.
    ///
    /// # Errors
    /// When it keeps a share of all tokens, which has no end, when it needs a prompt that ends, or when the memory is
    /// not to be had.
    pub fn new(
        model: Arc<Model>,
        pool: Pool,
        layout: KvLayout,
        retention: Retention,
    ) -> Result<Stream, StreamError> {
        let retention = retention.resolve(layout.token_bytes());
        if matches!(retention.keep, Keep::Share(_)) {
            return Err(StreamError::Share);
        }
        if retention.watch() == Watch::Repeat {
            return Err(StreamError::Repeat(retention.policy.name()));
        }
        let context = model.config().context;
        let points = retention.points(ENDLESS, context);
        let first = points.next(0).unwrap_or(context);
        // Heads that keep unequally end within a tile each.
        let blocks = 2 * blocks_for(points.stored_max(ENDLESS)) + blocks_for(first) + 4;
        let runner = ModelRunner::new(model, pool, layout.clone(), blocks, context)?;
        let spare = (0..blocks).map(|block| BlockId(block as u32)).collect();
        Ok(Stream {
            runner,
            layout,
            retention,
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

    /// Reads the next tokens of the text; `logits` gets those of each of them, `[vocab]`.
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

    /// Tokens read so far.
    pub fn tokens(&self) -> usize {
        self.tokens
    }

    /// How much its heads store.
    pub fn extent(&self) -> Option<Extent> {
        self.storage.as_ref().map(|stored| stored.ragged.stored(self.tokens))
    }

    /// Blocks in use.
    pub fn blocks(&self) -> usize {
        self.exact.len() + self.storage.as_ref().map_or(0, |stored| stored.blocks.len())
    }

    fn compute(&mut self, tokens: &[Token], logits: &mut dyn FnMut(&[f32])) {
        let (first, end) = (self.tokens, self.tokens + tokens.len());
        self.reserve(end);
        let row = |(&token, position): (&Token, usize)| {
            let position = position as u32;
            Row { sequence: 0, token, position, cache_position: position, logits: true }
        };
        let rows: Vec<Row> = tokens.iter().zip(first..).map(row).collect();
        let watched = self.watched(first..end);
        let watch = self.retention.watch();
        let observation = &mut self.observation;
        let mut watched: Vec<Watched<'_>> = (!watched.is_empty())
            .then_some(Watched { rows: watched, watch, among: Vec::new(), observation })
            .into_iter()
            .collect();
        let vocab = self.runner.vocab_len();
        with_kv(&self.exact, self.storage.as_ref(), |kv| {
            let batch = Batch { rows: &rows, sequences: &[*kv] };
            self.runner.forward(&batch, &mut watched).chunks_exact(vocab).for_each(&mut *logits);
        });
        self.tokens = end;
    }

    /// Of the rows that compute these tokens, those that are watched.
    fn watched(&self, tokens: std::ops::Range<usize>) -> std::ops::Range<usize> {
        let point = self.points.next(self.passed).filter(|_| self.retention.watch() != Watch::Nothing);
        let watched = point.map_or(0..0, |point| self.points.watched(point));
        let start = watched.start.clamp(tokens.start, tokens.end);
        start - tokens.start..watched.end.clamp(start, tokens.end) - tokens.start
    }

    /// Room for the first `tokens` tokens.
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

    /// Keeps what the retention keeps; the rest is given back.
    fn forget(&mut self) {
        let layers = self.layout.layers().len();
        let facts: Vec<_> = (0..layers).map(|layer| self.facts(layer)).collect();
        let decision = decide(&self.retention, self.tokens, &facts, None, &mut self.state);
        let positions =
            |layer: usize, head: usize, index: u32| facts[layer].heads[head].positions[index as usize];
        let of_layer = |(layer, heads): (usize, &Vec<Vec<u32>>)| {
            let heads = heads.iter().enumerate();
            heads
                .map(|(head, kept)| kept.iter().map(|&index| positions(layer, head, index)).collect())
                .collect()
        };
        let kept: Vec<Vec<Vec<u32>>> = decision.kept.iter().enumerate().map(of_layer).collect();
        let needed = Ragged::blocks_needed(&self.layout, &Ragged::counts(&decision, 0));
        let blocks = self.spare.split_off(self.spare.len() - needed);
        let ragged = Ragged::new(&self.layout, 0, self.tokens, kept, &blocks);
        self.copy_sinks();
        let (exact, old) = (std::mem::take(&mut self.exact), self.storage.take());
        with_kv(&exact, old.as_ref(), |from| {
            for (layer, kept) in decision.kept.iter().enumerate() {
                move_layer(&mut self.runner, layer, from, kept, &ragged);
            }
        });
        self.spare.extend(exact.into_iter().chain(old.into_iter().flat_map(|old| old.blocks)));
        self.rotate_sinks(&ragged);
        self.storage = Some(Kept { ragged, blocks });
        self.passed = self.tokens;
        match self.retention.accumulates() {
            true => self.observation.compact(&decision.kept),
            false => self.observation.clear_mass(),
        }
    }

    fn facts(&mut self, layer: usize) -> LayerFacts {
        let heads = self.layout.layers()[layer].kv_heads;
        let positions = match &self.storage {
            Some(stored) => stored.ragged.positions(layer, self.tokens),
            None => vec![(0..self.tokens as u32).collect(); heads],
        };
        let (needs, observed) = (self.retention.needs(), self.observation.get(layer));
        with_kv(&self.exact, self.storage.as_ref(), |kv| {
            let stored = StoredLayer { layer, kv: *kv, positions, tokens: self.tokens, observed };
            self.runner.facts(&stored, needs)
        })
    }

    fn copy_sinks(&mut self) {
        let count = self.retention.rotated_sinks().min(self.tokens);
        if count > 0 && self.storage.is_none() {
            let (layers, exact) = (self.layout.layers().len(), SequenceKv::in_blocks(&self.exact));
            self.sinks = Some(Sinks::copy(&self.runner, layers, &exact, count));
        }
    }

    fn rotate_sinks(&mut self, ragged: &Ragged) {
        let Some(sinks) = &self.sinks else { return };
        let views = ragged.views();
        let tails = views.layers();
        for layer in 0..tails.len() {
            let positions = ragged.positions(layer, self.tokens);
            sinks.rotate(&mut self.runner, layer, &SequenceKv { blocks: &[], tails: &tails }, &positions[0]);
        }
    }
}

/// Hands what is stored to `with`.
fn with_kv<T>(exact: &[BlockId], stored: Option<&Kept>, with: impl FnOnce(&SequenceKv<'_>) -> T) -> T {
    let views = stored.map(|stored| stored.ragged.views());
    let tails: Vec<LayerTails<'_>> = views.as_ref().map_or_else(Vec::new, |views| views.layers());
    with(&SequenceKv { blocks: exact, tails: &tails })
}
