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
    queue: Queue,
}

/// Places of possible merges by rank, then from left to right.
///
/// A long word has many places and few ranks, and the places of one rank are found nearly in order:
/// one list per rank is several times faster than a heap of all places.
#[derive(Debug, Default)]
struct Queue {
    ranks: BinaryHeap<Reverse<u32>>,
    places: FxHashMap<u32, Places>,
}

/// The places of one rank.
#[derive(Debug, Default)]
struct Places {
    /// Ascending; those before `at` are done.
    ordered: Vec<u32>,
    at: usize,
    /// Found too late to be put in order.
    late: BinaryHeap<Reverse<u32>>,
}

impl Queue {
    fn push(&mut self, rank: u32, place: u32) {
        let places = self.places.entry(rank).or_insert_with(|| {
            self.ranks.push(Reverse(rank));
            Places::default()
        });
        match places.ordered.last() {
            Some(&last) if last > place => places.late.push(Reverse(place)),
            _ => places.ordered.push(place),
        }
    }

    fn pop(&mut self) -> Option<(u32, u32)> {
        loop {
            let &Reverse(rank) = self.ranks.peek()?;
            let found = self.places.get_mut(&rank).and_then(Places::pop);
            if let Some(place) = found {
                return Some((rank, place));
            }
            self.places.remove(&rank);
            self.ranks.pop();
        }
    }
}

impl Places {
    fn pop(&mut self) -> Option<u32> {
        let ordered = self.ordered.get(self.at).copied();
        let late = self.late.peek().map(|&Reverse(place)| place);
        match (ordered, late) {
            (Some(ordered), Some(late)) if late < ordered => self.late.pop().map(|Reverse(place)| place),
            (None, Some(_)) => self.late.pop().map(|Reverse(place)| place),
            (ordered, _) => {
                self.at += 1;
                ordered
            }
        }
    }
}

impl Merger {
    /// Merges `symbols` in place. Symbols are never [`u32::MAX`].
    pub(super) fn merge(&mut self, symbols: &mut Vec<u32>, rule: &impl Pairs) {
        if symbols.len() <= SCAN_MAX {
            self.merge_by_scan(symbols, rule);
        } else {
            self.merge_by_queue(symbols, rule);
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

    fn merge_by_queue(&mut self, symbols: &mut Vec<u32>, rule: &impl Pairs) {
        let len = u32::try_from(symbols.len()).expect("no request has 4 GiB of text");
        self.prev.clear();
        self.prev.extend((0..len).map(|i| i.wrapping_sub(1)));
        self.next.clear();
        self.next.extend(1..=len);
        (0..len).for_each(|left| self.offer(left, symbols, rule));
        while let Some((rank, left)) = self.queue.pop() {
            // The place may be stale: its symbols have been merged with others since.
            let Some((right, merged)) = self.pair(left, symbols, rule, rank) else { continue };
            symbols[left as usize] = merged;
            symbols[right as usize] = GONE;
            let (before, after) = (self.prev[left as usize], self.next[right as usize]);
            self.next[left as usize] = after;
            if after < len {
                self.prev[after as usize] = left;
            }
            if before < len {
                self.offer(before, symbols, rule);
            }
            self.offer(left, symbols, rule);
        }
        symbols.retain(|&symbol| symbol != GONE);
    }

    /// The right neighbour of `left` and what both become, if they merge at this rank now.
    fn pair(&self, left: u32, symbols: &[u32], rule: &impl Pairs, rank: u32) -> Option<(u32, u32)> {
        let right = self.next[left as usize];
        let pair = (symbols[left as usize], *symbols.get(right as usize)?);
        if pair.0 == GONE {
            return None;
        }
        let (now, merged) = rule.merge(pair.0, pair.1)?;
        (now == rank).then_some((right, merged))
    }

    fn offer(&mut self, left: u32, symbols: &[u32], rule: &impl Pairs) {
        let right = self.next[left as usize] as usize;
        let Some(&right) = symbols.get(right) else { return };
        if let Some((rank, _)) = rule.merge(symbols[left as usize], right) {
            self.queue.push(rank, left);
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
        fn scan_and_queue_agree(symbols in prop::collection::vec(0u32..20, 2..200)) {
            let (mut scanned, mut queued) = (symbols.clone(), symbols);
            Merger::default().merge_by_scan(&mut scanned, &Sums);
            Merger::default().merge_by_queue(&mut queued, &Sums);
            prop_assert_eq!(scanned, queued);
        }
    }
}
