//! The arena: all blocks of a KV cache in one mapping.

use std::io;

use super::sequence::{check, check_tails};
use super::write::writers;
use super::{BLOCK_POSITIONS, KvLayer, KvLayout, KvValues, SeqKv, SeqRow};
use crate::memory::Memory;
use crate::{Isa, Pool};

/// Blocks of stored keys and values, addressed by number.
///
/// The arena knows no owners: its users decide who may write which block.
/// The system allocates memory as blocks are first written.
pub struct KvArena {
    layout: KvLayout,
    blocks: usize,
    memory: Memory,
}

impl KvArena {
    /// Maps `blocks` blocks.
    ///
    /// # Errors
    /// If the system has no address space left, or there are more than 2^32 tiles.
    pub fn new(layout: KvLayout, blocks: usize) -> io::Result<KvArena> {
        let tiles = blocks.checked_mul(layout.heads());
        tiles.and_then(|tiles| u32::try_from(tiles).ok()).ok_or(io::ErrorKind::OutOfMemory)?;
        let bytes = blocks.checked_mul(layout.block_bytes()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(KvArena { layout, blocks, memory: Memory::sparse(bytes)? })
    }

    /// The contents of a block.
    pub fn layout(&self) -> &KvLayout {
        &self.layout
    }

    /// The number of blocks.
    pub fn blocks(&self) -> usize {
        self.blocks
    }

    /// The bytes of a block.
    pub fn block(&self, block: u32) -> &[u8] {
        // SAFETY: a whole block from `block_start` on is inside the mapping; writers hold `&mut self`.
        unsafe { std::slice::from_raw_parts(self.block_start(block), self.layout.block_bytes()) }
    }

    /// The bytes of a block, to be replaced by those of the same block stored elsewhere.
    pub fn block_mut(&mut self, block: u32) -> &mut [u8] {
        // SAFETY: as in `block`, and this borrow is the only one.
        unsafe { std::slice::from_raw_parts_mut(self.block_start(block), self.layout.block_bytes()) }
    }

    /// Copies the first `positions` positions of block `from` to block `to`, all layers and heads.
    ///
    /// # Panics
    /// If a block does not exist or `positions` exceeds a block.
    pub fn copy_partial(&mut self, from: u32, to: u32, positions: usize) {
        assert!(positions <= BLOCK_POSITIONS, "{positions} positions exceed a block");
        // Also copies the bytes of later positions: they are never read, and whole tiles copy fastest.
        let (source, target) = (self.block_start(from), self.block_start(to));
        if positions > 0 && from != to {
            // SAFETY: both are whole blocks of the mapping, and different ones.
            unsafe { std::ptr::copy_nonoverlapping(source, target, self.layout.block_bytes()) };
        }
    }

    /// Copies the part of block `from` that belongs to layers with windows to block `to`.
    ///
    /// # Panics
    /// If a block does not exist.
    pub fn copy_windowed(&mut self, from: u32, to: u32) {
        let part = self.layout.windowed_part();
        let (source, target) = (self.block_start(from), self.block_start(to));
        if from != to {
            // SAFETY: both are the same part of two different blocks of the mapping.
            unsafe {
                let (source, target) = (source.add(part.start), target.add(part.start));
                std::ptr::copy_nonoverlapping(source, target, part.len());
            }
        }
    }

    /// Returns the memory of a block to the system until it is written again, or with `all` false only that of
    /// the part that belongs to layers with windows. It then reads as zero.
    ///
    /// # Panics
    /// If the block does not exist.
    pub fn release(&mut self, block: u32, all: bool) {
        assert!((block as usize) < self.blocks, "block {block} of {}", self.blocks);
        let part = if all { 0..self.layout.block_bytes() } else { self.layout.windowed_part() };
        let start = block as usize * self.layout.block_bytes();
        self.memory.clear(start + part.start..start + part.end);
    }

    /// Stores the keys and values of `n` rows of a layer, converted to the formats of the layer.
    ///
    /// * `rows`: `[n]`, each stored as the last of the positions that it attends to
    /// * `seqs`: the sequences that the rows' `seq` indexes
    /// * `k`: `[n, kv_heads, key_dim]`; `v`: `[n, kv_heads, value_dim]`, or empty if keys hold the values
    ///
    /// # Panics
    /// If a shape does not fit, the layer does not exist, or a row's position has no place in the blocks and
    /// tails of its sequence.
    pub fn write(
        &mut self,
        pool: &Pool,
        layer: usize,
        rows: &[SeqRow],
        seqs: &[SeqKv<'_>],
        [k, v]: [&[f32]; 2],
    ) {
        let shape = self.layout.layers()[layer];
        let (KvLayer { kv_heads, key_dim, .. }, value_dim) = (shape, shape.stored_value_dim());
        let (key_row, value_row) = (kv_heads * key_dim, kv_heads * value_dim);
        assert!(k.len() == rows.len() * key_row, "k is [n, kv_heads, key_dim]");
        assert!(v.len() == rows.len() * value_row, "v is [n, kv_heads, value_dim]");
        check(&shape, rows, seqs);
        let write = writers(Isa::current(), &shape);
        let arena = &*self;
        let write_head = |head: usize| {
            for (i, row) in rows.iter().enumerate() {
                let seq = &seqs[row.seq as usize];
                let position = seq.stored(head, row.len) - 1;
                let tile = seq.tile(arena, layer, head, position / BLOCK_POSITIONS);
                let [key_tile, value_tile] = arena.tiles(tile, layer).map(<*const u8>::cast_mut);
                let offset = position % BLOCK_POSITIONS;
                let key = &k[i * key_row + head * key_dim..][..key_dim];
                let value = &v[i * value_row + head * value_dim..][..value_dim];
                // SAFETY: the tiles exist and have the shape and formats of the layer; `&mut self` keeps
                // readers away, and no two tasks write the same tile.
                unsafe {
                    (write.key)(key_tile, offset, key);
                    (write.value)(value_tile, shape.value_lanes(), offset, value);
                }
            }
        };
        // A task is a head: no other task writes its tiles in a block, however often a row names a position.
        // Two heads may name the same tile in their tails, so heads with tails are written one by one.
        let own_tiles = seqs.iter().all(|seq| seq.tails.is_empty());
        if own_tiles && rows.len() * key_row >= PARALLEL_MIN {
            pool.run(kv_heads, &write_head);
        } else {
            (0..kv_heads).for_each(write_head);
        }
    }

    /// Replaces the key of one stored position of a KV head, encoded as [`KvArena::write`] encodes it.
    ///
    /// * `position`: among those that the head stores
    /// * `key`: `[key_dim]`
    ///
    /// # Panics
    /// If a shape does not fit, or the layer, the head or the position does not exist.
    pub fn write_key(&mut self, layer: usize, head: usize, seq: &SeqKv<'_>, position: usize, key: &[f32]) {
        let shape = self.layout.layers()[layer];
        assert!(key.len() == shape.key_dim, "key is [{}]", shape.key_dim);
        let [key_tile, _] = self.tiles_at(layer, head, seq, position);
        // SAFETY: the tile exists and has the shape and formats of the layer; `&mut self` keeps all others away.
        unsafe { (writers(Isa::current(), &shape).key)(key_tile, position % BLOCK_POSITIONS, key) };
    }

    /// Replaces the value of one stored position of a KV head, as [`KvArena::write_key`] does with the key; `value` is
    /// `[value_dim]`.
    ///
    /// # Panics
    /// As [`KvArena::write_key`], and if keys hold the values.
    pub fn write_value(
        &mut self,
        layer: usize,
        head: usize,
        seq: &SeqKv<'_>,
        position: usize,
        value: &[f32],
    ) {
        let shape = self.layout.layers()[layer];
        assert!(shape.values == KvValues::Stored, "keys hold the values");
        assert!(value.len() == shape.value_dim, "value is [{}]", shape.value_dim);
        let [_, value_tile] = self.tiles_at(layer, head, seq, position);
        let (write, offset) = (writers(Isa::current(), &shape).value, position % BLOCK_POSITIONS);
        // SAFETY: as in `write_key`.
        unsafe { write(value_tile, shape.value_lanes(), offset, value) };
    }

    /// The K and the V tile of one stored position of a KV head, to be written to.
    fn tiles_at(&mut self, layer: usize, head: usize, seq: &SeqKv<'_>, position: usize) -> [*mut u8; 2] {
        check_tails(&self.layout.layers()[layer], seq);
        let tile = seq.tile(self, layer, head, position / BLOCK_POSITIONS);
        self.tiles(tile, layer).map(<*const u8>::cast_mut)
    }

    /// The K and the V tile with this number, as tiles of `layer`.
    ///
    /// # Panics
    /// If they do not exist, or their shape or formats are not those of the layer.
    pub(crate) fn tiles(&self, tile: u32, layer: usize) -> [*const u8; 2] {
        let (block, head) = self.layout.block_and_head(tile);
        let tiles = self.layout.tiles(head);
        let like = self.layout.tiles(self.layout.head(layer, 0)).tiles_of;
        assert!(tiles.tiles_of == like, "tile {tile} is not one of layer {layer}");
        let block = self.block_start(block).cast_const();
        [block.wrapping_add(tiles.key.start), block.wrapping_add(tiles.value.start)]
    }

    fn block_start(&self, block: u32) -> *mut u8 {
        assert!((block as usize) < self.blocks, "block {block} of {}", self.blocks);
        let offset = block as usize * self.layout.block_bytes();
        debug_assert!(offset + self.layout.block_bytes() <= self.memory.len());
        self.memory.start().wrapping_add(offset)
    }
}

/// Number of values below which waking other threads costs more than writing.
const PARALLEL_MIN: usize = 16 * 1024;

impl std::fmt::Debug for KvArena {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KvArena").field("layout", &self.layout).field("blocks", &self.blocks).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::{HeadTail, KvFormat};
    use crate::testing::Random;

    /// Stores `numbers` as the keys and values of one position of a layer.
    fn write(arena: &mut KvArena, layer: usize, (block, offset): (u32, u8), numbers: &[f32]) {
        let seqs = [SeqKv { blocks: &[block], tails: &[] }];
        let rows = [SeqRow { seq: 0, len: u32::from(offset) + 1 }];
        arena.write(&Pool::new(1), layer, &rows, &seqs, [numbers, numbers]);
    }

    /// Creates an arena and writes positions of layer 1 with the numbers of `seed`.
    fn written(format: KvFormat, positions: &[(u32, u8)], before: u8, seed: u64) -> KvArena {
        let layout = KvLayout::uniform(2, KvLayer::full(2, 40, format, format));
        let mut arena = KvArena::new(layout, 2).unwrap();
        (0..2).for_each(|block| arena.block_mut(block).fill(before));
        for &position in positions {
            let mut random = Random(seed ^ u64::from(position.1));
            let numbers: Vec<f32> = (0..80).map(|_| random.float()).collect();
            write(&mut arena, 1, position, &numbers);
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
            let changed = |tile: &std::ops::Range<usize>| {
                let pairs = zeros.block(1)[tile.clone()].iter().zip(&ones.block(1)[tile.clone()]);
                pairs.filter(|(a, b)| a != b).count()
            };
            // K tiles have no padding; V tiles have padding for 8 dimensions.
            let tiles = zeros.layout().tiles(2);
            assert_eq!(changed(&tiles.key), 0, "{format}");
            assert!(changed(&tiles.value) <= tiles.value.len() / 5, "{format}");
        }
    }

    #[test]
    fn a_key_is_replaced_as_if_it_had_been_written_first() {
        let layer = KvLayer::full(2, 40, KvFormat::F32, KvFormat::Q4);
        for format in KvFormat::ALL {
            let layout = KvLayout::uniform(2, KvLayer { k: format, ..layer });
            let (mut replaced, mut expect) =
                (KvArena::new(layout.clone(), 2).unwrap(), KvArena::new(layout, 2).unwrap());
            let mut random = Random(3);
            let mut vector = |len: usize| -> Vec<f32> { (0..len).map(|_| random.float()).collect() };
            let key = vector(40);
            let seqs = [SeqKv { blocks: &[1, 0], tails: &[] }];
            for len in 1..=20 {
                let (mut k, v, rows) = (vector(80), vector(80), [SeqRow { seq: 0, len }]);
                replaced.write(&Pool::new(1), 1, &rows, &seqs, [&k, &v]);
                if len == 19 {
                    k[40..].copy_from_slice(&key);
                }
                expect.write(&Pool::new(1), 1, &rows, &seqs, [&k, &v]);
            }
            replaced.write_key(1, 1, &seqs[0], 18, &key);
            (0..2).for_each(|block| assert_eq!(replaced.block(block), expect.block(block), "{format}"));
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

    /// A layout whose layers differ in every property.
    fn mixed() -> KvLayout {
        let wide = KvLayer::full(1, 40, KvFormat::F32, KvFormat::Q8);
        KvLayout::new(vec![
            wide,
            KvLayer { value_dim: 24, ..KvLayer::full(3, 64, KvFormat::Q4, KvFormat::F16) },
            KvLayer::full(2, 8, KvFormat::Bf16, KvFormat::Q4),
            wide,
        ])
    }

    #[test]
    fn layers_that_differ_are_written_where_they_lie_and_as_if_alone() {
        for (index, layer) in mixed().layers().iter().enumerate() {
            let (mut among, mut alone) =
                (KvArena::new(mixed(), 2).unwrap(), KvArena::new(KvLayout::uniform(1, *layer), 2).unwrap());
            let mut random = Random(index as u64);
            for len in 1..=20 {
                let mut vectors =
                    |dim: usize| -> Vec<f32> { (0..layer.kv_heads * dim).map(|_| random.float()).collect() };
                let (k, v) = (vectors(layer.key_dim), vectors(layer.value_dim));
                let (rows, seqs) = ([SeqRow { seq: 0, len }], [SeqKv { blocks: &[1, 0], tails: &[] }]);
                among.write(&Pool::new(1), index, &rows, &seqs, [&k, &v]);
                alone.write(&Pool::new(1), 0, &rows, &seqs, [&k, &v]);
            }
            let start = among.layout().tiles(among.layout().head(index, 0)).key.start;
            for block in 0..2 {
                let (before, rest) = among.block(block).split_at(start);
                let (own, after) = rest.split_at(alone.layout().block_bytes());
                assert_eq!(own, alone.block(block), "layer {index}");
                assert!(before.iter().chain(after).all(|&byte| byte == 0), "layer {index}: another layer");
            }
        }
    }

    #[test]
    fn copies_take_all_layers_along() {
        let mut arena = KvArena::new(mixed(), 2).unwrap();
        let bytes = arena.layout().block_bytes();
        arena.block_mut(1).iter_mut().enumerate().for_each(|(i, byte)| *byte = (i % 251) as u8);
        arena.copy_partial(1, 0, 3);
        assert_eq!(arena.block(0), arena.block(1));
        assert_eq!(arena.block(0).len(), bytes);
    }

    #[test]
    fn a_tail_is_written_where_it_lies() {
        let layer = KvLayer::full(2, 40, KvFormat::F16, KvFormat::Q8);
        let layout = KvLayout::new(vec![layer, KvLayer { kv_heads: 3, ..layer }]);
        let numbers: Vec<f32> = (0..80).map(|i| i as f32).collect();
        let mut in_blocks = KvArena::new(layout.clone(), 3).unwrap();
        write(&mut in_blocks, 0, (1, 4), &numbers);

        // Position 36 is the 20th stored position of head 0, which has dropped 16, and the 36th of head 1.
        let mut in_tails = KvArena::new(layout, 3).unwrap();
        let tiles = [vec![in_tails.layout().tile(2, 1, 2)], vec![0, in_tails.layout().tile(2, 0, 1)]];
        let tails = [(&tiles[0], 16), (&tiles[1], 0)].map(|(tiles, dropped)| HeadTail { tiles, dropped });
        let seqs = [SeqKv { blocks: &[0], tails: &tails }];
        in_tails.write(&Pool::new(1), 0, &[SeqRow { seq: 0, len: 37 }], &seqs, [&numbers, &numbers]);

        let tile = |arena: &KvArena, block: u32, head: usize| {
            let tiles = arena.layout().tiles(head);
            arena.block(block)[tiles.key.start..tiles.value.end].to_vec()
        };
        assert_eq!(tile(&in_tails, 2, 4), tile(&in_blocks, 1, 0));
        assert_eq!(tile(&in_tails, 2, 1), tile(&in_blocks, 1, 1));
        assert!(in_tails.block(0).iter().chain(in_tails.block(1)).all(|&byte| byte == 0));
    }

    #[test]
    #[should_panic(expected = "is not one of layer 1")]
    fn tiles_of_another_shape_are_refused() {
        let arena = KvArena::new(mixed(), 1).unwrap();
        arena.tiles(arena.layout().tile(0, 0, 0), 1);
    }
}
