//! Many more threads than cores: every job is complete when it returns, and results have the same bits.
#![cfg(not(loom))]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use kvik_kernels::{Activations, Matrix, Pool, WeightType, matmul, quantize};

const MANY: usize = 64;

/// Numbers of either sign, the same on every machine.
fn numbers(count: usize, seed: u32) -> Vec<f32> {
    let mixed = |index: u32| (index.wrapping_add(seed)).wrapping_mul(2_654_435_761) >> 8;
    (0..count as u32).map(|index| mixed(index) as f32 / (1 << 23) as f32 - 1.0).collect()
}

/// `[n, rows]`, to the bit.
fn product(pool: &Pool, ty: WeightType, [rows, cols, n]: [usize; 3]) -> Vec<u32> {
    let mut raw = vec![0; rows * ty.row_bytes(cols).unwrap()];
    quantize(ty, &numbers(rows * cols, 1), &mut raw);
    let weights = Matrix::pack(ty, rows, cols, &raw, pool).unwrap();
    let mut inputs = Activations::new();
    inputs.set(pool, &numbers(n * cols, 7), cols, &[&weights]);
    let mut out = vec![0.0; n * rows];
    matmul(pool, &weights, &inputs, &mut out);
    out.into_iter().map(f32::to_bits).collect()
}

#[test]
fn products_are_those_of_one_thread() {
    let (one, many) = (Pool::new(1), Pool::new(MANY));
    for ty in [WeightType::Q8_0, WeightType::Q4_0, WeightType::F32] {
        for shape in [[1500, 512, 1], [700, 256, 5], [300, 512, 65]] {
            assert_eq!(product(&many, ty, shape), product(&one, ty, shape), "{} {shape:?}", ty.name());
        }
    }
}

/// A token is a few hundred jobs, each of which reads what the one before it wrote.
#[test]
fn short_jobs_follow_each_other_without_waiting_for_threads_that_sleep() {
    let pool = Pool::new(MANY);
    let mut values = vec![0_u32; 4 * MANY];
    let started = Instant::now();
    for round in 0..3000 {
        pool.run_chunks(&mut values, 2, |_, values| {
            for value in values {
                assert_eq!(*value, round);
                *value += 1;
            }
        });
    }
    let job = started.elapsed() / 3000;
    println!("a job of {} tasks on {MANY} threads: {job:?}", 2 * MANY);
    // A caller that had to wait until every thread has had its turn would take tens of milliseconds.
    assert!(job < Duration::from_millis(10), "{job:?}");
}

#[test]
fn callers_beside_each_other_and_after_pauses_lose_no_task() {
    let (pool, done) = (Pool::new(MANY), AtomicUsize::new(0));
    let job = || {
        for pause in 0..20 {
            std::thread::sleep(Duration::from_micros(50 * pause));
            pool.run(100, &|_| {
                done.fetch_add(1, Ordering::Relaxed);
            });
        }
    };
    std::thread::scope(|scope| (0..4).for_each(|_| drop(scope.spawn(job))));
    assert_eq!(done.into_inner(), 4 * 20 * 100);
}
