//! What a block is worth that was last used so long ago: learned from the uses that were seen.
//!
//! Owns a bounded sample of blocks, chosen by fingerprint, with the last use of each, kept whether
//! they are cached or not. A use tells at which age a block is used again, the end of the sample's
//! memory which ones never are, both by how often the block had been reused before. From that,
//! every age `a` gets a *worth*: the most hits for the room taken that one can hope for from now on,
//!
//! ```text
//! worth(a) = max over T > a of  P(used again before age T) / E(time kept until then or until T)
//! ```
//!
//! which is the Gittins index of a job that ends with the next use. Time is counted in blocks used,
//! so nothing here depends on a clock or on a size of cache.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::hash::Fingerprint;

/// Blocks are told apart by their reuses up to this many, less one.
pub(crate) const CLASSES: usize = 8;
/// Ages are told apart to a quarter of an octave, up to 2^28 blocks.
pub(crate) const AGES: usize = 4 * 28;
/// Uses remembered.
const USES_MAX: usize = 1 << 14;
/// One in so many blocks is in the sample, at least; of a large pool fewer are.
const SAMPLE_MIN: u64 = 8;
/// The memory reaches back over so many times the pool.
const HORIZON_POOLS: usize = 4;
/// New worths are drawn from what was seen after so many uses.
const LESSON_USES: usize = 512;
/// What earlier uses count for after each lesson: the last 25,000 sampled uses have most weight.
const FADE: f64 = 0.98;

/// Worth by reuses and age.
#[derive(Debug)]
pub(crate) struct Worth {
    /// One block in so many is in the sample; a power of two.
    sample: u64,
    last: FxHashMap<Fingerprint, Use>,
    /// Every use remembered, the oldest first.
    uses: VecDeque<(Fingerprint, u64)>,
    since_lesson: usize,
    /// How often blocks of a class were used again at each age.
    again: Table,
    /// How often they were forgotten at that age, unused.
    never: Table,
    worth: Table,
}

type Table = [[f64; AGES]; CLASSES];

#[derive(Debug, Clone, Copy)]
struct Use {
    at: u64,
    reuses: u32,
}

impl Worth {
    /// Nothing is known yet, and everything is worth the same.
    pub(crate) fn new(pool_blocks: usize) -> Worth {
        let sample = (HORIZON_POOLS * pool_blocks).div_ceil(USES_MAX).next_power_of_two() as u64;
        Worth {
            sample: sample.max(SAMPLE_MIN),
            last: FxHashMap::default(),
            uses: VecDeque::new(),
            since_lesson: 0,
            again: [[0.0; AGES]; CLASSES],
            never: [[0.0; AGES]; CLASSES],
            worth: [[0.0; AGES]; CLASSES],
        }
    }

    /// What a block is worth, in hits for a block of room and a block of time.
    pub(crate) fn of(&self, class: usize, age: usize) -> f64 {
        self.worth[class][age]
    }

    /// Notes that a block was used.
    pub(crate) fn note(&mut self, block: Fingerprint, now: u64) {
        // The low bits choose places among ghosts and in maps.
        if (block.0.get() >> 40) & (self.sample - 1) != 0 {
            return;
        }
        let mut reuses = 0;
        if let Some(last) = self.last.get(&block) {
            self.again[class_of(last.reuses)][age_of(now.saturating_sub(last.at))] += 1.0;
            reuses = last.reuses + 1;
        }
        self.last.insert(block, Use { at: now, reuses });
        self.uses.push_back((block, now));
        self.forget(now);
        self.since_lesson += 1;
        if self.since_lesson >= LESSON_USES {
            self.learn(now);
        }
    }

    /// Drops the oldest use when there are too many.
    fn forget(&mut self, now: u64) {
        while self.uses.len() > USES_MAX {
            let Some((block, at)) = self.uses.pop_front() else { return };
            if let Some(&last) = self.last.get(&block).filter(|last| last.at == at) {
                self.never[class_of(last.reuses)][age_of(now.saturating_sub(at))] += 1.0;
                self.last.remove(&block);
            }
        }
    }

    fn learn(&mut self, now: u64) {
        self.since_lesson = 0;
        // What waits in the memory has lived to its age without a use, and may be used yet.
        let mut unused = self.never;
        for last in self.last.values() {
            unused[class_of(last.reuses)][age_of(now.saturating_sub(last.at))] += 1.0;
        }
        for ((worth, again), unused) in self.worth.iter_mut().zip(&self.again).zip(&unused) {
            *worth = worths(again, unused);
        }
        for seen in self.again.iter_mut().chain(&mut self.never).flatten() {
            *seen *= FADE;
        }
    }
}

/// The worth of every age, from how many were used again at each, and how many ended there unused.
fn worths(again: &[f64; AGES], unused: &[f64; AGES]) -> [f64; AGES] {
    let mut risen = [0.0; AGES];
    let mut alive = 0.0;
    // The chance, for those that live to an age, to be used at it; one doubtful case is added.
    for age in (0..AGES).rev() {
        alive += again[age] + unused[age];
        risen[age] = again[age] / (alive + 1.0);
    }
    std::array::from_fn(|from| {
        let (mut best, mut left, mut hits, mut room) = (0.0_f64, 1.0, 0.0, 0.0);
        for (age, &used) in risen.iter().enumerate().skip(from) {
            let width = (youngest(age + 1) - youngest(age)) as f64;
            hits += left * used;
            room += left * width * (1.0 - used / 2.0);
            left *= 1.0 - used;
            best = best.max(hits / room.max(1.0));
        }
        best
    })
}

/// The class of a block that was reused so often.
pub(crate) fn class_of(reuses: u32) -> usize {
    (reuses as usize).min(CLASSES - 1)
}

/// The index of an age: four to an octave.
pub(crate) fn age_of(blocks: u64) -> usize {
    let blocks = blocks.max(1);
    let octave = blocks.ilog2();
    let quarter = if octave < 2 { 0 } else { (blocks >> (octave - 2)) & 3 };
    (4 * octave as usize + quarter as usize).min(AGES - 1)
}

/// The least number of blocks whose age has this index or a later one.
pub(crate) fn youngest(age: usize) -> u64 {
    let (octave, quarter) = (age / 4, age as u64 % 4);
    if octave < 2 {
        (1 << octave) + u64::from(quarter > 0) * (1 << octave)
    } else {
        (4 + quarter) << (octave - 2)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_and_their_bounds_agree() {
        for blocks in (1..5000).chain([1 << 20, (1 << 20) + 12345, 1 << 27]) {
            let age = age_of(blocks);
            assert!(youngest(age) <= blocks && blocks < youngest(age + 1), "{blocks} has age {age}");
        }
    }

    #[test]
    fn what_is_about_to_be_used_is_worth_more() {
        let (mut again, mut unused) = ([0.0; AGES], [0.0; AGES]);
        // Half are used again at the age of 1,000, the others never.
        again[age_of(1000)] = 500.0;
        unused[age_of(100_000)] = 500.0;
        let worth = worths(&again, &unused);
        let of = |blocks| worth[age_of(blocks)];
        assert!(of(900) > of(500) && of(500) > of(1), "the nearer the use, the better");
        assert!((of(1) / (0.5 / 1000.0) - 1.0).abs() < 0.3, "half a hit for 1,000: {}", of(1));
        assert_eq!(of(2000), 0.0, "after that age nobody comes back");
    }

    #[test]
    fn a_loop_is_learned() {
        let mut worth = Worth::new(100);
        let blocks: Vec<Fingerprint> = (0..1000).map(|token| Fingerprint::UNUSED.child(&[token])).collect();
        for now in 1..40_000_u64 {
            worth.note(blocks[now as usize % 1000], now);
        }
        let class = CLASSES - 1;
        assert!(worth.of(class, age_of(950)) > 5.0 * worth.of(class, age_of(10)));
        assert!(worth.of(class, age_of(10)) > 0.0);
    }
}
