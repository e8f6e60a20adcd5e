//! Drafts: where they come from, who may see what by them, and that nothing but time changes.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use kvik_model::batch::Runner;
use kvik_model::load::LoadedModel;
use kvik_model::{Model, ModelRunner};
use kvik_text::stream::Vocabulary;
use kvik_text::tokenizer::Tokenizer;

use crate::fake::memory_disk::MemoryDisk;
use crate::fake::*;
use kvik_cache::{AuxiliaryState, BLOCK_POSITIONS, CacheConfig, Identity, Policy, TenantId, Token};
use kvik_engine::api::{Constraint, Request, Sampling};
use kvik_engine::config::EngineConfig;
use kvik_engine::engine::Engine;
use kvik_engine::schedule::{DraftSetup, RequestLimits, Scheduler, Submission};
use kvik_engine::stats::{DraftSource, DraftSources};
use kvik_kernels::{KvFormat, Pool};

const CONTEXT: usize = 512;
const BLOCKS: usize = 200;

/// Steps that a request took, and tokens of other requests that were drafted for it and drawn.
fn ask(world: &mut World, request: &Request) -> (usize, u64) {
    let before = world.scheduler.counters().accepted_tokens[DraftSource::Tree as usize];
    let client = world.submit(request.clone());
    let steps = world.settle();
    assert_eq!(client.answer().unwrap().choices, solo(request).choices);
    (steps, world.scheduler.counters().accepted_tokens[DraftSource::Tree as usize] - before)
}

#[test]
fn an_answer_is_drafted_from_what_was_answered_before_and_only_to_whom_it_belongs() {
    let mut world = World::new(config(), 200);
    let asked = Request { ignore_eos: true, ..request(prompt(1, 40), 100) };
    let (plain, from_tree) = ask(&mut world, &asked);
    assert_eq!(from_tree, 0);
    let (again, from_tree) = ask(&mut world, &asked);
    assert!(again * 3 < plain && from_tree > 60, "{again} steps instead of {plain}, {from_tree} tokens");
    let theirs = Request { salt: [2; 16], tenant: TenantId(2), ..asked.clone() };
    assert_eq!(ask(&mut world, &theirs), (plain, 0), "as if nobody had asked before");
    let private = Request { reuse: false, ..asked.clone() };
    assert_eq!(ask(&mut world, &private), (plain, 0), "nobody's");
    world.scheduler.evict(&asked.prompt[..32], asked.salt);
    assert_eq!(ask(&mut world, &asked), (plain, 0), "what is dropped is not remembered");
}

/// A scheduler that finds what the ones before it have stored on a disk, and for which a row costs no time.
fn life(disk: &MemoryDisk, blocks: usize) -> World {
    let mut world = disk.life(config(), blocks, 0);
    world.runner.millis = None;
    world
}

#[test]
fn after_a_restart_an_answer_is_drafted_from_the_disk_and_only_to_whom_it_belongs() {
    let disk = MemoryDisk::default();
    let asked = Request { ignore_eos: true, ..request(prompt(1, 40), 100) };
    let (plain, _) = ask(&mut life(&disk, 200), &asked);
    let theirs = Request { salt: [2; 16], tenant: TenantId(2), ..asked.clone() };
    let mut world = life(&disk, 200);
    assert_eq!(ask(&mut world, &theirs).1, 0, "nobody else's");
    let private = Request { reuse: false, ..asked.clone() };
    assert_eq!(ask(&mut world, &private).1, 0, "nobody's");
    let (again, from_disk) = ask(&mut world, &asked);
    assert!(again * 3 < plain && from_disk > 60, "{again} steps instead of {plain}, {from_disk} tokens");
    let read = world.scheduler.prefixes.disk_stats().unwrap().tier.totals.read;
    assert!(read <= 3, "{read} blocks were read, which are those of the prompt");
    // What is dropped is not remembered by the disk either, nor by the next one that reads it.
    world.scheduler.evict(&asked.prompt[..32], asked.salt);
    assert_eq!(ask(&mut world, &private).1, 0);
    drop(world);
    assert_eq!(ask(&mut life(&disk, 200), &asked).1, 0);
}

#[test]
fn an_answer_that_ram_has_evicted_is_drafted_from_the_disk() {
    let mut world = life(&MemoryDisk::default(), 16);
    let asked = Request { ignore_eos: true, ..request(prompt(1, 40), 100) };
    ask(&mut world, &asked);
    for seed in 2..5 {
        ask(&mut world, &Request { ignore_eos: true, ..request(prompt(seed, 150), 40) });
    }
    let evicted = world.scheduler.cache().stats().totals.evicted;
    assert!(evicted > 8, "{evicted} blocks are evicted: RAM holds nothing of it");
    let (steps, from_disk) = ask(&mut world, &asked);
    assert!(steps < 40 && from_disk > 60, "{steps} steps, {from_disk} tokens");
}

/// Steps that an answer takes which was given before, while prompts of others are read; after each step how many of those
/// are; and the most rows of a step with both. With so many rows of drafts at most.
fn beside_prompts(draft_rows_max: usize) -> (usize, Vec<usize>, usize) {
    let mut world = World::new(EngineConfig { draft_rows_max, ..config() }, 2000);
    let asked = Request { ignore_eos: true, ..request(prompt(1, 40), 100) };
    ask(&mut world, &asked);
    let stream = world.submit(asked.clone());
    world.step();
    let prompts: Vec<Client> = (2..6).map(|seed| world.submit(request(prompt(seed, 1000), 1))).collect();
    let (mut steps, mut read, mut rows_max) = (0, Vec::new(), 0);
    while !prompts.iter().all(Client::has_ended) {
        let (both, rows) = (!stream.has_ended(), world.rows());
        world.step();
        if both {
            steps += 1;
            rows_max = rows_max.max(world.rows() - rows);
        }
        read.push(prompts.iter().filter(|client| client.has_ended()).count());
    }
    assert_eq!(stream.answer().unwrap().choices, solo(&asked).choices);
    (steps, read, rows_max)
}

#[test]
fn drafts_go_on_beside_prompts_of_others_within_their_share() {
    let (plain, plain_read, plain_rows) = beside_prompts(0);
    let (drafted, read, rows) = beside_prompts(16);
    assert!(drafted * 2 < plain, "{drafted} steps instead of {plain}");
    assert!(read.len() <= plain_read.len(), "no prompt waits a step for them");
    assert!(read.iter().zip(&plain_read).all(|(with, without)| with >= without), "{read:?} {plain_read:?}");
    let share = plain_rows / 16 + 4;
    assert!((plain_rows + 1..=plain_rows + share).contains(&rows), "{rows} rows instead of {plain_rows}");
}

#[test]
fn nothing_is_indexed_where_nothing_is_drafted() {
    let mut world = World::new(EngineConfig { draft_rows_max: 0, ..config() }, 200);
    let asked = request(prompt(1, 40), 20);
    ask(&mut world, &asked);
    let root = world.scheduler.cache().prefixes(kvik_cache::PrefixOrder::Blocks, None, 1);
    assert_eq!(world.scheduler.cache().followers(root[0].namespace, &asked.prompt[..8], 9), None);
}

/// A draft model that says what the large one does: its cache forgets what is dropped, and keeps tenants apart.
#[test]
fn a_draft_model_is_cached_and_forgets_as_the_large_one() {
    let mut world = World::new(config(), 200);
    let runner = Box::new(FakeRunner::new(100, 64));
    let computed = runner.rows.clone();
    let rows = || computed.swap(0, std::sync::atomic::Ordering::Relaxed);
    world.scheduler.attach_draft(DraftSetup { runner, cache: cache_config(100), vocab_len: VOCAB }).unwrap();
    let asked = Request { ignore_eos: true, ..request(prompt(1, 100), 60) };
    let drawn = |world: &World| world.scheduler.counters().accepted_tokens[DraftSource::Model as usize];
    let (steps, _) = ask(&mut world, &asked);
    assert!(drawn(&world) > 20 && steps < 45, "{} of {steps}", drawn(&world));
    assert!(rows() >= 100, "it reads the prompt");
    // Another answer after the same prompt: nothing of it is read again.
    let other = Request { prompt: [&asked.prompt[..], &prompt(2, 8)].concat(), ..asked.clone() };
    ask(&mut world, &other);
    assert!(rows() < 80, "the prompt is found");
    let theirs = Request { salt: [2; 16], tenant: TenantId(2), ..other.clone() };
    ask(&mut world, &theirs);
    assert!(rows() >= 100, "but nobody else's");
    let held = world.scheduler.prefixes.draft_cache().unwrap().stats().shared;
    world.scheduler.evict(&asked.prompt[..64], asked.salt);
    assert!(
        world.scheduler.prefixes.draft_cache().unwrap().stats().shared < held,
        "and not what was dropped"
    );
    world.scheduler.prefixes.clear(None);
    assert_eq!(world.scheduler.prefixes.draft_cache().unwrap().stats().shared, 0);
    let private = Request { reuse: false, ..asked };
    ask(&mut world, &private);
    assert_eq!(
        world.scheduler.prefixes.draft_cache().unwrap().stats().shared,
        0,
        "what is private stays nowhere"
    );
}

/// It would panic if it were to compute the token, and draft nothing for anyone.
#[test]
fn a_token_that_the_draft_model_lacks_ends_the_drafts_of_its_own_sequence_alone() {
    let lacking = VOCAB as Token - 1;
    let mut world = World::new(EngineConfig { draft_sources: DraftSources::NONE, ..config() }, 200);
    let mut runner = FakeRunner::new(100, 64);
    runner.poison = Some(lacking);
    let (runner, vocab_len) = (Box::new(runner), lacking as usize);
    world.scheduler.attach_draft(DraftSetup { runner, cache: cache_config(100), vocab_len }).unwrap();
    let known = |seed| prompt(seed, 40).into_iter().map(|token| token.min(lacking - 1)).collect::<Vec<_>>();
    let asked = |prompt| {
        let sampling = Sampling { logit_bias: vec![(lacking, f32::NEG_INFINITY)], ..Sampling::GREEDY };
        Request { ignore_eos: true, sampling, ..request(prompt, 60) }
    };
    let asked = [asked([&known(1)[..], &[lacking]].concat()), asked(known(2))];
    let clients = asked.each_ref().map(|request| world.submit(request.clone()));
    world.settle();
    let answers = clients.map(|client| client.answer().unwrap());
    for (answer, request) in answers.iter().zip(&asked) {
        assert_eq!(answer.choices, solo(request).choices);
    }
    let accepted = answers.map(|answer| answer.report.accepted_tokens);
    assert!(accepted[0] == 0 && accepted[1] > 20, "{accepted:?}");
}

/// While answers are drawn at random, what it drafts is rejected and not worth its passes.
#[test]
fn a_draft_model_that_was_wrong_in_many_answers_is_tried_again() {
    let disk = MemoryDisk::default();
    let mut world = disk.life(EngineConfig { draft_sources: DraftSources::NONE, ..config() }, 400, 0);
    let mut runner = FakeRunner::new(100, 64);
    (runner.millis, runner.step_millis, world.runner.step_millis) = (Some(disk.millis.clone()), 4, 40);
    let setup = DraftSetup { runner: Box::new(runner), cache: cache_config(100), vocab_len: VOCAB };
    world.scheduler.attach_draft(setup).unwrap();
    let mut accepted = |seed: u64, temperature: f32| {
        let sampling = Sampling { temperature, seed, ..Sampling::GREEDY };
        let asked = Request { ignore_eos: true, sampling, ..request(prompt(seed, 40), 60) };
        let client = world.submit(asked.clone());
        world.settle();
        let answer = client.answer().unwrap();
        assert_eq!(answer.choices, solo(&asked).choices);
        answer.report.accepted_tokens
    };
    let random: Vec<usize> = (1..21).map(|seed| accepted(seed, 5.0)).collect();
    let likeliest: Vec<usize> = (21..29).map(|seed| accepted(seed, 0.0)).collect();
    assert!(random.iter().all(|&accepted| accepted < 20), "{random:?}");
    assert!(likeliest[7] > 20, "{likeliest:?}");
}

#[test]
fn the_time_of_the_model_includes_what_brings_states_up_to_date() {
    let auxiliary = AuxiliaryState { block_bytes: BLOCK_BYTES, windows: None, state_bytes: BLOCK_BYTES };
    let mut world = MemoryDisk::default().life(EngineConfig { auxiliary, ..config() }, 400, 0);
    let asked = Request { ignore_eos: true, ..request(prompt(1, 40), 60) };
    for _ in 0..2 {
        ask(&mut world, &asked);
    }
    let (rows, settled) = (world.rows() as u64, world.runner.settled);
    assert!(settled > 0, "nothing was drafted");
    let expect = Duration::from_millis(rows + settled * SETTLE_MILLIS);
    assert_eq!(world.scheduler.counters().model_time, expect, "{rows} rows, {settled} states");
}

/// The embedded model.
struct Tiny {
    runner: ModelRunner,
    tokenizer: Tokenizer,
    config: EngineConfig,
}

fn tiny(draft_rows_max: usize) -> Tiny {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/tiny/kvik-tiny-q8_0.gguf");
    let loaded = LoadedModel::open(&path).unwrap();
    let pool = Pool::new(2);
    let model = Arc::new(Model::load(loaded.config, loaded.tensors, None, &pool, &|_, _| {}).unwrap());
    let layout = ModelRunner::uniform_layout(model.config(), KvFormat::F16);
    let config = EngineConfig {
        context_tokens: CONTEXT,
        draft_rows_max,
        block_bytes: layout.block_bytes(),
        model_digest: model.digest(),
        kv_heads: layout.layers().iter().map(|layer| layer.kv_heads).collect(),
        ..config()
    };
    Tiny {
        runner: ModelRunner::new(model, pool, layout, BLOCKS, CONTEXT).unwrap(),
        tokenizer: loaded.tokenizer,
        config,
    }
}

fn cache_of(blocks: usize) -> CacheConfig {
    CacheConfig { blocks, policy: Policy::Lru, ghosts: blocks, pinned_max: 0 }
}

/// Requests whose answers repeat themselves, their prompts and each other; greedy and sampled, with several choices.
fn repetitive(tokenizer: &Tokenizer) -> Vec<Request> {
    let names = "alpha beta gamma delta alpha beta gamma delta alpha beta";
    let request = |index: usize| Request {
        choices: 1 + index as u32 % 2,
        logprobs: Some(2),
        ignore_eos: true,
        sampling: match index % 3 {
            0 => Sampling::GREEDY,
            _ => Sampling { temperature: 0.7, seed: index as u64 % 4, ..Sampling::GREEDY },
        },
        ..request(tokenizer.encode(&format!("{names} {}", index % 5), false, true), 60)
    };
    (0..12).map(request).collect()
}

/// What a scheduler answers, the bytes of all whole blocks that it wrote, and how many drafted tokens were drawn.
fn serve(draft_rows_max: usize) -> (Vec<String>, BTreeMap<Identity, Vec<u8>>, u64) {
    let Tiny { mut runner, tokenizer, config } = tiny(draft_rows_max);
    let disk = MemoryDisk::of(config.block_bytes);
    let vocabulary = Vocabulary::from(&tokenizer);
    let limits = RequestLimits::new(&config, BLOCKS, runner.vocab_len());
    let clock = Box::new(|| Duration::ZERO);
    let mut scheduler = Scheduler::new(config, cache_of(BLOCKS), Arc::new(vocabulary), clock).unwrap();
    scheduler.attach(disk.setup(0, 64));
    let mut answers = Vec::new();
    for requests in repetitive(&tokenizer).chunks(4) {
        let submit = |request: &Request| {
            let client = Client::default();
            let submission =
                Submission { request: request.clone(), guide: None, sink: Box::new(client.clone()) };
            scheduler.submit(submission, &limits);
            client
        };
        let clients: Vec<Client> = requests.iter().map(submit).collect();
        while !scheduler.is_idle() {
            scheduler.step(&mut runner);
            scheduler.notify_finished();
        }
        answers.extend(clients.iter().map(|client| format!("{:?}", client.answer().unwrap().choices)));
    }
    // Behind the tokens of a block that is not whole stands whatever its memory held before.
    let state = disk.state();
    let whole = state.blocks.values().filter(|(record, _)| record.tokens.as_slice().len() == BLOCK_POSITIONS);
    let blocks = whole.map(|(record, bytes)| (record.identity, bytes.clone())).collect();
    (answers, blocks, scheduler.counters().accepted_tokens.iter().sum())
}

/// Text, log-probabilities and every byte of keys and values that is published.
#[test]
fn no_answer_and_no_stored_byte_differs_with_drafts() {
    let (plain, plain_blocks, none) = serve(0);
    let (drafted, drafted_blocks, drawn) = serve(16);
    assert_eq!(none, 0);
    assert!(drawn > 100, "only {drawn} drafted tokens were drawn");
    assert!(plain == drafted, "{plain:#?}\n{drafted:#?}");
    assert!(plain_blocks.len() > 30, "only {} blocks", plain_blocks.len());
    assert_eq!(plain_blocks.keys().collect::<Vec<_>>(), drafted_blocks.keys().collect::<Vec<_>>());
    let differs = plain_blocks.iter().filter(|(identity, bytes)| drafted_blocks[*identity] != **bytes);
    assert_eq!(differs.count(), 0);
}

/// The answer under a schema whose names are long, and the tokens that the grammar drafted of it.
fn constrained(draft_rows_max: usize) -> (Vec<Token>, u64) {
    let Tiny { runner, tokenizer, config } = tiny(draft_rows_max);
    let engine = Engine::start(runner, &tokenizer, cache_of(BLOCKS), config).unwrap();
    let names = ["identification_of_the_account_holder", "preferred_means_of_communication"];
    let properties: serde_json::Map<_, _> =
        names.iter().map(|&name| (name.to_owned(), serde_json::json!({ "type": "boolean" }))).collect();
    let schema = serde_json::json!({
        "type": "object", "properties": properties, "required": names, "additionalProperties": false,
    });
    let asked = Request {
        constraint: Some(Constraint::JsonSchema(schema)),
        ..request(tokenizer.encode("An account as JSON:", false, true), 120)
    };
    let generated = engine.generate(asked).unwrap();
    let source = DraftSource::Grammar as usize;
    let stats = engine.stats();
    (
        generated.choices[0].tokens.iter().map(|token| token.token).collect(),
        stats.counters.accepted_tokens[source],
    )
}

#[test]
fn what_a_grammar_leaves_as_the_only_way_is_drafted() {
    let (plain, none) = constrained(0);
    let (drafted, drawn) = constrained(16);
    assert_eq!((plain == drafted, none), (true, 0));
    assert!(drawn >= 4, "{drawn} tokens of the names were drafted and drawn, of {}", plain.len());
}
