//! Processes that are killed while they write.
//!
//! A child writes, touches and erases blocks as fast as it can and says what it is about to do and
//! what is done. It is killed at a random instant, again and again over the same files. Each time
//! all that it said was done is found, and nothing that is read is wrong.
//! `KVIK_KILLS=500 cargo test -p kvik-engine --lib store::tests::kill` takes longer.

use std::collections::HashMap;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use super::*;

const KILLS: u64 = 30;
const SLOTS: u64 = 64;
const CHILD_DIR: &str = "KVIK_KILL_CHILD";
const CHILD_SEED: &str = "KVIK_KILL_CHILD_SEED";

/// The part that is killed; on its own it has nothing to do.
#[test]
fn child() {
    let Some(dir) = std::env::var_os(CHILD_DIR) else { return };
    let mut random = Random(std::env::var(CHILD_SEED).unwrap().parse().unwrap());
    let mut store = open(&config(Path::new(&dir), SLOTS)).unwrap().store;
    println!("open");
    loop {
        let (slot, number) = (random.below(SLOTS) as u32, random.next() >> 20);
        match random.below(10) {
            0 => {
                println!("erase {slot} 0");
                store.erase(SlotId(slot));
            }
            1 => store.touch(SlotId(slot), Use { stamp: number, heat: 1.0, at_s: number, expires_s: 0 }),
            _ => {
                println!("write {slot} {number}");
                store.put(slot, &record(number)).unwrap();
                println!("done {slot} {number}");
            }
        }
    }
}

fn spawn(dir: &Path, seed: u64) -> Child {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "store::tests::kill::child", "--nocapture"]);
    command.env(CHILD_DIR, dir).env(CHILD_SEED, seed.to_string());
    command.stdout(Stdio::piped()).spawn().unwrap()
}

/// What must be in a slot: `Some` block or, while that is not certain, anything.
type Expected = HashMap<u32, Option<u64>>;

/// Takes in one line of what a child says.
fn take_in(line: &str, expected: &mut Expected) {
    let words: Vec<&str> = line.split(' ').collect();
    let [verb, slot, number] = words[..] else { return };
    let (Ok(slot), Ok(number)) = (slot.parse(), number.parse()) else { return };
    match verb {
        "done" => expected.insert(slot, Some(number)),
        "write" | "erase" => expected.insert(slot, None),
        _ => None,
    };
}

/// Lets a child write for so long; returns what it has said.
fn run_and_kill(dir: &Path, seed: u64, life: Duration) -> Vec<String> {
    let mut child = spawn(dir, seed);
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = std::thread::spawn(move || lines.map_while(Result::ok).collect());
    std::thread::sleep(life);
    child.kill().unwrap();
    child.wait().unwrap();
    said.join().unwrap()
}

#[test]
fn a_killed_writer_leaves_all_it_had_done_and_nothing_wrong() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), SLOTS);
    let kills = std::env::var("KVIK_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS);
    let mut expected = Expected::new();
    let mut random = Random(3);
    for seed in 0..kills {
        let life = Duration::from_micros(random.below(80_000));
        for line in run_and_kill(dir.path(), seed, life) {
            take_in(&line, &mut expected);
        }
        check(&config, &expected);
    }
    let certain = expected.values().flatten().count();
    assert!(certain > SLOTS as usize / 2, "the children have hardly written: {certain}");
}

fn check(config: &StoreConfig, expected: &Expected) {
    let started = Instant::now();
    let mut opened = open(config).unwrap();
    assert!(started.elapsed() < Duration::from_secs(1), "{:?}", started.elapsed());
    let found: HashMap<SlotId, Identity> =
        opened.records.iter().map(|(slot, record)| (*slot, record.identity)).collect();
    // A kill does not take back what the system has: every header speaks of a whole payload.
    for (slot, identity) in &found {
        opened.store.get(slot.0, *identity).unwrap();
    }
    for (slot, number) in expected {
        if let Some(number) = number {
            assert_eq!(found.get(&SlotId(*slot)), Some(&record(*number).identity), "slot {slot}");
        }
    }
}

#[test]
fn another_process_is_kept_out_until_it_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), SLOTS);
    let mut child = spawn(dir.path(), 0);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("open")));
    assert!(matches!(open(&config), Err(StoreError::InUse { .. })));
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(open(&config).is_ok());
}
