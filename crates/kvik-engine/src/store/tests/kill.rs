//! Processes that are killed while they write.
//!
//! A child writes, touches and erases blocks as fast as it can, and prints each operation before and
//! after it. The test kills it at a random instant, again and again over the same files. Each time
//! every operation that it printed as done is found, and no block that is read is wrong.
//! `KVIK_KILLS=500 cargo test -p kvik-engine --lib store::tests::kill` takes longer.

use std::collections::{HashMap, HashSet};
use std::io::{BufRead, BufReader};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, Stdio};

use super::*;
use crate::stats::DiskRole;

const KILLS: u64 = 30;
const SLOTS: u64 = 64;
const CHILD_DIR: &str = "KVIK_KILL_CHILD";
const CHILD_SEED: &str = "KVIK_KILL_CHILD_SEED";

/// The child that is killed; does nothing by itself.
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

#[derive(Default)]
struct Expected {
    /// The block that a slot must hold; `None` while that is not certain.
    blocks: HashMap<u32, Option<u64>>,
    /// Slots that were to be erased and were not written since.
    erasing: HashSet<u32>,
}

impl Expected {
    /// Applies one line that a child printed.
    fn apply(&mut self, line: &str) {
        let words: Vec<&str> = line.split(' ').collect();
        let [verb, slot, number] = words[..] else { return };
        let (Ok(slot), Ok(number)) = (slot.parse(), number.parse()) else { return };
        match verb {
            "done" => {
                self.blocks.insert(slot, Some(number));
                self.erasing.remove(&slot);
            }
            "write" => drop(self.blocks.insert(slot, None)),
            "erase" => {
                self.blocks.insert(slot, None);
                self.erasing.insert(slot);
            }
            _ => {}
        }
    }
}

/// Lets a child write for `life`; returns the lines it printed.
fn run_and_kill(dir: &Path, seed: u64, life: Duration) -> Vec<String> {
    let mut child = spawn(dir, seed);
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let printed = std::thread::spawn(move || lines.map_while(Result::ok).collect());
    std::thread::sleep(life);
    child.kill().unwrap();
    let ended = child.wait().unwrap();
    assert_eq!(ended.signal(), Some(9), "it ended by itself, with {ended}");
    printed.join().unwrap()
}

#[test]
fn a_killed_writer_loses_no_completed_write_and_leaves_no_wrong_block() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), SLOTS);
    let kills = std::env::var("KVIK_KILLS").ok().and_then(|kills| kills.parse().ok()).unwrap_or(KILLS);
    let mut expected = Expected::default();
    let mut random = Random(3);
    for seed in 0..kills {
        let life = Duration::from_micros(random.below(80_000));
        for line in run_and_kill(dir.path(), seed, life) {
            expected.apply(&line);
        }
        check(&config, &expected);
    }
    let certain = expected.blocks.values().flatten().count();
    assert!(certain > SLOTS as usize / 2, "the children have hardly written: {certain}");
}

fn check(config: &StoreConfig, expected: &Expected) {
    let started = Instant::now();
    let mut opened = open(config).unwrap();
    assert!(started.elapsed() < NO_WAIT, "{:?}", started.elapsed());
    let found: HashMap<SlotId, Identity> =
        opened.records.iter().map(|(slot, record)| (*slot, record.identity)).collect();
    // The system preserves completed writes after a kill: every header belongs to a complete payload. Only an erased
    // block's payload is removed before its header, so that a kill in between leaves nothing of it; reading it is a
    // miss.
    for (slot, identity) in &found {
        let read = opened.store.get(slot.0, *identity);
        assert!(read.is_ok() || expected.erasing.contains(&slot.0), "slot {}: {:?}", slot.0, read.err());
    }
    for (slot, number) in &expected.blocks {
        if let Some(number) = number {
            assert_eq!(found.get(&SlotId(*slot)), Some(&record(*number).identity), "slot {slot}");
        }
    }
}

#[test]
fn a_store_in_use_is_locked_until_its_process_is_killed() {
    let dir = tempfile::tempdir().unwrap();
    let config = config(dir.path(), SLOTS);
    let mut child = spawn(dir.path(), 0);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert!(lines.any(|line| line.unwrap().ends_with("open")));
    let role = || open(&config).unwrap().store.role();
    assert_eq!(role(), DiskRole::Reader { of: Some(child.id()) });
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(role(), DiskRole::Writer);
}
