//! A process that is killed at any time, before, while or after it was told that it goes to the background: the next one
//! opens the same directory, nothing it finds there is wrong, and what was durable is warm.
//!
//! A sample runs with the other tests; more: `KILLS=200 cargo test --release -p kvik-library --test it killed -- --nocapture`.

#![cfg(unix)]

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use crate::common::{greedy, model, model_on, text};
use kvik_library::{Model, StopReason};
use kvik_testing::mix;

/// Kills where nobody says how many.
const KILLS: u64 = 9;
/// Prompts that the processes ask, in an order of their own each.
const PROMPTS: u64 = 10;
const WORDS: usize = 200;
/// Answers between two times in the background.
const ANSWERS: u64 = 3;
/// Where the process that is killed has its cache, and which of them it is.
const DIR: &str = "KVIK_LIBRARY_TEST_DIR";
const ROUND: &str = "KVIK_LIBRARY_TEST_ROUND";

/// When a process is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum When {
    /// After it was told that all is durable.
    Durable,
    /// So long after it began to make it so.
    Background(Duration),
    /// So long after an answer.
    Answer(Duration),
}

fn ask(model: &Model, seed: u64) -> String {
    let (answer, report) = model.generate(text(seed, WORDS), &greedy(8)).unwrap().finish().unwrap();
    assert_ne!(report.reason, Some(StopReason::LoadFailed), "prompt {seed}: {report:?}");
    answer
}

/// Not a test by itself: the process that is killed. It says what it has done, and does not end.
#[test]
fn process_that_is_killed_at_any_time() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let round: u64 = std::env::var(ROUND).unwrap().parse().unwrap();
    let model = model_on(Path::new(&dir));
    println!();
    for count in 1.. {
        let seed = mix(round << 32 | count) % PROMPTS;
        ask(&model, seed);
        println!("answer {seed}");
        if count % ANSWERS == 0 {
            println!("background");
            println!("durable {}", model.on_background().unwrap().is_complete());
        }
    }
}

fn start(dir: &Path, round: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "killed::process_that_is_killed_at_any_time", "--nocapture"])
        .envs([(DIR, dir.as_os_str()), (ROUND, round.to_string().as_ref())])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Reads what a process says, and kills it. The prompts of which all is durable then.
fn kill(mut child: Child, when: When) -> BTreeSet<u64> {
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(|line| line.unwrap());
    let (mut asked, mut answers, mut is_time) = (BTreeSet::new(), 0, false);
    for line in lines.by_ref() {
        let after = match (line.split(' ').collect::<Vec<_>>().as_slice(), when) {
            (["answer", seed], _) => {
                asked.insert(seed.parse().unwrap());
                answers += 1;
                if let When::Answer(after) = when
                    && answers == ANSWERS + 1
                {
                    Some(after)
                } else {
                    None
                }
            }
            (["background"], When::Background(after)) => Some(after),
            (["durable", complete], When::Durable) => {
                assert_eq!(*complete, "true");
                Some(Duration::ZERO)
            }
            _ => None,
        };
        if let Some(after) = after {
            std::thread::sleep(after);
            is_time = true;
            break;
        }
    }
    // SIGKILL: nothing in the process has a say.
    child.kill().unwrap();
    let ended = child.wait().unwrap();
    assert!(is_time && ended.signal() == Some(9), "{when:?}: it ended by itself, with {ended}");
    if when == When::Durable { asked } else { BTreeSet::new() }
}

#[test]
fn nothing_is_wrong_whenever_a_process_is_killed_and_what_was_durable_is_warm() {
    let kills = std::env::var("KILLS").map_or(KILLS, |count| count.parse().unwrap());
    let expect: Vec<String> = {
        let fresh = model();
        (0..PROMPTS).map(|seed| ask(&fresh, seed)).collect()
    };
    let dir = tempfile::tempdir().unwrap();
    for round in 0..kills {
        let after = Duration::from_micros(mix(round) % 12_000);
        let when = [When::Durable, When::Background(after / 4), When::Answer(after)][(round % 3) as usize];
        let durable = kill(start(dir.path(), round), when);
        let model = model_on(dir.path());
        for &seed in &durable {
            let explained = model.explain(text(seed, WORDS)).unwrap();
            let unknown = explained.prompt_tokens - explained.known_tokens;
            assert!(unknown <= 16, "round {round}, {when:?}, prompt {seed}: {explained:?}");
        }
        for (seed, expect) in (0..).zip(&expect) {
            assert_eq!(&ask(&model, seed), expect, "round {round}, {when:?}, prompt {seed}");
        }
        println!("killed {round}: {when:?}, {} prompts durable", durable.len());
        // Every other process finds what only the one before it has left.
        if round % 2 == 0 {
            drop(model);
            std::fs::remove_dir_all(dir.path()).unwrap();
        }
    }
}
