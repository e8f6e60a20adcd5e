//! Embeddings and single logits are the same to the byte: cold or cached, alone or among others, in one chunk or many.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use kvik_model::batch::{Batch, Output, Row, Runner, SequenceKv};
use kvik_model::load::LoadedModel;
use kvik_model::{Model, ModelRunner};

use crate::fake::*;
use kvik_cache::{BlockId, CacheConfig, Policy, StopReason, Token};
use kvik_engine::api::{Pooling, Request, RequestError, Wants};
use kvik_engine::engine::{Engine, EngineConfig};
use kvik_kernels::{KvFormat, Pool};
use kvik_testing::{golden, tiny_model};

/// SplitMix64 (Steele, Lea, Flood 2014), so that histories are the same on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound as u64) as usize
    }

    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }

    /// A prompt that begins as others do.
    fn prompt(&mut self, stem: impl Fn(u64, usize) -> Vec<Token>, len_max: usize) -> Vec<Token> {
        let (seed, cut) = (self.below(3) as u64, 1 + self.below(len_max));
        let mut prompt = stem(seed, cut);
        let (more, len) = (10 + self.below(3) as u64, self.below(len_max - cut + 1));
        prompt.extend(stem(more, len));
        prompt
    }

    fn wants(&mut self, vocab: usize) -> Wants {
        match self.below(5) {
            0 => Wants::Text,
            1 => Wants::Logits((0..1 + self.below(3)).map(|_| self.below(vocab) as Token).collect()),
            which => Wants::Embedding(Pooling::ALL[which - 2]),
        }
    }
}

fn wanting(wants: Wants, prompt: Vec<Token>) -> Request {
    // Answers grow, and take the blocks of others.
    let max_tokens = if wants == Wants::Text { 70 } else { 0 };
    Request { wants, ignore_eos: true, ..request(prompt, max_tokens) }
}

fn bits(vector: &[f32]) -> Vec<u32> {
    vector.iter().map(|x| x.to_bits()).collect()
}

/// The vector of a request that is alone in a fresh world whose steps have room for all of it.
fn alone(request: &Request) -> Option<Vec<u32>> {
    let roomy = EngineConfig { prefill_rows_max: 1024, ..config() };
    let mut world = World::new(roomy, 64);
    let client = world.submit(Request { reuse: false, ..request.clone() });
    world.settle();
    client.answer().unwrap();
    client.vector().as_deref().map(bits)
}

/// What occurred in a history; it proves something only if all of it did.
#[derive(Debug, Default)]
struct Seen {
    vectors: usize,
    reused: usize,
    pooled: usize,
    preempted: u64,
    panics: usize,
    given_up: usize,
}

/// Requests of all kinds that share prefixes and blocks, preempt each other, panic and are given up.
fn live(seed: u64, seen: &mut Seen) {
    let mut random = Random(seed);
    let rows = 1 + random.below(40);
    let config = EngineConfig { prefill_rows_max: rows, prefill_rows_mixed_max: rows, ..config() };
    let mut world = World::new(config, 16);
    let mut clients = Vec::new();
    for _ in 0..60 {
        if random.one_in(3) {
            let (wants, prompt) = (random.wants(VOCAB), random.prompt(prompt, 90));
            let request = Request { reuse: !random.one_in(6), ..wanting(wants, prompt) };
            clients.push((request.clone(), world.submit(request)));
        }
        if random.one_in(10) {
            world.runner.panic_in.store(1, Ordering::Relaxed);
            seen.panics += 1;
        }
        if random.one_in(15) && !clients.is_empty() {
            clients[random.below(clients.len())].1.close();
            seen.given_up += 1;
        }
        world.step();
    }
    world.runner.panic_in.store(0, Ordering::Relaxed);
    world.settle();
    seen.preempted += world.scheduler.counters().preemptions;
    // A step of one sequence that panics is that sequence's.
    let ended = |client: &Client| client.is_closed() || client.error().is_some();
    for (request, client) in clients.iter().filter(|(_, client)| !ended(client)) {
        let answer = client.answer().unwrap();
        let vector = client.vector();
        assert_eq!(vector.as_deref().map(bits), alone(request), "{request:?}");
        assert_eq!(vector.is_some(), request.wants != Wants::Text);
        seen.vectors += usize::from(vector.is_some());
        match request.wants.pooling() {
            Some(Pooling::Mean | Pooling::Cls) => {
                assert_eq!(answer.report.cached_tokens, 0);
                let why = if request.reuse { StopReason::Pooled } else { StopReason::Private };
                assert_eq!(answer.report.cache, Some(why));
                seen.pooled += usize::from(request.reuse);
            }
            _ => seen.reused += answer.report.cached_tokens,
        }
    }
}

#[test]
fn vectors_do_not_depend_on_histories() {
    let mut seen = Seen::default();
    (0..60).for_each(|seed| live(seed, &mut seen));
    let Seen { vectors, reused, pooled, preempted, panics, given_up } = seen;
    assert!(vectors > 300 && reused > 1000 && pooled > 100, "{seen:?}");
    assert!(preempted > 20 && panics > 20 && given_up > 20, "{seen:?}");
}

#[test]
fn the_last_state_reuses_all_but_the_last_token_and_is_cached_for_text() {
    let mut world = World::new(config(), 64);
    let tokens = prompt(1, 50);
    for (wants, cached) in [
        (Wants::Embedding(Pooling::Mean), 0),
        (Wants::Embedding(Pooling::Last), 49),
        (Wants::Logits(vec![3]), 49),
        (Wants::Text, 49),
        (Wants::Embedding(Pooling::Cls), 0),
    ] {
        let client = world.submit(wanting(wants.clone(), tokens.clone()));
        world.settle();
        assert_eq!(client.answer().unwrap().report.cached_tokens, cached, "{wants:?}");
    }
}

#[test]
fn what_only_text_has_is_refused_by_name() {
    let world = World::new(config(), 64);
    let check = |request: Request, field: &'static str| {
        for wants in [Wants::Embedding(Pooling::Last), Wants::Logits(vec![3])] {
            let error = world.limits.check(&Request { wants, ..request.clone() });
            assert_eq!(error, Err(RequestError::NotText { field }));
        }
    };
    let plain = request(prompt(1, 20), 0);
    check(Request { choices: 2, ..plain.clone() }, "choices");
    check(Request { max_tokens: 1, ..plain.clone() }, "max_tokens");
    check(Request { retention: Some("snapkv:0.5".parse().unwrap()), ..plain.clone() }, "retain");
    check(Request { kept_prefix: Some(16), ..plain.clone() }, "kept_prefix");
    let unknown = Request { wants: Wants::Logits(vec![3, VOCAB as Token]), ..plain };
    let error = RequestError::UnknownToken { token: VOCAB as Token, vocab: VOCAB };
    assert_eq!(world.limits.check(&unknown), Err(error));
}

/// A real model, and what it says of prompts that it reads alone, cold, in one piece, on one thread.
struct Real {
    model: Arc<Model>,
    solo: ModelRunner,
}

const CONTEXT: usize = 200;

impl Real {
    fn open(path: &Path) -> Real {
        let LoadedModel { config, tensors, .. } = LoadedModel::open(path).unwrap();
        let model = Arc::new(Model::load(config, tensors, None, &Pool::new(1), &|_, _| {}).unwrap());
        let solo = runner(&model, 1, CONTEXT.div_ceil(16));
        Real { model, solo }
    }

    fn outputs(&mut self, prompt: &[Token], output: Output) -> Vec<f32> {
        let row = |(position, &token): (u32, &Token)| Row {
            sequence: 0,
            token,
            position,
            cache_position: position,
            output,
        };
        let rows: Vec<Row> = (0..).zip(prompt).map(row).collect();
        let table: Vec<BlockId> = (0..prompt.len().div_ceil(16) as u32).map(BlockId).collect();
        self.solo
            .forward(&Batch { rows: &rows, sequences: &[SequenceKv::in_blocks(&table)] }, &mut [])
            .to_vec()
    }

    fn expect(&mut self, prompt: &[Token], wants: &Wants) -> Vec<f32> {
        let config = self.model.config();
        let (vocab, d_model) = (config.vocab, config.d_model);
        let (states, last) = match wants {
            Wants::Logits(_) => (Vec::new(), self.outputs(prompt, Output::Logits)),
            _ => (self.outputs(prompt, Output::Hidden), Vec::new()),
        };
        let state = |position: usize| states[position * d_model..][..d_model].to_vec();
        match wants {
            Wants::Logits(tokens) => {
                let last = &last[(prompt.len() - 1) * vocab..];
                tokens.iter().map(|&token| last[token as usize]).collect()
            }
            Wants::Embedding(Pooling::Last) => state(prompt.len() - 1),
            Wants::Embedding(Pooling::Cls) => state(0),
            Wants::Embedding(Pooling::Mean) => {
                let sum = |column| (0..prompt.len()).map(|at| f64::from(states[at * d_model + column])).sum();
                (0..d_model).map(sum).map(|sum: f64| (sum / prompt.len() as f64) as f32).collect()
            }
            Wants::Text => Vec::new(),
        }
    }
}

fn runner(model: &Arc<Model>, threads: usize, blocks: usize) -> ModelRunner {
    let layout = ModelRunner::uniform_layout(model.config(), KvFormat::F16);
    ModelRunner::new(model.clone(), Pool::new(threads), layout, blocks, CONTEXT).unwrap()
}

/// Many threads ask one engine at a time; it has blocks for two or three of them.
fn check_model(path: &Path, seed: u64) {
    let mut real = Real::open(path);
    let mut random = Random(seed);
    let vocab = real.model.config().vocab;
    let rows = [5, 16, 33, 512][random.below(4)];
    let runner = runner(&real.model, 1 + random.below(3), 30);
    let layout = ModelRunner::uniform_layout(real.model.config(), KvFormat::F16);
    let config = EngineConfig {
        parallel_max: 6,
        prefill_rows_max: rows,
        prefill_rows_mixed_max: rows,
        ..EngineConfig::new(&layout, real.model.digest(), CONTEXT)
    };
    let cache = CacheConfig { blocks: 30, policy: Policy::Lru, ghosts: 30, pinned_max: 0 };
    let engine = Engine::start(runner, vocabulary(), cache, config).unwrap();
    let stem = |seed: u64, len: usize| {
        (0..len as u64).map(|i| ((seed * 31 + i * i * 7) % vocab as u64) as Token).collect()
    };
    let requests: Vec<Request> = (0..24)
        .map(|_| {
            let wants = random.wants(vocab);
            wanting(wants, random.prompt(stem, CONTEXT - 10))
        })
        .collect();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let embed = |request: &Request| {
            let (engine, request) = (engine.clone(), request.clone());
            scope.spawn(move || engine.vector(request).unwrap())
        };
        let threads: Vec<_> = requests.iter().map(embed).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (request, answer) in requests.iter().zip(&answers) {
        let expect = real.expect(&request.prompt, &request.wants);
        assert_eq!(bits(&answer.vector), bits(&expect), "{}: {request:?}", path.display());
    }
    assert!(answers.iter().any(|answer| answer.report.cached_tokens > 0));
}

#[test]
fn every_architecture_gives_the_same_vectors() {
    let embedded = tiny_model();
    check_model(&embedded, 1);
    for (name, seed) in [("arch-llama-gqa", 2), ("arch-qwen2", 3), ("arch-qwen3", 4), ("arch-qwen3-tied", 5)]
    {
        check_model(&golden(&format!("{name}.gguf")), seed);
    }
}
