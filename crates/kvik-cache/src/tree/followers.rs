//! Followers: the tokens that followed the same tokens in a tier. An index of every position by the tokens before it.
//!
//! ```text
//!   … d e f │ g h i …     a place is after a position of a block; the four tokens up to it are its gram
//!         ▲
//!   latest[hash(namespace, c d e f)]      the most recently published place with this gram
//!   earlier[place]                        the place before it in time
//! ```
//!
//! Flat arrays that are never cleared: 8 bytes for each position, and a link for each block. Candidates are
//! compared with the current tokens of blocks, so an entry whose block was removed or replaced finds nothing; and a
//! namespace finds only its own blocks.
//!
//! The prefix tree has such an index, whose namespaces are ids, and the tier below RAM another, whose namespaces
//! are the identities of their roots and whose blocks are numbered by their slots.

use super::labels::Labels;
use crate::hash::Identity;
use crate::ids::{BLOCK_POSITIONS, BlockId, NamespaceId, Token};

/// Tokens that must match for a place to be found.
const GRAM: usize = 4;
/// Maximum number of places examined for a gram, including others with the same hash entry.
const LOOKS_MAX: usize = 12;
/// Maximum number of tokens compared before a place.
const SAME_MAX: usize = 32;

/// The tokens that follow a place, and how well the place matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Followers {
    /// The tokens after the place, at least one.
    pub tokens: Vec<Token>,
    /// Tokens before the place that match the end of the query: 4 to 32.
    pub same: usize,
}

/// The owner of blocks.
pub(crate) trait Owner: Copy + Eq {
    /// A seed that spreads the grams of different owners over the index.
    fn seed(self) -> u32;
}

impl Owner for NamespaceId {
    fn seed(self) -> u32 {
        self.0
    }
}

impl Owner for Identity {
    fn seed(self) -> u32 {
        let [a, b, c, d, ..] = self.0;
        u32::from_le_bytes([a, b, c, d])
    }
}

/// The tokens of blocks.
pub(crate) trait BlockText {
    /// The tokens of a block; empty if the block must not be found.
    fn tokens(&self, block: BlockId) -> &[Token];
}

impl BlockText for Labels {
    fn tokens(&self, block: BlockId) -> &[Token] {
        Labels::tokens(self, block)
    }
}

/// The index of the tokens of blocks.
#[derive(Debug)]
pub(crate) struct FollowerIndex<N> {
    /// Places by the hash of namespace and gram; 0 for none. The length is a power of two.
    latest: Vec<u32>,
    /// The place that each displaced from its entry, shape `[blocks × 16]`.
    earlier: Vec<u32>,
    /// Links of the blocks, up to the last one that was ever linked.
    links: Vec<Link<N>>,
}

/// The neighbours of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Link<N> {
    /// The namespace of the block; `None` if it must not be found.
    pub(crate) namespace: Option<N>,
    /// The block before it, of the same namespace, which exists as long as this one does.
    pub(crate) before: Option<BlockId>,
    /// The block most recently published after it; it may have been removed since.
    next: Option<BlockId>,
}

impl<N> Link<N> {
    pub(crate) const NONE: Link<N> = Link { namespace: None, before: None, next: None };
}

/// A place: after a number of positions of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Place {
    block: BlockId,
    positions: usize,
}

impl Place {
    /// The place as an entry of the index, above 0.
    fn entry(self) -> u32 {
        self.block.0 * BLOCK_POSITIONS as u32 + self.positions as u32
    }

    fn of(entry: u32) -> Option<Place> {
        let last = entry.checked_sub(1)?;
        let positions = last as usize % BLOCK_POSITIONS + 1;
        Some(Place { block: BlockId(last / BLOCK_POSITIONS as u32), positions })
    }
}

impl<N: Owner> FollowerIndex<N> {
    /// An index of `blocks` blocks; `None` when their positions cannot be numbered. Memory is touched as blocks are
    /// used.
    pub(crate) fn new(blocks: u32) -> Option<FollowerIndex<N>> {
        let positions = blocks.checked_mul(BLOCK_POSITIONS as u32)? as usize;
        Some(FollowerIndex {
            latest: vec![0; positions.next_power_of_two()],
            earlier: vec![0; positions],
            links: Vec::with_capacity(blocks as usize),
        })
    }

    /// Indexes blocks that were published after `before`, if a block of their namespace precedes them.
    pub(crate) fn publish(
        &mut self,
        namespace: N,
        mut before: Option<BlockId>,
        blocks: &[BlockId],
        text: &impl BlockText,
    ) {
        for &block in blocks {
            self.link(namespace, before, block);
            self.note(block, text);
            before = Some(block);
        }
    }

    /// Links a block: it is found by its tokens once they are [noted](FollowerIndex::note).
    pub(crate) fn link(&mut self, namespace: N, before: Option<BlockId>, block: BlockId) {
        if self.links.len() <= block.index() {
            self.links.resize(block.index() + 1, Link::NONE);
        }
        self.links[block.index()] = Link { namespace: Some(namespace), before, next: None };
        if let Some(before) = before {
            self.links[before.index()].next = Some(block);
        }
    }

    /// Indexes the tokens of a linked block; all blocks before it must be linked.
    pub(crate) fn note(&mut self, block: BlockId, text: &impl BlockText) {
        let Some(namespace) = self.get(block).namespace else { return };
        for positions in 1..=text.tokens(block).len() {
            let place = Place { block, positions };
            let Some(gram) = self.gram_before(place, text) else { continue };
            let slot = self.slot(namespace, &gram);
            let earlier = std::mem::replace(&mut self.latest[slot], place.entry());
            if earlier != place.entry() {
                self.earlier[place.entry() as usize - 1] = earlier;
            }
        }
    }

    fn gram_before(&self, place: Place, text: &impl BlockText) -> Option<[Token; GRAM]> {
        let (mut gram, mut before) = ([0; GRAM], self.tokens_before(place, text));
        for token in gram.iter_mut().rev() {
            *token = before.next()?;
        }
        Some(gram)
    }

    /// Notes that blocks were removed.
    pub(crate) fn remove(&mut self, blocks: impl IntoIterator<Item = BlockId>) {
        for block in blocks {
            if let Some(link) = self.links.get_mut(block.index()) {
                *link = Link::NONE;
            }
        }
    }

    /// The link of a block.
    pub(crate) fn get(&self, block: BlockId) -> Link<N> {
        self.links.get(block.index()).copied().unwrap_or(Link::NONE)
    }

    /// Returns at most `most` tokens that followed the end of `tokens` in a namespace: of the latest places the one
    /// with the longest common context.
    pub(crate) fn find(
        &self,
        namespace: N,
        tokens: &[Token],
        most: usize,
        text: &impl BlockText,
    ) -> Option<Followers> {
        let gram = tokens.last_chunk::<GRAM>()?;
        let mut best: Option<(usize, Place)> = None;
        let mut entry = self.latest[self.slot(namespace, gram)];
        for _ in 0..LOOKS_MAX {
            let Some(place) = Place::of(entry) else { break };
            let same = self.same_before(place, namespace, tokens, text);
            let is_better = same >= GRAM && best.is_none_or(|(most, _)| same > most);
            if is_better && self.tokens_after(place, text).next().is_some() {
                best = Some((same, place));
            }
            entry = self.earlier[entry as usize - 1];
        }
        let (same, place) = best?;
        Some(Followers { tokens: self.tokens_after(place, text).take(most).collect(), same })
    }

    /// Number of tokens before a place that match the end of `tokens`; 0 when the place no longer exists.
    fn same_before(&self, place: Place, namespace: N, tokens: &[Token], text: &impl BlockText) -> usize {
        let is_there = self.get(place.block).namespace == Some(namespace);
        if !is_there || place.positions > text.tokens(place.block).len() {
            return 0;
        }
        let pairs = self.tokens_before(place, text).zip(tokens.iter().rev());
        pairs.take(SAME_MAX).take_while(|(held, token)| held == *token).count()
    }

    /// The tokens before a place, backwards.
    fn tokens_before(&self, place: Place, text: &impl BlockText) -> impl Iterator<Item = Token> {
        let first = (place.block, place.positions);
        let runs = std::iter::successors(Some(first), |&(block, _)| {
            let before = self.get(block).before?;
            let count = text.tokens(before).len();
            (count > 0).then_some((before, count))
        });
        runs.flat_map(|(block, count)| text.tokens(block)[..count].iter().rev().copied())
    }

    /// The tokens after a place, as most recently published.
    fn tokens_after(&self, place: Place, text: &impl BlockText) -> impl Iterator<Item = Token> {
        let runs = std::iter::successors(Some((place.block, place.positions)), |&(block, _)| {
            let next = self.next(block)?;
            (!text.tokens(next).is_empty()).then_some((next, 0))
        });
        runs.flat_map(|(block, first)| text.tokens(block)[first..].iter().copied())
    }

    /// The block most recently published after another, if it still exists.
    fn next(&self, block: BlockId) -> Option<BlockId> {
        let next = self.get(block).next?;
        let link = self.get(next);
        (link.namespace.is_some() && link.before == Some(block)).then_some(next)
    }

    fn slot(&self, namespace: N, gram: &[Token; GRAM]) -> usize {
        let mix = |hash: u64, part: u32| (hash.rotate_left(5) ^ u64::from(part)).wrapping_mul(MIX);
        let hash = gram.iter().copied().fold(mix(0, namespace.seed()), mix);
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

    /// Publishes tokens in these blocks, as the beginning of a prompt.
    fn publish(
        index: &mut FollowerIndex<NamespaceId>,
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
        index.remove([BlockId(2)]);
        assert_eq!(index.find(OURS, &tokens[..20], 30, &labels).unwrap().tokens, tokens[20..32]);
        index.remove([BlockId(1), BlockId(0)]);
        assert_eq!(index.find(OURS, &tokens[..10], 9, &labels), None);
        // The same tokens in the same blocks, of another namespace: the old entries point there.
        publish(&mut index, &mut labels, THEIRS, 0, &tokens);
        assert_eq!(index.find(OURS, &tokens[..10], 9, &labels), None);
        assert_eq!(index.find(THEIRS, &tokens[..10], 9, &labels).unwrap().tokens, tokens[10..19]);
    }
}
