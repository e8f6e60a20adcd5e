//! A laboratory for retention policies: a prompt is read once, exactly; then many policies compress it, each in storage
//! of its own, and all variants continue in one batch.
//!
//! The lab drives a model directly, without scheduler or cache, and uses the parts that serving uses: observation of
//! rows, facts, decision, moving of positions, attention over ragged tails. So its measurements hold for requests.

use std::io;
use std::sync::Arc;

use kvik_cache::retain::{Decision, HeadImportance, LayerFacts, PolicyState, Retention, Watch, decide};
use kvik_cache::{BLOCK_POSITIONS, BlockId, Token, blocks_for};
use kvik_kernels::{KvLayout, Pool};
use kvik_model::batch::{Batch, Output, Row, Runner, SequenceKv};
use kvik_model::gates::{GateSchool, Gates};
use kvik_model::observation::{Observation, Watched};
use kvik_model::{Model, ModelRunner};
use kvik_text::sampler::likeliest;

use super::held::Held;
use super::ragged::{Extent, Ragged};
use super::repeat::RepeatPrompt;

/// Maximum number of rows computed at a time.
const ROWS_MAX: usize = 512;
/// First positions from which gates are not trained.
const SINKS: usize = 4;

/// A model with the memory for one exact reading and many variants of it.
pub struct Lab {
    runner: ModelRunner,
    layout: KvLayout,
    /// Blocks of the exact prompt and of its repetition.
    reading: Vec<BlockId>,
    /// Free blocks.
    spare: Vec<BlockId>,
    repeat: RepeatPrompt,
    tokens: Vec<Token>,
    observed: Vec<Observed>,
    gates: Option<Arc<Gates>>,
}

/// What was observed of the prompt, shared by all retentions that need the same.
struct Observed {
    watch: Watch,
    /// The first observed row.
    from: usize,
    seen: Observation,
}

/// A continuation of a compressed prompt.
pub struct Variant {
    blocks: Vec<BlockId>,
    ragged: Ragged,
    tokens: usize,
}

/// The tokens that a variant computes next.
struct Feed<'a> {
    variant: &'a Variant,
    tokens: &'a [Token],
    /// Index of the first token whose logits are needed.
    logits_from: usize,
}

impl Lab {
    /// Allocates room for prompts of `prompt_max` tokens and for variants of `variant_blocks` blocks in total.
    pub fn new(
        model: Arc<Model>,
        pool: Pool,
        layout: KvLayout,
        repeat: RepeatPrompt,
        (prompt_max, variant_blocks): (usize, usize),
    ) -> io::Result<Lab> {
        let reading = blocks_for(prompt_max + repeat.rows_max(prompt_max));
        let context = model.config().context.max(reading * BLOCK_POSITIONS);
        let runner = ModelRunner::new(model, pool, layout.clone(), reading + variant_blocks, context)?;
        let blocks = |range: std::ops::Range<usize>| range.map(|block| BlockId(block as u32)).collect();
        let spare = blocks(reading..reading + variant_blocks);
        Ok(Lab {
            runner,
            layout,
            reading: blocks(0..reading),
            spare,
            repeat,
            tokens: vec![],
            observed: vec![],
            gates: None,
        })
    }

    /// Sets the gates of the model.
    pub fn with_gates(self, gates: Option<Arc<Gates>>) -> Lab {
        Lab { gates, ..self }
    }

    /// Adds the prompt that was read to the samples of gates, if its repetition was observed.
    pub fn teach(&self, school: &mut GateSchool) {
        let Some(repeated) = self.observed.iter().find(|observed| observed.watch == Watch::Repeat) else {
            return;
        };
        let held = Held { blocks: &self.reading, storage: None, tokens: self.tokens.len() };
        // The first positions stay whatever their score, and what is before the first message is not repeated.
        let skipped = self.repeat.skipped(&self.tokens).max(SINKS);
        for layer in 0..self.layout.layers().len() {
            held.teach(&self.runner, layer, (&repeated.seen, skipped), school);
        }
    }

    /// Computes `tokens` and observes them for each of `retentions`, whose amounts are not in bytes; returns the logits
    /// of the last token.
    ///
    /// # Panics
    /// If `tokens` is empty or longer than the room.
    pub fn read(&mut self, tokens: &[Token], retentions: &[Retention]) -> Vec<f32> {
        self.tokens = tokens.to_vec();
        self.observed = Vec::new();
        for retention in retentions {
            if retention.watch() != Watch::Nothing && find(&self.observed, retention, tokens.len()).is_none()
            {
                let (watch, from) = (retention.watch(), retention.rows_before(tokens.len()).start);
                self.observed.push(Observed { watch, from, seen: Observation::default() });
            }
        }
        let mut logits = Vec::new();
        for start in (0..tokens.len()).step_by(ROWS_MAX) {
            let end = tokens.len().min(start + ROWS_MAX);
            logits = self.read_rows(start..end);
        }
        if let Some(index) = self.observed.iter().position(|observed| observed.watch == Watch::Repeat) {
            self.read_again(index);
        }
        logits
    }

    /// Computes rows of the prompt; returns the logits of its last token, if that is among them.
    fn read_rows(&mut self, range: std::ops::Range<usize>) -> Vec<f32> {
        let total = self.tokens.len();
        let rows: Vec<Row> = range
            .clone()
            .map(|position| row(0, self.tokens[position], position, position + 1 == total))
            .collect();
        let mut watched: Vec<Watched<'_>> = Vec::new();
        for Observed { watch, from, seen } in &mut self.observed {
            let rows = (*from).max(range.start) - range.start..range.len();
            if *watch != Watch::Repeat && *from < range.end {
                let among = Vec::new();
                watched.push(Watched { rows, watch: *watch, among, repeated: None, observation: seen });
            }
        }
        let sequences = [SequenceKv::in_blocks(&self.reading)];
        self.runner.forward(&Batch { rows: &rows, sequences: &sequences }, &mut watched).to_vec()
    }

    /// Lets the model repeat its prompt, piece by piece, and observes its attention.
    fn read_again(&mut self, index: usize) {
        let total = self.tokens.len();
        for piece in self.repeat.pieces(&self.tokens) {
            for start in (0..piece.tokens.len()).step_by(ROWS_MAX) {
                let end = piece.tokens.len().min(start + ROWS_MAX);
                let rows: Vec<Row> =
                    (start..end).map(|at| row(0, piece.tokens[at], total + at, false)).collect();
                let sequences = [SequenceKv::in_blocks(&self.reading)];
                let observation = &mut self.observed[index].seen;
                let (among, repeated) = (piece.among(total), Some(piece.repeats(0, start..end, total)));
                let watched =
                    Watched { rows: 0..rows.len(), watch: Watch::Repeat, among, repeated, observation };
                self.runner.forward(&Batch { rows: &rows, sequences: &sequences }, &mut [watched]);
            }
        }
    }

    /// The facts of the prompt that `retention` needs, `[layers]`.
    pub fn facts(&mut self, retention: &Retention) -> Vec<LayerFacts> {
        let nothing = Observation::default();
        let observed =
            find(&self.observed, retention, self.tokens.len()).map_or(&nothing, |observed| &observed.seen);
        let held = Held { blocks: &self.reading, storage: None, tokens: self.tokens.len() };
        let (layers, gates) = (0..self.layout.layers().len(), self.gates.as_deref());
        layers.map(|layer| held.facts(&mut self.runner, layer, retention, observed, gates)).collect()
    }

    /// The positions of the prompt that `retention` retains.
    pub fn decide(&mut self, retention: &Retention, heads: Option<&HeadImportance>) -> Decision {
        let facts = self.facts(retention);
        decide(retention, self.tokens.len(), &facts, heads, &mut PolicyState::default())
    }

    /// The decision that retains the whole prompt.
    pub fn everything(&self) -> Decision {
        let all: Vec<u32> = (0..self.tokens.len() as u32).collect();
        let layers = self.layout.layers().iter();
        Decision { kept: layers.map(|layer| vec![all.clone(); layer.kv_heads]).collect() }
    }

    /// Stores the positions that a decision retains, for [`Lab::answer`] and [`Lab::score`]; their values are fitted, and
    /// the RoPE rotation of the first keys renewed, if `retention`, which was read, does that.
    ///
    /// # Panics
    /// If there are not enough free blocks.
    pub fn keep(&mut self, decision: &Decision, retention: Option<&Retention>) -> Variant {
        let needed = Ragged::blocks_needed(&self.layout, &Ragged::counts(decision, 0));
        let blocks = self.spare.split_off(self.spare.len() - needed);
        let ragged = Ragged::new(&self.layout, 0, self.tokens.len(), decision.kept.clone(), &blocks);
        let held = Held { blocks: &self.reading, storage: None, tokens: self.tokens.len() };
        let sinks = held.sinks(&self.runner, retention.map_or(0, Retention::rotated_sinks));
        let fitting = retention
            .filter(|retention| retention.fits_values())
            .and_then(|retention| Some((retention, find(&self.observed, retention, self.tokens.len())?)));
        for layer in 0..decision.kept.len() {
            held.move_layer(&mut self.runner, layer, (decision, &ragged), sinks.as_ref());
            if let Some((retention, observed)) = fitting {
                held.fit_layer(&mut self.runner, layer, (decision, &ragged), (retention, &observed.seen));
            }
        }
        Variant { blocks, ragged, tokens: self.tokens.len() }
    }

    /// Frees the blocks of a variant.
    pub fn drop(&mut self, variant: Variant) {
        self.spare.extend(variant.blocks);
    }

    /// The greedy answer of each variant to `question`, until one of `stop` (which is not part of the answer) or
    /// `limit` tokens.
    pub fn answer(
        &mut self,
        variants: &mut [Variant],
        question: &[Token],
        limit: usize,
        stop: &[Token],
    ) -> Vec<Vec<Token>> {
        let mut answers = vec![Vec::new(); variants.len()];
        let mut next: Vec<(usize, Token)> = self
            .compute(variants, &vec![question; variants.len()], question.len() - 1)
            .into_iter()
            .map(|logits| likeliest(&logits[0]).unwrap_or(0))
            .enumerate()
            .collect();
        loop {
            next.retain(|(_, token)| !stop.contains(token));
            next.iter().for_each(|&(variant, token)| answers[variant].push(token));
            next.retain(|&(variant, _)| answers[variant].len() < limit);
            if next.is_empty() {
                return answers;
            }
            let mut feeds: Vec<&[Token]> = vec![&[]; variants.len()];
            next.iter().for_each(|(variant, token)| feeds[*variant] = std::slice::from_ref(token));
            let logits = self.compute(variants, &feeds, 0);
            let going: Vec<usize> = next.iter().map(|&(variant, _)| variant).collect();
            next = going
                .into_iter()
                .map(|variant| (variant, likeliest(&logits[variant][0]).unwrap_or(0)))
                .collect();
        }
    }

    /// The logits after every token of `tokens` but the last, for each variant: `[variants][tokens - 1][vocab]`.
    pub fn score(&mut self, variants: &mut [Variant], tokens: &[Token]) -> Vec<Vec<Vec<f32>>> {
        self.compute(variants, &vec![&tokens[..tokens.len() - 1]; variants.len()], 0)
    }

    /// Computes the next tokens of every variant, possibly none; returns the logits of those from index `logits_from`
    /// on.
    fn compute(
        &mut self,
        variants: &mut [Variant],
        feeds: &[&[Token]],
        logits_from: usize,
    ) -> Vec<Vec<Vec<f32>>> {
        for (variant, feed) in variants.iter_mut().zip(feeds) {
            self.grow(variant, feed.len());
        }
        let mut logits: Vec<Vec<Vec<f32>>> = vec![Vec::new(); variants.len()];
        let mut group: Vec<usize> = Vec::new();
        let mut rows = 0;
        for (index, feed) in feeds.iter().enumerate() {
            if !group.is_empty() && rows + feed.len() > ROWS_MAX {
                self.compute_group(variants, &group, feeds, logits_from, &mut logits);
                (group, rows) = (Vec::new(), 0);
            }
            if !feed.is_empty() {
                group.push(index);
                rows += feed.len();
            }
        }
        self.compute_group(variants, &group, feeds, logits_from, &mut logits);
        variants.iter_mut().zip(feeds).for_each(|(variant, feed)| variant.tokens += feed.len());
        logits
    }

    /// Computes one batch.
    fn compute_group(
        &mut self,
        variants: &[Variant],
        group: &[usize],
        feeds: &[&[Token]],
        logits_from: usize,
        logits: &mut [Vec<Vec<f32>>],
    ) {
        if group.is_empty() {
            return;
        }
        let feeds =
            group.iter().map(|&index| Feed { variant: &variants[index], tokens: feeds[index], logits_from });
        let feeds: Vec<Feed<'_>> = feeds.collect();
        let views: Vec<_> = feeds.iter().map(|feed| feed.variant.ragged.views()).collect();
        let layers: Vec<_> = views.iter().map(|views| views.layers()).collect();
        let sequences: Vec<SequenceKv<'_>> =
            layers.iter().map(|tails| SequenceKv { tails, ..SequenceKv::in_blocks(&[]) }).collect();
        let rows: Vec<Row> =
            feeds.iter().enumerate().flat_map(|(index, feed)| feed.rows(index as u32)).collect();
        let vocab = self.runner.vocab_len();
        let computed = self.runner.forward(&Batch { rows: &rows, sequences: &sequences }, &mut []);
        let wanted = rows.iter().filter(|row| row.output == Output::Logits);
        for (row, computed) in wanted.zip(computed.chunks_exact(vocab)) {
            logits[group[row.sequence as usize]].push(computed.to_vec());
        }
    }

    /// Allocates room for `tokens` more tokens of a variant.
    fn grow(&mut self, variant: &mut Variant, tokens: usize) {
        let tokens = variant.tokens + tokens;
        for _ in 0..variant.ragged.blocks_missing(&self.layout, tokens) {
            let block = self.spare.pop().expect("a laboratory has blocks for its variants");
            variant.ragged.add_block(&self.layout, block);
            variant.blocks.push(block);
        }
        variant.ragged.reserve(&self.layout, tokens);
    }
}

/// The observation that `retention` needs of a prompt of `tokens` tokens, if it was made.
fn find<'a>(observed: &'a [Observed], retention: &Retention, tokens: usize) -> Option<&'a Observed> {
    let (watch, from) = (retention.watch(), retention.rows_before(tokens).start);
    observed.iter().find(|observed| (observed.watch, observed.from) == (watch, from))
}

impl Variant {
    /// Number of positions that its heads store.
    pub fn stored(&self) -> Extent {
        self.ragged.stored(self.tokens)
    }
}

impl Feed<'_> {
    fn rows(&self, sequence: u32) -> impl Iterator<Item = Row> {
        let (first, from) = (self.variant.tokens, self.logits_from);
        let tokens = self.tokens.iter().enumerate();
        tokens.map(move |(at, &token)| row(sequence, token, first + at, at >= from))
    }
}

fn row(sequence: u32, token: Token, position: usize, logits: bool) -> Row {
    let position = position as u32;
    Row { sequence, token, position, cache_position: position, output: Output::logits_if(logits) }
}
