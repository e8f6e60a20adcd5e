//! The arena: all blocks of a cache in one mapping.

use std::io;

use super::q4::rotate;
use super::tile::{Tile, with_tile};
use super::{BLOCK_POSITIONS, HEAD_DIM_MAX, KvLayout};
use crate::Pool;
use crate::memory::Memory;

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
    /// When the system has no address space left, or the size overflows.
    ///
    /// # Panics
    /// When the head dimension is not in 8..=256, or a count of the layout is 0.
    pub fn new(layout: KvLayout, blocks: usize) -> io::Result<KvArena> {
        let KvLayout { layers, kv_heads, head_dim, .. } = layout;
        assert!(layers > 0 && kv_heads > 0, "a layout without layers or heads: {layout:?}");
        assert!((8..=HEAD_DIM_MAX).contains(&head_dim), "head dimension {head_dim} is not in 8..=256");
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
    pub fn copy_head(&mut self, from: u32, to: u32, positions: usize) {
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
        let write = with_tile!(self.layout.k, K => with_tile!(self.layout.v, V => write_position::<K, V>));
        let arena = &*self;
        // A task is a head: its tiles are written by nobody else, even if a slot is named twice.
        let write_head = |head: usize| {
            for (i, &(block, offset)) in slots.iter().enumerate() {
                let at = i * row + head * head_dim;
                let (k, v) = (&k[at..at + head_dim], &v[at..at + head_dim]);
                let key_tile = arena.key_tile(block, layer, head).cast_mut();
                let value_tile = arena.value_tile(block, layer, head).cast_mut();
                // SAFETY: the tiles are those of an existing block, layer and head, in the formats of the
                // layout; `&mut self` keeps readers away, and other tasks write other heads.
                unsafe { write(&arena.layout, key_tile, value_tile, usize::from(offset), k, v) };
            }
        };
        if slots.len() * row < PARALLEL_MIN {
            (0..kv_heads).for_each(write_head);
        } else {
            pool.run(kv_heads, &write_head);
        }
    }

    /// The K tile of a block, layer and head.
    ///
    /// # Panics
    /// When the block does not exist.
    pub(crate) fn key_tile(&self, block: u32, layer: usize, head: usize) -> *const u8 {
        let tile = self.layout.key_tile(layer, head);
        debug_assert!(tile.end <= self.layout.block_bytes());
        self.block_start(block).wrapping_add(tile.start)
    }

    /// The V tile of a block, layer and head.
    ///
    /// # Panics
    /// When the block does not exist.
    pub(crate) fn value_tile(&self, block: u32, layer: usize, head: usize) -> *const u8 {
        let tile = self.layout.value_tile(layer, head);
        debug_assert!(tile.end <= self.layout.block_bytes());
        self.block_start(block).wrapping_add(tile.start)
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

/// Stores one position of one head.
///
/// # Safety
/// The tiles are writable tiles of the formats `K` and `V` in this layout, `position < 16`,
/// and `k` and `v` have the head dimension.
unsafe fn write_position<K: Tile, V: Tile>(
    layout: &KvLayout,
    key_tile: *mut u8,
    value_tile: *mut u8,
    position: usize,
    k: &[f32],
    v: &[f32],
) {
    let mut buffers = [[0.0; HEAD_DIM_MAX]; 2];
    let [k_turned, v_turned] = &mut buffers;
    let k = if K::ROTATED { rotated(k, k_turned) } else { k };
    let v = if V::ROTATED { rotated(v, v_turned) } else { v };
    // SAFETY: the caller's promise.
    unsafe {
        K::write_key(key_tile, position, k);
        V::write_value(value_tile, layout.value_dims(), position, v);
    }
}

/// `x` turned, in `buffer`.
fn rotated<'a>(x: &[f32], buffer: &'a mut [f32; HEAD_DIM_MAX]) -> &'a [f32] {
    let turned = &mut buffer[..x.len()];
    turned.copy_from_slice(x);
    rotate(turned);
    turned
}

impl std::fmt::Debug for KvArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvArena").field("layout", &self.layout).field("blocks", &self.blocks).finish()
    }
}
