//! The layout of a tile: sixteen rows of a matrix, one per SIMD lane.
//!
//! A tile is a list of planes, each covering the whole row length, small ones first. For every `chunk` of 32
//! columns the planes of quantised values hold 64-byte vectors in which byte `4 * row + i` belongs to column
//! `4 * group + i`; a vector holds one group of bytes, two of nibbles or four of two-bit values, the first in the
//! low bits:
//!
//! ```text
//!   d     [blocks][16 rows] f16 or u8    high  [chunks][high_bits][64 bytes]
//!   m     [blocks][16 rows] f16          low   [chunks][low_bits][64 bytes]
//!   scales, mins [sub-blocks][16 rows] bytes
//! ```
//!
//! Float types have one plane, `[cols][16 rows]` elements. Bfloats are in pairs, as their dot product reads them:
//! `[pairs of columns][16 rows][2]`, an odd last column paired with zero. 14-bit values have a plane `d` followed
//! by [packed](super::shorts) pairs.

use crate::quant::{Block, BlockUnit, Codes, Scales, WeightType};

/// Rows of a tile: the lanes of a 512-bit vector of 32-bit numbers.
pub(crate) const TILE_ROWS: usize = 16;
/// Columns of one unit of the planes of quantised values.
pub(crate) const CHUNK: usize = 32;
/// Groups of four columns in a chunk.
pub(crate) const GROUPS: usize = 8;
/// Bytes of a vector: one group of every row of the tile.
pub(crate) const VECTOR: usize = 64;

/// Pairs of columns of 14-bit values that are packed together, see [`shorts`](super::shorts).
pub(crate) const TOGETHER: usize = 8;
/// Vectors that hold them.
pub(crate) const STORED: usize = TOGETHER - 1;
/// Vectors of a chunk of 14-bit values.
pub(super) const CHUNK_VECTORS: usize = CHUNK / 2 / TOGETHER * STORED;

/// Byte offsets of the planes of a tile.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TileLayout {
    pub(crate) d: usize,
    pub(crate) m: usize,
    pub(crate) scales: usize,
    pub(crate) mins: usize,
    pub(crate) high: usize,
    pub(crate) low: usize,
    /// Bytes of the whole tile, a multiple of 64.
    pub(crate) bytes: usize,
}

impl TileLayout {
    /// The layout of tiles with `cols` columns (whole blocks), or `None` if it overflows.
    pub(crate) fn new(ty: WeightType, cols: usize) -> Option<TileLayout> {
        let mut next = 0usize;
        let mut plane = |bytes: Option<usize>| {
            let start = next;
            next = next.checked_add(bytes?.checked_next_multiple_of(VECTOR)?)?;
            Some(start)
        };
        let Some(codes) = ty.codes() else {
            let (chunks, padded) = (cols / CHUNK, cols.checked_next_multiple_of(lane_cols(ty))?);
            let (halves, elements) = match ty {
                WeightType::Q14_0 => (2 * TILE_ROWS, chunks.checked_mul(CHUNK_VECTORS * VECTOR)),
                _ => (0, padded.checked_mul(element_bytes(ty) * TILE_ROWS)),
            };
            plane(chunks.checked_mul(halves))?;
            let low = plane(elements)?;
            return Some(TileLayout { d: 0, m: 0, scales: 0, mins: 0, high: 0, low, bytes: next });
        };
        let (blocks, subs, chunks) = (cols / codes.block_len, cols / codes.sub_len, cols / CHUNK);
        let halves = blocks.checked_mul(2 * TILE_ROWS);
        let units = blocks.checked_mul(codes.unit_bytes() * TILE_ROWS);
        let bytes = subs.checked_mul(TILE_ROWS);
        let bits = |bits: usize| chunks.checked_mul(VECTOR * bits);
        let absent = Some(0);
        Some(TileLayout {
            d: plane(units)?,
            m: plane(if codes.has_min { halves } else { absent })?,
            scales: plane(if codes.scales == Scales::None { absent } else { bytes })?,
            mins: plane(if codes.scales == Scales::WithMins { bytes } else { absent })?,
            high: plane(bits(codes.high_bits))?,
            low: plane(bits(codes.low_bits))?,
            bytes: next,
        })
    }
}

/// Bytes of an element of a float type.
const fn element_bytes(ty: WeightType) -> usize {
    match ty {
        WeightType::F32 => 4,
        _ => 2,
    }
}

/// Columns that share a lane: two for bfloats, one for other floats.
pub(crate) const fn lane_cols(ty: WeightType) -> usize {
    match ty {
        WeightType::Bf16 => 2,
        _ => 1,
    }
}

/// Index of column `col` of row `row` among the elements of a tile.
#[inline(always)]
pub(crate) const fn element_index(lane_cols: usize, row: usize, col: usize) -> usize {
    (col / lane_cols * TILE_ROWS + row) * lane_cols + col % lane_cols
}

impl Codes {
    /// Bytes of `d`.
    const fn unit_bytes(&self) -> usize {
        match self.unit {
            BlockUnit::Half => 2,
            BlockUnit::Exponent => 1,
        }
    }

    /// Offset of the `d` of block `block` in a tile's plane, for its first row.
    pub(crate) const fn unit_at(&self, block: usize) -> usize {
        block * TILE_ROWS * self.unit_bytes()
    }

    /// Bytes that a block of columns takes in a tile, over all planes.
    pub(crate) const fn tile_block_bytes(&self) -> usize {
        let floats = self.unit_bytes() + if self.has_min { 2 } else { 0 };
        let per_sub = match self.scales {
            Scales::None => 0,
            Scales::Signed | Scales::Nibbles => 1,
            Scales::WithMins => 2,
        };
        let small = TILE_ROWS * (floats + per_sub * (self.block_len / self.sub_len));
        small + self.block_len / CHUNK * VECTOR * (self.low_bits + self.high_bits)
    }
}

/// A borrowed tile of quantised values: reads single elements, for the specification and for whole rows.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TileRef<'a> {
    pub(crate) codes: &'a Codes,
    pub(crate) layout: &'a TileLayout,
    pub(crate) bytes: &'a [u8],
}

impl TileRef<'_> {
    /// Reads block number `block` of `row`, as it was in the file.
    pub(crate) fn read(&self, row: usize, block: usize, out: &mut Block) {
        let codes = self.codes;
        match codes.unit {
            BlockUnit::Half => out.d = self.half(self.layout.d, block, row),
            BlockUnit::Exponent => out.exponent = self.bytes[self.layout.d + codes.unit_at(block) + row],
        }
        if codes.has_min {
            out.m = self.half(self.layout.m, block, row);
        }
        let chunks = codes.block_len / CHUNK;
        for (chunk, values) in out.codes[..codes.block_len].as_chunks_mut::<CHUNK>().0.iter_mut().enumerate()
        {
            let words = self.read_chunk(row, block * chunks + chunk);
            values.as_chunks_mut::<4>().0.iter_mut().zip(words).for_each(|(v, word)| *v = word.to_le_bytes());
        }
        let subs = codes.block_len / codes.sub_len;
        for sub in 0..subs {
            let at = (block * subs + sub) * TILE_ROWS + row;
            let byte = |plane: usize| self.bytes[plane + at];
            let (scale, min) = match codes.scales {
                Scales::None => (1, 1),
                Scales::Signed => (byte(self.layout.scales), 1),
                Scales::WithMins => (byte(self.layout.scales), byte(self.layout.mins)),
                Scales::Nibbles => (byte(self.layout.scales) & 15, byte(self.layout.scales) >> 4),
            };
            (out.scales[sub], out.mins[sub]) = (scale as i8, min);
        }
    }

    fn half(&self, plane: usize, block: usize, row: usize) -> half::f16 {
        let at = plane + (block * TILE_ROWS + row) * 2;
        half::f16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }

    /// Reads a chunk: `words[group]` holds the quantised values of four columns.
    fn read_chunk(&self, row: usize, chunk: usize) -> [u32; GROUPS] {
        let (low_bits, high_bits) = (self.codes.low_bits, self.codes.high_bits);
        let mut words = self.read_bits(self.layout.low, row, chunk, low_bits);
        if high_bits > 0 {
            let high = self.read_bits(self.layout.high, row, chunk, high_bits);
            words.iter_mut().zip(high).for_each(|(word, high)| *word |= high << low_bits);
        }
        words
    }

    fn read_bits(&self, plane: usize, row: usize, chunk: usize, bits: usize) -> [u32; GROUPS] {
        let per_vector = 8 / bits;
        std::array::from_fn(|group| {
            let vector = chunk * bits + group / per_vector;
            let at = plane + vector * VECTOR + row * 4;
            let word = u32::from_le_bytes([0, 1, 2, 3].map(|i| self.bytes[at + i]));
            word >> (group % per_vector * bits) & byte_mask(bits)
        })
    }
}

/// A mask of the lowest `bits` bits of each byte.
pub(super) const fn byte_mask(bits: usize) -> u32 {
    (0x0101_0101u64 * ((1 << bits) - 1)) as u32
}
