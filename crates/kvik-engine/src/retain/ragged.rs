//! Storage of the retained positions of a sequence: every KV head has tiles of its own.
//!
//! ```text
//! head 0   [ shared blocks | t4 t9 t2 ]        positions 0..16 s, then retained ones, then all new ones
//! head 1   [ shared blocks | t7 ]
//! ```
//!
//! Tiles come from blocks that belong to this sequence alone. A block consists of tiles of every layer and head; any
//! tile can serve any head with the same shape and formats, so all tiles of an allocated block are used before the next
//! block is allocated.

use std::ops::Range;

use kvik_cache::retain::Decision;
use kvik_cache::{BLOCK_POSITIONS, BlockId};
use kvik_kernels::{HeadTail, KvLayout};

use kvik_model::batch::LayerTails;

/// The storage of one sequence after the blocks it shares, by head.
#[derive(Debug, Clone)]
pub struct Ragged {
    /// Leading blocks of the sequence that all heads read whole.
    shared: usize,
    /// Tokens of the sequence at the last pass; later positions are stored by every head.
    at: usize,
    /// `[layers][kv_heads]`
    heads: Vec<Vec<HeadStorage>>,
    /// Free tiles of the sequence's blocks, `[classes]`.
    free: Vec<Vec<u32>>,
    /// Whether its tiles are shared with other sequences, so that the last tile of a head must be copied before the
    /// head stores another position in it.
    frozen: bool,
}

/// Copies of the last tiles of a layer's heads: the stored positions, and the target tiles. Empty for heads whose last
/// tile is full.
#[derive(Debug, Clone, Default)]
pub struct Copies {
    /// `[kv_heads]`, indices among the positions that the head stores.
    pub positions: Vec<Vec<u32>>,
    /// `[kv_heads]`
    pub to: Vec<Vec<u32>>,
}

/// The storage of one KV head.
#[derive(Debug, Clone, Default)]
struct HeadStorage {
    /// Retained positions, ascending, including those in shared blocks.
    kept: Vec<u32>,
    tiles: Vec<u32>,
}

/// Numbers of positions that heads store: minimum, maximum and total.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Extent {
    /// Of the head that stores fewest.
    pub smallest: usize,
    /// Of the head that stores most.
    pub largest: usize,
    /// Of all heads of all layers.
    pub total: usize,
}

/// The tails of a sequence in the form that a batch takes.
#[derive(Debug)]
pub struct TailViews<'a> {
    blocks: usize,
    heads: Vec<Vec<HeadTail<'a>>>,
}

impl Ragged {
    /// Storage of a sequence that retains, at `at` tokens, the positions `kept`, `[layers][kv_heads]`. Its first
    /// `shared` blocks stay as they are; tiles for the other positions come from `blocks`, at least
    /// [`blocks_needed`](Ragged::blocks_needed).
    pub fn new(
        layout: &KvLayout,
        shared: usize,
        at: usize,
        kept: Vec<Vec<Vec<u32>>>,
        blocks: &[BlockId],
    ) -> Ragged {
        let heads = kept
            .into_iter()
            .map(|heads| heads.into_iter().map(|kept| HeadStorage { kept, tiles: Vec::new() }).collect());
        let free = vec![Vec::new(); layout.layers().len()];
        let mut ragged = Ragged { shared, at, heads: heads.collect(), free, frozen: false };
        blocks.iter().for_each(|&block| ragged.add_block(layout, block));
        ragged.reserve(layout, at);
        ragged
    }

    /// Number of blocks whose tiles hold `counts` positions, `[layers][kv_heads]`.
    pub fn blocks_needed(layout: &KvLayout, counts: &[Vec<usize>]) -> usize {
        let layers = layout.layers();
        let (mut needed, mut given) = (vec![0; layers.len()], vec![0; layers.len()]);
        for (layer, counts) in counts.iter().enumerate() {
            let class = layout.tile_class(layer);
            needed[class] += counts.iter().map(|count| count.div_ceil(BLOCK_POSITIONS)).sum::<usize>();
            given[class] += layers[layer].kv_heads;
        }
        needed.iter().zip(given).map(|(needed, given)| needed.div_ceil(given.max(1))).max().unwrap_or(0)
    }

    /// Number of leading blocks of which every head of a decision retains all positions: no others can be shared.
    pub fn whole_blocks(decision: &Decision) -> usize {
        let leading =
            |kept: &Vec<u32>| kept.iter().zip(0_u32..).take_while(|&(&index, at)| index == at).count();
        decision.kept.iter().flatten().map(leading).min().unwrap_or(0) / BLOCK_POSITIONS
    }

    /// Number of positions after the shared blocks that each head stores of a decision, `[layers][kv_heads]`. There are
    /// no more shared blocks than [`whole_blocks`](Ragged::whole_blocks).
    pub fn counts(decision: &Decision, shared: usize) -> Vec<Vec<usize>> {
        let count = |kept: &Vec<u32>| kept.len() - shared * BLOCK_POSITIONS;
        decision.kept.iter().map(|heads| heads.iter().map(count).collect()).collect()
    }

    /// Number of blocks to add so that the first `tokens` positions of the sequence fit.
    pub fn blocks_missing(&self, layout: &KvLayout, tokens: usize) -> usize {
        let (mut missing, mut given) = (vec![0; self.free.len()], vec![0; self.free.len()]);
        for (layer, heads) in self.heads.iter().enumerate() {
            let class = layout.tile_class(layer);
            given[class] += heads.len();
            let tiles =
                heads.iter().map(|head| self.tiles_for(head, tokens).saturating_sub(head.tiles.len()));
            let copies = heads.iter().filter(|head| self.frozen && head.kept.len() % BLOCK_POSITIONS > 0);
            missing[class] += tiles.sum::<usize>() + copies.count();
        }
        let classes = missing.iter().zip(&self.free).zip(given);
        classes
            .map(|((&missing, free), given)| missing.saturating_sub(free.len()).div_ceil(given.max(1)))
            .max()
            .unwrap_or(0)
    }

    /// Marks the blocks as shared with other sequences: none of their tiles is written any more.
    pub fn frozen(mut self) -> Ragged {
        self.free.iter_mut().for_each(Vec::clear);
        self.frozen = true;
        self
    }

    /// Whether its tiles are shared.
    pub fn is_frozen(&self) -> bool {
        self.frozen
    }

    /// The copies needed before it may grow, `[layers]`; their target tiles come from blocks that were added.
    ///
    /// # Panics
    /// If blocks are missing.
    pub fn copies(&mut self, layout: &KvLayout) -> Vec<Copies> {
        let free = &mut self.free;
        let layers = self.heads.iter().enumerate().map(|(layer, heads)| {
            let class = layout.tile_class(layer);
            let mut copies = Copies::default();
            for head in heads {
                let (stored, partial) = (head.kept.len(), head.kept.len() % BLOCK_POSITIONS);
                copies.positions.push(((stored - partial) as u32..stored as u32).collect());
                let tile = (partial > 0).then(|| free[class].pop().expect("blocks were added for copies"));
                copies.to.push(tile.into_iter().collect());
            }
            copies
        });
        layers.collect()
    }

    /// Replaces the shared tiles by their copies, which the caller has made: the sequence may grow.
    pub fn thaw(&mut self, copies: Vec<Copies>) {
        for (heads, copies) in self.heads.iter_mut().zip(copies) {
            for (head, to) in heads.iter_mut().zip(copies.to) {
                if let (Some(last), Some(&tile)) = (head.tiles.last_mut(), to.first()) {
                    *last = tile;
                }
            }
        }
        self.frozen = false;
    }

    /// Adds a block that belongs to this sequence alone.
    pub fn add_block(&mut self, layout: &KvLayout, block: BlockId) {
        for (layer, shape) in layout.layers().iter().enumerate() {
            let tiles = (0..shape.kv_heads).map(|head| layout.tile(block.0, layer, head));
            self.free[layout.tile_class(layer)].extend(tiles);
        }
    }

    /// Allocates tiles to every head for the first `tokens` positions of the sequence.
    ///
    /// # Panics
    /// If blocks are missing.
    pub fn reserve(&mut self, layout: &KvLayout, tokens: usize) {
        for layer in 0..self.heads.len() {
            let class = layout.tile_class(layer);
            for head in 0..self.heads[layer].len() {
                let tiles = self.tiles_for(&self.heads[layer][head], tokens);
                while self.heads[layer][head].tiles.len() < tiles {
                    let tile = self.free[class].pop().expect("blocks were added for all positions");
                    self.heads[layer][head].tiles.push(tile);
                }
            }
        }
    }

    /// The tails in the form that batches take.
    pub fn views(&self) -> TailViews<'_> {
        let heads = self.heads.iter().map(|heads| heads.iter().map(|head| self.tail(head)).collect());
        TailViews { blocks: self.shared, heads: heads.collect() }
    }

    /// Number of leading blocks of the sequence that all heads read whole.
    pub fn shared(&self) -> usize {
        self.shared
    }

    /// The positions that the heads of a layer store when the sequence has `tokens`.
    pub fn positions(&self, layer: usize, tokens: usize) -> Vec<Vec<u32>> {
        let new = self.at as u32..tokens as u32;
        self.heads[layer].iter().map(|head| head.kept.iter().copied().chain(new.clone()).collect()).collect()
    }

    /// The position that each head of a layer stores at `index` when the sequence has `tokens`, if it stores as many.
    pub fn positions_at(&self, layer: usize, index: usize, tokens: usize) -> Vec<Option<u32>> {
        let of_head = |HeadStorage { kept, .. }: &HeadStorage| {
            let new = self.at + index.saturating_sub(kept.len());
            kept.get(index).copied().or_else(|| (new < tokens).then_some(new as u32))
        };
        self.heads[layer].iter().map(of_head).collect()
    }

    /// Numbers of positions that the heads store when the sequence has `tokens`.
    pub fn stored(&self, tokens: usize) -> Extent {
        let stored = self.heads.iter().flatten().map(|head| self.stored_by(head, tokens));
        stored.fold(Extent { smallest: usize::MAX, ..Extent::default() }, |all, stored| Extent {
            smallest: all.smallest.min(stored),
            largest: all.largest.max(stored),
            total: all.total + stored,
        })
    }

    /// Number of positions of all heads that were dropped.
    pub fn dropped(&self) -> u64 {
        self.heads.iter().flatten().map(|head| (self.at - head.kept.len()) as u64).sum()
    }

    /// The positions that every head retained at the last pass, `[layers][kv_heads]`.
    pub fn kept(&self) -> Vec<Vec<Vec<u32>>> {
        self.heads.iter().map(|heads| heads.iter().map(|head| head.kept.clone()).collect()).collect()
    }

    /// As [`kept`](Ragged::kept), as ranges; `None` if there are more than `max`.
    pub fn kept_ranges(&self, max: usize) -> Option<Vec<Vec<Vec<Range<u32>>>>> {
        let mut left = max;
        let mut of_head = |head: &HeadStorage| {
            let ranges = head.kept.chunk_by(|a, b| a + 1 == *b).map(|run| run[0]..run[run.len() - 1] + 1);
            let ranges: Vec<Range<u32>> = ranges.take(left + 1).collect();
            left = left.checked_sub(ranges.len())?;
            Some(ranges)
        };
        self.heads.iter().map(|heads| heads.iter().map(&mut of_head).collect()).collect()
    }

    /// The tiles of a layer's heads.
    pub fn tiles(&self, layer: usize) -> Vec<&[u32]> {
        self.heads[layer].iter().map(|head| &head.tiles[..]).collect()
    }

    fn tail<'a>(&self, head: &'a HeadStorage) -> HeadTail<'a> {
        HeadTail { tiles: &head.tiles, dropped: (self.at - head.kept.len()) as u32 }
    }

    fn stored_by(&self, head: &HeadStorage, tokens: usize) -> usize {
        head.kept.len() + (tokens - self.at)
    }

    fn tiles_for(&self, head: &HeadStorage, tokens: usize) -> usize {
        self.stored_by(head, tokens).div_ceil(BLOCK_POSITIONS).saturating_sub(self.shared)
    }
}

impl<'a> TailViews<'a> {
    /// The tails of each layer after the shared blocks.
    pub fn layers(&'a self) -> Vec<LayerTails<'a>> {
        self.heads.iter().map(|heads| LayerTails { blocks: self.blocks, heads }).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kept_positions_are_shown_as_ranges_unless_they_are_too_many() {
        let head = |kept: &[u32]| HeadStorage { kept: kept.to_vec(), tiles: Vec::new() };
        let heads = vec![vec![head(&[0, 1, 2, 7]), head(&[])], vec![head(&[5, 8]), head(&[3, 4, 9, 10])]];
        let ragged = Ragged { shared: 0, at: 11, heads, free: Vec::new(), frozen: false };
        let expect =
            [[vec![0..3, 7..8], vec![]], [vec![5..6, 8..9], vec![3..5, 9..11]]].map(Vec::from).to_vec();
        assert_eq!(ragged.kept_ranges(6), Some(expect));
        assert_eq!(ragged.kept_ranges(5), None);
    }
}
