//! Which prompts a step reads, simulated: the engine's own scheduler over a model that only takes time.
//!
//! ```text
//! cargo run --release -p kvik-examples --bin step_order [MOONCAKE_TRACE.jsonl] [BLOCKS]
//! ```
//!
//! Agents ask one question after the other, as those of `bench/agents.py` do; and requests arrive when those of a recorded
//! trace did, an eighth as long, and as often as makes them so much of what the machine can do. For each number of prompt
//! rows that a step has beside streams at most: how long requests wait for their first token, and streams for their
//! next, and how many rows were computed, in thousands. `BLOCKS` (20,000) of 16 positions hold more than the trace uses at a time.
//! A change of the order itself is tried by changing the scheduler, and this again.

use std::collections::HashSet;
use std::error::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use kvik_cache::{BlockId, CacheConfig, Policy, Token};
use kvik_engine::api::{Event, EventSink, Request};
use kvik_engine::config::EngineConfig;
use kvik_engine::config::usual::PREFILL_ROWS;
use kvik_engine::schedule::{RequestLimits, Scheduler, Submission};
use kvik_engine::stats::DraftSources;
use kvik_model::batch::{Batch, Output, Runner};
use kvik_model::observation::Watched;
use kvik_testing::mix;
use kvik_text::stream::{TokenKind, Vocabulary};

/// A step reads the weights: at least so many microseconds. Qwen3-0.6B in Q8_0 on two cores of a Zen 4.
const STEP_US: f64 = 16_000.0;
/// And it multiplies: microseconds a row.
const ROW_US: f64 = 1_600.0;
/// And it attends: microseconds for each position that a row sees.
const POSITION_US: f64 = 1.2;
/// Rows for prompts beside streams that are compared.
const MIXED: [usize; 4] = [64, 128, 192, 256];
/// Sequences that run at the same time.
const PARALLEL: usize = 8;
/// The trace's requests are so many times as long, and so many of them arrive.
const SHORTER: usize = 8;
const ARRIVALS: usize = 1_000;
/// Tokens of text that the trace gives one number.
const HASHED: usize = 512 / SHORTER;
const VOCAB: usize = 256;

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let trace = args.next().map(std::fs::read_to_string).transpose()?;
    let blocks = args.next().map_or(Ok(20_000), |text| text.parse())?;
    let trace: Vec<Recorded> = match &trace {
        Some(text) => text.lines().take(ARRIVALS).map(serde_json::from_str).collect::<Result<_, _>>()?,
        None => Vec::new(),
    };
    for count in [4, 8, 16] {
        let title = format!("{count} agents, 400 sessions of 6 turns");
        table(&title, blocks, |world| agents(world, count, 400))?;
    }
    for load in [0.5, 0.8, 0.95].into_iter().filter(|_| !trace.is_empty()) {
        let title = format!("recorded arrivals, {:.0}% load", 100.0 * load);
        table(&title, blocks, |world| arrivals(world, &trace, load))?;
    }
    Ok(())
}

fn table(title: &str, blocks: usize, run: impl Fn(&mut World)) -> Result<(), Box<dyn Error>> {
    println!(
        "\n{title}\n  rows beside   first token p50     p95     p99    next token p50     p99 longest       all    rows"
    );
    for mixed in MIXED {
        let mut world = World::new(mixed, blocks)?;
        run(&mut world);
        let (mut first, mut next) = (Vec::new(), Vec::new());
        for heard in &world.heard {
            let heard = locked(heard);
            first.extend(heard.times.first().map(|&at| at - heard.asked));
            next.extend(heard.times.windows(2).map(|pair| pair[1] - pair[0]));
        }
        let [p50, p95, p99] = [50, 95, 99].map(|part| seconds(&mut first, part));
        let [next50, next99, most] = [50, 99, 100].map(|part| 1e3 * seconds(&mut next, part));
        let all = world.now() as f64 / 1e6;
        println!(
            "{mixed:13}{p50:16.2} s{p95:7.2} {p99:7.2}{next50:14.0} ms{next99:8.0}{most:8.0}{all:8.0} s{:8}",
            world.model.rows / 1000
        );
    }
    Ok(())
}

/// The time below which `percent` of the `times` are, which are in microseconds.
fn seconds(times: &mut [u64], percent: usize) -> f64 {
    times.sort_unstable();
    let index = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(index).map_or(f64::NAN, |&time| time as f64 / 1e6)
}

/// Agents that share their sessions out: each asks as soon as it has its answer.
fn agents(world: &mut World, agents: usize, sessions: u64) {
    let mut sessions = (0..sessions).map(Session::new);
    let mut at_work: Vec<Asking> =
        sessions.by_ref().take(agents).map(|session| Asking::new(session, world)).collect();
    while !at_work.is_empty() {
        world.step();
        at_work.retain_mut(|asking| {
            !locked(&asking.heard).done
                || asking.go_on(world)
                || sessions.next().map(|session| *asking = Asking::new(session, world)).is_some()
        });
    }
}

/// A session whose last question is being answered.
struct Asking {
    session: Session,
    heard: Arc<Mutex<Heard>>,
}

impl Asking {
    fn new(mut session: Session, world: &mut World) -> Asking {
        let prompt = session.next().unwrap_or_default();
        Asking { heard: world.ask(world.now(), prompt, Session::ANSWER), session }
    }

    /// Asks the next question, if there is one.
    fn go_on(&mut self, world: &mut World) -> bool {
        let next = self.session.next().map(|prompt| world.ask(world.now(), prompt, Session::ANSWER));
        next.map(|heard| self.heard = heard).is_some()
    }
}

/// Requests that come when they come.
fn arrivals(world: &mut World, trace: &[Recorded], load: f64) {
    let work: f64 = trace.iter().scan(HashSet::new(), |seen, recorded| Some(recorded.work(seen))).sum();
    let recorded_ms = trace.last().map_or(1.0, |last| last.timestamp.max(1.0));
    let stretch = work / load / recorded_ms;
    for recorded in trace {
        let at = (recorded.timestamp * stretch) as u64;
        while world.now() < at && !world.is_idle() {
            world.step();
        }
        world.clock.fetch_max(at, Ordering::Relaxed);
        world.ask(at, recorded.prompt(), recorded.answer());
    }
    while !world.is_idle() {
        world.step();
    }
}

/// A conversation with tools: what all share, then turns of very different lengths.
struct Session {
    seed: u64,
    turn: u64,
    tokens: Vec<Token>,
}

impl Session {
    const TURNS: u64 = 6;
    const ANSWER: usize = 24;

    fn new(seed: u64) -> Session {
        Session { seed, turn: 0, tokens: text(u64::MAX, 800).collect() }
    }
}

impl Iterator for Session {
    type Item = Vec<Token>;

    fn next(&mut self) -> Option<Vec<Token>> {
        if self.turn == Session::TURNS {
            return None;
        }
        let dice = mix(self.seed * 100 + self.turn);
        let added = [25, 45, 85, 160, 400, 1_100][dice as usize % 6];
        self.tokens.extend(text(dice, if self.turn == 0 { added } else { added + Session::ANSWER }));
        self.turn += 1;
        Some(self.tokens.clone())
    }
}

/// A line of the trace.
#[derive(serde::Deserialize)]
struct Recorded {
    /// Milliseconds.
    timestamp: f64,
    input_length: usize,
    output_length: usize,
    /// Equal numbers are equal prefixes.
    hash_ids: Vec<u64>,
}

impl Recorded {
    fn prompt(&self) -> Vec<Token> {
        let mut prompt: Vec<Token> = self.hash_ids.iter().flat_map(|&id| text(id, HASHED)).collect();
        prompt.truncate((self.input_length / SHORTER).max(1));
        prompt
    }

    fn answer(&self) -> usize {
        (self.output_length / SHORTER).max(1)
    }

    /// Microseconds that it takes where nothing seen before is computed again, and steps are full.
    fn work(&self, seen: &mut HashSet<u64>) -> f64 {
        let known = self.hash_ids.iter().take_while(|id| seen.contains(id)).count() * HASHED;
        seen.extend(&self.hash_ids);
        let tokens = self.input_length / SHORTER;
        let rows = tokens.saturating_sub(known) + self.answer();
        rows as f64 * (ROW_US + POSITION_US * tokens as f64 / 2.0)
    }
}

/// Tokens that are text, different for every `seed`.
fn text(seed: u64, len: usize) -> impl Iterator<Item = Token> + Clone {
    (0..len as u64).map(move |index| 1 + (mix(seed ^ (index << 40)) % (VOCAB as u64 - 1)) as Token)
}

/// An engine's scheduler whose clock goes on by what its model takes.
struct World {
    scheduler: Scheduler,
    limits: RequestLimits,
    model: Paced,
    /// Microseconds.
    clock: Arc<AtomicU64>,
    heard: Vec<Arc<Mutex<Heard>>>,
}

/// What a client heard, and when.
#[derive(Default)]
struct Heard {
    asked: u64,
    times: Vec<u64>,
    done: bool,
}

struct Client {
    clock: Arc<AtomicU64>,
    heard: Arc<Mutex<Heard>>,
}

fn locked(heard: &Mutex<Heard>) -> std::sync::MutexGuard<'_, Heard> {
    heard.lock().unwrap_or_else(|poison| poison.into_inner())
}

impl EventSink for Client {
    fn send(&mut self, event: Event) -> bool {
        let mut heard = locked(&self.heard);
        match event {
            Event::Text { .. } => heard.times.push(self.clock.load(Ordering::Relaxed)),
            Event::Done(_) => heard.done = true,
            Event::Failed(error) => panic!("{error}"),
            _ => {}
        }
        true
    }

    fn is_closed(&self) -> bool {
        false
    }
}

impl World {
    fn new(prefill_rows_mixed_max: usize, blocks: usize) -> Result<World, Box<dyn Error>> {
        let clock = Arc::<AtomicU64>::default();
        let config = config(prefill_rows_mixed_max);
        let limits = RequestLimits::new(&config, blocks, VOCAB);
        let cache = CacheConfig { blocks, policy: Policy::Lru, ghosts: 0, pinned_max: 0 };
        let words = (0..VOCAB).map(|index| (vec![b'a' + (index % 26) as u8], TokenKind::Text));
        let time = {
            let clock = clock.clone();
            move || Duration::from_micros(clock.load(Ordering::Relaxed))
        };
        let scheduler = Scheduler::new(config, cache, Arc::new(Vocabulary::new(words)), Box::new(time))?;
        let model = Paced { clock: clock.clone(), logits: Vec::new(), rows: 0 };
        Ok(World { scheduler, limits, model, clock, heard: Vec::new() })
    }

    /// Microseconds.
    fn now(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    fn step(&mut self) {
        self.scheduler.step(&mut self.model);
        self.scheduler.notify_finished();
    }

    fn is_idle(&self) -> bool {
        self.scheduler.is_idle()
    }

    /// Asks for an answer of so many tokens to what was ready at `asked`.
    fn ask(&mut self, asked: u64, prompt: Vec<Token>, answer: usize) -> Arc<Mutex<Heard>> {
        let heard = Arc::new(Mutex::new(Heard { asked, ..Heard::default() }));
        let sink = Box::new(Client { clock: self.clock.clone(), heard: heard.clone() });
        let request = request(prompt, answer);
        self.scheduler.submit(Submission { request, guide: None, sink }, &self.limits);
        self.heard.push(heard.clone());
        heard
    }
}

/// A model that takes time.
struct Paced {
    clock: Arc<AtomicU64>,
    logits: Vec<f32>,
    rows: usize,
}

impl Runner for Paced {
    fn vocab_len(&self) -> usize {
        VOCAB
    }

    fn copy_partial(&mut self, _: BlockId, _: BlockId, _: usize) {}

    fn read_block(&self, _: BlockId, _: &mut [u8]) {}

    fn write_block(&mut self, _: BlockId, _: &[u8]) {}

    fn forward(&mut self, batch: &Batch<'_>, _: &mut [Watched<'_>]) -> &[f32] {
        self.rows += batch.rows.len();
        let positions: f64 = batch.rows.iter().map(|row| f64::from(row.cache_position)).sum();
        let products = (batch.rows.len() as f64 * ROW_US).max(STEP_US);
        self.clock.fetch_add((products + positions * POSITION_US) as u64, Ordering::Relaxed);
        let wanted = batch.rows.iter().filter(|row| row.output == Output::Logits).count();
        self.logits.clear();
        self.logits.resize(wanted * VOCAB, 0.0);
        &self.logits
    }
}

/// What a server has, without drafts.
fn config(prefill_rows_mixed_max: usize) -> EngineConfig {
    EngineConfig {
        context_tokens: 1 << 17,
        parallel_max: PARALLEL,
        waiting_max: usize::MAX,
        choices_max: 1,
        prefill_rows_max: PREFILL_ROWS,
        prefill_rows_mixed_max,
        draft_rows_max: 0,
        draft_sources: DraftSources::NONE,
        block_bytes: 1,
        model_digest: [0; 32],
        kv_format: String::new(),
        repeat: Default::default(),
        kv_heads: vec![1],
        tile_heads: vec![1],
        auxiliary: kvik_cache::AuxiliaryState::default(),
        latent: false,
        calibration: None,
        gates: None,
    }
}

fn request(prompt: Vec<Token>, max_tokens: usize) -> Request {
    Request { ignore_eos: true, ..Request::new(prompt, max_tokens) }
}
