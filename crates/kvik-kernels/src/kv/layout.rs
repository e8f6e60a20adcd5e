//! Where the tiles of a block lie.

use std::ops::{Range, RangeInclusive};

use super::tile::{key_bytes, value_bytes};
use super::{BLOCK_POSITIONS, HEAD_DIM_MAX, KvFormat};
use crate::f32x16::LANES;

/// Counts the changes of what the bytes of a block mean: blocks kept by an older kvik are not read by a
/// newer one. To be raised with every change of a format, of a rotation, of the order of tiles, and of the
/// order of any sum that keys and values come from.
pub const KV_LAYOUT_VERSION: u32 = 1;

/// What a block stores for its 16 positions: keys and values of all layers and KV heads.
///
/// ```text
/// block = [layers][kv_heads] { K tile, V tile }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvLayout {
    /// Layers that store keys and values.
    pub layers: usize,
    /// Key and value heads of a layer.
    pub kv_heads: usize,
    /// Length of a key or value vector, one of [`KvLayout::HEAD_DIMS`].
    pub head_dim: usize,
    /// Format of the keys.
    pub k: KvFormat,
    /// Format of the values.
    pub v: KvFormat,
}

impl KvLayout {
    /// Lengths that a key or value vector may have.
    pub const HEAD_DIMS: RangeInclusive<usize> = 8..=HEAD_DIM_MAX;

    /// Bytes of one block.
    pub fn block_bytes(&self) -> usize {
        self.layers * self.kv_heads * self.head_bytes()
    }

    /// Bytes that one position takes: a sixteenth of a block.
    pub fn token_bytes(&self) -> usize {
        self.block_bytes() / BLOCK_POSITIONS
    }

    /// Length of a row of a V tile: the head dimension rounded up to whole lanes.
    pub(crate) fn value_dims(&self) -> usize {
        self.head_dim.next_multiple_of(LANES)
    }

    /// Where the K tile of a head lies in a block; heads are counted through all layers.
    pub(crate) fn key_tile(&self, head: usize) -> Range<usize> {
        let start = head * self.head_bytes();
        start..start + key_bytes(self.k, self.head_dim)
    }

    /// Where the V tile of a head lies in a block; heads are counted through all layers.
    pub(crate) fn value_tile(&self, head: usize) -> Range<usize> {
        let start = self.key_tile(head).end;
        start..start + value_bytes(self.v, self.value_dims())
    }

    /// Bytes of both tiles of one head.
    fn head_bytes(&self) -> usize {
        key_bytes(self.k, self.head_dim) + value_bytes(self.v, self.value_dims())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_follow_one_another_and_fill_the_block() {
        let formats = KvFormat::ALL.into_iter().flat_map(|k| KvFormat::ALL.map(|v| (k, v)));
        for ((k, v), head_dim) in formats.flat_map(|kv| [8, 24, 64, 100, 128, 256].map(|dim| (kv, dim))) {
            let layout = KvLayout { layers: 3, kv_heads: 2, head_dim, k, v };
            let mut end = 0;
            for head in 0..6 {
                for tile in [layout.key_tile(head), layout.value_tile(head)] {
                    assert_eq!(tile.start, end);
                    assert_eq!(tile.start % 32, 0, "{layout:?}");
                    end = tile.end;
                }
            }
            assert_eq!(end, layout.block_bytes());
        }
    }

    #[test]
    fn a_token_of_qwen3_takes_what_the_formula_says() {
        let check = |format, expect: usize| {
            let layout = KvLayout { layers: 28, kv_heads: 8, head_dim: 128, k: format, v: format };
            assert_eq!(layout.token_bytes(), expect, "{format}");
        };
        check(KvFormat::F32, 2 * 28 * 8 * 128 * 4);
        check(KvFormat::F16, 2 * 28 * 8 * 128 * 2);
        check(KvFormat::Bf16, 2 * 28 * 8 * 128 * 2);
        check(KvFormat::Q8, 2 * 28 * 8 * (128 + 4));
        check(KvFormat::Q4, 2 * 28 * 8 * (64 + 4 * 4));
    }
}
