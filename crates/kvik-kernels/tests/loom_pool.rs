//! Every interleaving of small pools, by loom:
//! `RUSTFLAGS="--cfg loom" cargo test -p kvik-kernels --release --test loom_pool`
#![cfg(loom)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};

use kvik_kernels::Pool;

/// Explores what `threads` and a bound on preemptions allow.
fn explore(preemptions: usize, body: impl Fn() + Sync + Send + 'static) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(preemptions);
    model.check(body);
}

#[test]
fn jobs_complete_and_the_pool_ends() {
    explore(3, || {
        let pool = Pool::new(2);
        for _ in 0..2 {
            let mut done = [false; 2];
            pool.run_chunks(&mut done, 1, |_, done| done[0] = true);
            assert_eq!(done, [true; 2]);
        }
    });
}

#[test]
fn three_threads_share_a_job() {
    explore(2, || {
        let pool = Pool::new(3);
        let done = AtomicUsize::new(0);
        pool.run(3, &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 3);
    });
}

#[test]
fn a_pool_that_never_ran_ends() {
    explore(3, || drop(Pool::new(3)));
}

#[test]
fn a_panic_is_delivered_once() {
    explore(2, || {
        let pool = Pool::new(2);
        let failing = catch_unwind(AssertUnwindSafe(|| pool.run(2, &|task| assert_ne!(task, 1))));
        assert!(failing.is_err());
        let done = AtomicUsize::new(0);
        pool.run(2, &|_| {
            done.fetch_add(1, Ordering::Relaxed);
        });
        assert_eq!(done.into_inner(), 2);
    });
}
