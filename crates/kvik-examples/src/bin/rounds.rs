//! What a round of the thread pool costs, with as many threads as cores and with more:
//! `cargo run --release -p kvik-examples --bin rounds [THREADS...]`.
//!
//! A token is some 200 rounds. The first column is a round of tasks that do nothing; the second one of 32 tasks of 10 us,
//! as the products of a small model are; the third is the caller's own work of 100 us between two such rounds, which
//! threads that spin may disturb.

use std::hint::{black_box, spin_loop};
use std::time::{Duration, Instant};

use kvik_kernels::Pool;

const ROUNDS: u32 = 500;
const SAMPLES: u32 = 5;
const TASKS: usize = 32;
const TASK: Duration = Duration::from_micros(10);
const ALONE: Duration = Duration::from_micros(100);

fn main() {
    let args: Vec<usize> = std::env::args().skip(1).filter_map(|arg| arg.parse().ok()).collect();
    let counts = if args.is_empty() { vec![1, 2, 3, 4, 8, 16, 32, 64] } else { args };
    let steps = steps_of(TASK);
    println!("{} cores", std::thread::available_parallelism().map_or(0, usize::from));
    println!("threads  empty round  round of {TASKS} x {TASK:?}  caller's {ALONE:?} between rounds");
    for threads in counts {
        let pool = Pool::new(threads);
        let empty = median(|| per_round(|| pool.run(2 * threads, &|task| _ = black_box(task))));
        let full = median(|| per_round(|| pool.run(TASKS, &|_| work(steps))));
        let alone = median(|| alone(&pool, steps));
        println!("{threads:7}  {empty:11.1?}  {full:20.1?}  {alone:10.1?}");
    }
}

/// Arithmetic of so many steps.
fn work(steps: u64) {
    (0..steps).for_each(|step| _ = black_box(step));
}

/// Steps that take this long where nothing disturbs.
fn steps_of(time: Duration) -> u64 {
    let steps = 1 << 20;
    let best = (0..20).map(|_| timed(|| work(steps))).min().unwrap_or(time);
    (steps as f64 * time.as_secs_f64() / best.as_secs_f64()) as u64
}

/// The mean time of the caller's own work behind each of many rounds.
fn alone(pool: &Pool, steps: u64) -> Duration {
    let own = steps * (ALONE.as_nanos() / TASK.as_nanos()) as u64;
    let round = || {
        pool.run(TASKS, &|_| work(steps));
        timed(|| work(own))
    };
    (0..ROUNDS / 4).map(|_| round()).sum::<Duration>() / (ROUNDS / 4)
}

fn per_round(round: impl Fn()) -> Duration {
    timed(|| (0..ROUNDS).for_each(|_| round())) / ROUNDS
}

fn timed(run: impl FnOnce()) -> Duration {
    let started = Instant::now();
    run();
    started.elapsed()
}

/// Of some samples, after threads of the one before have gone to sleep.
fn median(sample: impl Fn() -> Duration) -> Duration {
    let mut samples: Vec<Duration> = (0..SAMPLES)
        .map(|_| {
            let started = Instant::now();
            while started.elapsed() < Duration::from_millis(2) {
                spin_loop();
            }
            sample()
        })
        .collect();
    samples.sort_unstable();
    samples[samples.len() / 2]
}
