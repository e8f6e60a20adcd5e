//! The whole engine below HTTP: scheduler, cache, disk tier, tenants, pins, times to live, public prompts,
//! choices, private requests, sequences that forget, answers under a grammar, drafts of all sources, requests of the
//! background, cancellations, a model that panics, a disk that is slow, full, or loses and tears writes, a clock, and
//! restarts, driven together by one seed, next to a naive twin.
//!
//! For any history: every answer equals, token for token, the answer of the model without a cache, which forgets
//! over a plain list what the request says and looks through a language for what may come next; nothing that was
//! computed behind a drop is found by anybody; what was deleted is nowhere once it is erased; the reused tokens and the
//! reason for a miss are those of the naive twin (exactly if everything fits, within its bounds otherwise); every
//! request ends; nothing is leaked; no budget is exceeded; computed blocks are on disk. Who goes before whom is not
//! looked at: the tests of `schedule/queue.rs` hold that.
//!
//! One seed in five is that of a fleet: three nodes that share a store which dies, stalls, refuses, is slow or full, is cut
//! off from one of them, loses values, finds more than there is, delivers out of order, twice, and after a cancel. Then
//! also: nobody asks the store for a private prompt or for one of another tenant; what is offered is what its name says, and
//! was not dropped; a reason that names the store has a cause there; nobody waits longer for it than may be; every
//! fetch ends or is cancelled.
//!
//! ```text
//! cargo test --release -p kvik-engine --test simulator                    10,000 seeds of 1,000 steps
//! SEED=n cargo test --release -p kvik-engine --test simulator             seed n alone
//! SEEDS=n STEPS=m cargo test --release -p kvik-engine --test simulator    as many as you like
//! FIRST=n SEEDS=m cargo test --release -p kvik-engine --test simulator    m of them, from seed n on
//! ```
//!
//! With the feature `gpu` some seeds also run with the blocks in the memory of a device.
//!
//! `TRACE=1` with a `SEED` prints the events. Without `--release` it runs a sample.

#![allow(clippy::unwrap_used, reason = "a test may fail where it stands")]

mod account;
mod arena;
mod client;
mod coverage;
mod deletion;
mod depot;
mod disk;
#[path = "../it/fake/mod.rs"]
mod fake;
mod fleet;
mod forgetting;
mod grammar;
mod head;
mod ledger;
mod memory;
mod regime;
mod runner;
mod time;
mod upkeep;
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use coverage::Coverage;
use fleet::Fleet;
use runner::Broken;
use world::World;

const SEEDS: u64 = if cfg!(debug_assertions) { 400 } else { 10_000 };
const STEPS: u64 = 1000;

fn simulate(seed: u64, steps: u64) -> Coverage {
    if !fleet::is_fleet(seed) {
        return live(World::new(seed, false), steps);
    }
    let mut fleet = Fleet::new(seed);
    (0..steps).for_each(|_| fleet.live());
    fleet.end()
}

fn live(mut world: World, steps: u64) -> Coverage {
    (0..steps).for_each(|_| world.live());
    world.end()
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name)
        .ok()
        .map(|value| value.parse().unwrap_or_else(|_| panic!("{name}={value:?} is no number")))
}

/// Silences the panics that the model raises on purpose.
fn quiet_panics() {
    let usual = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        if !panic.payload().is::<Broken>() {
            usual(panic);
        }
    }));
}

/// Runs seeds from `next` on until `end` or a failure; returns the failed seed.
fn run(next: &AtomicU64, end: u64, steps: u64, coverage: &Mutex<Coverage>) -> Option<u64> {
    loop {
        let seed = next.fetch_add(1, Ordering::Relaxed);
        if seed >= end {
            return None;
        }
        match catch_unwind(AssertUnwindSafe(|| simulate(seed, steps))) {
            Ok(seen) => coverage.lock().unwrap().add(&seen),
            Err(_) => {
                next.store(end, Ordering::Relaxed);
                return Some(seed);
            }
        }
    }
}

#[test]
fn every_history_agrees_with_the_naive_twin() {
    quiet_panics();
    let steps = variable("STEPS").unwrap_or(STEPS);
    if let Some(seed) = variable("SEED") {
        println!("{:#?}", simulate(seed, steps));
        return;
    }
    let (first, seeds) = (variable("FIRST").unwrap_or(0), variable("SEEDS").unwrap_or(SEEDS));
    let (started, end) = (Instant::now(), first + seeds);
    let (next, coverage) = (AtomicU64::new(first), Mutex::new(Coverage::default()));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let failed = std::thread::scope(|scope| {
        let workers: Vec<_> =
            (0..threads).map(|_| scope.spawn(|| run(&next, end, steps, &coverage))).collect();
        workers.into_iter().filter_map(|worker| worker.join().unwrap()).min()
    });
    if let Some(seed) = failed {
        panic!(
            "seed {seed} fails; to see it alone: SEED={seed} STEPS={steps} cargo test -p kvik-engine --test simulator"
        );
    }
    let seconds = started.elapsed().as_secs_f64();
    println!(
        "{seeds} seeds from {first} on, of {steps} steps, {:.0} seeds a second: {coverage:#?}",
        seeds as f64 / seconds
    );
    if seeds >= 5000 && steps >= 1000 {
        coverage.lock().unwrap().check(seeds);
    }
}

#[cfg(feature = "gpu")]
#[test]
fn histories_on_a_device_agree_with_the_naive_twin() {
    if !arena::has_device() {
        return;
    }
    quiet_panics();
    let (seeds, steps) = (variable("DEVICE_SEEDS").unwrap_or(8), variable("STEPS").unwrap_or(200));
    let mut coverage = Coverage::default();
    for seed in variable("SEED").map_or(0..seeds, |seed| seed..seed + 1) {
        println!("seed {seed} on a device");
        coverage.add(&live(World::new(seed, true), steps));
    }
    println!("{coverage:#?}");
}
