//! The Gittins index of a block by its class and age, from counts of uses.
//!
//! Counts at which age blocks of a class were used again, and at which they were given up unused. These give the
//! *hazard rate* of every age, the probability of a use at it, and the hazard rates give the index: the most hits
//! for the space taken that can be expected from age `a` on,
//!
//! ```text
//! index(a) = max over T > a of  P(used again before age T) / E(time kept until then or until T)
//! ```
//!
//! which is the Gittins index of a job that ends with the next use. A class is a number of reuses and a rhythm;
//! time has any unit. `sample` counts, by two clocks.

/// Number of classes by reuses in octaves: 0, 1, 2, 3 and 4, 5 to 8, and so on; the last one is 257 and more. Ghosts
/// do not count further.
pub(super) const REUSE_CLASSES: usize = 11;
/// Number of ages, with the resolution of a quarter of an octave, up to 2^28 units of time.
pub(crate) const AGES: usize = 4 * 28;
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
    /// Number of rhythms by which blocks of equal reuses are told apart; 1 for none.
    rhythms: usize,
    /// How often blocks of a class were used again at each age.
    again: Vec<ByAge>,
    /// How often they left the memory at each age, unused.
    never: Vec<ByAge>,
    indices: Vec<ByAge>,
}

type ByAge = [f64; AGES];

impl Gittins {
    /// No counts: every index is 0. A class is one of `reuses`, the fewest first, and within it one of `rhythms`.
    pub(super) fn new(reuses: usize, rhythms: usize) -> Gittins {
        let none = vec![[0.0; AGES]; reuses * rhythms];
        Gittins { rhythms, again: none.clone(), never: none.clone(), indices: none }
    }

    /// The index of a block, in hits per block of space and unit of time.
    pub(crate) fn index(&self, class: usize, age: usize) -> f64 {
        self.indices[class][age]
    }

    /// Counts a use of a block of `class` at `age`.
    pub(super) fn count_again(&mut self, class: usize, age: u64) {
        self.again[class][age_of(age)] += 1.0;
    }

    /// Counts a block of `class` that was unused until `age`.
    pub(super) fn count_never(&mut self, class: usize, age: u64) {
        self.never[class][age_of(age)] += 1.0;
    }

    /// Computes the indices. The `living` blocks, each with its class and age, have reached that age without a use
    /// but may still be used.
    pub(super) fn update(&mut self, living: impl Iterator<Item = (usize, u64)>) {
        let mut unused = self.never.clone();
        living.for_each(|(class, age)| unused[class][age_of(age)] += 1.0);
        self.compute_indices(&unused);
    }

    /// Lets all counts fade; `updates` is the weight of this time relative to a full update.
    pub(super) fn decay(&mut self, updates: f64) {
        let decay = DECAY.powf(updates);
        self.again.iter_mut().chain(&mut self.never).flatten().for_each(|seen| *seen *= decay);
    }

    /// Computes the indices. Few blocks are in the higher classes, so the blocks of fewer reuses serve as the prior
    /// of those of more, and the blocks of all rhythms as the prior of those of one.
    fn compute_indices(&mut self, unused: &[ByAge]) {
        let (mut rates, mut earlier) = ([0.0; AGES], 0.0);
        let rhythms = self.rhythms;
        let counts = self.again.chunks(rhythms).zip(unused.chunks(rhythms));
        for (indices, (again, unused)) in self.indices.chunks_mut(rhythms).zip(counts) {
            rates = hazard_rates(&sum(again), &sum(unused), &rates, earlier);
            indices.fill(gittins_indices(&rates));
            if rhythms > 1 {
                let seen = indices.iter_mut().zip(again.iter().zip(unused));
                for (indices, (again, unused)) in seen.filter(|(_, counts)| is_seen(*counts)) {
                    *indices = gittins_indices(&hazard_rates_within(again, unused, &rates));
                }
            }
            // Only the first class has blocks that were never reused, most of which never will be.
            earlier = EARLIER;
        }
    }
}

/// The counts of several classes together.
fn sum(counts: &[ByAge]) -> ByAge {
    let mut sum = [0.0; AGES];
    for counts in counts {
        sum.iter_mut().zip(counts).for_each(|(sum, count)| *sum += count);
    }
    sum
}

/// Whether there are blocks of a class.
fn is_seen((again, unused): (&ByAge, &ByAge)) -> bool {
    again.iter().chain(unused).any(|&count| count > 0.0)
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

/// The hazard rates of blocks of one rhythm; those of `all` rhythms are the prior.
fn hazard_rates_within(again: &ByAge, unused: &ByAge, all: &ByAge) -> ByAge {
    let mut alive: f64 = again.iter().chain(unused).sum();
    std::array::from_fn(|age| {
        let rate = (again[age] + PRIOR_BLOCKS * all[age]) / (alive + PRIOR_BLOCKS);
        alive = (alive - again[age] - unused[age]).max(0.0);
        rate
    })
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
///
/// From the last age to the first: the period that is best from an age on is that age, together with the best period
/// after it as long as that has more hits for its space.
fn gittins_indices(hazard: &ByAge) -> ByAge {
    let (mut indices, mut later) = ([0.0; AGES], Vec::with_capacity(AGES));
    for age in (0..AGES).rev() {
        let width = (youngest(age + 1) - youngest(age)) as f64;
        let used = hazard[age];
        let mut best = Period { hits: used, space: width * (1.0 - used / 2.0), left: 1.0 - used };
        while let Some(next) = later.pop_if(|next: &mut Period| next.ratio() > best.ratio()) {
            best = best.then(next);
        }
        indices[age] = best.ratio();
        later.push(best);
    }
    indices
}

/// Consecutive ages of a block that reaches the first of them.
#[derive(Debug, Clone, Copy)]
struct Period {
    /// The probability of a use in it.
    hits: f64,
    /// The expected time until that use, or until the end.
    space: f64,
    /// The probability of its end without a use.
    left: f64,
}

impl Period {
    fn ratio(&self) -> f64 {
        // Some of the lowest ages have no width.
        self.hits / self.space.max(f64::MIN_POSITIVE)
    }

    fn then(self, next: Period) -> Period {
        let Period { hits, space, left } = self;
        Period { hits: hits + left * next.hits, space: space + left * next.space, left: left * next.left }
    }
}

/// The class by reuses alone.
pub(super) fn reuse_class(reuses: u32) -> usize {
    let octaves = if reuses < 3 { reuses as usize } else { 2 + (reuses - 1).ilog2() as usize };
    octaves.min(REUSE_CLASSES - 1)
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
    use crate::evict::rhythm::{RHYTHMS, Rhythm};

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
    fn what_is_kept_until_the_best_time_has_the_index() {
        let hazard: ByAge = std::array::from_fn(|age| ((age * 7919) % 13) as f64 / 40.0);
        for (from, index) in gittins_indices(&hazard).into_iter().enumerate().filter(|(age, _)| age % 4 == 0)
        {
            let (mut best, mut left, mut hits, mut space) = (0.0_f64, 1.0, 0.0, 0.0);
            for (age, &used) in hazard.iter().enumerate().skip(from) {
                hits += left * used;
                space += left * (youngest(age + 1) - youngest(age)) as f64 * (1.0 - used / 2.0);
                left *= 1.0 - used;
                best = best.max(hits / space);
            }
            assert!((index / best - 1.0).abs() < 1e-9 || index == best, "{from}: {index} and {best}");
        }
    }

    #[test]
    fn a_rhythm_without_blocks_has_the_index_of_all() {
        let mut gittins = Gittins::new(1, RHYTHMS);
        let [fast, slow, other] = [1_000, 64_000, 8_000].map(|pause| Rhythm::of(pause).index());
        for _ in 0..1_000 {
            gittins.count_again(fast, 1_000);
            gittins.count_again(slow, 64_000);
        }
        gittins.update(std::iter::empty());
        let index = |class, time| gittins.index(class, age_of(time));
        assert!(index(fast, 900) > 1.5 * index(other, 900) && index(other, 900) > 1.5 * index(slow, 900));
        assert!(index(slow, 60_000) > 2.0 * index(slow, 900));
    }
}
