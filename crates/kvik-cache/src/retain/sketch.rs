//! A count-min sketch (Cormode and Muthukrishnan 2005), which approximates the accumulated attention of many
//! positions in little space.

use super::mix::mixed;

/// Number of counters per position, each shared with others. The more, the less likely all of them are shared at
/// once.
const DEPTH: usize = 4;

/// Amounts by position, never underestimated: `DEPTH` rows of counters, with a counter in each row for every
/// position.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sketch {
    /// `[DEPTH][width]`
    counters: Vec<f32>,
    width: usize,
}

impl Sketch {
    /// An empty sketch with `width` counters in each row.
    pub(super) fn new(width: usize) -> Sketch {
        Sketch { counters: vec![0.0; DEPTH * width], width }
    }

    /// Adds `amount` to the count of a position: counters rise only as far as its estimate needs (conservative
    /// update, Estan and Varghese 2002), which halves the error.
    pub(super) fn add(&mut self, position: u32, amount: f32) {
        let estimate = self.estimate(position) + amount;
        for place in places(self.width, position) {
            self.counters[place] = self.counters[place].max(estimate);
        }
    }

    /// An upper estimate of the count of a position.
    pub(super) fn estimate(&self, position: u32) -> f32 {
        places(self.width, position).map(|place| self.counters[place]).fold(f32::INFINITY, f32::min)
    }

    /// Multiplies all counts by `factor`.
    pub(super) fn decay(&mut self, factor: f32) {
        self.counters.iter_mut().for_each(|counter| *counter *= factor);
    }
}

/// The counters of a position: all of them derive from two hashes (Kirsch and Mitzenmacher 2006).
fn places(width: usize, position: u32) -> impl Iterator<Item = usize> {
    let bits = mixed(u64::from(position));
    let (first, step) = (bits as u32, (bits >> 32) as u32 | 1);
    (0..DEPTH).map(move |row| {
        let hash = first.wrapping_add(step.wrapping_mul(row as u32));
        row * width + ((u64::from(hash) * width as u64) >> 32) as usize
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A realistic distribution of attention: few positions attract most of it. Exact counts of 16,384 positions
    /// over 64 points, and their estimates, both with the same decay.
    fn counted(width: usize, decay: f32) -> (Vec<f32>, Vec<f32>) {
        const POSITIONS: u32 = 16_384;
        let (mut exact, mut sketch) = (vec![0.0_f32; POSITIONS as usize], Sketch::new(width));
        for point in 1..=64 {
            sketch.decay(decay);
            exact.iter_mut().for_each(|count| *count *= decay);
            for position in 0..POSITIONS / 64 * point {
                let chance = (mixed(u64::from(position)) >> 40) as f32 / (1 << 24) as f32;
                let amount = chance.powi(8) * (1 + (position + point) % 3) as f32;
                exact[position as usize] += amount;
                sketch.add(position, amount);
            }
        }
        let estimates = (0..POSITIONS).map(|position| sketch.estimate(position)).collect();
        (exact, estimates)
    }

    /// The share of the `count` highest exact counts that are among the `count` highest estimates.
    fn recalled(exact: &[f32], estimates: &[f32], count: usize) -> f32 {
        let highest = |counts: &[f32]| {
            let mut indices: Vec<usize> = (0..counts.len()).collect();
            indices.sort_by(|&a, &b| counts[b].total_cmp(&counts[a]));
            indices.truncate(count);
            indices
        };
        let estimated = highest(estimates);
        let found = highest(exact).iter().filter(|index| estimated.contains(index)).count();
        found as f32 / count as f32
    }

    #[test]
    fn estimates_are_never_below_what_was_counted_and_close_to_it() {
        for decay in [1.0, 0.9] {
            let mut errors = Vec::new();
            for width in [512, 2048, 8192] {
                let (exact, estimates) = counted(width, decay);
                let total: f32 = exact.iter().sum();
                let over = exact.iter().zip(&estimates).map(|(exact, estimate)| estimate - exact);
                assert!(over.clone().all(|over| over >= -1e-3 * total / exact.len() as f32));
                // Markov: in each row the mean error is total / width, and the minimum of four is smaller.
                let mean = over.sum::<f32>() / exact.len() as f32;
                assert!(mean < total / width as f32, "width {width}: {mean} of {total}");
                errors.push((mean * exact.len() as f32 / total, recalled(&exact, &estimates, 1024)));
            }
            println!("decay {decay}: mean error in mean counts, recall of the 1,024 highest: {errors:?}");
            assert!(
                errors.is_sorted_by(|a, b| a.0 > b.0 && a.1 < b.1),
                "more counters, less error: {errors:?}"
            );
            assert!(errors[2].1 > 0.9, "{errors:?}");
        }
    }

    #[test]
    fn few_positions_are_counted_exactly() {
        let mut sketch = Sketch::new(1024);
        for position in 0..20 {
            sketch.add(position, position as f32);
            sketch.add(position, 0.5);
        }
        sketch.decay(0.5);
        for position in 0..20 {
            assert_eq!(sketch.estimate(position), (position as f32 + 0.5) * 0.5);
        }
    }
}
