//! Merging: neighbouring symbols become one until no pair is left, the best pair first.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

use rustc_hash::FxHashMap;

use super::TokenizerError;
use super::vocab::Vocab;

/// Words up to this many symbols are merged by looking at all pairs each time, which is faster there.
const SCAN_MAX: usize = 24;

/// From here on a number is no symbol: its place belongs to a longer one, see [`Chain`].
pub(super) const NO_SYMBOL: u32 = 3 << 30;

/// Longest word, in symbols; the lengths of merged symbols must fit below [`NO_SYMBOL`].
const LEN_MAX: usize = 1 << 30;

/// Places in one piece of a queue.
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
    queue: Queue,
}

/// The symbols of a word while it is merged, each at the place of its first one.
///
/// A symbol of several places has its length in the second and in the last, marked by [`NO_SYMBOL`]:
/// neighbours are found in both directions without a byte beside the symbols themselves.
struct Chain<'s>(&'s mut [u32]);

impl Chain<'_> {
    fn len_of(number: u32) -> Option<usize> {
        number.checked_sub(NO_SYMBOL).map(|len| len as usize)
    }

    /// The symbol at a place, unless a longer one has taken it.
    fn symbol(&self, at: usize) -> Option<u32> {
        self.0.get(at).copied().filter(|&symbol| symbol < NO_SYMBOL)
    }

    /// Where the symbol after that at `at` begins, or the end.
    fn after(&self, at: usize) -> usize {
        at + self.0.get(at + 1).and_then(|&number| Chain::len_of(number)).unwrap_or(1)
    }

    /// Where the symbol before that at `at` begins.
    fn before(&self, at: usize) -> Option<usize> {
        let last = at.checked_sub(1)?;
        Some(at - Chain::len_of(self.0[last]).unwrap_or(1))
    }

    /// Makes `merged` of the symbol at `at` and the one at `right`, which is after it.
    fn merge(&mut self, at: usize, right: usize, merged: u32) {
        let end = self.after(right);
        self.0[at] = merged;
        for gone in [at + 1, right, end - 1] {
            self.0[gone] = NO_SYMBOL + (end - at) as u32;
        }
    }
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

/// The places of one rank: in pieces, so that what is done is freed while the rest grows.
#[derive(Debug, Default)]
struct Places {
    /// Ascending; those before `at` are done.
    ordered: Vec<u32>,
    at: usize,
    /// What comes after `ordered`, once that is a whole piece.
    more: VecDeque<Vec<u32>>,
    /// Found too late to be put in order.
    late: BinaryHeap<Reverse<u32>>,
}

impl Queue {
    fn push(&mut self, rank: u32, place: u32) {
        let places = self.places.entry(rank).or_insert_with(|| {
            self.ranks.push(Reverse(rank));
            Places::default()
        });
        places.push(place);
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
    fn push(&mut self, place: u32) {
        let piece = self.more.back_mut().unwrap_or(&mut self.ordered);
        match piece.last() {
            Some(&last) if last > place => self.late.push(Reverse(place)),
            _ if piece.len() < PIECE => piece.push(place),
            _ => self.more.push_back(vec![place]),
        }
    }

    fn pop(&mut self) -> Option<u32> {
        if self.at == self.ordered.len()
            && let Some(piece) = self.more.pop_front()
        {
            (self.ordered, self.at) = (piece, 0);
        }
        let ordered = self.ordered.get(self.at).copied();
        let late = self.late.peek().map(|&Reverse(place)| place);
        match (ordered, late) {
            (Some(ordered), Some(late)) if late < ordered => self.late.pop().map(|Reverse(place)| place),
            (None, Some(_)) => self.late.pop().map(|Reverse(place)| place),
            (ordered, _) => {
                self.at += usize::from(ordered.is_some());
                ordered
            }
        }
    }
}

impl Merger {
    /// Merges `symbols` in place. Symbols are below [`NO_SYMBOL`].
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
            // The place may be stale: its symbols have been merged with others since.
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

/// The rank at which the symbol at `left` merges with the next one, where that is, and what both become.
fn pair(left: usize, chain: &Chain<'_>, rule: &impl Pairs) -> Option<(u32, usize, u32)> {
    let symbol = chain.symbol(left)?;
    let right = chain.after(left);
    let (rank, merged) = rule.merge(symbol, chain.symbol(right)?)?;
    Some((rank, right, merged))
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
