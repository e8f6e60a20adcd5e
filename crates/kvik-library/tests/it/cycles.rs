//! Models that are opened, asked, cancelled and closed over and over leave nothing behind: no memory, no thread, no file.
//!
//! It looks at the whole process, and has one of its own. A sample runs with the others; all of it, with times:
//! `CYCLES=10000 cargo test --release -p kvik-library --test it cycles -- --nocapture`.

#![cfg(target_os = "linux")]

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::common::usage::{Usage, mib, settled};
use crate::common::{ENDLESS, endless, options, text};
use kvik_library::{Finish, Model, Options, Source};

/// Cycles where nobody says how many.
const CYCLES: u64 = 120;
/// Cycles after which a process has all that it will ever need.
const WARM_UP: u64 = 60;
/// Times that memory is looked at while the cycles run.
const LOOKS: u64 = 10;
/// Bytes that the least of the later looks may have more than the least of the earlier ones, however many cycles there are.
const GROWTH_MAX: usize = 4 << 20;
/// The GNU allocator gives back what is freed. Left alone it raises these with the sizes it meets, and keeps 10 MiB more
/// or fewer from look to look.
const GIVES_BACK: [(&str, &str); 2] =
    [("MALLOC_MMAP_THRESHOLD_", "131072"), ("MALLOC_TRIM_THRESHOLD_", "131072")];

/// How long parts of a cycle took, all together.
#[derive(Default)]
struct Times {
    open: Duration,
    answer: Duration,
    close: Duration,
}

#[test]
fn cycles_leave_nothing_behind() {
    if !kvik_testing::alone_with(&GIVES_BACK) {
        return;
    }
    let cycles = std::env::var("CYCLES").map_or(CYCLES, |count| count.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let mut times = Times::default();
    // Weights of small models share memory: what stays open must not keep that of others.
    let stays = Model::open(options()).unwrap();
    (0..WARM_UP).for_each(|cycle| run(cycle, dir.path(), &mut times));
    let (threads, files) = (settled("task", 2), settled("fd", 0));
    let (mut private, mut times, started) = (Vec::new(), Times::default(), Instant::now());
    for cycle in 0..cycles {
        run(WARM_UP + cycle, dir.path(), &mut times);
        assert_eq!(settled("task", threads), threads, "threads after {cycle} cycles");
        assert_eq!(settled("fd", files), files, "open files after {cycle} cycles");
        if (cycle + 1) % (cycles / LOOKS).max(1) == 0 {
            private.push(Usage::now().private);
            let (now, rate) =
                (private[private.len() - 1], (cycle + 1) as f64 / started.elapsed().as_secs_f64());
            println!("{:6} cycles {:6.1} MiB private {rate:5.1} a second", cycle + 1, mib(now));
        }
    }
    let mean = |time: Duration| time.as_secs_f64() * 1e3 / cycles as f64;
    let Times { open, answer, close } = times;
    println!("open {:.2} ms, answer {:.2} ms, close {:.2} ms", mean(open), mean(answer), mean(close));
    drop(stays);
    let grown = growth(&private);
    assert!(grown <= GROWTH_MAX, "{:.1} MiB more: {private:?}", mib(grown));
}

/// Bytes between the least of the first half and the least of the second. A leak raises every look; what
/// background threads hold for a moment is in none of the least.
fn growth(looks: &[usize]) -> usize {
    let least = |looks: &[usize]| looks.iter().copied().min().expect("memory is looked at in both halves");
    let (earlier, later) = looks.split_at(looks.len() / 2);
    least(later).saturating_sub(least(earlier))
}

/// Opens a model, reads some of an answer, ends it in one of the ways there are, and closes the model in one of those.
fn run(cycle: u64, dir: &Path, times: &mut Times) {
    let started = Instant::now();
    let model = Model::open(source_and_disk(cycle, dir)).unwrap();
    times.open += started.elapsed();
    let started = Instant::now();
    let mut answer = model.generate(text(cycle % 16, 40), &endless(cycle)).unwrap();
    answer.by_ref().take(3).for_each(|piece| drop(piece.unwrap()));
    match cycle % 4 {
        0 => drop(answer),
        1 => {
            answer.cancel();
            let (_, report) = answer.finish().unwrap();
            assert_eq!(report.finish, Finish::Cancelled);
            assert!(report.generated_tokens < ENDLESS, "{report:?}");
        }
        2 => assert!(model.on_background().unwrap().is_complete()),
        // It is cancelled by closing the model.
        _ => {}
    }
    times.answer += started.elapsed();
    let started = Instant::now();
    match cycle % 3 {
        0 => drop(model),
        _ => drop(model.close().unwrap()),
    }
    times.close += started.elapsed();
}

fn source_and_disk(cycle: u64, dir: &Path) -> Options {
    let path = kvik_testing::tiny_model();
    let source = match cycle % 5 {
        0 => Source::Bytes(std::fs::read(path).unwrap()),
        1 => Source::Descriptor { file: File::open(path).unwrap(), offset: 0, bytes: None },
        _ => Source::Path(path),
    };
    let options = Options { source, ..options() };
    if cycle.is_multiple_of(2) { options.with_disk(dir) } else { options }
}
