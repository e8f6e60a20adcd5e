//! What followed the same tokens in the tree: every position by the tokens before it.
//!
//! ```text
//!   … d e f │ g h i …     a place: after a position of a block; the four tokens up to it are its gram
//!         ▲
//!   latest[hash(namespace, c d e f)]      of those with the same gram the one published last
//!   earlier[place]                        the one before it
//! ```
//!
//! Flat arrays that are never cleared: 8 bytes for each position and 12 for each block. What is found is compared with
//! the labels, so an entry whose block has left the tree, or holds something else by now, finds nothing; and a
//! namespace finds its own blocks only.

use super::labels::Labels;
use crate::ids::{BLOCK_POSITIONS, BlockId, NamespaceId, Token};

/// Tokens that must be the same for a place to be found.
const GRAM: usize = 4;
/// Places that are looked at for one gram, and for others that share its entry.
const LOOKS_MAX: usize = 12;
/// Tokens that are compared at most before a place.
const SAME_MAX: usize = 32;

/// What follows a place, and how well the place fits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followers {
    /// The tokens behind it, at least one.
    pub tokens: Vec<Token>,
    /// Tokens before it that are the same as the last ones asked for: 4 to 32.
    pub same: usize,
}

/// The index of the tree's tokens.
#[derive(Debug)]
pub(crate) struct FollowerIndex {
    /// Places by the hash of namespace and gram; 0 is none. A power of two of them.
    latest: Vec<u32>,
    /// The place that each took the entry from, shape `[blocks × 16]`.
    earlier: Vec<u32>,
    /// Shape `[blocks]`.
    links: Vec<Link>,
}

/// Where a block stands.
#[derive(Debug, Clone, Copy)]
struct Link {
    /// Whose it is; none when it is not in the tree.
    namespace: Option<NamespaceId>,
    /// The block before it, of the same namespace. It is in the tree as long as this one is.
    before: Option<BlockId>,
    /// The block that was published last behind it; it may have left since.
    next: Option<BlockId>,
}

impl Link {
    const NONE: Link = Link { namespace: None, before: None, next: None };
}

/// After how many positions of which block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    block: BlockId,
    positions: usize,
}

impl Place {
    /// As an entry of the index, above 0.
    fn entry(self) -> u32 {
        self.block.0 * BLOCK_POSITIONS as u32 + self.positions as u32
    }

    fn of(entry: u32) -> Option<Place> {
        let last = entry.checked_sub(1)?;
        let positions = last as usize % BLOCK_POSITIONS + 1;
        Some(Place { block: BlockId(last / BLOCK_POSITIONS as u32), positions })
    }
}

impl FollowerIndex {
    /// An index of a pool of so many blocks; none when its positions cannot be numbered.
    pub(crate) fn new(blocks: u32) -> Option<FollowerIndex> {
        let positions = blocks.checked_mul(BLOCK_POSITIONS as u32)? as usize;
        Some(FollowerIndex {
            latest: vec![0; positions.next_power_of_two()],
            earlier: vec![0; positions],
            links: vec![Link::NONE; blocks as usize],
        })
    }

    /// Notes blocks that were published behind `before`, if anything of their namespace is before them.
    pub(crate) fn publish(
        &mut self,
        namespace: NamespaceId,
        mut before: Option<BlockId>,
        blocks: &[BlockId],
        labels: &Labels,
    ) {
        for &block in blocks {
            self.links[block.index()] = Link { namespace: Some(namespace), before, next: None };
            if let Some(before) = before {
                self.links[before.index()].next = Some(block);
            }
            for positions in 1..=labels.count(block) {
                self.note(Place { block, positions }, namespace, labels);
            }
            before = Some(block);
        }
    }

    fn note(&mut self, place: Place, namespace: NamespaceId, labels: &Labels) {
        let Some(gram) = self.gram_before(place, labels) else { return };
        let slot = self.slot(namespace, &gram);
        let earlier = std::mem::replace(&mut self.latest[slot], place.entry());
        self.earlier[place.entry() as usize - 1] = earlier;
    }

    fn gram_before(&self, place: Place, labels: &Labels) -> Option<[Token; GRAM]> {
        let (mut gram, mut before) = ([0; GRAM], self.tokens_before(place, labels));
        for token in gram.iter_mut().rev() {
            *token = before.next()?;
        }
        Some(gram)
    }

    /// Notes that blocks have left the tree.
    pub(crate) fn remove(&mut self, blocks: &[BlockId]) {
        blocks.iter().for_each(|block| self.links[block.index()] = Link::NONE);
    }

    /// What followed the last of `tokens` in a namespace: at most `most` tokens behind that place of the latest ones
    /// before which most tokens are the same.
    pub(crate) fn find(
        &self,
        namespace: NamespaceId,
        tokens: &[Token],
        most: usize,
        labels: &Labels,
    ) -> Option<Followers> {
        let gram = tokens.last_chunk::<GRAM>()?;
        let mut best: Option<(usize, Place)> = None;
        let mut entry = self.latest[self.slot(namespace, gram)];
        for _ in 0..LOOKS_MAX {
            let Some(place) = Place::of(entry) else { break };
            let same = self.same_before(place, namespace, tokens, labels);
            let is_better = same >= GRAM && best.is_none_or(|(most, _)| same > most);
            if is_better && self.tokens_after(place, labels).next().is_some() {
                best = Some((same, place));
            }
            entry = self.earlier[entry as usize - 1];
        }
        let (same, place) = best?;
        Some(Followers { tokens: self.tokens_after(place, labels).take(most).collect(), same })
    }

    /// Tokens before a place that are the same as the last of `tokens`; none when it is not there any more.
    fn same_before(&self, place: Place, namespace: NamespaceId, tokens: &[Token], labels: &Labels) -> usize {
        let is_there = self.links[place.block.index()].namespace == Some(namespace);
        if !is_there || place.positions > labels.count(place.block) {
            return 0;
        }
        let pairs = self.tokens_before(place, labels).zip(tokens.iter().rev());
        pairs.take(SAME_MAX).take_while(|(held, token)| held == *token).count()
    }

    /// The tokens before a place, the last one first.
    fn tokens_before(&self, place: Place, labels: &Labels) -> impl Iterator<Item = Token> {
        let first = (place.block, place.positions);
        let runs = std::iter::successors(Some(first), |&(block, _)| {
            let before = self.links[block.index()].before?;
            Some((before, labels.count(before)))
        });
        runs.flat_map(|(block, count)| labels.tokens(block)[..count].iter().rev().copied())
    }

    /// The tokens behind a place, as they were published last.
    fn tokens_after(&self, place: Place, labels: &Labels) -> impl Iterator<Item = Token> {
        let runs = std::iter::successors(Some((place.block, place.positions)), |&(block, _)| {
            Some((self.next(block)?, 0))
        });
        runs.flat_map(|(block, first)| labels.tokens(block)[first..].iter().copied())
    }

    /// The block that was published last behind one, while it is there.
    fn next(&self, block: BlockId) -> Option<BlockId> {
        let next = self.links[block.index()].next?;
        let link = &self.links[next.index()];
        (link.namespace.is_some() && link.before == Some(block)).then_some(next)
    }

    fn slot(&self, namespace: NamespaceId, gram: &[Token; GRAM]) -> usize {
        let mix = |hash: u64, part: u32| (hash.rotate_left(5) ^ u64::from(part)).wrapping_mul(MIX);
        let hash = gram.iter().copied().fold(mix(0, namespace.0), mix);
        (hash >> 32) as usize & (self.latest.len() - 1)
    }
}

/// An odd number whose bits are evenly mixed: 2^64 over the golden ratio.
const MIX: u64 = 0x9E37_79B9_7F4A_7C15;

#[cfg(test)]
mod tests {
    use super::*;

    const OURS: NamespaceId = NamespaceId(0);
    const THEIRS: NamespaceId = NamespaceId(1);

    /// Publishes tokens in these blocks, behind nothing.
    fn publish(
        index: &mut FollowerIndex,
        labels: &mut Labels,
        owner: NamespaceId,
        first: u32,
        tokens: &[Token],
    ) {
        let blocks: Vec<BlockId> =
            (first..).take(tokens.len().div_ceil(BLOCK_POSITIONS)).map(BlockId).collect();
        for (tokens, &block) in tokens.chunks(BLOCK_POSITIONS).zip(&blocks) {
            labels.set(block, crate::hash::Fingerprint::UNUSED, tokens);
        }
        index.publish(owner, None, &blocks, labels);
    }

    #[test]
    fn the_place_with_most_before_it_is_gone_on_from() {
        let (mut index, mut labels) = (FollowerIndex::new(16).unwrap(), Labels::new(16));
        let long: Vec<Token> = (100..140).collect();
        publish(&mut index, &mut labels, OURS, 0, &long);
        publish(&mut index, &mut labels, OURS, 4, &[7, 112, 113, 114, 115, 9, 9]);
        let found = index.find(OURS, &long[..16], 30, &labels).unwrap();
        assert_eq!((found.tokens, found.same), (long[16..].to_vec(), 16), "across blocks, to the end");
        let found = index.find(OURS, &[7, 112, 113, 114, 115], 1, &labels).unwrap();
        assert_eq!((found.tokens, found.same), (vec![9], 5));
        assert_eq!(index.find(OURS, &long, 3, &labels), None, "nothing follows");
        assert_eq!(index.find(OURS, &long[..3], 3, &labels), None, "too short");
    }

    #[test]
    fn nobody_finds_what_is_gone_or_anothers() {
        let (mut index, mut labels) = (FollowerIndex::new(4).unwrap(), Labels::new(4));
        let tokens: Vec<Token> = (0..40).collect();
        publish(&mut index, &mut labels, OURS, 0, &tokens);
        assert_eq!(index.find(THEIRS, &tokens[..20], 9, &labels), None);
        index.remove(&[BlockId(2)]);
        assert_eq!(index.find(OURS, &tokens[..20], 30, &labels).unwrap().tokens, tokens[20..32]);
        index.remove(&[BlockId(1), BlockId(0)]);
        assert_eq!(index.find(OURS, &tokens[..10], 9, &labels), None);
        // The same tokens in the same blocks, of another namespace: the old entries lead there.
        publish(&mut index, &mut labels, THEIRS, 0, &tokens);
        assert_eq!(index.find(OURS, &tokens[..10], 9, &labels), None);
        assert_eq!(index.find(THEIRS, &tokens[..10], 9, &labels).unwrap().tokens, tokens[10..19]);
    }
}
