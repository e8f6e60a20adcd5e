//! Seeded draws: the same seed gives the same cases on every machine.

/// A stream of pseudo-random numbers (SplitMix64).
#[derive(Debug, Clone)]
pub(crate) struct Draws(u64);

impl Draws {
    /// The stream of a seed and a name: tasks with the same seed draw from different streams.
    pub(crate) fn new(seed: u64, name: &str) -> Draws {
        let mut draws = Draws(seed);
        for byte in name.bytes() {
            draws.0 ^= u64::from(byte);
            draws.next();
        }
        draws
    }

    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let x = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    /// A number below `bound`, which is not 0.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound as u64) as usize
    }

    /// A random item of `items`, which is not empty.
    pub(crate) fn pick<'a, T>(&mut self, items: &'a [T]) -> &'a T {
        &items[self.below(items.len())]
    }

    /// A number of `digits` decimal digits, the first of them not 0.
    pub(crate) fn number(&mut self, digits: u32) -> usize {
        let low = 10usize.pow(digits - 1);
        low + self.below(9 * low)
    }

    /// `count` different items.
    pub(crate) fn sample<'a, T>(&mut self, items: &'a [T], count: usize) -> Vec<&'a T> {
        let mut items: Vec<&T> = items.iter().collect();
        self.shuffle(&mut items);
        items.truncate(count);
        items
    }

    /// `count` different numbers of `digits` decimal digits.
    pub(crate) fn numbers(&mut self, digits: u32, count: usize) -> Vec<String> {
        let mut numbers: Vec<String> = Vec::new();
        while numbers.len() < count {
            let number = self.number(digits).to_string();
            if !numbers.contains(&number) {
                numbers.push(number);
            }
        }
        numbers
    }

    /// Shuffles items (Fisher and Yates).
    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (1..items.len()).rev() {
            items.swap(end, self.below(end + 1));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_repeat_and_differ_by_seed_and_name() {
        let first = |seed, name| Draws::new(seed, name).numbers(6, 8);
        assert_eq!(first(1, "a"), first(1, "a"));
        assert_ne!(first(1, "a"), first(2, "a"));
        assert_ne!(first(1, "a"), first(1, "b"));
    }

    #[test]
    fn draws_are_even_and_in_range() {
        let mut draws = Draws::new(3, "even");
        let mut counts = [0; 7];
        (0..7_000).for_each(|_| counts[draws.below(7)] += 1);
        assert!(counts.iter().all(|count| (880..1120).contains(count)), "{counts:?}");
        assert!((0..200).all(|_| (1_000..10_000).contains(&draws.number(4))));
        let mut order: Vec<usize> = (0..50).collect();
        draws.shuffle(&mut order);
        assert_ne!(order, (0..50).collect::<Vec<_>>());
        order.sort_unstable();
        assert_eq!(order, (0..50).collect::<Vec<_>>());
    }
}
