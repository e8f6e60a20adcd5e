//! Idle workers leave the cores to others. In a process of its own, so that it can measure its CPU time.
#![cfg(all(target_os = "linux", not(loom)))]

use std::time::Duration;

use kvik_kernels::Pool;

#[test]
fn idle_workers_use_no_cpu() {
    if !kvik_testing::alone() {
        return;
    }
    let pool = Pool::new(5);
    pool.run(100, &|_| std::thread::yield_now());
    // Long enough for every worker to have given up spinning.
    std::thread::sleep(Duration::from_millis(100));
    let before = cpu_ticks();
    std::thread::sleep(Duration::from_millis(300));
    let used = cpu_ticks() - before;
    drop(pool);
    assert!(used <= 2, "idle workers used {used} of 30 ticks");
}

/// User and system time of this process, in ticks of 10 ms.
fn cpu_ticks() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let (_, after_name) = stat.rsplit_once(')').unwrap();
    let fields: Vec<&str> = after_name.split_whitespace().collect();
    fields[11..13].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum()
}
