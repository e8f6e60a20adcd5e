//! Drafts of a model's own prediction head: only the time of an answer depends on them, and a head that is right is
//! believed.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use kvik_cache::{BLOCK_POSITIONS, CacheConfig, Identity, Policy, SeqId, TenantId, Token};
use kvik_engine::api::{Constraint, Request, Sampling};
use kvik_engine::engine::{Engine, EngineConfig};
use kvik_engine::schedule::{RequestLimits, Scheduler, Submission};
use kvik_engine::stats::{Counters, DraftSource, DraftSources};
use kvik_kernels::{KvFormat, Pool};
use kvik_model::batch::Runner;
use kvik_model::load::LoadedModel;
use kvik_model::{Model, ModelRunner};
use kvik_testing::{golden, mix};
use kvik_text::stream::Vocabulary;
use kvik_text::tokenizer::Tokenizer;

use crate::fake::Client;
use crate::fake::memory_disk::MemoryDisk;

const CONTEXT: usize = 512;
/// Models with heads: all kinds of layers.
const FILES: [&str; 4] = [RIGHT, "head-deepseek2", "head-glm4moe", STATES];
/// Most of its layers keep a state.
const STATES: &str = "head-qwen35";
/// Its head computes what its only layer does.
const RIGHT: &str = "head-repeats";

/// The parts of an engine whose cache holds `blocks` blocks, and which drafts from `sources`.
fn parts(name: &str, blocks: usize, sources: DraftSources) -> (ModelRunner, Tokenizer, EngineConfig) {
    let LoadedModel { config, tensors, tokenizer, .. } =
        LoadedModel::open(&golden(&format!("{name}.gguf"))).unwrap();
    let pool = Pool::new(2);
    let model = Arc::new(Model::load(config, tensors, None, &pool, &|_, _| {}).unwrap());
    let layout = ModelRunner::uniform_layout(model.config(), KvFormat::F16);
    let config = EngineConfig {
        parallel_max: 4,
        choices_max: 2,
        prefill_rows_max: 24,
        prefill_rows_mixed_max: 9,
        draft_sources: sources,
        auxiliary: ModelRunner::auxiliary(model.config(), &layout, 64),
        ..EngineConfig::new(&layout, model.digest(), CONTEXT)
    };
    let runner = ModelRunner::new(model, pool, layout, blocks, CONTEXT).unwrap();
    let states = config.auxiliary.states_max(blocks);
    (runner.with_states(states).unwrap(), tokenizer, config)
}

fn cache_of(blocks: usize) -> CacheConfig {
    CacheConfig { blocks, policy: Policy::Lru, ghosts: blocks, pinned_max: 0 }
}

/// Requests of random text: with common prefixes, greedy and sampled, with several choices, private ones.
fn requests() -> Vec<Request> {
    let text = |seed: u64, len: u64| (0..len).map(move |i| (mix(seed ^ (i << 20)) % 94) as Token);
    let request = |index: u64| Request {
        choices: 1 + index as u32 % 2,
        logprobs: Some(2),
        ignore_eos: true,
        reuse: index % 5 != 4,
        salt: [index as u8 % 2; 16],
        tenant: TenantId(index as u32 % 2),
        sampling: match index % 3 {
            0 => Sampling::GREEDY,
            _ => Sampling { temperature: 0.7, seed: index % 4, ..Sampling::GREEDY },
        },
        ..Request::new(text(index % 3, 20 + index % 3 * 70).chain(text(100 + index, 7)).collect(), 30)
    };
    (0..12).map(request).collect()
}

/// What a scheduler did.
struct Served {
    answers: Vec<String>,
    /// All whole blocks that it wrote.
    blocks: BTreeMap<Identity, Vec<u8>>,
    counters: Counters,
}

/// Serves requests, four at a time; every seventh client leaves early, and its answer is left out.
fn serve(name: &str, blocks: usize, sources: DraftSources) -> Served {
    serve_all(&requests(), name, blocks, sources)
}

fn serve_all(requests: &[Request], name: &str, blocks: usize, sources: DraftSources) -> Served {
    let (mut runner, tokenizer, config) = parts(name, blocks, sources);
    let disk = MemoryDisk::of(config.block_bytes);
    let limits = RequestLimits::new(&config, blocks, runner.vocab_len());
    let (vocabulary, clock) = (Arc::new(Vocabulary::from(&tokenizer)), Box::new(|| Duration::ZERO));
    let has_states = runner.state_bytes() > 0;
    let mut scheduler = Scheduler::new(config, cache_of(blocks), vocabulary, clock).unwrap();
    if !has_states {
        scheduler.attach(disk.setup(0, 64));
    }
    let mut answers = Vec::new();
    for (round, requests) in requests.chunks(4).enumerate() {
        let submit = |request: &Request| {
            let client = Client::default();
            let submission =
                Submission { request: request.clone(), guide: None, sink: Box::new(client.clone()) };
            scheduler.submit(submission, &limits);
            client
        };
        let clients: Vec<Client> = requests.iter().map(submit).collect();
        let leaves = |index: usize| (4 * round + index) % 7 == 6;
        for step in 0.. {
            if step == 9 {
                (0..clients.len()).filter(|&index| leaves(index)).for_each(|index| clients[index].close());
            }
            if scheduler.is_idle() {
                break;
            }
            scheduler.step(&mut runner);
            scheduler.notify_finished();
        }
        let kept = clients.iter().enumerate().filter(|(index, _)| !leaves(*index));
        answers.extend(kept.map(|(_, client)| format!("{:?}", client.answer().unwrap().choices)));
    }
    if let Some(head) = runner.head() {
        head.follow_only(&|id: SeqId| panic!("the head still holds something of {id:?}"));
    }
    // Behind the tokens of a block that is not whole stands whatever its memory held before.
    let state = disk.state();
    let whole = state.blocks.values().filter(|(record, _)| record.tokens.as_slice().len() == BLOCK_POSITIONS);
    let blocks = whole.map(|(record, bytes)| (record.identity, bytes.clone())).collect();
    Served { answers, blocks, counters: *scheduler.counters() }
}

/// Text, log-probabilities and every byte of keys and values that is published; with room, and where sequences preempt
/// each other.
#[test]
fn no_answer_and_no_stored_byte_differs_with_a_head() {
    let head = DraftSources::NONE.with(DraftSource::Head);
    for name in FILES {
        let plain = serve(name, 200, DraftSources::NONE);
        assert_eq!(plain.counters.drafted_tokens, [0; DraftSource::ALL.len()]);
        // A state takes the room of blocks.
        let tight = if name == STATES { 80 } else { 22 };
        let all = [(tight, head), (200, head), (tight, DraftSources::ALL)];
        let some = if name == RIGHT { &all[..] } else { &all[..1] };
        for &(blocks, sources) in some {
            let drafted = serve(name, blocks, sources);
            assert!(plain.answers == drafted.answers, "{name} with {blocks} blocks");
            let of_head = drafted.counters.drafted_tokens[DraftSource::Head as usize];
            assert!(of_head > 20, "{name}: {of_head} tokens were drafted");
            assert!(blocks != 22 || drafted.counters.preemptions > 0, "{name}: nobody was preempted");
            let both = drafted
                .blocks
                .iter()
                .filter_map(|(identity, bytes)| Some((plain.blocks.get(identity)?, bytes)));
            assert!(both.clone().all(|(plain, drafted)| plain == drafted), "{name}");
            assert!(name == STATES || both.count() > 20, "{name}: too few blocks were written");
        }
    }
}

#[test]
fn a_head_that_is_right_is_believed() {
    // Its tokens are the likeliest ones, of sequences that it sees as a whole.
    let greedy = |request| Request { sampling: Sampling::GREEDY, reuse: false, choices: 1, ..request };
    let asked: Vec<Request> = requests().into_iter().map(greedy).collect();
    let head = DraftSources::NONE.with(DraftSource::Head);
    let Served { counters, .. } = serve_all(&asked, RIGHT, 200, head);
    let [drafted, accepted] = [counters.drafted_tokens, counters.accepted_tokens]
        .map(|by_source| by_source[DraftSource::Head as usize]);
    assert!(drafted > 100 && accepted * 10 > drafted * 6, "{accepted} of {drafted}");
    let plain = serve_all(&asked, RIGHT, 200, DraftSources::NONE).counters;
    assert!(counters.steps * 10 < plain.steps * 9, "{} steps instead of {}", counters.steps, plain.steps);
    // Another head guesses at random: what it says is soon not computed any more.
    let Served { counters, .. } = serve_all(&asked, "head-glm4moe", 200, head);
    let wrong = counters.drafted_tokens[DraftSource::Head as usize];
    assert!(wrong * 3 < counters.generated_tokens, "{wrong} drafted of {}", counters.generated_tokens);
}

/// With real time, in an engine, also under a grammar.
#[test]
fn an_engine_drafts_with_the_head_and_says_so() {
    let generate = |sources| {
        let (runner, tokenizer, config) = parts(RIGHT, 200, sources);
        let engine = Engine::start(runner, &tokenizer, cache_of(200), config).unwrap();
        let mut requests = requests();
        requests[1].constraint = Some(Constraint::Regex("[a-z]{4,40}".to_owned()));
        let answers: Vec<_> = requests.into_iter().map(|request| engine.generate(request).unwrap()).collect();
        let accepted: usize = answers.iter().map(|answer| answer.report.accepted_tokens).sum();
        let texts: Vec<String> = answers.iter().map(|answer| format!("{:?}", answer.choices)).collect();
        (texts, accepted, engine.stats().counters)
    };
    let (plain, none, _) = generate(DraftSources::NONE);
    let (drafted, accepted, counters) = generate(DraftSources::NONE.with(DraftSource::Head));
    assert_eq!(plain, drafted);
    assert_eq!((none, accepted as u64), (0, counters.accepted_tokens[DraftSource::Head as usize]));
    assert!(accepted > 0, "nothing was accepted");
}
