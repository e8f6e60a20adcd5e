//! The engine with the embedded model: an answer equals that of a solo run, whatever else runs.

use std::sync::Arc;

use kvik_cache::{CacheConfig, Policy};
use kvik_engine::api::{Constraint, Request, Sampling};
use kvik_engine::engine::{Engine, EngineConfig, Generated};
use kvik_kernels::{KvFormat, Pool};
use kvik_model::load::LoadedModel;
use kvik_model::{Model, ModelRunner};
use kvik_testing::tiny_model;
use kvik_text::tokenizer::Tokenizer;

const CONTEXT: usize = 512;

/// An engine that computes on so many threads, and whose cache holds `blocks` blocks.
fn engine(threads: usize, blocks: usize) -> (Engine, Tokenizer) {
    let path = tiny_model();
    let LoadedModel { config, tensors, tokenizer, .. } = LoadedModel::open(&path).unwrap();
    let pool = Pool::new(threads);
    let model = Arc::new(Model::load(config, tensors, None, &pool, &|_, _| {}).unwrap());
    let layout = ModelRunner::uniform_layout(model.config(), KvFormat::F16);
    let config = EngineConfig {
        parallel_max: 8,
        choices_max: 4,
        prefill_rows_max: 64,
        prefill_rows_mixed_max: 24,
        ..EngineConfig::new(&layout, model.digest(), CONTEXT)
    };
    let runner = ModelRunner::new(model, pool, layout, blocks, CONTEXT).unwrap();
    let cache = CacheConfig { blocks, policy: Policy::Lru, ghosts: blocks, pinned_max: 0 };
    (Engine::start(runner, &tokenizer, cache, config).unwrap(), tokenizer)
}

fn requests(tokenizer: &Tokenizer) -> Vec<Request> {
    let system = "<|im_start|>system\nYou are a notification assistant. Choose one folder and one priority.\n\n\
        Folders:\n- parcels and couriers: Deliveries\n- chats with friends: Social\n\nPriority:\n\
        urgent, act now = 5\nnormal, this week = 3\nno action needed = 1\n\n\
        Reply with exactly one JSON object like {\"folder\": \"...\", \"priority\": 3}.<|im_end|>\n";
    let bodies =
        ["Your parcel arrives on Tuesday.", "Ann: see you at eight?", "Urgent: act at once!", "Weather: sun"];
    let request = |index: usize| {
        let body = bodies[index % bodies.len()];
        let system = if index % 5 == 4 { "" } else { system };
        let text = format!("{system}<|im_start|>user\nBody: {body}<|im_end|>\n<|im_start|>assistant\n");
        Request {
            choices: if index.is_multiple_of(3) { 2 } else { 1 },
            ignore_eos: index.is_multiple_of(2),
            sampling: Sampling {
                temperature: if index % 4 < 2 { 0.0 } else { 1.0 },
                top_k: 0,
                top_p: 0.95,
                min_p: 0.0,
                repetition_penalty: 1.1,
                presence_penalty: 0.0,
                frequency_penalty: 0.0,
                penalty_last_n: 64,
                logit_bias: Vec::new(),
                min_tokens: 0,
                seed: index as u64,
            },
            logprobs: Some(2),
            constraint: (index % 7 == 3).then_some(Constraint::JsonObject),
            ..Request::new(tokenizer.encode(&text, false, true), 20 + 60 * (index % 3))
        }
    };
    (0..20).map(request).collect()
}

/// The parts that must not depend on other requests: texts, tokens and log-probabilities to the bit.
fn answers(generated: &Generated) -> String {
    format!("{:?}", generated.choices)
}

/// What all of them get when they are asked at the same time.
fn generate(engine: &Engine, requests: &[Request]) -> Vec<Generated> {
    std::thread::scope(|scope| {
        let submit = |request: &Request| {
            let (engine, request) = (engine.clone(), request.clone());
            scope.spawn(move || engine.generate(request).unwrap())
        };
        let threads: Vec<_> = requests.iter().map(submit).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn answers_do_not_depend_on_other_requests() {
    // Fits two or three of them, so that they preempt each other.
    let (engine, tokenizer) = engine(2, 24);
    let requests = requests(&tokenizer);
    let together = generate(&engine, &requests);
    for (request, together) in requests.iter().zip(&together) {
        let alone = engine.generate(Request { reuse: false, ..request.clone() }).unwrap();
        assert_eq!(answers(together), answers(&alone));
        assert_eq!(alone.report.computed_tokens, request.prompt.len());
        let report = &together.report;
        assert_eq!(report.cached_tokens + report.computed_tokens, request.prompt.len());
    }
    let stats = engine.stats();
    let (steps, model) = (stats.counters.step_time, stats.counters.model_time);
    assert!(!model.is_zero() && model < steps, "{model:?} of {steps:?}");
    assert!(stats.counters.reused_tokens > 1000, "{stats:?}");
    assert_eq!((stats.running, stats.waiting, stats.kv_owned_bytes), (0, 0, 0));
}

/// Also on many more threads than there are cores, which sample together too.
#[test]
fn answers_do_not_depend_on_threads() {
    let (alone, tokenizer) = engine(1, 200);
    let (many, _) = engine(64, 200);
    let requests = &requests(&tokenizer)[..8];
    let [alone, many] = [alone, many].map(|engine| generate(&engine, requests));
    for (alone, many) in alone.iter().zip(&many) {
        assert_eq!(answers(many), answers(alone));
    }
}
