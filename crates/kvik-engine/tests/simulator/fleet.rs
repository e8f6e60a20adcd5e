//! Fleets: worlds of three nodes that share one store, each with a disk, a clock and clients of its own.

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use kvik_cache::tier::Level;
use kvik_cache::{BLOCK_POSITIONS, Identity, StopReason, Token};
use kvik_engine::api::{Report, Request};
use kvik_engine::schedule::disk::{RemoteSetup, RemoteWrites};
use kvik_engine::store::remote::Expected;

use crate::coverage::Coverage;
use crate::depot::{Connection, Depot, Line, StoreFaults, StoreRegime};
use crate::disk::common;
use crate::regime::{DiskRegime, Regime};
use crate::runner::BLOCK_BYTES;
use crate::time::{Dice, Time};
use crate::upkeep::root;
use crate::world::{Active, World, summary};

/// Of so many seeds, one is that of a fleet.
const FLEET_SEEDS: u64 = 5;
const NODES: usize = 3;
/// What a request that does not wait for the store may wait, alone.
const QUEUED_SLACK: Duration = Duration::from_millis(2);

/// Nodes that share a store.
pub(crate) struct Fleet {
    nodes: Vec<World>,
    depot: Arc<Mutex<Depot>>,
    faults: StoreFaults,
    dice: Dice,
}

/// What a node has of the store.
pub(crate) struct Share {
    line: Arc<Mutex<Line>>,
    writes: RemoteWrites,
}

/// How long a request may have waited, by what happened before it came.
#[derive(Clone, Copy, Default)]
pub(crate) struct Waited {
    allowed: Duration,
    jumped: Duration,
    lost: Duration,
}

/// Whether a seed is that of a fleet.
pub(crate) fn is_fleet(seed: u64) -> bool {
    seed % FLEET_SEEDS == FLEET_SEEDS - 1
}

impl Fleet {
    pub(crate) fn new(seed: u64) -> Fleet {
        let mut dice = Dice(seed.wrapping_mul(0x1234_5678_9abc_def1));
        let regime = Regime::draw(&mut dice);
        let store = StoreRegime::draw(&mut dice);
        let writes = dice.pick(&[RemoteWrites::Reused, RemoteWrites::All]);
        let (depot, ledger) = (Arc::default(), Arc::default());
        let nodes = (0..NODES).map(|node| {
            let disk = (!dice.once_in(3)).then(|| DiskRegime::draw(&mut dice, regime.roomy));
            let regime = Regime { disk, ..regime.clone() };
            let (time, mut own) = (Time::default(), dice.split());
            let place = (node, disk.is_some());
            let line = Line::new((&depot, &ledger), place, &time, store, own.split());
            let share = Share { line: Arc::new(Mutex::new(line)), writes };
            World::with(own, regime, time, Some(share))
        });
        let nodes: Vec<World> = nodes.collect();
        nodes[0].trace(|| format!("{store:?} {writes:?}"));
        Fleet { nodes, depot, faults: store.faults, dice }
    }

    /// Some of the nodes live on.
    pub(crate) fn live(&mut self) {
        self.depot.lock().unwrap().step(&self.faults, &mut self.dice);
        if self.dice.once_in(20) {
            self.move_conversation();
        }
        for node in &mut self.nodes {
            if self.dice.once_in(2) {
                node.live();
            }
        }
    }

    /// Somebody goes on at another node.
    fn move_conversation(&mut self) {
        let from = self.dice.roll(NODES as u64) as usize;
        let to = (from + 1 + self.dice.roll(NODES as u64 - 1) as usize) % NODES;
        let all = &self.nodes[from].conversations;
        if !all.is_empty() {
            let moved = all[self.dice.roll(all.len() as u64) as usize].clone();
            self.nodes[to].conversations.push(moved);
        }
    }

    pub(crate) fn end(self) -> Coverage {
        let mut coverage = Coverage::default();
        for node in self.nodes {
            coverage.add(&node.end());
        }
        coverage.read_by_two += self.depot.lock().unwrap().read_by_two;
        coverage
    }
}

impl StoreRegime {
    /// A third of the stores have no faults, a third have one kind of them, the others have many.
    fn draw(dice: &mut Dice) -> StoreRegime {
        let latency = Duration::from_micros(dice.pick(&[0, 100, 500, 2000, 5000]));
        let block = Duration::from_micros(dice.pick(&[0, 10, 100, 1000]));
        let kind = dice.roll(3);
        let only = dice.roll(11);
        let mut rate = |index: u64, rates: [u64; 2]| match kind {
            0 => 0,
            1 if index == only => rates[1],
            1 => 0,
            _ => dice.pick(&[0, rates[0], rates[1]]),
        };
        let faults = StoreFaults {
            death: rate(0, [1, 4]),
            partition: rate(1, [1, 4]),
            stall: rate(2, [2, 10]),
            refusal: rate(3, [2, 5]),
            slowness: rate(4, [2, 10]),
            fullness: rate(5, [2, 10]),
            loss: rate(6, [10, 100]),
            read: rate(7, [20, 200]),
            surplus: rate(8, [100, 500]),
            deaf: rate(9, [200, 900]),
            lie: rate(10, [50, 300]),
        };
        let expected = Expected { latency, block };
        StoreRegime { run_max: dice.pick(&[1, 2, 4, 8]), expected, says_slow: dice.once_in(2), faults }
    }
}

impl Share {
    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap()
    }

    /// What a new process of the node shares.
    pub(crate) fn setup(&self) -> RemoteSetup {
        let store = Box::new(Connection::new(&self.line));
        RemoteSetup { store, writes: self.writes, block_bytes: BLOCK_BYTES }
    }
}

impl World {
    fn line(&self) -> Option<MutexGuard<'_, Line>> {
        self.share.as_ref().map(Share::line)
    }

    /// Other nodes may find what this one was asked for.
    pub(crate) fn note_in_ledger(&self, salt: u8, tokens: &[Token], maybe: usize) {
        let Some(mut line) = self.line() else { return };
        let root = root(&self.regime, salt);
        let own = (line.node, self.memory.known.len());
        line.ledger.lock().unwrap().note((salt, root), tokens, maybe, own);
        for name in names(root, tokens) {
            line.banned.remove(&name);
        }
    }

    /// Leading tokens of a request that it may find in the store.
    pub(crate) fn may_be_shared(&self, active: &Active) -> usize {
        // Nothing can go on behind blocks without a state.
        let Some(line) = self.line().filter(|_| self.regime.engine.auxiliary.state_bytes == 0) else {
            return 0;
        };
        may_have(&line, active)
    }

    /// Before a step: what the node is known to compute.
    pub(crate) fn tell_compute_rate(&self) {
        if let Some(mut line) = self.line() {
            line.note_compute_rate(self.scheduler.prefixes.disk_stats().and_then(|stats| stats.compute_rate));
        }
    }

    /// After a step that began at `began`: nobody waits longer than may be, and the store goes on.
    pub(crate) fn step_store(&self, began: Duration) {
        if let Some(mut line) = self.line() {
            line.check_waits(began);
            line.step(self.steps);
        }
    }

    /// A request is gone, which may have asked the store.
    pub(crate) fn forgive_lookups(&self) {
        if let Some(mut line) = self.line() {
            line.forgive_lookups();
        }
    }

    pub(crate) fn waited(&self) -> Waited {
        let allowed = self.line().map_or(Duration::ZERO, |line| line.allowed);
        Waited { allowed, jumped: self.jumped, lost: self.runner.lost }
    }

    /// Whether all that is offered has been written or dropped.
    pub(crate) fn has_shared(&self) -> bool {
        let offered = self.scheduler.prefixes.remote_stats().is_none_or(|stats| stats.writing_blocks == 0);
        offered && self.line().is_none_or(|line| line.has_written())
    }

    pub(crate) fn check_store(&self) {
        if let Some(line) = self.line() {
            line.check_rest();
        }
    }

    /// Removals that the store has not done. If it has done all, it has none of these runs.
    pub(crate) fn removals_left(&self, removed: &[Identity]) -> usize {
        let Some(line) = self.line() else { return 0 };
        let left = line.removals_left();
        assert!(left > 0 || !line.has_any(removed), "the store has what was removed");
        left
    }

    /// Checks what a request that was answered had from the store, and how long it waited for that.
    pub(crate) fn check_shared(&mut self, active: &Active, report: &Report) {
        let (reason, remote) = (report.cache.expect("it was admitted"), report.loaded[Level::Remote]);
        let Some(line) = self.line() else {
            assert!(remote == 0 && !is_remote(reason), "there is no store: {report:?}");
            return;
        };
        assert!(
            is_excused(&line, active, reason),
            "{reason:?} of what came at {}: {:?} {}",
            active.came,
            line.excuses,
            summary(&active.request)
        );
        let may = may_have(&line, active);
        assert!(remote <= may, "{remote} of {may} tokens are from the store: {}", summary(&active.request));
        let has_come = is_of_its_load(line.excuses.delivered, active);
        assert!(remote == 0 || has_come, "nothing came from the store: {report:?}");
        drop(line);
        self.check_wait(active, report);
        self.note_shared(report);
    }

    /// A request that is alone, on a node without a disk, waits for the store and for nothing else. Admission behind a
    /// compressed prefix moves its last positions to blocks of the request's own, which takes the time of one piece, and
    /// that of each that panicked before.
    fn check_wait(&self, active: &Active, report: &Report) {
        let (now, then) = (self.waited(), active.waited);
        let moves = report.cache == Some(StopReason::Retained);
        let moved = if moves { self.regime.piece_time + now.lost - then.lost } else { Duration::ZERO };
        let limit = now.allowed - then.allowed + now.jumped - then.jumped + moved + QUEUED_SLACK;
        let waits_alone = active.alone && self.regime.disk.is_none();
        assert!(!waits_alone || report.queued <= limit, "{:?} for {limit:?}: {report:?}", report.queued);
    }

    fn note_shared(&mut self, report: &Report) {
        let (reason, remote) = (report.cache, report.loaded[Level::Remote] as u64);
        let coverage = &mut self.coverage;
        coverage.from_remote += remote;
        coverage.remote_windows += if self.regime.engine.auxiliary.windows.is_some() { remote } else { 0 };
        coverage.remote_beyond_disk += u64::from(remote > 0 && report.loaded[Level::Disk] > 0);
        coverage.remote_down += u64::from(reason == Some(StopReason::RemoteDown));
        coverage.remote_failed += u64::from(reason == Some(StopReason::RemoteFailed));
        coverage.remote_slower += u64::from(reason == Some(StopReason::RemoteSlower));
    }

    /// Drops a prompt and all that continues it.
    pub(crate) fn evict(&mut self) {
        if self.share.is_none() || self.conversations.is_empty() {
            return;
        }
        let (salt, mut tokens) =
            self.conversations[self.dice.roll(self.conversations.len() as u64) as usize].clone();
        tokens.truncate(BLOCK_POSITIONS * (1 + self.dice.roll(4) as usize));
        let is_kept = self.kept.iter().any(|kept| common(&kept.tokens, &tokens) > 0);
        if is_kept || tokens.len() < BLOCK_POSITIONS {
            return;
        }
        self.trace(|| format!("{tokens:?} of {salt} is evicted"));
        self.coverage.dropped_prompts += 1;
        self.is_dropped = true;
        self.doubt_parts();
        self.scheduler.evict(&tokens, [salt; 16]);
        let gone = self.forget_evicted(salt, &tokens);
        self.ban(gone);
    }

    /// Reduces the known sequences; the names of the blocks that are gone.
    pub(crate) fn forget_evicted(&mut self, salt: u8, tokens: &[Token]) -> Vec<Identity> {
        let whole = &tokens[..tokens.len() - tokens.len() % BLOCK_POSITIONS];
        let mut gone = Vec::new();
        for known in self.memory.known.iter_mut().filter(|known| known.view.salt == salt) {
            if common(&known.tokens, tokens) > 0 {
                known.drop_explicitly();
            }
            if known.tokens.starts_with(whole) {
                let before = whole.len() / BLOCK_POSITIONS - 1;
                gone.extend(names(root(&self.regime, salt), &known.tokens).skip(before));
            }
        }
        gone
    }

    /// The node must not offer these from now on, unless somebody asks for them or uses them now.
    pub(crate) fn ban(&self, gone: Vec<Identity>) {
        let Some(mut line) = self.line() else { return };
        line.banned.extend(gone);
        for active in self.active.iter().filter(|active| active.request.reuse) {
            let root = root(&self.regime, active.request.salt[0]);
            for (generated, _) in &active.answers {
                let tokens = [&active.request.prompt, generated.as_slice()].concat();
                names(root, &tokens).for_each(|name| {
                    line.banned.remove(&name);
                });
            }
        }
    }

    /// The node must offer nothing that is not in use.
    pub(crate) fn ban_all(&self) {
        let Some(line) = self.line() else { return };
        let all = line.ledger.lock().unwrap().names().collect();
        drop(line);
        self.ban(all);
    }

    /// Adds what happened on the line of the node.
    pub(crate) fn note_line(&mut self) {
        let Some(mut line) = self.line() else { return };
        let happened = std::mem::take(&mut line.happened);
        drop(line);
        self.coverage.store.add(&happened);
    }
}

/// Leading tokens of a request that others may have computed.
fn may_have(line: &Line, active: &Active) -> usize {
    let Request { salt, prompt, .. } = &active.request;
    line.ledger.lock().unwrap().may_have(salt[0], prompt, (line.node, &active.own))
}

/// Whether a reason names the store that nodes share.
pub(crate) fn is_remote(reason: StopReason) -> bool {
    matches!(reason, StopReason::RemoteDown | StopReason::RemoteFailed | StopReason::RemoteSlower)
}

/// Whether the store gave cause for a reason that names it since a request came.
fn is_excused(line: &Line, active: &Active, reason: StopReason) -> bool {
    let excuses = &line.excuses;
    match reason {
        StopReason::RemoteDown => is_since(excuses.refused, active) || is_since(excuses.late_lookup, active),
        StopReason::RemoteFailed => is_of_its_load(excuses.bad_fetch, active),
        StopReason::RemoteSlower => {
            is_since(excuses.found, active)
                && line.may_be_slower(active.request.prompt.len() / BLOCK_POSITIONS)
        }
        _ => true,
    }
}

/// Whether something happened since a request came.
fn is_since(step: Option<u64>, active: &Active) -> bool {
    step.is_some_and(|step| step >= active.came)
}

/// The same of an event of a load. A request beside others may join a load of theirs, which was under way before it came.
fn is_of_its_load(step: Option<u64>, active: &Active) -> bool {
    if active.alone { is_since(step, active) } else { step.is_some() }
}

/// The names of the whole blocks of a sequence.
pub(crate) fn names(root: Identity, tokens: &[Token]) -> impl Iterator<Item = Identity> {
    tokens.chunks_exact(BLOCK_POSITIONS).scan(root, |parent, block| {
        *parent = parent.child(block);
        Some(*parent)
    })
}
