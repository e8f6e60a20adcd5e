//! Random histories: arrivals, shared prefixes, choices, cancellations, pools so small that they
//! evict and preempt. Whatever the history, every finished answer equals its solo run, nothing
//! is leaked, the budget holds, and nobody starves.
//!
//! A failing seed is printed; `SEED=n cargo test -p kvik-engine --test simulator` runs it alone.

mod fake;

use std::collections::HashMap;

use fake::*;
use kvik_engine::api::{Request, Sampling};
use kvik_engine::config::EngineConfig;

/// A seeded source of choices.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = mix(self.0);
        (self.0 >> 20) % sides
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.roll(from.len() as u64) as usize]
    }
}

/// What happened over all seeds: the simulator must reach the corners it is made for.
#[derive(Debug, Default)]
struct Coverage {
    finished: usize,
    cancelled: usize,
    preemptions: u64,
    reused: u64,
    recomputed: u64,
    evicted: u64,
    copies: u64,
}

fn random_config(dice: &mut Dice) -> EngineConfig {
    let rows = dice.pick(&[1, 7, 16, 33, 64, 200]);
    EngineConfig {
        context_tokens: dice.pick(&[60, 120, 4096]),
        parallel_max: dice.pick(&[1, 2, 4, 16]),
        prefill_rows_max: rows,
        prefill_rows_mixed_max: 1 + dice.roll(rows as u64) as usize,
        ..config()
    }
}

fn random_request(dice: &mut Dice, capacity: usize) -> Request {
    let shared_len = dice.pick(&[0, 5, 16, 31, 32, 40, 64]);
    let mut tokens = prompt(dice.roll(3), shared_len);
    tokens.extend(prompt(100 + dice.roll(4), 1 + dice.roll(30) as usize));
    tokens.truncate(capacity);
    let warm = dice.roll(2) == 0;
    Request {
        choices: dice.pick(&[1, 1, 1, 2, 4]),
        max_tokens: dice.pick(&[0, 1, 5, 20, 40]),
        ignore_eos: dice.roll(2) == 0,
        stop: if dice.roll(4) == 0 { vec!["q".to_owned(), "xæ".to_owned()] } else { Vec::new() },
        sampling: Sampling {
            temperature: if warm { 1.0 } else { 0.0 },
            top_k: dice.pick(&[0, 5]),
            repetition_penalty: dice.pick(&[1.0, 1.0, 1.3]),
            frequency_penalty: dice.pick(&[0.0, 0.0, 0.5]),
            penalty_last_n: dice.pick(&[0, 8]),
            seed: dice.roll(5),
            ..request(Vec::new(), 0).sampling
        },
        logprobs: dice.pick(&[None, None, Some(2)]),
        reuse: dice.roll(8) != 0,
        salt: [dice.pick(&[0, 0, 0, 1]); 16],
        tenant: Default::default(),
        retain: Default::default(),
        ..request(tokens, 0)
    }
}

fn simulate(seed: u64, solos: &mut HashMap<String, Answer>, coverage: &mut Coverage) {
    let mut dice = Dice(seed.wrapping_mul(0x1234_5678_9abc_def1));
    let config = random_config(&mut dice);
    let blocks = dice.pick(&[4, 6, 8, 12, 20, 60, 200]);
    let capacity = config.context_tokens.min(blocks * 16);
    let mut world = World::new(config.clone(), blocks);
    let mut clients = Vec::new();
    for _ in 0..2 + dice.roll(12) {
        let request = random_request(&mut dice, capacity);
        clients.push((world.submit(request.clone()), request));
        for _ in 0..dice.pick(&[0, 0, 1, 3, 10, 60]) {
            world.step();
            if dice.roll(40) == 0 {
                let index = dice.roll(clients.len() as u64) as usize;
                clients[index].0.close();
            }
        }
    }
    let steps = world.settle();
    let rows: usize = clients.iter().map(|(_, request)| rows_at_most(request)).sum();
    assert!(steps <= 4 * rows, "{steps} steps for {rows} rows");
    for (client, request) in &clients {
        check_client(client, request, &config, blocks, solos, coverage);
    }
    let (counters, cache) = (world.scheduler.counters(), world.scheduler.cache().stats());
    coverage.preemptions += counters.preemptions;
    coverage.reused += counters.reused_tokens;
    coverage.recomputed += counters.recomputed_tokens;
    coverage.evicted += cache.totals.evicted;
    coverage.copies += cache.totals.copies;
}

fn rows_at_most(request: &Request) -> usize {
    request.choices as usize * (request.prompt.len() + request.max_tokens + 1)
}

/// A client that stayed has the answer of the solo run.
fn check_client(
    client: &Client,
    request: &Request,
    config: &EngineConfig,
    blocks: usize,
    solos: &mut HashMap<String, Answer>,
    coverage: &mut Coverage,
) {
    if client.is_closed() && !client.has_ended() {
        coverage.cancelled += 1;
        return;
    }
    let answer = client.answer().unwrap_or_else(|| panic!("no answer but {:?}", client.events().last()));
    // What limits the length of an answer is part of what is asked.
    let positions = config.context_tokens.min(blocks * 16);
    let max_tokens = request.max_tokens.min(positions + 1 - request.prompt.len());
    let request = Request { max_tokens, ..request.clone() };
    let solo = solos.entry(format!("{request:?}")).or_insert_with(|| solo(&request));
    assert_eq!(answer.choices, solo.choices, "{request:?}");
    assert_eq!(answer.report.generated_tokens, solo.report.generated_tokens);
    coverage.finished += 1;
}

#[test]
fn any_history_gives_the_solo_answers() {
    let seeds = match std::env::var("SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => (0..4000).collect::<Vec<u64>>(),
    };
    let (mut solos, mut coverage) = (HashMap::new(), Coverage::default());
    for &seed in &seeds {
        let run = std::panic::AssertUnwindSafe(|| simulate(seed, &mut solos, &mut coverage));
        if let Err(panic) = std::panic::catch_unwind(run) {
            eprintln!("SEED={seed} fails");
            std::panic::resume_unwind(panic);
        }
    }
    println!("{coverage:?}");
    if seeds.len() > 1 {
        let Coverage { finished, cancelled, preemptions, reused, recomputed, evicted, copies } = coverage;
        assert!(finished > 10_000 && cancelled > 500, "too little happened");
        assert!(preemptions > 300 && evicted > 10_000 && recomputed > 1000, "too little pressure");
        assert!(reused > 100_000 && copies > 1000, "too little reuse");
    }
}
