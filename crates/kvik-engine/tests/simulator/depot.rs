//! The store that nodes share, in memory, and how it fails.
//!
//! [`Depot`] is what all nodes see; [`Line`] is what is between it and one node, with the requests of the running process;
//! [`Connection`] is the [`RemoteStore`] of one process. What is delivered is always what was written under a name: others
//! refuse what is not, so damage is a read that fails.

mod removals;
mod waits;

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kvik_cache::Identity;
use kvik_cache::tier::runs;
use kvik_engine::store::remote::{Chain, Expected, RemoteDone, RemoteStats, RemoteStore};

use crate::ledger::Ledger;
use crate::runner::BLOCK_BYTES;
use crate::time::{Dice, Time};
use waits::{Excuses, Open};

pub(crate) use waits::Happened;

/// Runs that wait to be written at most.
const WRITES_MAX: usize = 6;
/// How many times slower it says that it is.
const SLOW: u32 = 10;
/// The longest fault, in steps.
const FAULT_STEPS_MAX: u64 = 400;

/// How the store of a fleet is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StoreRegime {
    pub(crate) run_max: usize,
    pub(crate) expected: Expected,
    /// Whether it says that it is slow when it is.
    pub(crate) says_slow: bool,
    pub(crate) faults: StoreFaults,
}

/// Rates of faults, per thousand: of steps in which one begins, or of operations that fail.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct StoreFaults {
    /// Steps in which the store stops for all nodes.
    pub(crate) death: u64,
    /// Steps in which it stops for one.
    pub(crate) partition: u64,
    /// Steps in which it stops completing lookups, fetches, or both.
    pub(crate) stall: u64,
    /// Steps in which it is no longer asked for a while.
    pub(crate) refusal: u64,
    /// Steps in which it becomes slow.
    pub(crate) slowness: u64,
    /// Steps in which it becomes full.
    pub(crate) fullness: u64,
    /// Steps in which it loses a value.
    pub(crate) loss: u64,
    /// Reads that fail though the value is there.
    pub(crate) read: u64,
    /// Runs that are delivered twice, or though they were not asked for.
    pub(crate) surplus: u64,
    /// Cancelled requests that go on.
    pub(crate) deaf: u64,
    /// Lookups that find more than there is.
    pub(crate) lie: u64,
}

/// A run.
struct Value {
    bytes: Vec<u8>,
    /// The node that wrote it, and the others that have read it, as bits.
    by: usize,
    readers: u8,
}

/// What all nodes see.
#[derive(Default)]
pub(crate) struct Depot {
    values: BTreeMap<Identity, Value>,
    /// Steps for which it stops.
    dead: u64,
    /// Runs that two nodes have read and a third has written.
    pub(crate) read_by_two: u64,
}

/// Something to be delivered.
struct Parcel {
    due: Duration,
    what: RemoteDone,
}

struct Offer {
    end: Identity,
    bytes: Vec<u8>,
}

/// What is between the store and a node.
pub(crate) struct Line {
    depot: Arc<Mutex<Depot>>,
    pub(crate) ledger: Arc<Mutex<Ledger>>,
    pub(crate) node: usize,
    time: Time,
    regime: StoreRegime,
    dice: Dice,
    open: Vec<Open>,
    under_way: Vec<Parcel>,
    writes: VecDeque<Offer>,
    /// What this process has written.
    written: HashSet<Identity>,
    /// Runs that this process is to remove and could not yet.
    forgetting: HashSet<Identity>,
    /// Names that this node must not offer: they were dropped.
    pub(crate) banned: HashSet<Identity>,
    /// Steps for which it has a fault: that nothing passes, that no lookup or no fetch is completed, that it is not asked,
    /// that it is slow, and that it is full.
    cut: u64,
    no_lookups: u64,
    no_fetches: u64,
    refusing: u64,
    slow: u64,
    full: u64,
    /// Tokens a second that the node computes, as far as it is known; and the most it ever was.
    compute_rate: Option<f64>,
    fastest: Option<f64>,
    has_disk: bool,
    /// How long all that was asked so far may be waited for.
    pub(crate) allowed: Duration,
    pub(crate) step: u64,
    pub(crate) excuses: Excuses,
    pub(crate) happened: Happened,
    stats: RemoteStats,
    is_traced: bool,
}

/// One process's access to the store.
pub(crate) struct Connection(Arc<Mutex<Line>>);

impl Connection {
    pub(crate) fn new(line: &Arc<Mutex<Line>>) -> Connection {
        line.lock().unwrap().kill();
        Connection(line.clone())
    }

    fn lock(&self) -> MutexGuard<'_, Line> {
        self.0.lock().unwrap()
    }
}

impl RemoteStore for Connection {
    fn run_max(&self) -> usize {
        self.lock().regime.run_max
    }

    fn expected(&self) -> Option<Expected> {
        self.lock().expected()
    }

    fn look_up(&mut self, ticket: u64, chain: Chain) {
        self.lock().look_up(ticket, &chain);
    }

    fn fetch(&mut self, ticket: u64, chain: Chain, blocks: Range<usize>) {
        self.lock().fetch(ticket, &chain, blocks);
    }

    fn cancel(&mut self, ticket: u64, late: bool) {
        self.lock().cancel(ticket, late);
    }

    fn wants(&mut self, _: u64, end: &Identity, blocks: usize, _: Option<Duration>) -> bool {
        let line = self.lock();
        assert!(blocks.is_power_of_two() && blocks <= line.regime.run_max, "a run of {blocks}");
        line.writes.len() < WRITES_MAX && !line.written.contains(end)
    }

    fn offer(&mut self, owner: u64, end: Identity, bytes: Vec<u8>, _: Option<Duration>) {
        self.lock().offer(owner, end, bytes);
    }

    fn forget(&mut self, _: u64, ends: &[Identity]) {
        self.lock().forget(ends);
    }

    fn forgetting(&self) -> usize {
        self.lock().removals_left()
    }

    fn done(&mut self) -> Option<RemoteDone> {
        self.lock().done()
    }

    fn stats(&self) -> RemoteStats {
        let line = self.lock();
        let writing = line.writes.iter().map(|offer| offer.bytes.len() / BLOCK_BYTES).sum();
        RemoteStats { writing_blocks: writing, ..line.stats }
    }
}

impl Depot {
    /// A step of the world: maybe a fault begins.
    pub(crate) fn step(&mut self, faults: &StoreFaults, dice: &mut Dice) {
        self.dead = self.dead.saturating_sub(1);
        if dice.roll(1000) < faults.death {
            self.dead = 1 + dice.roll(FAULT_STEPS_MAX);
        }
        if dice.roll(1000) < faults.loss && !self.values.is_empty() {
            let index = dice.roll(self.values.len() as u64) as usize;
            let lost = *self.values.keys().nth(index).unwrap();
            self.values.remove(&lost);
        }
    }

    /// A node has read a value.
    fn note_reader(&mut self, end: &Identity, node: usize) {
        let Some(value) = self.values.get_mut(end).filter(|value| value.by != node) else { return };
        let before = value.readers.count_ones();
        value.readers |= 1 << node;
        self.read_by_two += u64::from(before == 1 && value.readers.count_ones() == 2);
    }
}

impl Line {
    pub(crate) fn new(
        (depot, ledger): (&Arc<Mutex<Depot>>, &Arc<Mutex<Ledger>>),
        (node, has_disk): (usize, bool),
        time: &Time,
        regime: StoreRegime,
        dice: Dice,
    ) -> Line {
        Line {
            depot: depot.clone(),
            ledger: ledger.clone(),
            node,
            time: time.clone(),
            regime,
            dice,
            open: Vec::new(),
            under_way: Vec::new(),
            writes: VecDeque::new(),
            written: HashSet::new(),
            forgetting: HashSet::new(),
            banned: HashSet::new(),
            cut: 0,
            no_lookups: 0,
            no_fetches: 0,
            refusing: 0,
            slow: 0,
            full: 0,
            compute_rate: None,
            fastest: None,
            has_disk,
            allowed: Duration::ZERO,
            step: 0,
            excuses: Excuses::default(),
            happened: Happened::default(),
            stats: RemoteStats::default(),
            is_traced: std::env::var_os("TRACE").is_some(),
        }
    }

    /// Prints an event, if tracing is on.
    fn trace(&self, what: impl FnOnce() -> String) {
        if self.is_traced {
            let Line { node, step, .. } = self;
            eprintln!("{step:>6} {:>12.6} s  store, node {node}: {}", self.time.now().as_secs_f64(), what());
        }
    }

    /// The process ends: nobody hears of what it asked, and what it did not write yet is lost.
    fn kill(&mut self) {
        self.open.clear();
        self.under_way.clear();
        self.writes.clear();
        self.written.clear();
        self.forgetting.clear();
        self.banned.clear();
    }

    /// A step of the node: faults begin and end, and a run is written.
    pub(crate) fn step(&mut self, step: u64) {
        self.step = step;
        let faults = self.regime.faults;
        for state in [
            &mut self.cut,
            &mut self.no_lookups,
            &mut self.no_fetches,
            &mut self.refusing,
            &mut self.slow,
            &mut self.full,
        ] {
            *state = state.saturating_sub(1);
        }
        if let Some(steps) = self.begins(faults.partition) {
            self.cut = steps;
            self.happened.partitions += 1;
        }
        if let Some(steps) = self.begins(faults.stall) {
            let which = self.dice.roll(3);
            self.no_lookups = if which != 1 { steps } else { 0 };
            self.no_fetches = if which != 0 { steps } else { 0 };
        }
        self.refusing = self.begins(faults.refusal).unwrap_or(self.refusing);
        self.slow = self.begins(faults.slowness).unwrap_or(self.slow);
        self.full = self.begins(faults.fullness).unwrap_or(self.full);
        self.write();
        self.note_slow_fetches();
    }

    fn begins(&mut self, rate: u64) -> Option<u64> {
        (self.dice.roll(1000) < rate).then(|| 1 + self.dice.roll(FAULT_STEPS_MAX))
    }

    fn is_cut_off(&self) -> bool {
        self.cut > 0 || self.depot.lock().unwrap().dead > 0
    }

    /// Whether all that was offered is written or lost.
    pub(crate) fn has_written(&self) -> bool {
        self.writes.is_empty()
    }

    fn expected(&mut self) -> Option<Expected> {
        if self.refusing > 0 {
            self.excuses.refused = Some(self.step);
            self.happened.refusals += 1;
            return None;
        }
        let Expected { latency, block } = self.regime.expected;
        let factor = if self.slow > 0 && self.regime.says_slow { SLOW } else { 1 };
        Some(Expected { latency: latency * factor, block: block * factor })
    }

    /// Time until something comes that takes `usual`.
    fn delay(&mut self, usual: Duration) -> Duration {
        let parts = if self.slow > 0 { 40 + self.dice.roll(200) } else { 2 + self.dice.roll(3) };
        usual * parts as u32 / 4
    }

    fn look_up(&mut self, ticket: u64, chain: &Chain) {
        let expected = self.expected().expect("it is not asked while it refuses");
        self.ledger.lock().unwrap().check_chain(chain.owner, &chain.blocks);
        self.stats.lookups += 1;
        self.trace(|| format!("{ticket} looks up {} blocks", chain.blocks.len()));
        let limit = expected.latency * 4 + Duration::from_millis(5);
        self.note_open(ticket, None, expected.latency, limit);
        let depot = self.depot.lock().unwrap();
        let found = chain.blocks.iter().rposition(|block| depot.values.contains_key(block));
        drop(depot);
        let mut blocks = found.map_or(0, |last| last + 1);
        if self.dice.roll(1000) < self.regime.faults.lie {
            self.happened.lies += 1;
            blocks += 1 + self.dice.roll(5) as usize;
        }
        let due = self.time.now() + self.delay(self.regime.expected.latency);
        self.under_way.push(Parcel { due, what: RemoteDone::Found { ticket, blocks } });
    }

    fn fetch(&mut self, ticket: u64, chain: &Chain, blocks: Range<usize>) {
        assert!(blocks.start < blocks.end && blocks.end <= chain.blocks.len(), "{blocks:?} are fetched");
        let expected = self.expected().expect("it is not asked while it refuses");
        self.ledger.lock().unwrap().check_chain(chain.owner, &chain.blocks);
        let limit = self.fetch_limit(expected, &blocks);
        self.note_open(ticket, Some(blocks.clone()), expected.time(blocks.len()), limit);
        self.trace(|| format!("{ticket} fetches {blocks:?} of {} blocks", chain.blocks.len()));
        let (mut failed, mut last) = (false, self.time.now());
        for run in runs(blocks.end, self.regime.run_max) {
            let asked = run.end > blocks.start;
            if !asked && self.dice.roll(1000) >= self.regime.faults.surplus {
                continue;
            }
            let end = &chain.blocks[run.end - 1];
            let bytes = self.depot.lock().unwrap().values.get(end).map(|value| value.bytes.clone());
            let bytes = bytes.filter(|_| self.dice.roll(1000) >= self.regime.faults.read);
            let Some(bytes) = bytes else {
                failed |= asked;
                continue;
            };
            self.depot.lock().unwrap().note_reader(end, self.node);
            let due = self.time.now() + self.delay(self.regime.expected.time(run.len()));
            last = last.max(due);
            self.send(Parcel { due, what: RemoteDone::Read { ticket, first: run.start, bytes } });
        }
        // A fetch of which nothing is there fails at once.
        self.happened.holes += u64::from(failed);
        self.under_way.push(Parcel { due: last, what: RemoteDone::Ended { ticket, failed } });
    }

    /// Sends something, maybe twice: the second one may come after the end of its fetch.
    fn send(&mut self, parcel: Parcel) {
        if let RemoteDone::Read { ticket, first, bytes } = &parcel.what
            && self.dice.roll(1000) < self.regime.faults.surplus
        {
            let due = parcel.due + self.delay(self.regime.expected.latency);
            let what = RemoteDone::Read { ticket: *ticket, first: *first, bytes: bytes.clone() };
            self.happened.surplus += 1;
            self.under_way.push(Parcel { due, what });
        }
        self.under_way.push(parcel);
    }

    fn cancel(&mut self, ticket: u64, late: bool) {
        let index = self.open.iter().position(|open| open.ticket == ticket);
        let open = self.open.remove(index.expect("what is cancelled is open"));
        let (now, is_lookup) = (self.time.now(), open.blocks.is_none());
        // What is waited for together with the disk, or was computed faster than it was expected to be, is late sooner.
        assert!(
            !(late && is_lookup) || now >= open.overdue,
            "{ticket} is late at {now:?}: {:?}",
            open.overdue
        );
        self.trace(|| format!("{ticket} is cancelled, late: {late}"));
        if late {
            let excuse = match is_lookup {
                true => &mut self.excuses.late_lookup,
                false => &mut self.excuses.bad_fetch,
            };
            *excuse = Some(self.step);
            self.happened.late_lookups += u64::from(is_lookup);
            self.happened.late_fetches += u64::from(!is_lookup);
        }
        if self.dice.roll(1000) >= self.regime.faults.deaf {
            self.under_way.retain(|parcel| parcel.ticket() != ticket);
        }
    }

    fn offer(&mut self, owner: u64, end: Identity, bytes: Vec<u8>) {
        let run = (&bytes[..], self.regime.run_max);
        self.ledger.lock().unwrap().check_run(owner, end, run, &self.banned);
        if self.full > 0 || self.writes.len() >= WRITES_MAX {
            self.happened.dropped += 1;
            self.stats.dropped_blocks += (bytes.len() / BLOCK_BYTES) as u64;
            return;
        }
        self.written.insert(end);
        self.writes.push_back(Offer { end, bytes });
    }

    fn write(&mut self) {
        let Some(Offer { end, bytes }) = self.writes.pop_front() else { return };
        if self.is_cut_off() {
            self.happened.dropped += 1;
            self.written.remove(&end);
            return;
        }
        self.stats.written_blocks += (bytes.len() / BLOCK_BYTES) as u64;
        let value = Value { bytes, by: self.node, readers: 0 };
        self.depot.lock().unwrap().values.entry(end).or_insert(value);
    }

    /// Something that has come, which need not be what was sent first.
    fn done(&mut self) -> Option<RemoteDone> {
        if self.is_cut_off() {
            self.happened.deaths += u64::from(self.cut == 0 && !self.under_way.is_empty());
            return None;
        }
        let now = self.time.now();
        let comes = |parcel: &Parcel| {
            let stalled = if parcel.is_found() { self.no_lookups } else { self.no_fetches };
            parcel.due <= now && stalled == 0
        };
        let mut ready: Vec<usize> =
            (0..self.under_way.len()).filter(|&at| comes(&self.under_way[at])).collect();
        // A fetch ends after its last run; what comes behind that is a run that came before.
        ready.retain(|&at| !self.under_way[at].is_end() || !self.waits_for_runs(at));
        if ready.is_empty() {
            return None;
        }
        let at = self.dice.pick(&ready);
        self.happened.out_of_order += u64::from(at != ready[0]);
        let Parcel { what, .. } = self.under_way.remove(at);
        self.note_delivered(&what);
        Some(what)
    }

    /// Whether runs of the fetch that this parcel ends are due as early as that.
    fn waits_for_runs(&self, end: usize) -> bool {
        let Parcel { due, .. } = self.under_way[end];
        let ticket = self.under_way[end].ticket();
        let runs = self.under_way.iter().filter(|parcel| parcel.ticket() == ticket && !parcel.is_end());
        runs.into_iter().any(|parcel| parcel.due <= due)
    }
}

impl Parcel {
    fn ticket(&self) -> u64 {
        ticket(&self.what)
    }

    fn is_found(&self) -> bool {
        matches!(self.what, RemoteDone::Found { .. })
    }

    fn is_end(&self) -> bool {
        matches!(self.what, RemoteDone::Ended { .. })
    }
}

fn ticket(what: &RemoteDone) -> u64 {
    let (RemoteDone::Found { ticket, .. }
    | RemoteDone::Read { ticket, .. }
    | RemoteDone::Ended { ticket, .. }) = what;
    *ticket
}

/// What comes, without its bytes.
fn summary(what: &RemoteDone) -> String {
    match what {
        RemoteDone::Found { ticket, blocks } => format!("{ticket}: {blocks} blocks are found"),
        RemoteDone::Read { ticket, first, bytes } => {
            format!("{ticket}: {} blocks from {first}", bytes.len() / BLOCK_BYTES)
        }
        RemoteDone::Ended { ticket, failed } => format!("{ticket}: the end, failed: {failed}"),
    }
}
