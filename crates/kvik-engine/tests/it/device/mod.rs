//! Models on the first device of the machine: beside the processor, and beside themselves in other batches, with cached
//! blocks, after a restart from disk, and after faults.
//!
//! Weights stay in the file's 8 bits on the device. The processor has the same numbers as f32: with 8 bits it would
//! round what it multiplies them by too.

mod answers;
mod exact;
mod faults;
mod shapes;
mod split;
mod tiers;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use kvik_model::batch::{Batch, Output, Row, Runner, SequenceKv, StepSize};
use kvik_model::device::{Choice, Device, DeviceModel, DeviceRunner, devices};
use kvik_model::load::LoadedModel;
use kvik_model::{Model, ModelConfig, ModelError, ModelRunner};
use kvik_text::stream::Vocabulary;
use kvik_text::tokenizer::Tokenizer;

use crate::fake::{self, Client};
use kvik_cache::{BlockId, CacheConfig, Policy, Token};
use kvik_engine::api::{GeneratedToken, Request};
use kvik_engine::engine::EngineConfig;
use kvik_engine::schedule::{RequestLimits, Scheduler, Submission};
use kvik_kernels::{KvFormat, KvLayout, Pool, WeightType};
use kvik_testing::{repository, tiny_model};

/// Tokens of prompt and answer together.
const CONTEXT: usize = 256;
/// What devices make room for at once; larger steps grow it.
const STEP: StepSize = StepSize { rows: 128, outputs: 16 };

/// Whether there is a device, also one of software; says so if there is none.
fn has_device() -> bool {
    let has = !devices().is_empty();
    if !has {
        kvik_testing::skip("no GPU was found, nor a driver that computes on the processor");
    }
    has
}

fn layout(config: &ModelConfig, format: KvFormat) -> KvLayout {
    ModelRunner::uniform_layout(config, format)
}

fn opened(path: &Path) -> LoadedModel {
    LoadedModel::open(path).unwrap()
}

fn device_model(loaded: LoadedModel) -> Result<DeviceModel, ModelError> {
    let device = Device::open(Choice::Index(0)).unwrap();
    DeviceModel::load(device, loaded.config, loaded.tensors, None, &Pool::new(1), &|_, _| {})
}

/// A model on the device, with so many blocks.
fn on_device(loaded: LoadedModel, format: KvFormat, blocks: usize) -> DeviceRunner {
    let model = device_model(loaded).unwrap();
    let layout = layout(model.config(), format);
    DeviceRunner::new(model, Pool::new(1), layout, blocks, CONTEXT, STEP).unwrap()
}

/// The same on the processor.
fn on_processor(loaded: LoadedModel, format: KvFormat, blocks: usize) -> ModelRunner {
    let LoadedModel { config, tensors, .. } = loaded;
    let pool = Arc::new(Pool::new(2));
    let layout = layout(&config, format);
    let model = Model::load(config, tensors, Some(WeightType::F32), &pool, &|_, _| {}).unwrap();
    ModelRunner::new(Arc::new(model), pool, layout, blocks, CONTEXT).unwrap()
}

/// A model with a scheduler and a clock that counts.
struct World<R> {
    scheduler: Scheduler,
    runner: R,
    limits: RequestLimits,
}

impl<R: Runner> World<R> {
    /// Of the embedded model.
    fn new(runner: R, format: KvFormat, blocks: usize) -> World<R> {
        World::of(&tiny_model(), runner, format, blocks)
    }

    fn of(path: &Path, runner: R, format: KvFormat, blocks: usize) -> World<R> {
        let LoadedModel { config, tokenizer, .. } = opened(path);
        let layout = layout(&config, format);
        let config = EngineConfig {
            context_tokens: CONTEXT,
            waiting_max: 256,
            draft_rows_max: 8,
            block_bytes: layout.block_bytes(),
            kv_format: layout.format_name(),
            kv_heads: layout.layers().iter().map(|layer| layer.kv_heads).collect(),
            ..fake::config()
        };
        let limits = RequestLimits::new(&config, blocks, runner.vocab_len());
        let ticks = AtomicUsize::new(0);
        let clock = move || Duration::from_millis(ticks.fetch_add(1, Ordering::Relaxed) as u64);
        let cache = CacheConfig { blocks, policy: Policy::Lru, ghosts: blocks, pinned_max: 0 };
        let vocabulary = Arc::new(Vocabulary::from(&tokenizer));
        let scheduler = Scheduler::new(config, cache, vocabulary, Box::new(clock)).unwrap();
        World { scheduler, runner, limits }
    }

    fn submit(&mut self, request: &Request) -> Client {
        let client = Client::default();
        self.limits.check(request).unwrap();
        let submission = Submission { request: request.clone(), guide: None, sink: Box::new(client.clone()) };
        self.scheduler.submit(submission, &self.limits);
        client
    }

    fn step(&mut self) {
        self.scheduler.step(&mut self.runner);
        self.scheduler.notify_finished();
        self.scheduler.cache().check().unwrap();
    }

    fn run(&mut self) {
        for _ in 0..10_000 {
            if self.scheduler.is_idle() {
                return;
            }
            self.step();
        }
        panic!("no progress with {} running", self.scheduler.running());
    }

    /// What these requests are answered together: tokens with what is said of them, and how much of the prompt was reused.
    fn answers(&mut self, requests: &[Request]) -> Vec<(Vec<GeneratedToken>, usize)> {
        let clients: Vec<Client> = requests.iter().map(|request| self.submit(request)).collect();
        self.run();
        clients.iter().map(answer).collect()
    }
}

/// The tokens of an answer with what is said of them, and how much of the prompt was reused.
fn answer(client: &Client) -> (Vec<GeneratedToken>, usize) {
    use kvik_engine::api::Event;
    let Some(answer) = client.answer() else { panic!("{:?}", client.error()) };
    let tokens = client.events().into_iter().filter_map(|event| match event {
        Event::Text { tokens, .. } => Some(tokens),
        _ => None,
    });
    (tokens.flatten().collect(), answer.report.cached_tokens)
}

fn ids(tokens: &[GeneratedToken]) -> Vec<Token> {
    tokens.iter().map(|token| token.token).collect()
}

fn tokenizer() -> Tokenizer {
    opened(&tiny_model()).tokenizer
}

/// Turns of a conversation about different pieces of text, from `words` words on.
fn prompts(count: usize, words: usize) -> Vec<Vec<Token>> {
    let tokenizer = tokenizer();
    let text = std::fs::read_to_string(repository().join("models/tiny/eval-text.txt")).unwrap();
    let all: Vec<&str> = text.split_whitespace().collect();
    let prompt = |i: usize| {
        let piece = all[i * 37 % (all.len() - 4 * words)..][..words + i % 7].join(" ");
        let turn = format!("<|im_start|>user\n{piece}<|im_end|>\n<|im_start|>assistant\n");
        tokenizer.encode(&turn, true, true)
    };
    (0..count).map(prompt).collect()
}

/// The likeliest tokens after a prompt.
fn greedy(prompt: &[Token], tokens: usize) -> Request {
    Request { ignore_eos: true, ..fake::request(prompt.to_vec(), tokens) }
}

/// Rows of one sequence of a batch, whose logits are wanted from position `logits` on.
fn rows(sequence: u32, tokens: &[Token], from: usize, logits: usize) -> Vec<Row> {
    let row = |(index, &token): (usize, &Token)| {
        let position = (from + index) as u32;
        let output = Output::logits_if(from + index >= logits);
        Row { sequence, token, position, cache_position: position, output }
    };
    tokens.iter().enumerate().map(row).collect()
}

/// Logits of a batch of rows of sequences with these tables.
fn logits(runner: &mut dyn Runner, rows: &[Row], tables: &[&[BlockId]]) -> Vec<f32> {
    let sequences: Vec<_> = tables.iter().map(|table| SequenceKv::in_blocks(table)).collect();
    runner.forward(&Batch { rows, sequences: &sequences }, &mut []).to_vec()
}
