//! The arena: all blocks of a cache in one mapping.

use std::io;

use super::write::{Position, writer};
use super::{BLOCK_POSITIONS, KvLayout};
use crate::memory::Memory;
use crate::{Isa, Pool};

/// Blocks of stored keys and values, addressed by number.
///
/// The arena knows no owners: who may write which block is decided elsewhere.
/// Memory is taken from the system as blocks are first written.
pub struct KvArena {
    layout: KvLayout,
    blocks: usize,
    memory: Memory,
}

impl KvArena {
    /// Maps `blocks` blocks.
    ///
    /// # Errors
    /// When the system has no address space left, or there are more than 2^32 tiles.
    ///
    /// # Panics
    /// When the head dimension is not in [`KvLayout::HEAD_DIMS`], or a count of the layout is 0.
    pub fn new(layout: KvLayout, blocks: usize) -> io::Result<KvArena> {
        let KvLayout { layers, kv_heads, head_dim, .. } = layout;
        assert!(layers > 0 && kv_heads > 0, "a layout without layers or heads: {layout:?}");
        let dims = KvLayout::HEAD_DIMS;
        assert!(dims.contains(&head_dim), "head dimension {head_dim} is not in {dims:?}");
        let tiles = blocks.checked_mul(layers * kv_heads);
        tiles.and_then(|tiles| u32::try_from(tiles).ok()).ok_or(io::ErrorKind::OutOfMemory)?;
        let bytes = blocks.checked_mul(layout.block_bytes()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(KvArena { layout, blocks, memory: Memory::sparse(bytes)? })
    }

    /// What a block stores.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// The bytes of a block.
    pub fn block(&self, block: u32) -> &[u8] {
        // SAFETY: `block_start` is inside the mapping with a whole block behind it; writers hold `&mut self`.
        unsafe { std::slice::from_raw_parts(self.block_start(block), self.layout.block_bytes()) }
    }

    /// The bytes of a block, to be replaced by those of the same block stored elsewhere.
    pub fn block_mut(&mut self, block: u32) -> &mut [u8] {
        // SAFETY: as in `block`, and this borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.block_start(block), self.layout.block_bytes()) }
    }

    /// Makes the first `positions` positions of block `to` equal to those of block `from`.
    ///
    /// # Panics
    /// When a block does not exist or `positions` exceeds a block.
    pub fn copy_partial(&mut self, from: u32, to: u32, positions: usize) {
        assert!(positions <= BLOCK_POSITIONS, "{positions} positions exceed a block");
        // The bytes of later positions come along: they are nobody's, and whole tiles copy fastest.
        let (source, target) = (self.block_start(from), self.block_start(to));
        if positions > 0 && from != to {
            // SAFETY: both are whole blocks of the mapping, and different ones.
            unsafe { std::ptr::copy_nonoverlapping(source, target, self.layout.block_bytes()) };
        }
    }

    /// Stores the keys and values of `n` positions of a layer, converted to the formats of the arena.
    ///
    /// * `slots`: `[n]` block and offset of each position
    /// * `k`, `v`: `[n, kv_heads, head_dim]`
    ///
    /// # Panics
    /// When a shape does not fit, or a layer, block or offset does not exist.
    pub fn write(&mut self, pool: &Pool, layer: usize, slots: &[(u32, u8)], k: &[f32], v: &[f32]) {
        let KvLayout { layers, kv_heads, head_dim, .. } = self.layout;
        let row = kv_heads * head_dim;
        assert!(layer < layers, "layer {layer} of {layers}");
        assert!(k.len() == slots.len() * row && v.len() == k.len(), "k and v are [n, kv_heads, head_dim]");
        for &(block, offset) in slots {
            let exists = (block as usize) < self.blocks && usize::from(offset) < BLOCK_POSITIONS;
            assert!(exists, "position {offset} of block {block} does not exist");
        }
        let write = writer(Isa::current(), &self.layout);
        let arena = &*self;
        let dims = self.layout.value_dims();
        // A task is a head: its tiles are written by nobody else, even if a slot is named twice.
        let write_head = |head: usize| {
            for (i, &(block, offset)) in slots.iter().enumerate() {
                let at = i * row + head * head_dim;
                let (k, v) = (&k[at..at + head_dim], &v[at..at + head_dim]);
                let tile = arena.tile(block, layer, head);
                let (key_tile, value_tile) =
                    (arena.key_tile(tile).cast_mut(), arena.value_tile(tile).cast_mut());
                let to = Position { key_tile, value_tile, dims, offset: usize::from(offset), k, v };
                // SAFETY: the tiles are those of an existing block, layer and head, in the formats of the
                // layout; `&mut self` keeps readers away, and other tasks write other heads.
                unsafe { write(&to) };
            }
        };
        if slots.len() * row < PARALLEL_MIN {
            (0..kv_heads).for_each(write_head);
        } else {
            pool.run(kv_heads, &write_head);
        }
    }

    /// The number of the tiles that hold what `block` stores for a layer and KV head.
    ///
    /// # Panics
    /// When the layer or head does not exist.
    pub fn tile(&self, block: u32, layer: usize, head: usize) -> u32 {
        let KvLayout { layers, kv_heads, .. } = self.layout;
        assert!(layer < layers && head < kv_heads, "layer {layer}, head {head} of {layers}, {kv_heads}");
        block * (layers * kv_heads) as u32 + (layer * kv_heads + head) as u32
    }

    /// A K tile by its number.
    ///
    /// # Panics
    /// When it does not exist.
    pub(crate) fn key_tile(&self, tile: u32) -> *const u8 {
        let (block, head) = self.block_and_head(tile);
        self.block_start(block).wrapping_add(self.layout.key_tile(head).start)
    }

    /// A V tile by its number.
    ///
    /// # Panics
    /// When it does not exist.
    pub(crate) fn value_tile(&self, tile: u32) -> *const u8 {
        let (block, head) = self.block_and_head(tile);
        self.block_start(block).wrapping_add(self.layout.value_tile(head).start)
    }

    /// The block that a tile is in, and its place there.
    fn block_and_head(&self, tile: u32) -> (u32, usize) {
        let heads = (self.layout.layers * self.layout.kv_heads) as u32;
        (tile / heads, (tile % heads) as usize)
    }

    fn block_start(&self, block: u32) -> *mut u8 {
        assert!((block as usize) < self.blocks, "block {block} of {}", self.blocks);
        let offset = block as usize * self.layout.block_bytes();
        debug_assert!(offset + self.layout.block_bytes() <= self.memory.len());
        self.memory.start().wrapping_add(offset)
    }
}

/// Numbers below which waking other threads costs more than writing.
const PARALLEL_MIN: usize = 16 * 1024;

impl std::fmt::Debug for KvArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvArena").field("layout", &self.layout).field("blocks", &self.blocks).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::KvFormat;
    use crate::testing::Random;

    /// The bytes of a layer and head after `slots` were written with the numbers of `seed`.
    fn written(format: KvFormat, slots: &[(u32, u8)], before: u8, seed: u64) -> KvArena {
        let layout = KvLayout { layers: 2, kv_heads: 2, head_dim: 40, k: format, v: format };
        let mut arena = KvArena::new(layout, 2).unwrap();
        (0..2).for_each(|block| arena.block_mut(block).fill(before));
        for &slot in slots {
            let mut random = Random(seed ^ u64::from(slot.1));
            let numbers: Vec<f32> = (0..80).map(|_| random.float()).collect();
            arena.write(&Pool::new(1), 1, &[slot], &numbers, &numbers);
        }
        arena
    }

    #[test]
    fn positions_are_written_in_any_order_and_leave_the_others_alone() {
        for format in KvFormat::ALL {
            let ascending: Vec<(u32, u8)> = (0..16).map(|offset| (1, offset)).collect();
            let descending: Vec<(u32, u8)> = ascending.iter().rev().copied().collect();
            let arena = written(format, &ascending, 0, 7);
            assert_eq!(arena.block(1), written(format, &descending, 0, 7).block(1), "{format}");
            let again: Vec<(u32, u8)> = [&ascending[..], &ascending[5..6]].concat();
            assert_eq!(arena.block(1), written(format, &again, 0, 7).block(1), "{format}");
            assert!(arena.block(0).iter().all(|&byte| byte == 0), "{format}: another block");
            let layer = arena.layout().block_bytes() / 2;
            assert!(arena.block(1)[..layer].iter().all(|&byte| byte == 0), "{format}: another layer");
            assert!(arena.block(1)[layer..].iter().any(|&byte| byte != 0), "{format}: nothing");
        }
    }

    #[test]
    fn what_a_block_held_before_does_not_matter_where_positions_are_written() {
        for format in KvFormat::ALL {
            let all: Vec<(u32, u8)> = (0..16).map(|offset| (1, offset)).collect();
            let (zeros, ones) = (written(format, &all, 0, 7), written(format, &all, 0xff, 7));
            let changed = |tile: std::ops::Range<usize>| {
                let pairs = zeros.block(1)[tile.clone()].iter().zip(&ones.block(1)[tile]);
                pairs.filter(|(a, b)| a != b).count()
            };
            // K tiles have no padding; V tiles have that of 8 dimensions.
            let layout = zeros.layout();
            assert_eq!(changed(layout.key_tile(2)), 0, "{format}");
            assert!(changed(layout.value_tile(2)) <= layout.value_tile(2).len() / 5, "{format}");
        }
    }

    #[test]
    fn copies_are_whole_blocks_of_others() {
        let mut arena = written(KvFormat::Q4, &[(1, 0), (1, 1)], 0, 3);
        arena.copy_partial(1, 0, 0);
        assert!(arena.block(0).iter().all(|&byte| byte == 0));
        arena.copy_partial(1, 0, 2);
        assert_eq!(arena.block(0), arena.block(1));
    }
}
