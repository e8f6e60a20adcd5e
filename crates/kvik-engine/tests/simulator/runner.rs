//! A fake model that is cheap enough for ten million steps, and the same model without blocks.
//!
//! A position stores a hash of all tokens up to it; the logits are a hash of the values at the end of every
//! block, or at all positions where some were dropped. So a wrong block, a missed copy, an early overwrite, torn
//! bytes from the disk, a wrong reuse or a wrong position kept changes the answer. [`Oracle`] is the same
//! arithmetic over plain tokens, and [`Twin`] for sequences that forget.

use std::collections::HashMap;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use kvik_cache::retain::{LayerFacts, Needs};
use kvik_cache::{AuxiliaryState, BLOCK_POSITIONS, BlockId, StateId, Token};
use kvik_engine::api::{FinishReason, Request};
use kvik_model::batch::{Batch, Output, PredictionHead, Retainer, Runner, SequenceKv, StoredLayer};
use kvik_model::observation::Watched;
use kvik_text::sampler::{Sampler, Scratch};

use kvik_kernels::KvLayout;

use crate::arena::Arena;
use crate::fake::ragged::{self, Cell, Cells};
use crate::fake::twin::{Arithmetic, Thinned, Twin};
use crate::fake::{EOS, VOCAB, mix};
use crate::grammar::Said;
use crate::head::SimHead;
use crate::time::Time;

/// Bytes of a block without the part that windows see.
const WHOLE_BYTES: usize = 8 * BLOCK_POSITIONS;
/// Bytes of a block.
pub(crate) const BLOCK_BYTES: usize = 2 * WHOLE_BYTES;
/// A prompt with this token makes the model panic; no answer contains it.
pub(crate) const POISON: Token = 1;
/// Only private prompts begin with this token.
pub(crate) const SECRET: Token = 3;
/// Time to compute a step, and each row of it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StepTime {
    pub(crate) step: Duration,
    pub(crate) row: Duration,
}

/// Whether any batch was not in order. A panic of the draft model fails no request, so worlds look here.
pub(crate) static IN_DISORDER: AtomicBool = AtomicBool::new(false);

/// The model over blocks.
pub(crate) struct SimRunner {
    /// By block and position; 0 if nothing is stored.
    arena: Arena,
    logits: Vec<f32>,
    rows_max: usize,
    time: Time,
    /// Uses of each block in the batch's tables: by block, the number of the batch and the count.
    users: Vec<(u64, u32)>,
    batches: u64,
    /// Batches of a single sequence that panicked without poison.
    pub(crate) stumbled_alone: u32,
    /// Whether the next batch panics, once, whatever it contains.
    pub(crate) stumbles: Arc<AtomicBool>,
    /// Whether the next piece of a pass of a sequence that forgets panics, once.
    pub(crate) trips: bool,
    /// Time of the pieces that panicked, whose work is done again.
    pub(crate) lost: Duration,
    step_time: StepTime,
    /// What its logits are mixed with: not 0 for a model that says something else.
    salt: u64,
    /// Time of such a piece.
    piece_time: Duration,
    layout: KvLayout,
    auxiliary: AuxiliaryState,
    /// The same as the arena as far as windows see it; given back where nobody needs it.
    parts: Vec<[u64; BLOCK_POSITIONS]>,
    /// Hash of all tokens that a state has seen.
    states: HashMap<StateId, u64>,
    /// What rows that were only tried in the last batch would add to a state, by the positions that it had seen then.
    tried: HashMap<StateId, Vec<(u32, u64)>>,
    /// Its prediction head, if it has one.
    head: Option<SimHead>,
}

impl SimRunner {
    pub(crate) fn new(
        blocks: usize,
        rows_max: usize,
        step_time: StepTime,
        piece_time: Duration,
        time: Time,
    ) -> SimRunner {
        SimRunner {
            arena: Arena::in_ram(blocks),
            logits: Vec::new(),
            rows_max,
            time,
            users: vec![(0, 0); blocks],
            batches: 0,
            stumbled_alone: 0,
            stumbles: Arc::default(),
            trips: false,
            lost: Duration::ZERO,
            step_time,
            salt: 0,
            piece_time,
            layout: ragged::layout(),
            auxiliary: AuxiliaryState::default(),
            parts: vec![[0; BLOCK_POSITIONS]; blocks],
            states: HashMap::new(),
            tried: HashMap::new(),
            head: None,
        }
    }

    /// The same model with a prediction head that takes an eighth of the time, and says the same or something else.
    pub(crate) fn with_head(self, salt: Option<u64>) -> SimRunner {
        let head = salt.map(|salt| SimHead::new(salt, self.time.clone(), self.step_time.step / 8));
        SimRunner { head, ..self }
    }

    /// Whether its prediction head holds nothing.
    pub(crate) fn follows_nothing(&self) -> bool {
        self.head.as_ref().is_none_or(SimHead::is_empty)
    }

    /// Hands the prediction head the rows that it needs.
    fn note_followed(&mut self, batch: &Batch<'_>) {
        let Some(mut head) = self.head.take() else { return };
        for row in batch.rows {
            let kv = &batch.sequences[row.sequence as usize];
            if let Some(id) = batch.followed(row) {
                self.in_order(|_| assert!(kv.tails.is_empty(), "a sequence that forgets is followed"));
                head.note(id, row.position, self.read(ragged::cell(kv, ragged::index(kv, row))));
            }
        }
        self.head = Some(head);
    }

    /// The same model with layers that hold something beside blocks.
    pub(crate) fn with_beside(self, auxiliary: AuxiliaryState) -> SimRunner {
        SimRunner { auxiliary, ..self }
    }

    /// The same model whose blocks are on a device.
    #[cfg(feature = "gpu")]
    pub(crate) fn on_device(self) -> SimRunner {
        SimRunner { arena: Arena::on_device(self.parts.len()), ..self }
    }

    /// A model that takes a quarter of the time, and says the same or something else.
    pub(crate) fn draft(blocks: usize, rows_max: usize, time: StepTime, salt: u64, clock: Time) -> SimRunner {
        let time = StepTime { step: time.step / 4, row: time.row / 4 };
        SimRunner { salt, ..SimRunner::new(blocks, rows_max, time, Duration::ZERO, clock) }
    }

    fn read(&self, (block, offset): Cell) -> u64 {
        let stored = self.arena.get((block, offset));
        assert!(stored != 0, "position {offset} of block {block} is read before it is stored");
        stored
    }

    fn write(&mut self, kv: &SequenceKv<'_>, index: usize, token: Token) {
        let before = index.checked_sub(1).map_or(0, |before| self.read(ragged::cell(kv, before)));
        self.in_order(|runner| runner.check_state(kv, index, before));
        let (block, offset) = ragged::cell(kv, index);
        let stored = chain(before, token);
        self.arena.set((block, offset), stored);
        self.parts[block][offset] = stored;
        let Some(state) = kv.state else { return };
        if state.tentative.is_some_and(|first| index >= first as usize) {
            self.tried.entry(state.live).or_default().push((index as u32 + 1, stored));
        } else {
            self.states.insert(state.live, stored);
            let saves = state.saves.iter().filter(|(positions, _)| *positions as usize == index + 1);
            saves.for_each(|&(_, save)| {
                self.states.insert(save, stored);
            });
        }
    }

    /// Checks something that holds unless the scheduler or the cache have made a mistake.
    fn in_order(&self, check: impl FnOnce(&SimRunner)) {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| check(self))) {
            IN_DISORDER.store(true, Ordering::Relaxed);
            resume_unwind(panic);
        }
    }

    /// The row at `index` sees through its window what is stored.
    fn check_window(&self, kv: &SequenceKv<'_>, index: usize) {
        if self.auxiliary.windows.is_some() {
            let first = self.auxiliary.first_part(index) * BLOCK_POSITIONS;
            for seen in first..index {
                let (block, offset) = ragged::cell(kv, seen);
                let (part, stored) = (self.parts[block][offset], self.arena.get((block, offset)));
                assert_eq!(part, stored, "position {seen} of block {block} is not what {index} should see");
            }
        }
    }

    /// The state has seen what was stored last.
    fn check_state(&self, kv: &SequenceKv<'_>, index: usize, before: u64) {
        assert_eq!(kv.state.is_some(), self.auxiliary.state_bytes > 0, "who has a state");
        if let Some(state) = kv.state {
            let tried = self.tried.get(&state.live).and_then(|tried| tried.last());
            let seen = tried.map(|&(_, seen)| seen).or_else(|| self.states.get(&state.live).copied());
            let seen = seen.unwrap_or_default();
            assert_eq!(seen, before, "the state before position {index}");
        }
    }

    fn push_logits(&mut self, kv: &SequenceKv<'_>, index: usize) {
        let step = if kv.tails.is_empty() { BLOCK_POSITIONS } else { 1 };
        let ends = (step - 1..index).step_by(step).chain([index]);
        let seen = ends.fold(0, |seen, end| mix(seen ^ self.read(ragged::cell(kv, end))));
        push_logits(&mut self.logits, seen ^ self.salt);
    }

    /// A piece of a pass takes its time, and may panic.
    fn work(&mut self) {
        self.time.advance(self.piece_time);
        if std::mem::take(&mut self.trips) {
            self.lost += self.piece_time;
            std::panic::panic_any(Broken);
        }
    }

    /// Checks the guarantees of `Batch`, and that no sequence writes to a block that another one reads.
    fn check(&mut self, batch: &Batch<'_>) {
        assert!(!batch.rows.is_empty() && batch.rows.len() <= self.rows_max, "{} rows", batch.rows.len());
        for pair in batch.rows.windows(2).filter(|pair| pair[0].sequence == pair[1].sequence) {
            assert_eq!(pair[0].cache_position + 1, pair[1].cache_position);
        }
        self.batches += 1;
        for block in batch.sequences.iter().flat_map(|sequence| sequence.blocks) {
            let user = &mut self.users[block.index()];
            *user = if user.0 == self.batches { (user.0, user.1 + 1) } else { (self.batches, 1) };
        }
        for row in batch.rows {
            let kv = &batch.sequences[row.sequence as usize];
            let (block, _) = ragged::cell(kv, ragged::index(kv, row));
            assert_eq!(self.users[block].1, 1, "block {block} is written and belongs to several sequences");
        }
    }
}

impl Runner for SimRunner {
    fn vocab_len(&self) -> usize {
        VOCAB
    }

    fn copy_partial(&mut self, from: BlockId, to: BlockId, positions: usize) {
        assert!((1..=BLOCK_POSITIONS).contains(&positions) && from != to);
        let source = self.arena.block(from.index());
        assert!(source[..positions].iter().all(|&stored| stored != 0), "copied before it is stored");
        self.arena.copy(from.index(), to.index(), positions);
        let source = self.parts[from.index()];
        self.parts[to.index()][..positions].copy_from_slice(&source[..positions]);
    }

    fn read_block(&self, block: BlockId, bytes: &mut [u8]) {
        let stored = self.arena.block(block.index()).into_iter().chain(self.parts[block.index()]);
        for (bytes, stored) in bytes.chunks_exact_mut(8).zip(stored) {
            bytes.copy_from_slice(&stored.to_le_bytes());
        }
    }

    fn write_block(&mut self, block: BlockId, bytes: &[u8]) {
        let part = self.windowed_part();
        assert!(bytes.len() == BLOCK_BYTES || !part.is_empty() && bytes.len() == part.start);
        let mut whole = self.arena.block(block.index());
        let stored = whole.iter_mut().chain(&mut self.parts[block.index()]);
        for (bytes, stored) in bytes.chunks_exact(8).zip(stored) {
            *stored = u64::from_le_bytes(bytes.try_into().unwrap());
        }
        self.arena.replace(block.index(), whole);
    }

    fn windowed_part(&self) -> Range<usize> {
        if self.auxiliary.windows.is_some() { WHOLE_BYTES..BLOCK_BYTES } else { 0..0 }
    }

    fn copy_windowed(&mut self, from: BlockId, to: BlockId) {
        self.parts[to.index()] = self.parts[from.index()];
    }

    fn release_block(&mut self, block: BlockId, all: bool) {
        self.parts[block.index()] = [0; BLOCK_POSITIONS];
        if all {
            self.arena.replace(block.index(), [0; BLOCK_POSITIONS]);
        }
    }

    fn state_bytes(&self) -> usize {
        self.auxiliary.state_bytes
    }

    fn set_state(&mut self, to: StateId, from: Option<StateId>) {
        let seen = from.map_or(0, |from| self.states[&from]);
        self.tried.remove(&to);
        self.states.insert(to, seen);
    }

    fn settle_state(&mut self, live: StateId, positions: u32) {
        let tried = self.tried.remove(&live).unwrap_or_default();
        if let Some(&(_, seen)) = tried.iter().find(|&&(seen, _)| seen == positions) {
            self.states.insert(live, seen);
        }
    }

    fn release_state(&mut self, state: StateId) {
        self.tried.remove(&state);
        self.states.insert(state, u64::MAX);
    }

    fn read_state(&self, state: StateId, bytes: &mut [u8]) {
        let seen = self.states.get(&state).copied().unwrap_or_default().to_le_bytes();
        bytes.iter_mut().zip(seen.iter().cycle()).for_each(|(byte, seen)| *byte = *seen);
    }

    fn write_state_piece(&mut self, state: StateId, start: usize, bytes: &[u8]) {
        let mut seen = self.states.get(&state).copied().unwrap_or_default().to_le_bytes();
        // Every piece says all of it, so that a lost or torn one shows.
        let said = (start..self.auxiliary.state_bytes).zip(bytes);
        said.for_each(|(at, byte)| seen[at % 8] = *byte);
        self.states.insert(state, u64::from_le_bytes(seen));
    }

    fn forward(&mut self, batch: &Batch<'_>, watched: &mut [Watched<'_>]) -> &[f32] {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| self.check(batch))) {
            IN_DISORDER.store(true, Ordering::Relaxed);
            resume_unwind(panic);
        }
        self.arena.begin_batch();
        for state in batch.sequences.iter().filter_map(|sequence| sequence.state) {
            self.tried.remove(&state.live);
        }
        self.time.advance(self.step_time.step + self.step_time.row * batch.rows.len() as u32);
        // Half of the batch is computed before the panic, as can happen.
        let poisoned = batch.rows.iter().any(|row| row.token == POISON);
        let stumbles = self.stumbles.swap(false, Ordering::Relaxed);
        self.stumbled_alone += u32::from(stumbles && !poisoned && batch.sequences.len() == 1);
        let broken = poisoned || stumbles;
        let rows = if broken { &batch.rows[..batch.rows.len() / 2] } else { batch.rows };
        let mut before = None;
        for row in rows {
            let kv = &batch.sequences[row.sequence as usize];
            // Behind its first row a sequence sees what it has just stored.
            if before.replace(row.sequence) != Some(row.sequence) {
                self.in_order(|runner| runner.check_window(kv, ragged::index(kv, row)));
            }
            self.write(kv, ragged::index(kv, row), row.token);
        }
        if broken {
            watched.iter_mut().for_each(|watched| watched.observation.layer(0).mass = vec![vec![1e9]]);
            std::panic::panic_any(Broken);
        }
        ragged::observe(self, batch, watched);
        self.logits.clear();
        for row in batch.rows.iter().filter(|row| row.output == Output::Logits) {
            let kv = &batch.sequences[row.sequence as usize];
            self.push_logits(kv, ragged::index(kv, row));
        }
        self.note_followed(batch);
        &self.logits
    }

    fn head(&mut self) -> Option<&mut dyn PredictionHead> {
        self.head.as_mut().map(|head| head as &mut dyn PredictionHead)
    }

    fn retainer(&mut self) -> Option<&mut dyn Retainer> {
        Some(self)
    }
}

impl Cells for SimRunner {
    fn get(&self, cell: Cell) -> u64 {
        self.read(cell)
    }

    fn copy(&mut self, from: Cell, to: Cell) {
        let stored = self.read(from);
        self.arena.set(to, stored);
        self.parts[to.0][to.1] = stored;
    }
}

impl Retainer for SimRunner {
    fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn facts(&mut self, stored: &StoredLayer<'_>, needs: Needs) -> LayerFacts {
        self.work();
        ragged::facts(self, stored, needs)
    }

    fn move_positions(&mut self, _: usize, from: &SequenceKv<'_>, kept: &[&[u32]], to: &[&[u32]]) {
        self.work();
        ragged::move_positions(self, from, kept[0], to[0]);
    }

    fn bytes(&self, block: BlockId) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_BYTES];
        self.read_block(block, &mut bytes);
        bytes
    }

    fn replace_bytes(&mut self, block: BlockId, bytes: &[u8]) {
        // A block of the layout is larger than this model's; what says which positions are kept is short.
        let (bytes, rest) = bytes.split_at(BLOCK_BYTES);
        assert!(rest.iter().all(|&byte| byte == 0));
        self.write_block(block, bytes);
    }

    fn first_keys(&self, _: usize, kv: &SequenceKv<'_>, count: usize) -> Vec<f32> {
        (0..count).map(|index| self.read(ragged::cell(kv, index)) as f32).collect()
    }

    fn replace_first_keys(&mut self, _: usize, kv: &SequenceKv<'_>, keys: &[f32], first: &[Option<u32>]) {
        let Some(position) = first[0] else { return };
        for (index, &key) in keys.iter().enumerate() {
            let (block, offset) = ragged::cell(kv, index);
            self.arena.set((block, offset), ragged::rotated(key, position));
        }
    }
}

/// The payload of the model's panics, which distinguishes them from those of a failing test.
pub(crate) struct Broken;

/// The same model over plain tokens.
#[derive(Clone, Default)]
pub(crate) struct Oracle {
    chain: u64,
    /// Hash of the blocks before the last one.
    folded: u64,
    positions: usize,
}

impl Oracle {
    /// What the last token has stored.
    pub(crate) fn stored(&self) -> u64 {
        self.chain
    }
}

impl Model for Oracle {
    fn push(&mut self, token: Token) {
        if self.positions > 0 && self.positions.is_multiple_of(BLOCK_POSITIONS) {
            self.folded = mix(self.folded ^ self.chain);
        }
        self.chain = chain(self.chain, token);
        self.positions += 1;
    }

    fn seen(&self) -> u64 {
        mix(self.folded ^ self.chain)
    }
}

/// A model that computes one sequence, token by token.
pub(crate) trait Model {
    fn push(&mut self, token: Token);

    /// The hash that the logits of the last token are made of.
    fn seen(&self) -> u64;
}

impl Model for Twin {
    fn push(&mut self, token: Token) {
        Twin::push(self, token);
    }

    fn seen(&self) -> u64 {
        Twin::seen(self)
    }
}

/// How the model over blocks computes, for the twin of sequences that forget.
const ARITHMETIC: Arithmetic = Arithmetic {
    chain,
    seen: |stored, dropped| {
        let step = if dropped { 1 } else { BLOCK_POSITIONS };
        let ends = (step - 1..stored.len() - 1).step_by(step).chain([stored.len() - 1]);
        ends.fold(0, |seen, end| mix(seen ^ stored[end].chain))
    },
};

/// The tokens of a choice without the end token, and its finish reason.
pub(crate) type Answer = (Vec<Token>, FinishReason);

/// The answer of each choice of a request with `tokens_max` and enough blocks.
pub(crate) fn answers(request: &Request, tokens_max: usize) -> Vec<Answer> {
    let mut oracle = Oracle::default();
    request.prompt.iter().for_each(|&token| oracle.push(token));
    (0..request.choices).map(|choice| answer(request, choice, tokens_max, &mut oracle.clone())).collect()
}

/// The same of a request that forgets in a context of `context` tokens, also when it has so many tokens as `tightened`
/// says, and what its first choice keeps last.
pub(crate) fn forgetful_answers(
    request: &Request,
    tokens_max: usize,
    context: usize,
    tightened: &[usize],
) -> (Vec<Answer>, Option<Thinned>) {
    let mut twin = Twin::new(ARITHMETIC, request, context).tightened(tightened);
    request.prompt.iter().for_each(|&token| twin.push(token));
    let mut twins = vec![twin; request.choices as usize];
    let choices = (0..).zip(&mut twins);
    let answers = choices.map(|(choice, twin)| answer(request, choice, tokens_max, twin)).collect();
    // Where no answer is wanted, what is kept of a prefix is made all the same.
    if let (0, Some(prefix), Some(retention)) = (tokens_max, request.kept_prefix, &request.retention)
        && prefix == request.prompt.len()
    {
        twins[0].forget(retention);
    }
    (answers, twins[0].kept)
}

fn answer(request: &Request, choice: u32, tokens_max: usize, model: &mut impl Model) -> Answer {
    let mut sampler = Sampler::new(&request.sampling, choice, &request.prompt);
    let (mut answer, mut logits, mut scratch) = (Vec::new(), Vec::new(), Scratch::default());
    let mut said = Said::nothing(request);
    while answer.len() < tokens_max {
        // The last token of an answer is never computed.
        if let Some(&last) = answer.last() {
            model.push(last);
        }
        logits.clear();
        push_logits(&mut logits, model.seen());
        let allowed = said.as_ref().map(Said::allowed);
        let token = sampler.sample(&logits, allowed.as_deref(), &mut scratch).unwrap();
        sampler.accept(token);
        if token == EOS && !request.ignore_eos {
            return (answer, FinishReason::Eos);
        }
        answer.push(token);
        if let Some(reason) = said.as_mut().and_then(|said| said.say(token)) {
            return (answer, reason);
        }
    }
    (answer, FinishReason::Length)
}

/// What is stored at a position, from what is stored before it.
pub(crate) fn chain(before: u64, token: Token) -> u64 {
    mix(before ^ (u64::from(token) + 1)) | 1
}

pub(crate) fn push_logits(logits: &mut Vec<f32>, seen: u64) {
    // Most answers repeat themselves, so that drafts are drawn; what differs from what was seen shows soon all the same.
    let seen = if !mix(seen).is_multiple_of(4) { mix(seen) % 2 } else { seen };
    logits.extend((0..VOCAB as u64).map(|token| match token as Token {
        POISON => f32::NEG_INFINITY,
        // The end token is possible everywhere and likely nowhere.
        EOS => (mix(seen) % 1000) as f32 / 100.0 - 2.0,
        _ => (mix(seen ^ (token << 32)) % 1000) as f32 / 100.0,
    }));
}
