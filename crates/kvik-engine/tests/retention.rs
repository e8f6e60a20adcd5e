//! Sequences that forget: the same answers as a naive twin that forgets over a plain list, whatever else runs,
//! however prompts are cut, whatever is cached or evicted; and nobody else's answer changes.

#![allow(clippy::unwrap_used, reason = "a test may")]

mod fake;

use fake::{World, config, mix, prompt, request};
use kvik_cache::Token;
use kvik_cache::retain::{
    HeadFacts, LayerFacts, Points, PolicyState, Reduce, Retention, Watch, WatchedRows, decide,
};
use kvik_engine::api::Request;
use kvik_engine::config::EngineConfig;
use kvik_engine::retain::repeat::RepeatPrompt;
use proptest::prelude::*;

/// Policies of every kind: by place, by vectors, observed in all rows and in the last ones, expected, repeated.
const RETENTIONS: [&str; 18] = [
    "sinks:40,every=16",
    "sinks:0.5,every=20",
    "sample:0.5,every=24",
    "random:0.3",
    "knorm:0.5,every=20",
    "knorm:48,order=large,every=16",
    "vnorm:0.25,every=40",
    "keydiff:0.6,every=33",
    "h2o:0.4,every=16",
    "h2o:64,every=16",
    "h2o:0.5,every=32,counter=sketch",
    "scissorhands:0.5,window=32,every=32",
    "tova:0.5,every=17",
    "snapkv:0.5,window=16,every=32",
    "snapkv:60,window=8,every=16",
    "decay:0.4,every=16",
    "r-kv:0.5,every=256",
    "kvzip:0.5,budget=head",
];

fn words() -> RepeatPrompt {
    RepeatPrompt { prefix: 3, ask: vec![7, 8, 9], ask_more: vec![8, 8], suffix: vec![5] }
}

fn with_repeat(config: EngineConfig) -> EngineConfig {
    EngineConfig { repeat: words(), ..config }
}

/// A request that reads what is kept of its first `prefix` tokens.
fn of_prefix(prompt: Vec<Token>, max_tokens: usize, retention: &str, prefix: usize) -> Request {
    Request { kept_prefix: Some(prefix), ..forgetful(prompt, max_tokens, retention) }
}

fn forgetful(prompt: Vec<Token>, max_tokens: usize, retention: &str) -> Request {
    let retention = Some(retention.parse().unwrap());
    Request { ignore_eos: true, retention, ..request(prompt, max_tokens) }
}

/// The fake model over a plain list of stored positions.
struct Twin {
    forgets: Option<(Retention, Points)>,
    passed: usize,
    stored: Vec<Stored>,
    tokens: Vec<Token>,
    mass: Vec<f32>,
    state: PolicyState,
    sinks: Option<Vec<f32>>,
}

#[derive(Clone, Copy)]
struct Stored {
    position: u32,
    token: Token,
    chain: u64,
}

impl Twin {
    fn new(retention: Option<Retention>, prompt: usize, context: usize) -> Twin {
        let points = retention.map(|retention| retention.points(prompt, context));
        Twin {
            forgets: retention.zip(points),
            passed: 0,
            stored: Vec::new(),
            tokens: Vec::new(),
            mass: Vec::new(),
            state: PolicyState::default(),
            sinks: None,
        }
    }

    /// What the fake model answers to `prompt`, forgetting as `retention` says.
    fn answer(request: &Request, context: usize) -> Vec<Token> {
        let Request { prompt, max_tokens, .. } = request;
        let mut twin = Twin::new(request.retention, prompt.len(), context);
        if let (Some(prefix), Some((retention, points))) = (request.kept_prefix, &mut twin.forgets) {
            *points = retention.point_at(prefix);
        }
        prompt.iter().for_each(|&token| twin.push(token));
        let mut answer = vec![twin.next()];
        while answer.len() < *max_tokens {
            twin.push(answer[answer.len() - 1]);
            answer.push(twin.next());
        }
        answer
    }

    fn push(&mut self, token: Token) {
        if let Some((retention, points)) = self.forgets
            && points.next(self.passed) == Some(self.tokens.len())
        {
            self.forget(&retention);
        }
        self.tokens.push(token);
        self.store(token);
        let at = self.tokens.len() - 1;
        let Some((retention, points)) = self.forgets else { return };
        let Some(point) = points.next(self.passed) else { return };
        if let Watch::Attention { rows, reduce } = retention.watch()
            && (rows == WatchedRows::All || points.watched(point).contains(&at))
        {
            self.observe(reduce);
        }
    }

    fn store(&mut self, token: Token) {
        let before = self.stored.last().map_or(0, |stored| stored.chain);
        let chain = mix(before ^ (u64::from(token) + 1));
        self.stored.push(Stored { position: (self.tokens.len() - 1) as u32, token, chain });
    }

    fn observe(&mut self, reduce: Reduce) {
        self.mass.resize(self.stored.len().max(self.mass.len()), 0.0);
        let query = self.stored[self.stored.len() - 1].chain;
        for (stored, mass) in self.stored.iter().zip(&mut self.mass) {
            let weight = (mix(query ^ stored.chain) % 1000) as f32 / 1000.0;
            *mass = match reduce {
                Reduce::Sum => *mass + weight,
                Reduce::Decayed(factor) => *mass * factor + weight,
                Reduce::Above => *mass + f32::from(weight > 0.5),
                Reduce::Max => mass.max(weight),
            };
        }
    }

    fn repeat(&mut self) {
        let exact = self.stored.clone();
        let words = words();
        let repeated = &self.tokens[words.prefix.min(self.tokens.len())..].to_vec();
        for token in [&words.ask[..], &words.suffix, repeated].concat() {
            self.store(token);
            self.observe(Reduce::Max);
        }
        self.stored = exact;
        self.mass.truncate(self.stored.len());
    }

    fn forget(&mut self, retention: &Retention) {
        if retention.watch() == Watch::Repeat {
            self.repeat();
        }
        self.mass.resize(self.stored.len(), 0.0);
        let of =
            |salt: u64| self.stored.iter().map(|stored| (mix(stored.chain ^ salt) % 1000) as f32).collect();
        let head = HeadFacts {
            positions: self.stored.iter().map(|stored| stored.position).collect(),
            mass: self.mass.clone(),
            key_norms: of(1),
            value_norms: of(2),
            likeness: of(3),
            redundancy: of(4),
            expected: of(5),
        };
        let count = retention.rotated_sinks().min(self.stored.len());
        if count > 0 && self.sinks.is_none() {
            self.sinks = Some(self.stored[..count].iter().map(|stored| stored.chain as f32).collect());
        }
        let facts = [LayerFacts { heads: vec![head] }];
        let decision = decide(retention, self.tokens.len(), &facts, None, &mut self.state);
        let kept = &decision.kept[0][0];
        self.stored = kept.iter().map(|&index| self.stored[index as usize]).collect();
        self.mass = match retention.accumulates() {
            true => kept.iter().map(|&index| self.mass[index as usize]).collect(),
            false => Vec::new(),
        };
        if let Some(sinks) = &self.sinks
            && let Some(window) = self.stored.get(sinks.len()).map(|stored| stored.position)
        {
            let position = u64::from(window - sinks.len() as u32);
            for (key, stored) in sinks.iter().zip(&mut self.stored) {
                stored.chain = mix(u64::from(key.to_bits()) ^ (position << 32));
            }
        }
        self.passed = self.tokens.len();
    }

    fn next(&self) -> Token {
        let seen =
            self.stored.iter().fold(0, |hash, stored| mix(hash ^ stored.chain ^ u64::from(stored.token)));
        let logit = |token: u64| {
            let spread = (mix(seen ^ (token << 32)) % 1000) as f32 / 100.0;
            if token == 0 { spread - 2.0 } else { spread }
        };
        let tokens = 0..fake::VOCAB as u64;
        tokens.max_by(|&a, &b| logit(a).total_cmp(&logit(b)).then(b.cmp(&a))).unwrap() as Token
    }
}

#[test]
fn a_sequence_forgets_what_its_twin_forgets() {
    for retention in RETENTIONS {
        let mut world = World::new(with_repeat(config()), 200);
        let prompt = prompt(1, 150);
        let request = forgetful(prompt, 60, retention);
        let client = world.submit(request.clone());
        world.settle();
        let answer = client.answer().unwrap_or_else(|| panic!("{retention}: {:?}", client.error()));
        assert_eq!(answer.choices[0].1, Twin::answer(&request, 4096), "{retention}");
        let retained = answer.report.retained.expect("it has forgotten");
        assert!(retained.dropped > 0 && retained.kept > 0, "{retention}: {retained:?}");
    }
}

/// One request of the property test.
#[derive(Debug, Clone)]
struct Ask {
    seed: u64,
    len: usize,
    max_tokens: usize,
    retention: Option<usize>,
    /// Blocks of its prefix of which a part is kept, instead of what the whole sequence keeps.
    prefix: Option<usize>,
    /// Steps before it comes.
    after: usize,
    choices: u32,
}

impl Ask {
    fn request(&self) -> Request {
        let prompt = prompt(self.seed, self.len);
        let prefix = self.prefix.map(|blocks| 16 * blocks).filter(|&prefix| prefix <= self.len);
        let request = match (self.retention, prefix) {
            (Some(index), Some(prefix)) => of_prefix(prompt, self.max_tokens, RETENTIONS[index], prefix),
            (Some(index), None) => forgetful(prompt, self.max_tokens, RETENTIONS[index]),
            (None, _) => Request { ignore_eos: true, ..request(prompt, self.max_tokens) },
        };
        Request { choices: self.choices, ..request }
    }
}

fn ask() -> impl Strategy<Value = Ask> {
    let retention = prop::option::weighted(0.8, 0..RETENTIONS.len());
    let prefix = prop::option::weighted(0.4, 1..10_usize);
    (0..3_u64, 1..200_usize, 1..40_usize, retention, prefix, 0..12_usize, 1..3_u32).prop_map(
        |(seed, len, max_tokens, retention, prefix, after, choices)| Ask {
            seed,
            len,
            max_tokens,
            retention,
            prefix,
            after,
            choices,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, ..ProptestConfig::default() })]

    /// Requests that share prefixes, forget or not, in a cache with room for all or for few, cut in any way.
    #[test]
    fn nothing_around_a_sequence_changes_what_it_answers(
        asks in prop::collection::vec(ask(), 1..9),
        blocks in 26..120_usize,
        rows in 1..80_usize,
        mixed in 1..40_usize,
    ) {
        let config =
            EngineConfig { prefill_rows_max: rows, prefill_rows_mixed_max: mixed, ..with_repeat(config()) };
        let mut world = World::new(config, blocks);
        let mut clients = Vec::new();
        for ask in &asks {
            (0..ask.after).for_each(|_| world.step());
            // What can never fit is refused at once; all else is answered.
            if world.limits.check(&ask.request()).is_ok() {
                clients.push((ask, ask.request(), world.submit(ask.request())));
            }
        }
        world.settle();
        for (ask, request, client) in &clients {
            let expect = Twin::answer(request, 4096);
            let answer = client.answer();
            prop_assert!(answer.is_some(), "{ask:?}: {:?}", client.error());
            for choice in answer.unwrap().choices {
// Little room may end an answer early, as little context does.
                let whole = blocks >= 60 || ask.retention.is_none();
                let agrees = if whole { choice.1 == expect } else { expect.starts_with(&choice.1) };
                prop_assert!(agrees, "{ask:?}: {:?} and not {expect:?}", choice.1);
            }
        }
    }
}

#[test]
fn what_is_kept_of_a_prefix_is_made_once_and_read_by_all_who_ask_for_it() {
    for retention in RETENTIONS {
        let mut world = World::new(with_repeat(config()), 300);
        let prefix = prompt(1, 160);
        let mut first_rows = 0;
        for (index, question) in [&[9, 9, 8][..], &[7, 6, 5, 4], &[9, 9, 8]].into_iter().enumerate() {
            let asked = of_prefix([&prefix, question].concat(), 30, retention, 160);
            let before = world.runner.rows.load(std::sync::atomic::Ordering::Relaxed);
            let client = world.submit(asked.clone());
            world.settle();
            let rows = world.runner.rows.load(std::sync::atomic::Ordering::Relaxed) - before;
            let answer = client.answer().unwrap_or_else(|| panic!("{retention}: {:?}", client.error()));
            assert_eq!(answer.choices[0].1, Twin::answer(&asked, 4096), "{retention}");
            let report = answer.report;
            match index {
                0 => first_rows = rows,
                _ => {
                    assert_eq!(report.cached_tokens, 160, "{retention}");
                    assert_eq!(rows, question.len() + 29, "{retention}");
                    assert!(first_rows >= 160 + rows - 1, "{retention}");
                }
            }
            assert!(report.retained.is_some_and(|retained| retained.dropped > 0), "{retention}");
        }
        // Who does not ask for it gets the exact prefix, which is in the cache as well.
        let exact = Request { ignore_eos: true, ..request([&prefix[..], &[9, 9, 8]].concat(), 30) };
        let client = world.submit(exact.clone());
        world.settle();
        assert_eq!(client.answer().unwrap().choices[0].1, Twin::answer(&exact, 4096));
    }
}

#[test]
fn a_prefix_that_is_none_is_refused() {
    let world = World::new(with_repeat(config()), 100);
    for prefix in [0, 8, 17, 112] {
        let error = world.limits.check(&of_prefix(prompt(1, 100), 5, "keydiff:0.5", prefix)).unwrap_err();
        assert!(error.to_string().contains("retain.prefix"), "{error}");
    }
}

/// Four conversations that keep everything fill the budget; sixteen run in it that keep a quarter, thinned from the
/// first token on, and what they drop is given back at once.
#[test]
fn sixteen_conversations_at_a_quarter_run_in_the_budget_of_four() {
    let (prompt_len, answer) = (1000, 200);
    let blocks = 4 * (prompt_len + answer) / 16;
    for retention in ["knorm:240,every=32", "sinks:240,every=32", "h2o:240,every=32"] {
        let mut world = World::new(with_repeat(config()), blocks);
        let asked: Vec<Request> =
            (0..16).map(|seed| forgetful(prompt(seed, prompt_len), answer, retention)).collect();
        let clients: Vec<_> = asked.iter().map(|request| world.submit(request.clone())).collect();
        let (mut together, mut most) = (0, 0);
        while !world.scheduler.is_idle() {
            world.step();
            let stats = world.scheduler.cache().stats();
            together = together.max(world.scheduler.running());
            most = most.max(stats.blocks - stats.free);
        }
        assert_eq!((together, world.scheduler.counters().preemptions), (16, 0), "{retention}");
        assert!(most <= blocks);
        for (asked, client) in asked.iter().zip(&clients) {
            assert_eq!(client.answer().unwrap().choices[0].1, Twin::answer(asked, 4096), "{retention}");
        }
    }
}
