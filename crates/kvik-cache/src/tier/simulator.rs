//! The tier over a simulated disk in memory: slow, failing, full, and killed at any time.
//!
//! [`Disk`] does what the engine's store does with its files, in the same write phases, and checks the assumptions
//! of the store: a slot is never written while it is read, and never read before it is written. [`World`] is the
//! engine: prompts arrive, are looked up, pinned, read, placed and written. Everything is drawn from one seed, so a
//! failing seed is a test.

use std::collections::VecDeque;
use std::time::Duration;

use super::tests::{Dice, is_over, prompt, records, root};
use super::*;
use crate::hash::Identity;
use crate::ids::Token;

/// The content of a slot on disk, as far as the store's checksums distinguish it.
#[derive(Debug, Clone, Copy, Default)]
struct Cell {
    /// The header, if it is valid.
    header: Option<Record>,
    /// The block whose bytes these are; `None` if they were never written, or are torn or damaged.
    payload: Option<Identity>,
    /// Whether they were damaged after they were written.
    rotten: bool,
}

#[derive(Debug, Clone, Copy)]
enum Change {
    Write { slot: SlotId, record: Record },
    Touch { slot: SlotId, use_: Use },
    Erase { slot: SlotId },
}

#[derive(Debug, Clone, Copy)]
enum Completed {
    Written { slot: SlotId, result: Result<(), IoFault> },
    Read { slot: SlotId, identity: Identity, result: Result<(), IoFault> },
}

/// Fault rates of the disk, in thousandths.
#[derive(Debug, Clone, Copy, Default)]
struct Faults {
    /// Writes that fail after having torn the payload.
    writes: u64,
    /// Reads that fail although the bytes are there.
    reads: u64,
    /// Steps in which a slot is damaged.
    rot: u64,
    /// Steps in which the disk makes no progress.
    stalls: u64,
}

#[derive(Debug)]
struct Disk {
    cells: Vec<Cell>,
    /// Queue of the writer, in order; the first change may be half done.
    changes: VecDeque<Change>,
    /// Completed write phases of the first change.
    phases: u8,
    /// Queue of the readers, which finish in any order.
    reads: Vec<(SlotId, Identity)>,
    completed: VecDeque<Completed>,
    /// Cells that fit on the disk; beyond them it is full.
    room: usize,
    /// Number of further writes that are refused after a fault.
    rest: u32,
    faults: Faults,
}

impl Disk {
    fn new(cells: usize, room: usize, faults: Faults) -> Disk {
        let cells = vec![Cell::default(); cells];
        let (changes, reads, completed) = Default::default();
        Disk { cells, changes, phases: 0, reads, completed, room, rest: 0, faults }
    }

    fn write(&mut self, slot: SlotId, record: Record) {
        assert!(!self.reads.iter().any(|&(read, _)| read == slot), "{slot:?} is written while it is read");
        assert!(!self.is_being_written(slot), "{slot:?} is written twice at a time");
        self.changes.push_back(Change::Write { slot, record });
    }

    fn read(&mut self, slot: SlotId, identity: Identity) {
        assert!(!self.is_being_written(slot), "{slot:?} is read before it is written");
        self.reads.push((slot, identity));
    }

    fn is_being_written(&self, slot: SlotId) -> bool {
        let of = |change: &Change| matches!(change, Change::Write { slot: written, .. } if *written == slot);
        self.changes.iter().any(of)
    }

    fn is_idle(&self) -> bool {
        self.changes.is_empty() && self.reads.is_empty() && self.completed.is_empty()
    }

    /// Carries out a phase of the writer, and possibly a read.
    fn step(&mut self, dice: &mut Dice) {
        if dice.below(1000) < self.faults.stalls {
            return;
        }
        if dice.below(1000) < self.faults.rot {
            let index = dice.below(self.cells.len() as u64) as usize;
            self.cells[index] = Cell { payload: None, rotten: true, ..self.cells[index] };
        }
        if let Some(&change) = self.changes.front() {
            self.write_phase(change, dice);
        }
        if !self.reads.is_empty() {
            let (slot, identity) = self.reads.swap_remove(dice.below(self.reads.len() as u64) as usize);
            let result = self.read_now(slot, identity, dice);
            self.completed.push_back(Completed::Read { slot, identity, result });
        }
    }

    fn write_phase(&mut self, change: Change, dice: &mut Dice) {
        match change {
            Change::Write { slot, record } => return self.write_stroke(slot, record, dice),
            Change::Touch { slot, use_ } => {
                if let Some(record) = &mut self.cells[slot.index()].header {
                    record.use_ = use_;
                }
            }
            Change::Erase { slot } => self.cells[slot.index()].header = None,
        }
        self.changes.pop_front();
    }

    fn write_stroke(&mut self, slot: SlotId, record: Record, dice: &mut Dice) {
        if self.phases == 0 && self.rest > 0 {
            self.rest -= 1;
            return self.end_write(slot, Err(IoFault::Resting));
        }
        let taken = self.cells.iter().filter(|cell| cell.payload.is_some() || cell.rotten).count();
        let cell = &mut self.cells[slot.index()];
        let full = taken >= self.room && cell.payload.is_none() && !cell.rotten;
        match self.phases {
            0 => cell.header = None,
            1 => *cell = Cell::default(),
            _ if full || dice.below(1000) < self.faults.writes => {
                self.rest = 1 + dice.below(8) as u32;
                let fault = if full { IoFault::Full } else { IoFault::Failed };
                return self.end_write(slot, Err(fault));
            }
            2 => cell.payload = Some(record.identity),
            _ => {
                cell.header = Some(record);
                return self.end_write(slot, Ok(()));
            }
        }
        self.phases += 1;
    }

    fn end_write(&mut self, slot: SlotId, result: Result<(), IoFault>) {
        self.phases = 0;
        self.changes.pop_front();
        self.completed.push_back(Completed::Written { slot, result });
    }

    fn read_now(&self, slot: SlotId, identity: Identity, dice: &mut Dice) -> Result<(), IoFault> {
        let cell = &self.cells[slot.index()];
        let named = cell.header.is_some_and(|record| record.identity == identity);
        if dice.below(1000) < self.faults.reads {
            return Err(IoFault::Failed);
        }
        if named && cell.payload == Some(identity) { Ok(()) } else { Err(IoFault::Corrupt) }
    }

    /// Kills the process: pending changes are lost. Returns what a new process finds.
    ///
    /// Pending uses would be lost as well, and times to live with them; they are applied here, so that the rest can
    /// be compared.
    fn kill(&mut self) -> Vec<(SlotId, Record)> {
        for change in self.changes.drain(..) {
            if let Change::Touch { slot, use_ } = change
                && let Some(record) = &mut self.cells[slot.index()].header
            {
                record.use_ = use_;
            }
        }
        self.reads.clear();
        self.completed.clear();
        self.phases = 0;
        self.rest = 0;
        let slots = (0..).map(SlotId).zip(&self.cells);
        slots.filter_map(|(slot, cell)| Some((slot, cell.header?))).collect()
    }
}

/// Maximum number of writes, and of reads, in flight.
const IN_FLIGHT_MAX: usize = 6;

/// The engine, as far as the tier is concerned.
struct World {
    dice: Dice,
    /// Dice for pure queries, which do not affect the history.
    looks: Dice,
    tier: Tier,
    disk: Disk,
    now_s: u64,
    /// Recent prompts, with their owners.
    seen: VecDeque<(u64, Vec<Token>)>,
    reads: u64,
    kills: u64,
    /// How often followers were found.
    followed: u64,
}

impl World {
    fn new(seed: u64, faults: Faults) -> World {
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let slots = 3 + dice.below(30) as usize;
        let room = if dice.below(3) == 0 { 1 + dice.below(slots as u64) as usize } else { slots };
        let (mut tier, disk) = (Tier::new(slots as u32), Disk::new(slots, room, faults));
        tier.index_followers();
        let (looks, seen) = (Dice(seed), VecDeque::new());
        World { dice, looks, tier, disk, now_s: 0, seen, reads: 0, kills: 0, followed: 0 }
    }

    /// A step of the engine, and some steps of the disk.
    fn step(&mut self) {
        self.now_s += self.dice.below(2);
        match self.dice.below(40) {
            0 => self.restart(),
            1 => self.erase(|record| record.content_key % 7 == 3),
            6..=9 => self.sweep(),
            2..=5 => self.touch(),
            _ => self.request(),
        }
        for _ in 0..self.dice.below(12) {
            self.disk.step(&mut self.dice);
        }
        self.settle();
        self.tier.check().unwrap();
        self.follow();
    }

    /// Handles a new or earlier prompt: reads its stored part and writes the rest.
    fn request(&mut self) {
        let known = self.dice.below(self.seen.len() as u64 + 4) as usize;
        let (owner, prompt) = match self.seen.get(known) {
            Some(seen) => seen.clone(),
            None => (self.dice.below(2), prompt(&mut self.dice)),
        };
        let found = self.tier.find(&root(owner as u8), &prompt, self.now_s).slots;
        if self.disk.reads.len() + found.len() <= IN_FLIGHT_MAX {
            self.tier.pin_for_reading(&found);
            for slot in found {
                self.disk.read(slot, self.tier.record(slot).identity);
            }
        }
        let expires_s = if self.dice.below(8) == 0 { self.now_s + self.dice.below(40) } else { 0 };
        for (number, mut record) in records(owner, &prompt, expires_s).into_iter().enumerate() {
            if self.disk.changes.len() >= IN_FLIGHT_MAX {
                break;
            }
            (record.content_key, record.pinned) = (number as u64 + self.now_s, self.dice.below(40) == 0);
            let root = root(owner as u8);
            if let Placement::Write(slot) = self.tier.place(record, &root, self.now_s) {
                self.disk.write(slot, *self.tier.record(slot));
            }
        }
        self.seen.push_front((owner, prompt));
        self.seen.truncate(12);
    }

    fn touch(&mut self) {
        let used: Vec<Identity> = self.tier.used().map(|(_, record)| record.identity).collect();
        if used.is_empty() {
            return;
        }
        let identity = used[self.dice.below(used.len() as u64) as usize];
        let ttl_s = [None, Some(0), Some(20)][self.dice.below(3) as usize];
        let mut news = self.tier.keep_path(&identity, ttl_s, self.now_s);
        news.extend(self.tier.touch(&identity, ttl_s, self.now_s));
        let touches = news.into_iter().map(|(slot, use_)| Change::Touch { slot, use_ });
        self.disk.changes.extend(touches);
    }

    /// The followers that are found occur after the tokens in an unexpired prefix of the same owner.
    fn follow(&mut self) {
        let known = self.looks.below(self.seen.len() as u64 + 1) as usize;
        let (owner, mut prompt) = self.seen.get(known).cloned().unwrap_or((0, prompt(&mut self.looks)));
        prompt.truncate(self.looks.below(prompt.len() as u64 + 1) as usize);
        let most = 1 + self.looks.below(20) as usize;
        let Some(found) = self.tier.followers(&root(owner as u8), &prompt, most, self.now_s) else { return };
        let said = [&prompt[prompt.len() - found.same..], &found.tokens].concat();
        let holds = |prefix: &Vec<Token>| prefix.windows(said.len()).any(|window| window == said);
        assert!(self.prefixes(owner).iter().any(holds), "{said:?} is nowhere");
        assert!(found.tokens.len() <= most);
        self.followed += 1;
    }

    /// For each unexpired block of an owner the tokens up to its end, as far back as its ancestors are stored.
    fn prefixes(&self, owner: u64) -> Vec<Vec<Token>> {
        let own = |(_, record): &(SlotId, &Record)| record.owner == owner && !is_over(record, self.now_s);
        let blocks = || self.tier.used().filter(own).map(|(_, record)| record);
        let before = |record: &&Record| blocks().find(|other| other.identity == record.parent);
        let prefix = |record| {
            let mut blocks: Vec<&Record> = std::iter::successors(Some(record), before).collect();
            blocks.reverse();
            blocks.iter().flat_map(|record| record.tokens.as_slice()).copied().collect()
        };
        blocks().map(prefix).collect()
    }

    fn erase(&mut self, picked: impl Fn(&Record) -> bool) {
        for slot in self.tier.remove(self.now_s, picked) {
            self.disk.changes.push_back(Change::Erase { slot });
        }
    }

    fn sweep(&mut self) {
        for slot in self.tier.sweep(self.now_s, 3) {
            self.disk.changes.push_back(Change::Erase { slot });
        }
    }

    /// Reports the completed operations of the disk to the tier.
    fn settle(&mut self) {
        while let Some(completed) = self.disk.completed.pop_front() {
            match completed {
                Completed::Written { slot, result } => {
                    if self.tier.written(slot, result.is_ok()) {
                        self.disk.changes.push_back(Change::Erase { slot });
                    }
                }
                Completed::Read { slot, identity, result } => self.was_read(slot, identity, result),
            }
        }
    }

    fn was_read(&mut self, slot: SlotId, identity: Identity, result: Result<(), IoFault>) {
        self.reads += u64::from(result.is_ok());
        let intact = match result {
            Ok(()) => Some(true),
            Err(IoFault::Corrupt) => Some(false),
            Err(_) => None,
        };
        // Blocks that the tier regards as stored are intact: only later damage can have changed them.
        let rotten = self.disk.cells[slot.index()].rotten;
        assert!(intact != Some(false) || rotten, "{slot:?} was to hold {identity:?} and does not");
        if self.tier.unpin_after_reading(slot, intact) {
            self.disk.changes.push_back(Change::Erase { slot });
        }
    }

    /// Number of stored tokens of each recent prompt.
    fn known(&self) -> Vec<usize> {
        let of = |(owner, prompt): &(u64, Vec<Token>)| {
            self.tier.find(&root(*owner as u8), prompt, self.now_s).tokens
        };
        self.seen.iter().map(of).collect()
    }

    /// Kills and restarts the process: no stored block is lost.
    fn restart(&mut self) {
        self.settle();
        let before = self.known();
        let (slots, found) = (self.disk.cells.len() as u32, self.disk.kill());
        let (tier, surplus) = Tier::with(slots, found);
        self.tier = tier;
        self.tier.index_followers();
        for slot in surplus {
            self.disk.changes.push_back(Change::Erase { slot });
        }
        self.tier.check().unwrap();
        let after = self.known();
        assert!(before.iter().zip(&after).all(|(before, after)| before <= after), "{before:?}, {after:?}");
        self.kills += 1;
    }

    /// Lets the disk finish, then removes everything: no slot may be leaked.
    fn end(mut self) -> [u64; 3] {
        for _ in 0..100_000 {
            self.disk.step(&mut self.dice);
            self.settle();
            if self.disk.is_idle() {
                break;
            }
        }
        assert!(self.disk.is_idle(), "the disk is told more and more");
        self.tier.check().unwrap();
        let used = self.tier.stats().used;
        let mut taken = self.tier.remove(self.now_s, |_| true);
        taken.sort_unstable();
        taken.dedup();
        assert_eq!((taken.len(), self.tier.stats().used), (used, 0), "a slot is kept for nobody");
        [self.reads, self.kills, self.followed]
    }
}

/// Runs worlds with these faults; returns the numbers of blocks read back and of kills survived.
fn run(faults: Faults) -> (u64, u64) {
    let mut sums = [0; 3];
    for seed in 1..=80 {
        let mut world = World::new(seed, faults);
        (0..400).for_each(|_| world.step());
        sums.iter_mut().zip(world.end()).for_each(|(sum, count)| *sum += count);
    }
    let [reads, kills, followed] = sums;
    assert!(followed > 5_000, "followers were found {followed} times");
    (reads, kills)
}

#[test]
fn on_a_sound_disk_all_that_is_stored_is_read_and_survives_kills() {
    let (reads, kills) = run(Faults::default());
    assert!(reads > 10_000 && kills > 500, "{reads} reads, {kills} kills");
}

#[test]
fn on_a_slow_disk_nothing_is_confused() {
    let (reads, kills) = run(Faults { stalls: 950, ..Faults::default() });
    assert!(reads > 1_000 && kills > 500, "{reads} reads, {kills} kills");
}

#[test]
fn on_a_failing_disk_blocks_are_lost_and_slots_are_not() {
    let faults = Faults { writes: 200, reads: 200, rot: 0, stalls: 100 };
    let (reads, kills) = run(faults);
    assert!(reads > 1_000 && kills > 500, "{reads} reads, {kills} kills");
}

#[test]
fn rot_is_a_miss_and_the_slot_is_used_again() {
    let faults = Faults { writes: 50, reads: 50, rot: 30, stalls: 100 };
    let (reads, kills) = run(faults);
    assert!(reads > 1_000 && kills > 500, "{reads} reads, {kills} kills");
}

/// Seconds to compute a block in the simulation.
const COMPUTE_S: f64 = 0.016;

/// Seconds that 4,000 requests spend on prefixes that are on disk: `taken` by the model's decisions, `best` if the
/// faster way were always known.
///
/// Loading a block takes `ratio(request)` times as long as computing it. A load is abandoned when computing would
/// be done, as in the engine.
fn spend(mut ratio: impl FnMut(u32, &mut Dice) -> f64) -> (f64, f64) {
    let (mut dice, mut cost) = (Dice(7), CostModel::default());
    let (mut taken_s, mut best_s) = (0.0, 0.0);
    cost.computed(16, Duration::from_secs_f64(COMPUTE_S));
    for request in 0..4000 {
        let blocks = 1 + dice.below(60) as usize;
        let compute_s = blocks as f64 * COMPUTE_S;
        let noise = 0.8 + dice.below(400) as f64 / 1000.0;
        let load_s = compute_s * noise * ratio(request, &mut dice);
        if cost.decide(ByLevel::of(Level::Disk, blocks), blocks * 16) {
            let waited_s = load_s.min(compute_s);
            // Blocks that have arrived when it is abandoned are used, and not recomputed.
            let ready = blocks as f64 * (waited_s / load_s);
            cost.loaded(ByLevel::of(Level::Disk, (ready as usize).max(1)), Duration::from_secs_f64(waited_s));
            taken_s += waited_s + compute_s * (1.0 - ready.floor() / blocks as f64);
        } else {
            taken_s += compute_s;
        }
        best_s += compute_s.min(load_s);
    }
    (taken_s, best_s)
}

#[test]
fn whatever_the_disk_the_faster_way_is_taken_nearly_always() {
    for ratio in [0.001, 0.1, 0.5, 0.8, 1.0, 1.3, 2.0, 10.0, 1000.0] {
        let (taken_s, best_s) = spend(|_, _| ratio);
        let overhead = taken_s / best_s;
        assert!(overhead < 1.25, "a disk that takes {ratio} of computing: {overhead:.2} of the best");
    }
}

/// Every 200 requests the disk changes its speed, from a hundred times faster than computing to ten times slower.
#[test]
fn a_disk_that_changes_is_followed() {
    let mut now = 1.0;
    let (taken_s, best_s) = spend(|request, dice| {
        if request % 200 == 0 {
            now = 10f64.powf(dice.below(3001) as f64 / 1000.0 - 2.0);
        }
        now
    });
    let overhead = taken_s / best_s;
    assert!(overhead < 1.3, "{overhead:.2} of the best");
}
