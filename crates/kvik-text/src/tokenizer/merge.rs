//! Merges adjacent symbols, the best pair first, until no pair is left.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rustc_hash::FxHashMap;

use super::TokenizerError;
use super::vocab::Vocab;

/// Words of up to this many symbols are merged by scanning all pairs each time, which is faster there.
const SCAN_MAX: usize = 24;

/// Numbers from here on are not symbols: the position belongs to a longer symbol, see [`Chain`].
pub(super) const NO_SYMBOL: u32 = 3 << 30;

/// Maximum symbols of a word, so that the lengths of merged symbols fit above [`NO_SYMBOL`].
const LEN_MAX: usize = 1 << 30;

/// Positions in one piece of a queue.
const PIECE: usize = 4096;

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

    /// A table from pairs of token texts in order of rank. Skips merges whose parts or result are not in the
    /// vocabulary, because they can never apply.
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

/// Scratch buffers, reused between words.
#[derive(Debug, Default)]
pub(super) struct Merger {
    pairs: Vec<Option<(u32, u32)>>,
    queue: Queue,
}

/// The symbols of a word while it is merged, each at its first position.
///
/// A symbol of several positions stores its length at the second and at the last, marked by [`NO_SYMBOL`]:
/// neighbours are found in both directions without additional memory.
struct Chain<'s>(&'s mut [u32]);

impl Chain<'_> {
    fn len_of(number: u32) -> Option<usize> {
        number.checked_sub(NO_SYMBOL).map(|len| len as usize)
    }

    /// The symbol that starts at a position, if any.
    fn symbol(&self, at: usize) -> Option<u32> {
        self.0.get(at).copied().filter(|&symbol| symbol < NO_SYMBOL)
    }

    /// Start of the symbol after the one at `at`, or the end.
    fn after(&self, at: usize) -> usize {
        at + self.0.get(at + 1).and_then(|&number| Chain::len_of(number)).unwrap_or(1)
    }

    /// Start of the symbol before the one at `at`.
    fn before(&self, at: usize) -> Option<usize> {
        let last = at.checked_sub(1)?;
        Some(at - Chain::len_of(self.0[last]).unwrap_or(1))
    }

    /// Replaces the symbol at `at` and its successor at `right` with `merged`.
    fn merge(&mut self, at: usize, right: usize, merged: u32) {
        let end = self.after(right);
        self.0[at] = merged;
        for gone in [at + 1, right, end - 1] {
            self.0[gone] = NO_SYMBOL + (end - at) as u32;
        }
    }
}

/// Positions of possible merges by rank, then from left to right.
///
/// A long word has many positions and few ranks, and the positions of one rank are found nearly in order:
/// one list per rank is several times faster than a heap of all positions.
#[derive(Debug, Default)]
struct Queue {
    ranks: BinaryHeap<Reverse<u32>>,
    positions: FxHashMap<u32, RankPositions>,
}

/// The positions of one rank: in pieces, so that processed ones are freed while the rest grows.
#[derive(Debug, Default)]
struct RankPositions {
    /// Ascending; those before `at` are processed.
    ordered: Vec<u32>,
    at: usize,
    /// Further pieces, once `ordered` is full.
    more: VecDeque<Vec<u32>>,
    /// Positions found out of order.
    late: BinaryHeap<Reverse<u32>>,
}

impl Queue {
    fn push(&mut self, rank: u32, position: u32) {
        let positions = self.positions.entry(rank).or_insert_with(|| {
            self.ranks.push(Reverse(rank));
            RankPositions::default()
        });
        positions.push(position);
    }

    fn pop(&mut self) -> Option<(u32, u32)> {
        loop {
            let &Reverse(rank) = self.ranks.peek()?;
            let found = self.positions.get_mut(&rank).and_then(RankPositions::pop);
            if let Some(position) = found {
                return Some((rank, position));
            }
            self.positions.remove(&rank);
            self.ranks.pop();
        }
    }
}

impl RankPositions {
    fn push(&mut self, position: u32) {
        let piece = self.more.back_mut().unwrap_or(&mut self.ordered);
        match piece.last() {
            Some(&last) if last > position => self.late.push(Reverse(position)),
            _ if piece.len() < PIECE => piece.push(position),
            _ => self.more.push_back(vec![position]),
        }
    }

    fn pop(&mut self) -> Option<u32> {
        if self.at == self.ordered.len()
            && let Some(piece) = self.more.pop_front()
        {
            (self.ordered, self.at) = (piece, 0);
        }
        let ordered = self.ordered.get(self.at).copied();
        let late = self.late.peek().map(|&Reverse(position)| position);
        match (ordered, late) {
            (Some(ordered), Some(late)) if late < ordered => {
                self.late.pop().map(|Reverse(position)| position)
            }
            (None, Some(_)) => self.late.pop().map(|Reverse(position)| position),
            (ordered, _) => {
                self.at += usize::from(ordered.is_some());
                ordered
            }
        }
    }
}

impl Merger {
    /// Merges `symbols` in position. Symbols are below [`NO_SYMBOL`].
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
        assert!(symbols.len() < LEN_MAX, "no request has a gibibyte of text");
        let mut chain = Chain(symbols);
        (0..chain.0.len()).for_each(|left| self.offer(left, &chain, rule));
        while let Some((rank, left)) = self.queue.pop() {
            // The entry may be stale: its symbols may have been merged with others since.
            let Some((now, right, merged)) = pair(left as usize, &chain, rule) else { continue };
            if now != rank {
                continue;
            }
            chain.merge(left as usize, right, merged);
            if let Some(before) = chain.before(left as usize) {
                self.offer(before, &chain, rule);
            }
            self.offer(left as usize, &chain, rule);
        }
        symbols.retain(|&symbol| symbol < NO_SYMBOL);
    }

    fn offer(&mut self, left: usize, chain: &Chain<'_>, rule: &impl Pairs) {
        if let Some((rank, ..)) = pair(left, chain, rule) {
            self.queue.push(rank, left as u32);
        }
    }
}

/// Rank of the merge of the symbol at `left` with the next one, position of the next one, and merged symbol.
fn pair(left: usize, chain: &Chain<'_>, rule: &impl Pairs) -> Option<(u32, usize, u32)> {
    let symbol = chain.symbol(left)?;
    let right = chain.after(left);
    let (rank, merged) = rule.merge(symbol, chain.symbol(right)?)?;
    Some((rank, right, merged))
}

/// Index of the pair of lowest rank, the leftmost among equals.
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
