//! The uses of a sample of blocks, cached or not: what the Gittins indices are learned from.
//!
//! Owns a bounded number of blocks, chosen by fingerprint, with the last use of each. A use shows at which age a
//! block is used again, and the end of the sample's memory shows which blocks never are. Both are counted by two
//! clocks:
//!
//! - in blocks used, by reuses: the clock of a cache, on which more traffic makes every block older;
//! - in milliseconds, by rhythm: the clock of readers, tools and timers, which pause as long whatever others do. The
//!   pause before a use begins when a request has ended, and ends when the next is admitted.
//!
//! Nothing here reads a clock or depends on the size of the cache, except for the size of the sample.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use super::facts::Facts;
use super::gittins::{Gittins, REUSE_CLASSES, reuse_class};
use super::requests::{BlockUse, Request};
use super::rhythm::{RHYTHMS, Rhythm};
use crate::hash::Fingerprint;

/// Uses remembered.
const USES_MAX: usize = 1 << 15;
/// The sample holds at most one block in this many; for a large pool fewer.
const SAMPLE_MIN: u64 = 8;
/// The memory extends over this many times the pool.
const HORIZON_POOLS: usize = 4;
/// The indices are first computed after this many sampled uses, then after twice as many, and so on.
const UPDATE_USES_MIN: usize = 64;
/// Upper bound of that interval, which stays there.
const UPDATE_USES_MAX: usize = 128;

/// The sample, and the indices learned from it.
#[derive(Debug)]
pub(crate) struct Sample {
    /// The sample holds one block in this many; a power of two.
    one_in: u64,
    last: FxHashMap<Fingerprint, LastUse>,
    /// Every use remembered, the oldest first.
    uses: VecDeque<(Fingerprint, u64)>,
    since_update: usize,
    update_uses: usize,
    by_blocks: Gittins,
    by_ms: Gittins,
}

#[derive(Debug, Clone, Copy)]
struct LastUse {
    at: u64,
    at_ms: u64,
    reuses: u32,
    rhythm: Rhythm,
    /// Whether it is the first of a run of blocks of one rhythm, which pause and return together. By the clock a run
    /// counts once, whatever its length: its blocks are one observation.
    leads: bool,
}

impl LastUse {
    /// Class and age by each clock.
    fn facts(&self, now: u64, now_ms: u64) -> [(usize, u64); 2] {
        let class = |clock: AgeClock| clock.class(self.reuses, self.rhythm);
        let (age, age_ms) = (now.saturating_sub(self.at), now_ms.saturating_sub(self.at_ms));
        [(class(AgeClock::Blocks), age), (class(AgeClock::Milliseconds), age_ms)]
    }
}

/// The clock by which an index measures ages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AgeClock {
    /// Blocks used, by reuses.
    Blocks,
    /// Milliseconds, by rhythm.
    Milliseconds,
}

impl AgeClock {
    /// The time of a leaf's last use.
    pub(crate) fn used(self, facts: &Facts) -> u64 {
        match self {
            AgeClock::Blocks => facts.used,
            AgeClock::Milliseconds => facts.used_ms,
        }
    }

    /// The class of a block.
    pub(crate) fn class(self, reuses: u32, rhythm: Rhythm) -> usize {
        match self {
            AgeClock::Blocks => reuse_class(reuses),
            AgeClock::Milliseconds => rhythm.index(),
        }
    }
}

impl Sample {
    /// An empty sample: every index is 0.
    pub(crate) fn new(pool_blocks: usize) -> Sample {
        let one_in = (HORIZON_POOLS * pool_blocks).div_ceil(USES_MAX).next_power_of_two() as u64;
        Sample {
            one_in: one_in.max(SAMPLE_MIN),
            last: FxHashMap::default(),
            uses: VecDeque::new(),
            since_update: 0,
            update_uses: UPDATE_USES_MIN,
            by_blocks: Gittins::new(REUSE_CLASSES, 1),
            by_ms: Gittins::new(1, RHYTHMS),
        }
    }

    /// The indices by a clock.
    pub(crate) fn indices(&self, clock: AgeClock) -> &Gittins {
        match clock {
            AgeClock::Blocks => &self.by_blocks,
            AgeClock::Milliseconds => &self.by_ms,
        }
    }

    /// Notes a request, and sets the rhythms of its blocks: those of the sample have their own, the others that of
    /// the last one before them in the sample.
    pub(crate) fn note(&mut self, request: &mut Request) {
        let Request { started_ms, ended_ms, ref mut uses } = *request;
        let mut before: Option<LastUse> = None;
        for index in (0..uses.len()).rev() {
            if self.holds(uses[index].block) {
                let here = self.note_use(uses[index], before, [started_ms, ended_ms]);
                if before.is_none() {
                    uses[index..].iter_mut().for_each(|first| first.rhythm = here.rhythm);
                }
                before = Some(here);
            }
            uses[index].rhythm = before.map_or(Rhythm::default(), |before| before.rhythm);
        }
        if let Some(last) = uses.first().filter(|_| self.since_update >= self.update_uses) {
            self.update(last.at, ended_ms);
        }
    }

    fn holds(&self, block: Fingerprint) -> bool {
        // The low bits choose the slots of ghosts and of maps.
        (block.0.get() >> 40) & (self.one_in - 1) == 0
    }

    /// Notes the use of a block by a request that has `started` and `ended`. If it is new, its rhythm is that of the
    /// block `before` it.
    fn note_use(&mut self, used: BlockUse, before: Option<LastUse>, [started, ended]: [u64; 2]) -> LastUse {
        let BlockUse { block, at, .. } = used;
        let (mut reuses, mut rhythm) = (0, before.map_or(Rhythm::default(), |before| before.rhythm));
        if let Some(&last) = self.last.get(&block) {
            let [(class, age), (class_ms, pause)] = last.facts(at, started);
            self.by_blocks.count_again(class, age);
            if last.leads {
                self.by_ms.count_again(class_ms, pause);
            }
            (reuses, rhythm) = (last.reuses + 1, Rhythm::of(pause));
        }
        let leads = before.is_none_or(|before| before.rhythm != rhythm);
        let noted = LastUse { at, at_ms: ended, reuses, rhythm, leads };
        self.last.insert(block, noted);
        self.uses.push_back((block, at));
        self.forget(at, ended);
        self.since_update += 1;
        noted
    }

    /// Drops the oldest uses when there are too many.
    fn forget(&mut self, now: u64, now_ms: u64) {
        while self.uses.len() > USES_MAX {
            let Some((block, at)) = self.uses.pop_front() else { return };
            if let Some(&last) = self.last.get(&block).filter(|last| last.at == at) {
                let [(class, age), (class_ms, age_ms)] = last.facts(now, now_ms);
                self.by_blocks.count_never(class, age);
                if last.leads {
                    self.by_ms.count_never(class_ms, age_ms);
                }
                self.last.remove(&block);
            }
        }
    }

    fn update(&mut self, now: u64, now_ms: u64) {
        let living = || self.last.values().map(|last| (last.leads, last.facts(now, now_ms)));
        self.by_blocks.update(living().map(|(_, [by_blocks, _])| by_blocks));
        self.by_ms.update(living().filter(|(leads, _)| *leads).map(|(_, [_, by_ms])| by_ms));
        let updates = self.since_update as f64 / UPDATE_USES_MAX as f64;
        self.since_update = 0;
        if self.update_uses < UPDATE_USES_MAX {
            self.update_uses *= 2;
            return;
        }
        self.by_blocks.decay(updates);
        self.by_ms.decay(updates);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evict::gittins::age_of;

    fn block(name: u32) -> Fingerprint {
        Fingerprint::UNUSED.child(&[name])
    }

    /// A request of blocks, from the first to the last.
    fn request(
        blocks: impl DoubleEndedIterator<Item = u32>,
        at: u64,
        [started_ms, ended_ms]: [u64; 2],
    ) -> Request {
        let uses =
            blocks.rev().map(|name| BlockUse { block: block(name), depth: 0, at, rhythm: Rhythm::default() });
        Request { started_ms, ended_ms, uses: uses.collect() }
    }

    #[test]
    fn a_loop_is_learned() {
        let mut sample = Sample::new(100);
        for now in 1..40_000_u64 {
            sample.note(&mut request(std::iter::once(now as u32 % 1000), now, [now; 2]));
        }
        let indices = sample.indices(AgeClock::Blocks);
        let class = AgeClock::Blocks.class(40, Rhythm::default());
        assert!(indices.index(class, age_of(950)) > 5.0 * indices.index(class, age_of(10)));
        assert!(indices.index(class, age_of(10)) > 0.0);
    }

    #[test]
    fn what_a_session_adds_has_its_rhythm() {
        let mut sample = Sample::new(100);
        let mut rhythms = Vec::new();
        // Each turn adds 100 blocks; requests take 5 s, and the pauses between them are 20 s.
        for turn in 1..4 {
            let start = u64::from(turn) * 25_000;
            let mut request = request(0..turn * 100, u64::from(turn), [start, start + 5_000]);
            sample.note(&mut request);
            assert!(request.uses.iter().all(|used| used.rhythm == request.uses[0].rhythm));
            rhythms.push(request.uses[0].rhythm);
        }
        assert_eq!(rhythms, [Rhythm::default(), Rhythm::of(20_000), Rhythm::of(20_000)]);
        let mut other = request(1_000..1_200, 4, [200_000; 2]);
        sample.note(&mut other);
        assert!(other.uses.iter().all(|used| used.rhythm == Rhythm::default()), "it continues nothing known");
    }

    #[test]
    fn sessions_are_told_apart_by_their_pauses() {
        let mut sample = Sample::new(1_000);
        // Sessions that take a step every two seconds and end after 20 of them, and one that takes one a minute.
        let fast = |session: u64| (0..20).map(move |turn| (session * 40_000 + turn * 2_000, session as u32));
        let mut requests: Vec<(u64, u32)> = (1..150).flat_map(fast).collect();
        requests.extend((0..100).map(|turn| (turn * 60_000 + 7, 0)));
        requests.sort_unstable();
        for (at, (ms, session)) in requests.into_iter().enumerate() {
            sample.note(&mut request(session * 100..session * 100 + 100, at as u64 + 1, [ms, ms]));
        }
        let index = |pause, age| {
            let class = AgeClock::Milliseconds.class(60, Rhythm::of(pause));
            sample.indices(AgeClock::Milliseconds).index(class, age_of(age))
        };
        assert!(index(2_000, 1_000) > 5.0 * index(60_000, 1_000), "the fast one is used next");
        assert!(
            index(60_000, 50_000) > 10.0 * index(2_000, 50_000),
            "the fast one has ended, the slow one returns"
        );
    }
}
