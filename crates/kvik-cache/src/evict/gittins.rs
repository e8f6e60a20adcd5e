//! The Gittins index of a block by its age and reuses, learned from the uses seen.
//!
//! Owns a bounded sample of blocks, chosen by fingerprint, with the last use of each, cached or not. A use shows at
//! which age a block is used again, and the end of the sample's memory shows which blocks never are, both by how
//! often the block had been reused before. These give the *hazard rate* of every age, the probability of a use at
//! it, and the hazard rates give the index: the most hits for the space taken that can be expected from age `a` on,
//!
//! ```text
//! index(a) = max over T > a of  P(used again before age T) / E(time kept until then or until T)
//! ```
//!
//! which is the Gittins index of a job that ends with the next use. Time is counted in blocks used, so nothing
//! here depends on a clock or on the size of the cache.

use std::collections::VecDeque;

use rustc_hash::FxHashMap;

use crate::hash::Fingerprint;

/// Number of classes of blocks, by reuses in octaves: 0, 1, 2, 3 and 4, 5 to 8, and so on; the last one is 257 and
/// more. Ghosts do not count further.
pub(crate) const CLASSES: usize = 11;
/// Number of ages, with the resolution of a quarter of an octave, up to 2^28 blocks.
pub(crate) const AGES: usize = 4 * 28;
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
/// Weight of earlier uses after each full update: the last 25,000 sampled uses have most of it.
const DECAY: f64 = 0.995;
/// The prior of a class counts as much as this many of its blocks.
const PRIOR_BLOCKS: f64 = 5.0;
/// Prior of the hazard rate of an age: at least this fraction of that of the age before. As ages are fractions of
/// octaves, this is a power law, which the times between uses mostly follow.
const TAIL: f64 = 0.95;
/// Weight of the earlier ages in the prior of the next, for blocks that were reused: the last five octaves have
/// most of it. Such blocks pause and return together, as the traffic changes, so many of them passing an age unused
/// says little about later ages.
const EARLIER: f64 = 0.95;

/// The index by class and age, and the counts it comes from.
#[derive(Debug)]
pub(crate) struct Gittins {
    /// The sample holds one block in this many; a power of two.
    sample: u64,
    last: FxHashMap<Fingerprint, LastUse>,
    /// Every use remembered, the oldest first.
    uses: VecDeque<(Fingerprint, u64)>,
    since_update: usize,
    update_uses: usize,
    /// How often blocks of a class were used again at each age.
    again: ByClassAndAge,
    /// How often they left the memory at each age, unused.
    never: ByClassAndAge,
    indices: ByClassAndAge,
}

type ByAge = [f64; AGES];
type ByClassAndAge = [ByAge; CLASSES];

#[derive(Debug, Clone, Copy)]
struct LastUse {
    at: u64,
    reuses: u32,
}

impl LastUse {
    /// Counts a block by its class and age.
    fn count(self, counts: &mut ByClassAndAge, now: u64) {
        counts[class_of(self.reuses)][age_of(now.saturating_sub(self.at))] += 1.0;
    }
}

impl Gittins {
    /// An empty sample: every index is 0.
    pub(crate) fn new(pool_blocks: usize) -> Gittins {
        let sample = (HORIZON_POOLS * pool_blocks).div_ceil(USES_MAX).next_power_of_two() as u64;
        Gittins {
            sample: sample.max(SAMPLE_MIN),
            last: FxHashMap::default(),
            uses: VecDeque::new(),
            since_update: 0,
            update_uses: UPDATE_USES_MIN,
            again: [[0.0; AGES]; CLASSES],
            never: [[0.0; AGES]; CLASSES],
            indices: [[0.0; AGES]; CLASSES],
        }
    }

    /// The index of a block, in hits per block of space and block of time.
    pub(crate) fn index(&self, class: usize, age: usize) -> f64 {
        self.indices[class][age]
    }

    /// Notes the use of a block.
    pub(crate) fn note(&mut self, block: Fingerprint, now: u64) {
        // The low bits choose the slots of ghosts and of maps.
        if (block.0.get() >> 40) & (self.sample - 1) != 0 {
            return;
        }
        let mut reuses = 0;
        if let Some(last) = self.last.get(&block) {
            last.count(&mut self.again, now);
            reuses = last.reuses + 1;
        }
        self.last.insert(block, LastUse { at: now, reuses });
        self.uses.push_back((block, now));
        self.forget(now);
        self.since_update += 1;
        if self.since_update >= self.update_uses {
            self.update(now);
        }
    }

    /// Drops the oldest uses when there are too many.
    fn forget(&mut self, now: u64) {
        while self.uses.len() > USES_MAX {
            let Some((block, at)) = self.uses.pop_front() else { return };
            if let Some(&last) = self.last.get(&block).filter(|last| last.at == at) {
                last.count(&mut self.never, now);
                self.last.remove(&block);
            }
        }
    }

    fn update(&mut self, now: u64) {
        // The blocks in the memory have reached their age without a use, but may still be used.
        let mut unused = self.never;
        self.last.values().for_each(|last| last.count(&mut unused, now));
        self.compute_indices(&unused);
        self.since_update = 0;
        if self.update_uses < UPDATE_USES_MAX {
            self.update_uses *= 2;
            return;
        }
        for seen in self.again.iter_mut().chain(&mut self.never).flatten() {
            *seen *= DECAY;
        }
    }

    /// Computes the indices. Few blocks are in the higher classes, so the class below serves as the prior.
    fn compute_indices(&mut self, unused: &ByClassAndAge) {
        let (mut rates, mut earlier) = ([0.0; AGES], 0.0);
        for ((indices, again), unused) in self.indices.iter_mut().zip(&self.again).zip(unused) {
            rates = hazard_rates(again, unused, &rates, earlier);
            *indices = gittins_indices(&rates);
            // Only the first class has blocks that were never reused, most of which never will be.
            earlier = EARLIER;
        }
    }
}

/// The hazard rate of every age, from how many blocks were used `again` at each and how many ended there `unused`:
/// the probability that a block that reaches an age is used at it. `below` has the rates of blocks reused less
/// often; `earlier` is the weight of the earlier ages in the prior of the next.
fn hazard_rates(again: &ByAge, unused: &ByAge, below: &ByAge, earlier: f64) -> ByAge {
    let mut alive: f64 = again.iter().chain(unused).sum();
    let (mut rates, mut tail) = ([0.0; AGES], Tail { earlier, ..Tail::default() });
    for age in 0..AGES {
        let expected = PRIOR_BLOCKS * below[age].max(tail.rate);
        rates[age] = (again[age] + expected) / (alive + PRIOR_BLOCKS);
        tail.note(rates[age], again[age], alive);
        // Rounding must not make it negative.
        alive = (alive - again[age] - unused[age]).max(0.0);
    }
    rates
}

/// The prior of an age's hazard rate, from the ages before it: the decayed rate of the last one or, when it is
/// higher, of all together. From the last one alone the rate would drop at each age that many blocks pass unused,
/// and vanish within an octave.
#[derive(Debug, Default)]
struct Tail {
    rate: f64,
    earlier: f64,
    /// Blocks used again at any age so far, and blocks that reached it; each earlier age is weighted by a further
    /// factor of `earlier`.
    again: f64,
    alive: f64,
}

impl Tail {
    /// Notes the rate of an age that `alive` blocks reached, `again` of which were used at it.
    fn note(&mut self, rate: f64, again: f64, alive: f64) {
        self.again = self.again * self.earlier + again;
        self.alive = self.alive * self.earlier + alive;
        let together = (self.again + PRIOR_BLOCKS * self.rate) / (self.alive + PRIOR_BLOCKS);
        self.rate = TAIL * rate.max(together);
    }
}

/// The index of every age, from the hazard rates.
fn gittins_indices(hazard: &ByAge) -> ByAge {
    std::array::from_fn(|from| {
        let (mut best, mut left, mut hits, mut space) = (0.0_f64, 1.0, 0.0, 0.0);
        for (age, &used) in hazard.iter().enumerate().skip(from) {
            let width = (youngest(age + 1) - youngest(age)) as f64;
            hits += left * used;
            space += left * width * (1.0 - used / 2.0);
            left *= 1.0 - used;
            best = best.max(hits / space.max(1.0));
        }
        best
    })
}

/// The class of a block that was reused `reuses` times.
pub(crate) fn class_of(reuses: u32) -> usize {
    let octaves = if reuses < 3 { reuses as usize } else { 2 + (reuses - 1).ilog2() as usize };
    octaves.min(CLASSES - 1)
}

/// The index of an age: four to an octave.
pub(crate) fn age_of(blocks: u64) -> usize {
    let blocks = blocks.max(1);
    let octave = blocks.ilog2();
    let quarter = if octave < 2 { 0 } else { (blocks >> (octave - 2)) & 3 };
    (4 * octave as usize + quarter as usize).min(AGES - 1)
}

/// The lowest age in blocks that has this index.
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
    fn the_index_rises_towards_the_next_use() {
        let (mut again, mut unused) = ([0.0; AGES], [0.0; AGES]);
        // Half are used again at the age of 1,000, the others never.
        again[age_of(1000)] = 500.0;
        unused[age_of(100_000)] = 500.0;
        let indices = gittins_indices(&hazard_rates(&again, &unused, &[0.0; AGES], 0.0));
        let of = |blocks| indices[age_of(blocks)];
        assert!(of(900) > of(500) && of(500) > of(1), "the nearer the use, the better");
        assert!((of(1) / (0.5 / 1000.0) - 1.0).abs() < 0.3, "half a hit for 1,000: {}", of(1));
        assert!(of(2000) < of(1) / 20.0, "after that age hardly anybody comes back");
    }

    #[test]
    fn what_was_not_seen_is_expected_as_it_is_of_fewer_reuses() {
        let mut again = [0.0; AGES];
        again[age_of(1000)] = 500.0;
        let below = hazard_rates(&again, &[0.0; AGES], &[0.0; AGES], 0.0);
        assert!(below[age_of(1000)] > 0.9);
        let unknown = hazard_rates(&[0.0; AGES], &[0.0; AGES], &below, EARLIER);
        assert!(unknown.iter().zip(&below).all(|(unknown, below)| (unknown - below).abs() < 1e-9));
        // The rates of ages that no block has reached extrapolate those before them, halving in 14 ages.
        let [at, later] = [1000, 20_000].map(|blocks| below[age_of(blocks)]);
        assert!(later < at / 2.0 && later > at / 4.0, "{at} and {later}");
    }

    #[test]
    fn what_was_reused_is_not_given_up_when_a_pause_is_longer_than_those_before() {
        let (mut again, mut unused) = ([0.0; AGES], [0.0; AGES]);
        again[age_of(1000)] = 500.0;
        unused[age_of(100_000)] = 500.0;
        let rate = |earlier| hazard_rates(&again, &unused, &[0.0; AGES], earlier)[age_of(20_000)];
        assert!(rate(EARLIER) > 1e-4, "{}", rate(EARLIER));
        assert!(rate(0.0) < 1e-9, "most that were never reused never are: {}", rate(0.0));
    }

    #[test]
    fn a_loop_is_learned() {
        let mut gittins = Gittins::new(100);
        let blocks: Vec<Fingerprint> = (0..1000).map(|token| Fingerprint::UNUSED.child(&[token])).collect();
        for now in 1..40_000_u64 {
            gittins.note(blocks[now as usize % 1000], now);
        }
        let class = class_of(40);
        assert!(gittins.index(class, age_of(950)) > 5.0 * gittins.index(class, age_of(10)));
        assert!(gittins.index(class, age_of(10)) > 0.0);
    }
}
