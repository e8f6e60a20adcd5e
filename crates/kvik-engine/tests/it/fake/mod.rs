//! A fake model, and helpers for tests of the scheduler.
//!
//! The "keys and values" of a position are its token and a hash of everything read back from the
//! earlier positions, as the keys of a real model depend on all earlier positions. The logits are a
//! function of the values read back. So a wrong block, a missed copy, an early overwrite or a wrong
//! reuse changes the text.

#![allow(dead_code, unreachable_pub, clippy::unwrap_used, reason = "test support; every binary uses a part")]

pub mod memory_disk;
pub mod memory_remote;
pub mod ragged;
pub mod twin;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvik_cache::retain::{LayerFacts, Needs};
use kvik_cache::{BLOCK_POSITIONS, BlockId, CacheConfig, Policy, StateId, Token};
use kvik_engine::api::{
    AdapterId, AdapterMix, AdapterUse, ChoiceTokens, Event, EventSink, FinishReason, Report, Request,
    RequestError,
};
use kvik_engine::config::EngineConfig;
use kvik_engine::schedule::{RequestLimits, Scheduler, Submission};
use kvik_kernels::{KvLayout, Pool};
use kvik_model::batch::{Batch, Output, Retainer, Runner, SequenceKv, StoredLayer};
use kvik_model::observation::Watched;
pub use kvik_testing::mix;
use kvik_text::stream::{TokenKind, Vocabulary};
use ragged::{Cell, Cells};

pub const VOCAB: usize = 40;
pub const EOS: Token = 0;
/// Length of a hidden state.
pub const HIDDEN: usize = 3;
/// Adapters that the fake model has.
pub const ADAPTERS: usize = 3;

/// Bytes of a position, if a block is copied out of the arena.
const STORED_BYTES: usize = 16;
/// Marks a block out of the arena that holds other things than positions.
const RAW: u32 = 2;
/// Bytes of a block.
pub const BLOCK_BYTES: usize = STORED_BYTES * BLOCK_POSITIONS;
/// Milliseconds that it takes to settle a state.
pub const SETTLE_MILLIS: u64 = 3;

/// The content of one position of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Stored {
    token: Token,
    chain: u64,
}

pub struct FakeRunner {
    layout: KvLayout,
    /// Blocks that hold other things than positions, by their index.
    raw: HashMap<usize, Vec<u8>>,
    arena: Vec<[Option<Stored>; BLOCK_POSITIONS]>,
    logits: Vec<f32>,
    batch_rows_max: usize,
    /// Rows computed so far.
    pub rows: Arc<AtomicUsize>,
    /// Panics at the step that brings this to zero.
    pub panic_in: Arc<AtomicUsize>,
    /// Panics whenever it computes this token, if set.
    pub poison: Option<Token>,
    /// If set, every step waits for a permit, until the sender is dropped.
    pub permits: Option<Receiver<()>>,
    /// If set, a row takes a millisecond of this clock, and settling a state a few.
    pub millis: Option<Arc<AtomicU64>>,
    /// Milliseconds of a step in addition to those of its rows.
    pub step_millis: u64,
    /// Its threads, on which tokens are sampled.
    pub pool: Option<Arc<Pool>>,
    /// Bytes of a state, if it has one: what the last position stored.
    state_bytes: usize,
    states: HashMap<StateId, u64>,
    /// What the tentative rows of a state stored, by the positions up to them.
    tried: HashMap<(StateId, u32), u64>,
    /// States settled so far.
    pub settled: u64,
    /// Blocks copied since the last batch, and the most between two of them.
    pub copied: usize,
    pub copied_max: usize,
}

impl FakeRunner {
    pub fn new(blocks: usize, batch_rows_max: usize) -> FakeRunner {
        FakeRunner {
            layout: ragged::layout(),
            raw: HashMap::new(),
            arena: vec![[None; BLOCK_POSITIONS]; blocks],
            logits: Vec::new(),
            batch_rows_max,
            rows: Arc::default(),
            panic_in: Arc::default(),
            poison: None,
            permits: None,
            millis: None,
            step_millis: 0,
            pool: None,
            state_bytes: 0,
            states: HashMap::new(),
            tried: HashMap::new(),
            settled: 0,
            copied: 0,
            copied_max: 0,
        }
    }

    /// The same with a state of so many bytes; 0 for none.
    pub fn with_state(self, state_bytes: usize) -> FakeRunner {
        FakeRunner { state_bytes, ..self }
    }

    /// The state moves on with a position, from what the one before it stored.
    fn move_state(&mut self, kv: &SequenceKv<'_>, index: usize, before: u64, stored: u64) {
        let Some(state) = kv.state else { return };
        if state.tentative.is_some_and(|first| index >= first as usize) {
            self.tried.insert((state.live, index as u32 + 1), stored);
            return;
        }
        let seen = self.states.insert(state.live, stored).unwrap_or_default();
        assert_eq!(seen, before, "the state before position {index}");
        let saves = state.saves.iter().filter(|(positions, _)| *positions as usize == index + 1);
        saves.for_each(|&(_, save)| {
            self.states.insert(save, stored);
        });
    }

    fn read(&self, (block, offset): Cell) -> Stored {
        self.arena[block][offset]
            .unwrap_or_else(|| panic!("position {offset} is read from block {block} before it is stored"))
    }

    fn write(&mut self, kv: &SequenceKv<'_>, index: usize, token: Token) {
        let before = index.checked_sub(1).map_or(0, |before| self.read(ragged::cell(kv, before)).chain);
        let chain = chain(before ^ adapted(kv), token);
        let (block, offset) = ragged::cell(kv, index);
        self.arena[block][offset] = Some(Stored { token, chain });
        self.raw.remove(&block);
        self.move_state(kv, index, before, chain);
    }

    fn push_logits(&mut self, kv: &SequenceKv<'_>, index: usize) {
        let seen = self.seen(kv, index);
        self.logits.extend((0..VOCAB as Token).map(|token| logit(seen, token)));
    }

    fn push_hidden(&mut self, kv: &SequenceKv<'_>, index: usize) {
        let seen = self.seen(kv, index);
        self.logits.extend((0..HIDDEN as Token).map(|column| logit(seen, column)));
    }

    /// What the position at `index` reads.
    fn seen(&self, kv: &SequenceKv<'_>, index: usize) -> u64 {
        (0..=index).fold(0, |hash, index| {
            let Stored { token, chain } = self.read(ragged::cell(kv, index));
            mix(hash ^ chain ^ u64::from(token))
        })
    }
}

/// What the adapters of a sequence change; 0 where it has none.
fn adapted(kv: &SequenceKv<'_>) -> u64 {
    kv.adapters.map_or(0, |mix| u64::from_le_bytes(mix.digest()[..8].try_into().unwrap()))
}

/// These adapters with their scales; each is what its number says.
pub fn adapters(uses: &[(u32, f32)]) -> Option<AdapterMix> {
    AdapterMix::new(
        uses.iter().map(|&(id, scale)| (AdapterUse { adapter: AdapterId(id), scale }, [id as u8; 32])),
    )
}

/// What a position stores, from what the one before it stores and its token.
fn chain(before: u64, token: Token) -> u64 {
    mix(before ^ (u64::from(token) + 1))
}

fn logit(seen: u64, token: Token) -> f32 {
    let spread = (mix(seen ^ (u64::from(token) << 32)) % 1000) as f32 / 100.0;
    // The end token is possible everywhere and likely nowhere.
    if token == EOS { spread - 2.0 } else { spread }
}

/// How this model computes, for its naive twin.
const ARITHMETIC: twin::Arithmetic = twin::Arithmetic {
    chain,
    seen: |stored, _| {
        stored.iter().fold(0, |hash, stored| mix(hash ^ stored.chain ^ u64::from(stored.token)))
    },
};

/// The greedy answer of the naive twin to a request that ignores the end token.
pub fn twin_answer(request: &Request, context: usize) -> Vec<Token> {
    tightened_answer(request, context, &[])
}

/// The same where memory was short when the sequence had so many tokens.
pub fn tightened_answer(request: &Request, context: usize, tightened: &[usize]) -> Vec<Token> {
    let mut twin = twin::Twin::new(ARITHMETIC, request, context).tightened(tightened);
    let next = |twin: &twin::Twin| {
        let seen = twin.seen();
        let likelier = |&a: &Token, &b: &Token| logit(seen, a).total_cmp(&logit(seen, b)).then(b.cmp(&a));
        (0..VOCAB as Token).max_by(likelier).unwrap()
    };
    request.prompt.iter().for_each(|&token| twin.push(token));
    let mut answer = vec![next(&twin)];
    while answer.len() < request.max_tokens {
        twin.push(answer[answer.len() - 1]);
        answer.push(next(&twin));
    }
    answer
}

impl Runner for FakeRunner {
    fn vocab_len(&self) -> usize {
        VOCAB
    }

    fn adapters_len(&self) -> usize {
        ADAPTERS
    }

    fn threads(&self) -> Option<Arc<Pool>> {
        self.pool.clone()
    }

    fn copy_partial(&mut self, from: BlockId, to: BlockId, positions: usize) {
        assert!((1..=BLOCK_POSITIONS).contains(&positions) && from != to);
        let mut copy = [None; BLOCK_POSITIONS];
        copy[..positions].copy_from_slice(&self.arena[from.index()][..positions]);
        assert!(
            copy[..positions].iter().all(Option::is_some),
            "a partial block is copied before it is stored"
        );
        self.arena[to.index()] = copy;
        self.raw.remove(&to.index());
        self.copied += 1;
        self.copied_max = self.copied_max.max(self.copied);
    }

    fn read_block(&self, block: BlockId, bytes: &mut [u8]) {
        assert_eq!(bytes.len(), BLOCK_BYTES);
        if let Some(raw) = self.raw.get(&block.index()) {
            let (head, rest) = raw.split_at(BLOCK_BYTES - 4);
            assert!(rest.iter().all(|&byte| byte == 0), "a fake block on disk holds no more");
            bytes[..4].copy_from_slice(&RAW.to_le_bytes());
            return bytes[4..].copy_from_slice(head);
        }
        for (bytes, stored) in bytes.chunks_exact_mut(STORED_BYTES).zip(&self.arena[block.index()]) {
            let (mark, token, chain) = stored.map_or((0, 0, 0), |stored| (1, stored.token, stored.chain));
            bytes[..4].copy_from_slice(&u32::to_le_bytes(mark));
            bytes[4..8].copy_from_slice(&u32::to_le_bytes(token));
            bytes[8..].copy_from_slice(&u64::to_le_bytes(chain));
        }
    }

    fn write_block(&mut self, block: BlockId, bytes: &[u8]) {
        assert_eq!(bytes.len(), BLOCK_BYTES);
        self.raw.remove(&block.index());
        if bytes[..4] == RAW.to_le_bytes() {
            let mut raw = bytes[4..].to_vec();
            raw.resize(self.layout.block_bytes(), 0);
            self.raw.insert(block.index(), raw);
            return;
        }
        for (bytes, stored) in bytes.chunks_exact(STORED_BYTES).zip(&mut self.arena[block.index()]) {
            let word = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
            let chain = u64::from_le_bytes(bytes[8..].try_into().unwrap());
            *stored = (word(0) == 1).then_some(Stored { token: word(4), chain });
        }
    }

    fn forward(&mut self, batch: &Batch<'_>, watched: &mut [Watched<'_>]) -> &[f32] {
        if let Some(permits) = &self.permits {
            let _ = permits.recv();
        }
        if let Some(millis) = &self.millis {
            millis.fetch_add(self.step_millis + batch.rows.len() as u64, Ordering::Relaxed);
        }
        self.rows.fetch_add(batch.rows.len(), Ordering::Relaxed);
        self.copied = 0;
        if self.panic_in.load(Ordering::Relaxed) > 0 && self.panic_in.fetch_sub(1, Ordering::Relaxed) == 1 {
            panic!("the model broke");
        }
        check_batch(batch, self.batch_rows_max);
        for row in batch.rows {
            assert_ne!(Some(row.token), self.poison, "the model broke");
            let kv = &batch.sequences[row.sequence as usize];
            self.write(kv, ragged::index(kv, row), row.token);
        }
        ragged::observe(self, batch, watched);
        self.logits.clear();
        for row in batch.rows.iter().filter(|row| row.output == Output::Logits) {
            let kv = &batch.sequences[row.sequence as usize];
            self.push_logits(kv, ragged::index(kv, row));
        }
        for row in batch.rows.iter().filter(|row| row.output == Output::Hidden) {
            let kv = &batch.sequences[row.sequence as usize];
            self.push_hidden(kv, ragged::index(kv, row));
        }
        &self.logits
    }

    fn state_bytes(&self) -> usize {
        self.state_bytes
    }

    fn set_state(&mut self, to: StateId, from: Option<StateId>) {
        let seen = from.map_or(0, |from| self.states[&from]);
        self.states.insert(to, seen);
    }

    fn settle_state(&mut self, live: StateId, positions: u32) {
        self.settled += 1;
        if let Some(millis) = &self.millis {
            millis.fetch_add(SETTLE_MILLIS, Ordering::Relaxed);
        }
        if let Some(&seen) = self.tried.get(&(live, positions)) {
            self.states.insert(live, seen);
        }
        self.tried.retain(|(state, _), _| *state != live);
    }

    fn release_state(&mut self, state: StateId) {
        self.states.insert(state, u64::MAX);
    }

    fn read_state(&self, state: StateId, bytes: &mut [u8]) {
        let seen = self.states[&state].to_le_bytes();
        bytes.iter_mut().zip(seen.iter().cycle()).for_each(|(byte, seen)| *byte = *seen);
    }

    fn write_state_piece(&mut self, state: StateId, start: usize, bytes: &[u8]) {
        let mut seen = self.states.get(&state).copied().unwrap_or_default().to_le_bytes();
        (start..self.state_bytes).zip(bytes).for_each(|(at, byte)| seen[at % 8] = *byte);
        self.states.insert(state, u64::from_le_bytes(seen));
    }

    fn retainer(&mut self) -> Option<&mut dyn Retainer> {
        Some(self)
    }
}

impl Cells for FakeRunner {
    fn get(&self, cell: Cell) -> u64 {
        self.read(cell).chain
    }

    fn copy(&mut self, from: Cell, to: Cell) {
        self.arena[to.0][to.1] = Some(self.read(from));
        self.raw.remove(&to.0);
    }
}

impl Retainer for FakeRunner {
    fn layout(&self) -> &KvLayout {
        &self.layout
    }

    fn facts(&mut self, stored: &StoredLayer<'_>, needs: Needs) -> LayerFacts {
        ragged::facts(self, stored, needs)
    }

    fn move_positions(&mut self, _: usize, from: &SequenceKv<'_>, kept: &[&[u32]], to: &[&[u32]]) {
        ragged::move_positions(self, from, kept[0], to[0]);
    }

    fn bytes(&self, block: BlockId) -> Vec<u8> {
        self.raw.get(&block.index()).cloned().unwrap_or_default()
    }

    fn replace_bytes(&mut self, block: BlockId, bytes: &[u8]) {
        let mut raw = bytes.to_vec();
        raw.resize(self.layout.block_bytes(), 0);
        self.raw.insert(block.index(), raw);
    }

    fn first_keys(&self, _: usize, kv: &SequenceKv<'_>, count: usize) -> Vec<f32> {
        (0..count).map(|index| self.get(ragged::cell(kv, index)) as f32).collect()
    }

    fn replace_first_keys(&mut self, _: usize, kv: &SequenceKv<'_>, keys: &[f32], first: &[Option<u32>]) {
        let Some(position) = first[0] else { return };
        for (index, key) in keys.iter().enumerate() {
            let (block, offset) = ragged::cell(kv, index);
            let chain = ragged::rotated(*key, position);
            self.arena[block][offset] = Some(Stored { chain, ..self.read((block, offset)) });
        }
    }
}

/// Checks the guarantees of `Batch`, and that no sequence writes to a block that another one reads.
fn check_batch(batch: &Batch<'_>, rows_max: usize) {
    assert!(!batch.rows.is_empty() && batch.rows.len() <= rows_max, "{} rows", batch.rows.len());
    for pair in batch.rows.windows(2).filter(|pair| pair[0].sequence == pair[1].sequence) {
        assert_eq!(pair[0].cache_position + 1, pair[1].cache_position);
    }
    let mut users = HashMap::new();
    for block in batch.sequences.iter().flat_map(|sequence| sequence.blocks) {
        *users.entry(block.index()).or_insert(0) += 1;
    }
    for row in batch.rows {
        let kv = &batch.sequences[row.sequence as usize];
        let (block, _) = ragged::cell(kv, ragged::index(kv, row));
        assert_eq!(users[&block], 1, "block {block} is written and belongs to several sequences");
    }
}

/// Letters, pairs of letters, a control token, the two halves of a character, and an end.
pub fn vocabulary() -> Vocabulary {
    let letter = |index: usize| b'a' + (index % 26) as u8;
    Vocabulary::new((0..VOCAB).map(|index| match index {
        0 => (b"<end>".to_vec(), TokenKind::EndOfGeneration),
        1 => (b"<control>".to_vec(), TokenKind::Control),
        2 => (vec![0xc3], TokenKind::Text),
        3 => (vec![0xa6], TokenKind::Text),
        4..30 => (vec![letter(index)], TokenKind::Text),
        _ => (vec![letter(index), letter(index + 7)], TokenKind::Text),
    }))
}

pub fn config() -> EngineConfig {
    EngineConfig {
        context_tokens: 4096,
        parallel_max: 16,
        waiting_max: 64,
        choices_max: 8,
        prefill_rows_max: 64,
        prefill_rows_mixed_max: 32,
        draft_rows_max: 16,
        draft_sources: kvik_engine::stats::DraftSources::ALL,
        block_bytes: 1024,
        model_digest: [7; 32],
        kv_format: "f32/f32".to_owned(),
        repeat: Default::default(),
        kv_heads: vec![1],
        tile_heads: vec![1],
        auxiliary: kvik_cache::AuxiliaryState::default(),
        latent: false,
        calibration: None,
        gates: None,
    }
}

pub fn cache_config(blocks: usize) -> CacheConfig {
    CacheConfig { blocks, policy: Policy::Lru, ghosts: 64, pinned_max: blocks / 2 }
}

pub fn request(prompt: Vec<Token>, max_tokens: usize) -> Request {
    Request::new(prompt, max_tokens)
}

/// Tokens that are text, different for every `seed`.
pub fn prompt(seed: u64, len: usize) -> Vec<Token> {
    (0..len as u64).map(|i| 4 + (mix(seed ^ (i << 20)) % (VOCAB as u64 - 4)) as Token).collect()
}

/// The client's end of a request.
#[derive(Clone, Default)]
pub struct Client {
    events: Arc<Mutex<Vec<Event>>>,
    closed: Arc<AtomicBool>,
}

/// The answer that a client received, choice by choice.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub choices: Vec<(String, Vec<Token>, Option<FinishReason>)>,
    pub report: Report,
}

impl Client {
    /// Disconnects.
    pub fn close(&self) {
        self.closed.store(true, Ordering::Relaxed);
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    pub fn has_ended(&self) -> bool {
        matches!(self.events.lock().unwrap().last(), Some(Event::Done(_) | Event::Failed(_)))
    }

    pub fn error(&self) -> Option<RequestError> {
        match self.events().last() {
            Some(Event::Failed(error)) => Some(error.clone()),
            _ => None,
        }
    }

    /// The vector that came instead of text, if the request has ended: an embedding, or logits.
    pub fn vector(&self) -> Option<Vec<f32>> {
        self.answer()?;
        let mut vectors = self.events().into_iter().filter_map(|event| match event {
            Event::Vector(vector) => Some(vector),
            _ => None,
        });
        let vector = vectors.next();
        assert_eq!(vectors.next(), None, "a request has one vector");
        vector
    }

    /// The answer, if it is complete. Also checks the order of the events.
    pub fn answer(&self) -> Option<Answer> {
        let events = self.events();
        let Some(Event::Done(report)) = events.last() else { return None };
        let choices = events.iter().filter(|event| matches!(event, Event::Finished { .. })).count();
        let mut answer =
            Answer { choices: vec![(String::new(), Vec::new(), None); choices], report: report.clone() };
        for event in &events {
            match event {
                Event::Text { choice, text, tokens } => {
                    let (all, all_tokens, reason) = &mut answer.choices[*choice as usize];
                    assert_eq!(*reason, None, "text after the end of a choice");
                    all.push_str(text);
                    all_tokens.extend(tokens.iter().map(|token| token.token));
                }
                Event::Finished { choice, reason } => {
                    let old = answer.choices[*choice as usize].2.replace(*reason);
                    assert_eq!(old, None, "a choice ends once");
                }
                Event::Prefill { cached, done, total } => assert!(cached <= done && done <= total),
                Event::Unconstrained(_) | Event::Vector(_) | Event::Done(_) | Event::Failed(_) => {}
            }
        }
        assert!(answer.choices.iter().all(|choice| choice.2.is_some()));
        assert_eq!(report.cached_tokens + report.computed_tokens, report.prompt_tokens, "{report:?}");
        let sum = |of: fn(&ChoiceTokens) -> usize| report.choices.iter().map(of).sum::<usize>();
        assert_eq!(sum(|choice| choice.generated), report.generated_tokens, "{report:?}");
        assert_eq!(sum(|choice| choice.decoded), report.decoded_tokens, "{report:?}");
        assert_eq!(sum(|choice| choice.drafted), report.drafted_tokens, "{report:?}");
        assert_eq!(sum(|choice| choice.accepted), report.accepted_tokens, "{report:?}");
        Some(answer)
    }
}

impl EventSink for Client {
    fn send(&mut self, event: Event) -> bool {
        let listening = !self.is_closed();
        if listening {
            self.events.lock().unwrap().push(event);
        }
        listening
    }

    fn is_closed(&self) -> bool {
        Client::is_closed(self)
    }
}

/// A scheduler with its fake model and a clock that counts.
pub struct World {
    pub scheduler: Scheduler,
    pub runner: FakeRunner,
    pub limits: RequestLimits,
}

impl World {
    pub fn new(config: EngineConfig, blocks: usize) -> World {
        World::speaking(vocabulary(), config, blocks)
    }

    /// The same with other texts of the tokens.
    pub fn speaking(vocabulary: Vocabulary, config: EngineConfig, blocks: usize) -> World {
        let limits = RequestLimits::new(&config, blocks, VOCAB).with_adapters(ADAPTERS);
        let runner =
            FakeRunner::new(blocks, config.batch_rows_max()).with_state(config.auxiliary.state_bytes);
        let ticks = AtomicUsize::new(0);
        let clock = move || Duration::from_millis(ticks.fetch_add(1, Ordering::Relaxed) as u64);
        let scheduler =
            Scheduler::new(config, cache_config(blocks), Arc::new(vocabulary), Box::new(clock)).unwrap();
        World { scheduler, runner, limits }
    }

    pub fn submit(&mut self, request: Request) -> Client {
        let client = Client::default();
        self.limits.check(&request).unwrap();
        let sink = Box::new(client.clone());
        self.scheduler.submit(Submission { request, guide: None, sink }, &self.limits);
        client
    }

    pub fn step(&mut self) {
        self.scheduler.step(&mut self.runner);
        self.scheduler.notify_finished();
        let stats = self.scheduler.cache().stats();
        assert_eq!(stats.free + stats.withheld + stats.owned + stats.shared, stats.blocks);
    }

    /// Steps until the scheduler is idle; panics if that takes too long.
    pub fn settle(&mut self) -> usize {
        for steps in 0..100_000 {
            if self.scheduler.is_idle() {
                self.check_idle();
                return steps;
            }
            self.step();
        }
        panic!("the scheduler makes no progress with {} running", self.scheduler.running());
    }

    /// Steps until the scheduler is idle; blocks may stay pinned.
    pub fn run_until_idle(&mut self) {
        for _ in 0..100_000 {
            if self.scheduler.is_idle() {
                return;
            }
            self.step();
        }
        panic!("the scheduler makes no progress");
    }

    /// Checks that nothing is leaked.
    pub fn check_idle(&self) {
        self.scheduler.cache().check().unwrap();
        let stats = self.scheduler.cache().stats();
        assert_eq!((stats.owned, stats.sequences), (0, 0), "blocks are leaked: {stats:?}");
        assert_eq!(stats.evictable, stats.shared, "leases are leaked: {stats:?}");
    }

    pub fn rows(&self) -> usize {
        self.runner.rows.load(Ordering::Relaxed)
    }
}

/// The answer to a request that is alone in a fresh engine with enough blocks.
pub fn solo(request: &Request) -> Answer {
    let blocks = request.choices as usize * (request.prompt.len() + request.max_tokens + 64) / 8;
    let mut world = World::new(EngineConfig { choices_max: 64, ..config() }, blocks);
    let client = world.submit(request.clone());
    world.settle();
    client.answer().expect("a request that is alone is answered")
}
