//! Merging: neighbouring symbols become one until no pair is left, the best pair first.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rustc_hash::FxHashMap;

use super::TokenizerError;
use super::vocab::Vocab;

/// Words up to this many symbols are merged by looking at all pairs each time, which is faster there.
const SCAN_MAX: usize = 24;

/// Marks a symbol that was merged into its left neighbour.
const GONE: u32 = u32::MAX;

/// A rule for pairs: rank (lowest first; equal ranks go left to right) and the merged symbol.
pub(super) trait Pairs {
    fn merge(&self, left: u32, right: u32) -> Option<(u32, u32)>;
}

/// A rule as a table: `(left, right)` to `(rank, merged)`.
#[derive(Debug)]
pub(super) struct Ranks(FxHashMap<(u32, u32), (u32, u32)>);

impl Ranks {
    pub(super) fn new(map: FxHashMap<(u32, u32), (u32, u32)>) -> Ranks {
        Ranks(map)
    }

    /// From pairs of token texts, the earliest first. Merges whose parts or result are not in the
    /// vocabulary can never be used and are left out.
    pub(super) fn from_merges<'a>(
        vocab: &Vocab,
        merges: impl Iterator<Item = (&'a str, &'a str)>,
    ) -> Result<Ranks, TokenizerError> {
        let mut map = FxHashMap::default();
        let mut merged_text = String::new();
        for (rank, (left, right)) in merges.enumerate() {
            let rank = u32::try_from(rank).map_err(|_| TokenizerError::TooManyMerges)?;
            merged_text.clear();
            merged_text.push_str(left);
            merged_text.push_str(right);
            let ids = (vocab.id(left), vocab.id(right), vocab.id(&merged_text));
            if let (Some(left), Some(right), Some(merged)) = ids {
                map.entry((left, right)).or_insert((rank, merged));
            }
        }
        Ok(Ranks(map))
    }
}

impl Pairs for Ranks {
    fn merge(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        self.0.get(&(left, right)).copied()
    }
}

/// Scratch space that is kept between words.
#[derive(Debug, Default)]
pub(super) struct Merger {
    pairs: Vec<Option<(u32, u32)>>,
    prev: Vec<u32>,
    next: Vec<u32>,
    heap: BinaryHeap<Reverse<Candidate>>,
}

/// A possible merge. Ordered by rank, then position.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    rank: u32,
    left: u32,
    right: u32,
    /// The pair it was found for; it is stale when the symbols have changed.
    symbols: (u32, u32),
    merged: u32,
}

impl Merger {
    /// Merges `symbols` in place. Symbols are never [`u32::MAX`].
    pub(super) fn merge(&mut self, symbols: &mut Vec<u32>, rule: &impl Pairs) {
        if symbols.len() <= SCAN_MAX {
            self.merge_by_scan(symbols, rule);
        } else {
            self.merge_by_heap(symbols, rule);
        }
    }

    fn merge_by_scan(&mut self, symbols: &mut Vec<u32>, rule: &impl Pairs) {
        self.pairs.clear();
        self.pairs.extend(symbols.windows(2).map(|pair| rule.merge(pair[0], pair[1])));
        while let Some(best) = lowest(&self.pairs) {
            let (_, merged) = self.pairs[best].expect("the best pair exists");
            symbols[best] = merged;
            symbols.remove(best + 1);
            self.pairs.remove(best);
            if best > 0 {
                self.pairs[best - 1] = rule.merge(symbols[best - 1], merged);
            }
            if best < self.pairs.len() {
                self.pairs[best] = rule.merge(merged, symbols[best + 1]);
            }
        }
    }

    fn merge_by_heap(&mut self, symbols: &mut Vec<u32>, rule: &impl Pairs) {
        let len = u32::try_from(symbols.len()).expect("encode() cuts text into pieces below 4 GiB");
        self.prev.clear();
        self.prev.extend((0..len).map(|i| i.wrapping_sub(1)));
        self.next.clear();
        self.next.extend(1..=len);
        self.heap.clear();
        for left in 0..len - 1 {
            self.offer(left, left + 1, symbols, rule);
        }
        while let Some(Reverse(best)) = self.heap.pop() {
            let (left, right) = (best.left as usize, best.right as usize);
            if (symbols[left], symbols[right]) != best.symbols || self.next[left] != best.right {
                continue;
            }
            symbols[left] = best.merged;
            symbols[right] = GONE;
            let (before, after) = (self.prev[left], self.next[right]);
            self.next[left] = after;
            if after < len {
                self.prev[after as usize] = best.left;
                self.offer(best.left, after, symbols, rule);
            }
            if before < len {
                self.offer(before, best.left, symbols, rule);
            }
        }
        symbols.retain(|&symbol| symbol != GONE);
    }

    fn offer(&mut self, left: u32, right: u32, symbols: &[u32], rule: &impl Pairs) {
        let pair = (symbols[left as usize], symbols[right as usize]);
        if let Some((rank, merged)) = rule.merge(pair.0, pair.1) {
            self.heap.push(Reverse(Candidate { rank, left, right, symbols: pair, merged }));
        }
    }
}

/// Index of the pair of lowest rank, the leftmost where several are equal.
fn lowest(pairs: &[Option<(u32, u32)>]) -> Option<usize> {
    let ranked = pairs.iter().enumerate().filter_map(|(i, pair)| pair.map(|(rank, _)| (rank, i)));
    ranked.min().map(|(_, i)| i)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Merges symbols whose sum is below 40; ranks collide often.
    struct Sums;

    impl Pairs for Sums {
        fn merge(&self, left: u32, right: u32) -> Option<(u32, u32)> {
            let sum = left + right;
            (sum < 40 && !sum.is_multiple_of(3)).then_some((sum * 7 % 11, sum))
        }
    }

    proptest! {
        #[test]
        fn scan_and_heap_agree(symbols in prop::collection::vec(0u32..20, 2..200)) {
            let (mut scanned, mut heaped) = (symbols.clone(), symbols);
            Merger::default().merge_by_scan(&mut scanned, &Sums);
            Merger::default().merge_by_heap(&mut heaped, &Sums);
            prop_assert_eq!(scanned, heaped);
        }
    }
}
