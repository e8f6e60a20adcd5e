//! What a node may wait for, and what explains that it reused no more.

use std::ops::Range;
use std::time::Duration;

use kvik_cache::BLOCK_POSITIONS;
use kvik_engine::store::remote::{Expected, RemoteDone};

use super::{Line, SLOW, summary, ticket};

/// Something that was asked and is not completed.
pub(super) struct Open {
    pub(super) ticket: u64,
    pub(super) blocks: Option<Range<usize>>,
    /// When it begins to be slow, and when nobody waits for it any more.
    pub(super) due: Duration,
    pub(super) overdue: Duration,
    /// Whoever asked may be gone.
    pub(super) is_forgiven: bool,
}

/// The last step in which something happened that explains why no more is reused.
#[derive(Debug, Default)]
pub(crate) struct Excuses {
    pub(crate) refused: Option<u64>,
    pub(crate) late_lookup: Option<u64>,
    pub(crate) bad_fetch: Option<u64>,
    pub(crate) found: Option<u64>,
    pub(crate) delivered: Option<u64>,
}

/// What happened on the line of a node.
#[derive(Debug, Default, Clone, Copy)]
pub(crate) struct Happened {
    pub(crate) late_lookups: u64,
    pub(crate) late_fetches: u64,
    pub(crate) refusals: u64,
    pub(crate) partitions: u64,
    pub(crate) deaths: u64,
    pub(crate) holes: u64,
    pub(crate) surplus: u64,
    pub(crate) after_cancel: u64,
    pub(crate) lies: u64,
    pub(crate) dropped: u64,
    pub(crate) out_of_order: u64,
}

impl Happened {
    pub(crate) fn add(&mut self, other: &Happened) {
        self.late_lookups += other.late_lookups;
        self.late_fetches += other.late_fetches;
        self.refusals += other.refusals;
        self.partitions += other.partitions;
        self.deaths += other.deaths;
        self.holes += other.holes;
        self.surplus += other.surplus;
        self.after_cancel += other.after_cancel;
        self.lies += other.lies;
        self.dropped += other.dropped;
        self.out_of_order += other.out_of_order;
    }
}

impl Line {
    /// No fetch is left open. A lookup may be: it is not taken back when whoever asked has gone.
    pub(crate) fn check_rest(&self) {
        assert!(
            self.open.iter().all(|open| open.blocks.is_none()),
            "a fetch was neither ended nor cancelled"
        );
    }

    /// Nobody waits longer than may be, at a step that began at `now`.
    pub(crate) fn check_waits(&self, now: Duration) {
        let overdue = self.open.iter().find(|open| open.overdue <= now && !open.is_forgiven);
        if let Some(Open { ticket, blocks, overdue, .. }) = overdue {
            panic!("{ticket} of {blocks:?} is waited for at {now:?}, and should not be after {overdue:?}");
        }
    }

    /// A request is gone: nobody may wait for the answers to lookups.
    pub(crate) fn forgive_lookups(&mut self) {
        self.open.iter_mut().filter(|open| open.blocks.is_none()).for_each(|open| open.is_forgiven = true);
    }

    /// What the node is known to compute before a step.
    pub(crate) fn note_compute_rate(&mut self, rate: Option<f64>) {
        self.compute_rate = rate;
        self.fastest = self.fastest.into_iter().chain(rate).reduce(f64::max);
    }

    /// Whether fetching so many blocks, or fewer, may look slower than computing them.
    pub(crate) fn may_be_slower(&self, blocks: usize) -> bool {
        let factor = if self.regime.says_slow { SLOW } else { 1 };
        let takes = |blocks: usize| self.regime.expected.time(blocks) * factor;
        let slower = |blocks: usize, rate: f64| {
            (blocks * BLOCK_POSITIONS) as f64 / rate * 0.999 <= takes(blocks).as_secs_f64()
        };
        match self.fastest {
            None => !takes(blocks).is_zero(),
            Some(rate) => (1..=blocks).any(|blocks| slower(blocks, rate)),
        }
    }

    /// How long a fetch may be waited for.
    pub(super) fn fetch_limit(&self, expected: Expected, blocks: &Range<usize>) -> Duration {
        let compute = |blocks: usize| {
            // What a rate says of a time is rounded.
            let seconds = |rate: f64| (blocks * BLOCK_POSITIONS) as f64 / rate * 1.000_001;
            self.compute_rate.map(|rate| Duration::from_secs_f64(seconds(rate)) + Duration::from_nanos(100))
        };
        let late = expected.time(blocks.len()) * 2 + Duration::from_millis(20);
        let far = compute(blocks.len()).map_or(late, |compute| late.min(compute));
        // What is on disk comes before, and is waited for as well.
        let grace = Duration::from_millis(20);
        let near = || compute(blocks.start).map_or(Duration::from_secs(2), |compute| compute + grace);
        if self.has_disk && blocks.start > 0 { far + near() } else { far }
    }

    pub(super) fn note_open(
        &mut self,
        ticket: u64,
        blocks: Option<Range<usize>>,
        usual: Duration,
        limit: Duration,
    ) {
        assert!(self.open.iter().all(|open| open.ticket != ticket), "a ticket is used twice");
        let now = self.time.now();
        self.allowed += limit;
        let (due, overdue) = (now + usual, now + limit);
        self.open.push(Open { ticket, blocks, due, overdue, is_forgiven: false });
    }

    pub(super) fn note_slow_fetches(&mut self) {
        let now = self.time.now();
        if self.open.iter().any(|open| open.blocks.is_some() && open.due <= now) {
            self.excuses.bad_fetch = Some(self.step);
        }
    }

    pub(super) fn note_delivered(&mut self, what: &RemoteDone) {
        let ticket = ticket(what);
        let open = self.open.iter().position(|open| open.ticket == ticket);
        self.happened.after_cancel += u64::from(open.is_none());
        self.trace(|| format!("{} comes", summary(what)));
        // It may have been too late for those who waited.
        let is_slow =
            |open: usize| self.open[open].blocks.is_some() && self.open[open].due <= self.time.now();
        if open.is_some_and(is_slow) {
            self.excuses.bad_fetch = Some(self.step);
        }
        match *what {
            RemoteDone::Found { blocks, .. } if blocks > 0 => {
                self.stats.hits += 1;
                self.excuses.found = Some(self.step);
            }
            RemoteDone::Ended { failed: true, .. } => self.excuses.bad_fetch = Some(self.step),
            RemoteDone::Read { .. } => self.excuses.delivered = Some(self.step),
            _ => {}
        }
        if let Some(open) = open.filter(|_| !matches!(what, RemoteDone::Read { .. })) {
            self.open.remove(open);
        }
    }
}
