//! A disk in memory: slow, full, with torn, corrupt and lost writes, and killed at any instant.
//!
//! [`Platter`] is the medium, which outlives the process; [`Drive`] is the [`BlockStore`] of one process. A
//! write has the phases of `docs/format.md`: mark the header, write the payload, write the header. A kill
//! between them leaves the completed phases. Reads check identity and bytes, as the store's checksums do, so
//! damage is `Corrupt` and never a wrong block.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kvik_cache::tier::{IoFault, Record, SlotId, Use};
use kvik_cache::{BLOCK_POSITIONS, Identity, Token};
use kvik_engine::store::BlockStore;
use kvik_engine::store::{Buffer, Buffers, Completed};

use crate::runner::BLOCK_BYTES;
use crate::time::Dice;

/// Buffers of a process.
const BUFFERS: usize = 24;

/// Rates of faults, per thousand.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Faults {
    /// Writes that fail and leave a torn payload.
    pub(crate) writes: u64,
    /// Reads that fail although the bytes are intact.
    pub(crate) reads: u64,
    /// Steps in which a slot becomes corrupt.
    pub(crate) rot: u64,
    /// Steps without progress.
    pub(crate) stalls: u64,
    /// Writes that are acknowledged but not done.
    pub(crate) lies: u64,
}

/// The content of one slot.
#[derive(Clone, Default)]
pub(crate) struct Cell {
    pub(crate) header: Option<Record>,
    /// The bytes, and the block they belong to while they are intact.
    payload: Vec<u8>,
    holds: Option<Identity>,
}

enum Change {
    Write { slot: SlotId, record: Record, payload: Buffer },
    Touch { slot: SlotId, use_: Use },
    Pin { slot: SlotId, pinned: bool },
    Erase { slot: SlotId },
}

struct Read {
    ticket: u64,
    slot: SlotId,
    identity: Identity,
    into: Buffer,
}

/// The medium, and the queues of the running process.
#[derive(Default)]
pub(crate) struct Platter {
    pub(crate) cells: Vec<Cell>,
    /// Cells that fit before the disk is full.
    pub(crate) room: usize,
    pub(crate) faults: Faults,
    changes: VecDeque<Change>,
    reads: Vec<Read>,
    completed: VecDeque<Completed>,
    /// Cells whose payload was ever written.
    taken: usize,
    /// Completed write phases of the first change.
    phases: u8,
    /// Number of writes refused after a fault.
    rest: u32,
    /// Slots whose last write failed: changes of a header do not mean the block that is still there.
    outdated: HashSet<SlotId>,
}

/// One process's access to the platter.
pub(crate) struct Drive {
    platter: Arc<Mutex<Platter>>,
    buffers: Buffers,
}

impl Drive {
    pub(crate) fn new(platter: &Arc<Mutex<Platter>>) -> Drive {
        Drive { platter: platter.clone(), buffers: Buffers::new(BUFFERS, BLOCK_BYTES) }
    }

    fn lock(&self) -> MutexGuard<'_, Platter> {
        self.platter.lock().unwrap()
    }
}

impl BlockStore for Drive {
    fn payload_bytes(&self) -> usize {
        BLOCK_BYTES
    }

    fn buffer(&mut self) -> Option<Buffer> {
        self.buffers.take()
    }

    fn write(&mut self, slot: SlotId, record: &Record, payload: Buffer) {
        let mut platter = self.lock();
        assert!(!platter.reads.iter().any(|read| read.slot == slot), "{slot:?} is written while it is read");
        assert!(!platter.is_being_written(slot), "{slot:?} is written twice at a time");
        platter.changes.push_back(Change::Write { slot, record: *record, payload });
    }

    fn read(&mut self, ticket: u64, slot: SlotId, identity: Identity, into: Buffer) {
        let mut platter = self.lock();
        assert!(!platter.is_being_written(slot), "{slot:?} is read before it is written");
        platter.reads.push(Read { ticket, slot, identity, into });
    }

    fn touch(&mut self, slot: SlotId, use_: Use) {
        self.lock().changes.push_back(Change::Touch { slot, use_ });
    }

    fn pin(&mut self, slot: SlotId, pinned: bool) {
        self.lock().changes.push_back(Change::Pin { slot, pinned });
    }

    fn erase(&mut self, slot: SlotId) {
        self.lock().changes.push_back(Change::Erase { slot });
    }

    fn evict(&mut self, slot: SlotId) {
        self.erase(slot);
    }

    fn completed(&mut self) -> Option<Completed> {
        self.lock().completed.pop_front()
    }
}

/// The intact blocks of a platter, by parent, regardless of owner and expiry.
#[derive(Default)]
pub(crate) struct Catalog(HashMap<Identity, Vec<Record>>);

impl Catalog {
    /// Whether a prompt after `root` begins with a token.
    pub(crate) fn begins_with(&self, root: Identity, token: Token) -> bool {
        self.0.get(&root).into_iter().flatten().any(|record| record.tokens.as_slice()[0] == token)
    }

    /// Leading tokens stored after `root` without a gap.
    pub(crate) fn stored(&self, root: Identity, tokens: &[Token]) -> usize {
        let (mut at, mut found) = (root, 0);
        while let Some(records) = self.0.get(&at) {
            let common = |record: &Record| common(record.tokens.as_slice(), &tokens[found..]);
            let best = records.iter().max_by_key(|record| common(record)).unwrap();
            let more = common(best);
            found += more;
            if more < BLOCK_POSITIONS {
                break;
            }
            at = best.identity;
        }
        found
    }

    /// Leading tokens up to the last stored one, whatever is missing before it.
    pub(crate) fn reach(&self, root: Identity, tokens: &[Token]) -> usize {
        let (mut at, mut reach) = (root, 0);
        for (index, block) in tokens.chunks(BLOCK_POSITIONS).enumerate() {
            let records = self.0.get(&at).into_iter().flatten();
            let more = records.map(|record| common(record.tokens.as_slice(), block)).max().unwrap_or(0);
            if more > 0 {
                reach = index * BLOCK_POSITIONS + more;
            }
            at = at.child(block);
        }
        reach
    }
}

/// Length of the common prefix.
pub(crate) fn common(a: &[Token], b: &[Token]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

impl Platter {
    pub(crate) fn new(slots: usize, room: usize, faults: Faults) -> Platter {
        Platter { cells: vec![Cell::default(); slots], room, faults, ..Platter::default() }
    }

    /// Whether all queues are empty.
    pub(crate) fn is_idle(&self) -> bool {
        self.changes.is_empty() && self.reads.is_empty() && self.completed.is_empty()
    }

    /// Blocks that a next process would find.
    pub(crate) fn headers(&self) -> usize {
        self.cells.iter().filter(|cell| cell.header.is_some()).count()
    }

    /// Whether a next process would find one of these blocks.
    pub(crate) fn has_any(&self, names: &HashSet<Identity>) -> bool {
        self.cells.iter().filter_map(|cell| cell.header).any(|record| names.contains(&record.identity))
    }

    pub(crate) fn queues(&self) -> String {
        format!(
            "{} changes, {} reads, {} completed, phase {}",
            self.changes.len(),
            self.reads.len(),
            self.completed.len(),
            self.phases
        )
    }

    /// Executes one phase of the first change, and maybe a read.
    pub(crate) fn step(&mut self, dice: &mut Dice) {
        if dice.roll(1000) < self.faults.stalls {
            return;
        }
        if dice.roll(1000) < self.faults.rot {
            let index = dice.roll(self.cells.len() as u64) as usize;
            self.cells[index].holds = None;
        }
        if let Some(change) = self.changes.pop_front() {
            self.execute(change, dice);
        }
        if !self.reads.is_empty() {
            let read = self.reads.swap_remove(dice.roll(self.reads.len() as u64) as usize);
            self.execute_read(read, dice);
        }
    }

    /// Kills the process: drops its queued operations. Returns the records that the next process finds.
    pub(crate) fn kill(&mut self) -> Vec<(SlotId, Record)> {
        self.changes.clear();
        self.reads.clear();
        self.completed.clear();
        self.outdated.clear();
        (self.phases, self.rest) = (0, 0);
        let slots = (0..).map(SlotId).zip(&self.cells);
        slots.filter_map(|(slot, cell)| Some((slot, cell.header?))).collect()
    }

    /// The intact blocks by parent.
    pub(crate) fn catalog(&self) -> Catalog {
        let mut catalog = Catalog::default();
        for cell in &self.cells {
            let Some(record) = cell.header.filter(|record| cell.holds == Some(record.identity)) else {
                continue;
            };
            catalog.0.entry(record.parent).or_default().push(record);
        }
        catalog
    }

    fn is_being_written(&self, slot: SlotId) -> bool {
        let of = |change: &Change| matches!(change, Change::Write { slot: written, .. } if *written == slot);
        self.changes.iter().any(of)
    }

    fn execute(&mut self, change: Change, dice: &mut Dice) {
        match change {
            Change::Write { slot, record, payload } => self.write(slot, record, payload, dice),
            Change::Touch { slot, use_ } => {
                if let Some(record) = self.meant(slot) {
                    record.use_ = use_;
                }
            }
            Change::Pin { slot, pinned } => {
                if let Some(record) = self.meant(slot) {
                    record.pinned = pinned;
                }
            }
            Change::Erase { slot } => self.cells[slot.index()].header = None,
        }
    }

    /// The header of a slot, if a change of it means the block that is there.
    fn meant(&mut self, slot: SlotId) -> Option<&mut Record> {
        self.cells[slot.index()].header.as_mut().filter(|_| !self.outdated.contains(&slot))
    }

    fn write(&mut self, slot: SlotId, record: Record, payload: Buffer, dice: &mut Dice) {
        if self.phases == 0 && self.rest > 0 {
            self.rest -= 1;
            return self.end_write(slot, Err(IoFault::Resting));
        }
        let cell = &mut self.cells[slot.index()];
        let full = self.taken >= self.room && cell.payload.is_empty();
        match self.phases {
            0 => cell.header = None,
            1 if full || dice.roll(1000) < self.faults.writes => {
                cell.holds = None;
                self.rest = 1 + dice.roll(8) as u32;
                let fault = if full { IoFault::Full } else { IoFault::Failed };
                return self.end_write(slot, Err(fault));
            }
            1 if dice.roll(1000) < self.faults.lies => return self.end_write(slot, Ok(())),
            1 => {
                self.taken += usize::from(cell.payload.is_empty());
                cell.payload = payload.to_vec();
                cell.holds = Some(record.identity);
            }
            _ => {
                cell.header = Some(record);
                return self.end_write(slot, Ok(()));
            }
        }
        self.phases += 1;
        self.changes.push_front(Change::Write { slot, record, payload });
    }

    fn end_write(&mut self, slot: SlotId, result: Result<(), IoFault>) {
        self.phases = 0;
        match result {
            Ok(()) => self.outdated.remove(&slot),
            Err(_) => self.outdated.insert(slot),
        };
        self.completed
            .push_back(Completed::Written { slot, result: result.map(|()| Duration::from_micros(10)) });
    }

    fn execute_read(&mut self, read: Read, dice: &mut Dice) {
        let Read { ticket, slot, identity, mut into } = read;
        let cell = &self.cells[slot.index()];
        let named = cell.header.is_some_and(|record| record.identity == identity);
        let result = if dice.roll(1000) < self.faults.reads {
            Err(IoFault::Failed)
        } else if named && cell.holds == Some(identity) {
            into.copy_from_slice(&cell.payload);
            Ok((into, Duration::from_micros(10)))
        } else {
            Err(IoFault::Corrupt)
        };
        self.completed.push_back(Completed::Read { ticket, slot, result });
    }
}
