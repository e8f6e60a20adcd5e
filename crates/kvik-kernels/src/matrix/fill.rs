//! Filling of a tile: eight words of every row at a time are transposed, so that each vector has one word of
//! every row.
//!
//! A model is packed whenever it is opened, so this is most of the startup time.

use super::layout::{CHUNK, CHUNK_VECTORS, GROUPS, STORED, TILE_ROWS, TileLayout, VECTOR, byte_mask};
use super::shorts::pack;
use crate::Isa;
use crate::quant::{
    Block, BlockUnit, Codes, Scales, ShortBlock, WeightType, codes_of_part, dequantize, quantize,
};
use crate::u32x16::{ScalarWords, U32x16};

const WORD: usize = 4;
/// Bytes of a row that are transposed at once.
const PIECE: usize = WORD * GROUPS;

/// Rows in file format, contiguous; a tile has up to sixteen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows<'a> {
    pub(super) ty: WeightType,
    pub(super) bytes: &'a [u8],
    /// Bytes per row.
    pub(super) stride: usize,
}

/// Fills a zeroed tile with rows in file format.
pub(super) fn fill(rows: Rows<'_>, layout: &TileLayout, tile: &mut [u8]) {
    match Isa::current() {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: the machine has the instructions of its family.
        Isa::Avx512 | Isa::Avx512Bf16 | Isa::Amx => unsafe { by_avx512(rows, layout, tile) },
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as above.
        Isa::Avx2 | Isa::AvxVnni => unsafe { by_avx2(rows, layout, tile) },
        #[cfg(target_arch = "aarch64")]
        // SAFETY: every such machine has NEON.
        Isa::Neon | Isa::NeonDot | Isa::NeonI8mm => unsafe {
            fill_by::<crate::arm::u32x16_neon::NeonWords>(rows, layout, tile);
        },
        // SAFETY: scalar words are plain Rust.
        _ => unsafe { fill_by::<ScalarWords>(rows, layout, tile) },
    }
}

/// # Safety
/// The machine has the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx2,fma,f16c")]
unsafe fn by_avx512(rows: Rows<'_>, layout: &TileLayout, tile: &mut [u8]) {
    // SAFETY: the features are those of this function.
    unsafe { fill_by::<crate::x86::u32x16_avx512::Avx512Words>(rows, layout, tile) };
}

/// # Safety
/// The machine has the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn by_avx2(rows: Rows<'_>, layout: &TileLayout, tile: &mut [u8]) {
    // SAFETY: the features are those of this function.
    unsafe { fill_by::<crate::x86::u32x16_avx2::Avx2Words>(rows, layout, tile) };
}

/// # Safety
/// The machine has the instructions of `W`.
#[inline(always)]
unsafe fn fill_by<W: U32x16>(rows: Rows<'_>, layout: &TileLayout, tile: &mut [u8]) {
    // SAFETY: as the caller promises.
    unsafe {
        match rows.ty {
            WeightType::F32 | WeightType::Bf16 => fill_words::<W>(rows, &mut tile[layout.low..]),
            WeightType::F16 => fill_halves::<W>(rows, &mut tile[layout.low..]),
            WeightType::Q14_0 => fill_shorts::<W>(rows, layout, tile),
            _ => fill_codes::<W>(rows, layout, tile),
        }
    }
}

impl Rows<'_> {
    /// The rows of tile `tile`.
    pub(super) fn of_tile(&self, tile: usize) -> Rows<'_> {
        let rows = TILE_ROWS * self.stride;
        Rows { bytes: &self.bytes[tile * rows..self.bytes.len().min((tile + 1) * rows)], ..*self }
    }

    /// The rows, of `cols` columns, converted to another type.
    pub(super) fn converted(&self, target: WeightType, cols: usize) -> Vec<u8> {
        let mut values = vec![0.0; self.bytes.len() / self.stride * cols];
        dequantize(self.ty, self.bytes, &mut values);
        let mut bytes = vec![0; target.row_bytes(values.len()).expect("rows are whole blocks of both")];
        quantize(target, &values, &mut bytes);
        bytes
    }

    /// The bytes of each row.
    fn each(&self) -> impl Iterator<Item = &[u8]> {
        self.bytes.chunks_exact(self.stride)
    }

    /// Transposes eight words of every row from byte `at` on; missing words of a row or of the tile are zero.
    ///
    /// # Safety
    /// The machine has the instructions of `W`.
    #[inline(always)]
    unsafe fn words<W: U32x16>(&self, at: usize) -> [W; GROUPS] {
        if at + PIECE <= self.stride && self.bytes.len() == TILE_ROWS * self.stride {
            // SAFETY: as the caller promises; the last of these bytes is inside the last row.
            return unsafe { W::turned(self.bytes.as_ptr().add(at), self.stride) };
        }
        let pieces = self.pieces(at);
        // SAFETY: as the caller promises; there is a piece for each of sixteen rows.
        unsafe { W::turned(pieces.as_ptr().cast(), PIECE) }
    }

    /// The bytes of [`Rows::words`] where some are missing, padded with zeros.
    #[cold]
    fn pieces(&self, at: usize) -> [[u8; PIECE]; TILE_ROWS] {
        let mut pieces = [[0; PIECE]; TILE_ROWS];
        for (row, piece) in self.each().zip(&mut pieces) {
            let there = &row[at..row.len().min(at + PIECE)];
            piece[..there.len()].copy_from_slice(there);
        }
        pieces
    }
}

/// Writes a word of every row.
///
/// # Safety
/// The machine has the instructions of `W`.
#[inline(always)]
unsafe fn put<W: U32x16>(word: W, to: &mut [u8; VECTOR]) {
    // SAFETY: as the caller promises; there is room for sixteen words.
    unsafe { word.store(to.as_mut_ptr()) };
}

/// Fills elements of four bytes, or pairs of two bytes; an odd last element is paired with zero.
///
/// # Safety
/// The machine has the instructions of `W`.
#[inline(always)]
unsafe fn fill_words<W: U32x16>(rows: Rows<'_>, tile: &mut [u8]) {
    let (lines, _) = tile.as_chunks_mut::<VECTOR>();
    for (piece, lines) in lines[..rows.stride.div_ceil(WORD)].chunks_mut(GROUPS).enumerate() {
        // SAFETY: as the caller promises.
        let words = unsafe { rows.words::<W>(piece * PIECE) };
        for (word, line) in words.into_iter().zip(lines) {
            // SAFETY: as above.
            unsafe { put(word, line) };
        }
    }
}

/// Fills elements of two bytes: the lower half of a word of every row, then the upper.
///
/// # Safety
/// The machine has the instructions of `W`.
#[inline(always)]
unsafe fn fill_halves<W: U32x16>(rows: Rows<'_>, tile: &mut [u8]) {
    let (columns, _) = tile.as_chunks_mut::<{ 2 * TILE_ROWS }>();
    for (piece, to) in columns[..rows.stride / 2].chunks_mut(2 * GROUPS).enumerate() {
        // SAFETY: as the caller promises.
        let words = unsafe { rows.words::<W>(piece * PIECE) };
        for (to, word) in to.chunks_mut(2).zip(words) {
            let mut line = [0; VECTOR];
            // SAFETY: as above.
            unsafe { put(word, &mut line) };
            for (half, to) in to.iter_mut().enumerate() {
                for (to, word) in to.as_chunks_mut::<2>().0.iter_mut().zip(line.as_chunks::<WORD>().0) {
                    *to = ((u32::from_le_bytes(*word) >> (16 * half)) as u16).to_le_bytes();
                }
            }
        }
    }
}

/// Fills 14-bit values: the half floats of a block, and its values in pairs.
///
/// # Safety
/// The machine has the instructions of `W`.
#[inline(always)]
unsafe fn fill_shorts<W: U32x16>(rows: Rows<'_>, layout: &TileLayout, tile: &mut [u8]) {
    for number in 0..rows.stride / ShortBlock::BYTES {
        let start = number * ShortBlock::BYTES;
        put_column::<2>(rows, start, &mut tile[layout.short_scale(0, number)..]);
        let (lines, _) = tile[layout.low..].as_chunks_mut::<VECTOR>();
        let lines = &mut lines[number * CHUNK_VECTORS..][..CHUNK_VECTORS];
        for (together, lines) in lines.chunks_exact_mut(STORED).enumerate() {
            // SAFETY: as the caller promises.
            let words = pack(unsafe { rows.words::<W>(start + 2 + together * PIECE) });
            for (word, line) in words.into_iter().zip(lines) {
                // SAFETY: as above.
                unsafe { put(word, line) };
            }
        }
    }
}

/// Fills quantised blocks: the scales of every row, then the quantised values, 32 columns at a time.
///
/// # Safety
/// The machine has the instructions of `W`.
#[inline(always)]
unsafe fn fill_codes<W: U32x16>(rows: Rows<'_>, layout: &TileLayout, tile: &mut [u8]) {
    let codes = &rows.ty.codes().expect("other types are filled elsewhere");
    let (bytes, chunks) = (rows.ty.block_bytes(), codes.block_len / CHUNK);
    for number in 0..rows.stride / bytes {
        let start = number * bytes;
        put_units(codes, rows, number, layout, tile);
        for part in 0..chunks {
            let chunk = number * chunks + part;
            let words = codes_of_part(
                rows.ty,
                part,
                #[inline(always)]
                // SAFETY: as the caller promises.
                |at| unsafe { rows.words::<W>(start + at) },
            );
            let low = &mut tile[layout.low + chunk * codes.low_bits * VECTOR..];
            // SAFETY: as the caller promises.
            unsafe { put_bits(codes.low_bits, words, 0, low) };
            let high = &mut tile[layout.high + chunk * codes.high_bits * VECTOR..];
            // SAFETY: as above.
            unsafe { put_bits(codes.high_bits, words, codes.low_bits, high) };
        }
    }
}

/// Writes the scales and minima of block `number` of every row, and the floats that they are multiplied by.
#[inline(always)]
fn put_units(codes: &Codes, rows: Rows<'_>, number: usize, layout: &TileLayout, tile: &mut [u8]) {
    let start = number * rows.ty.block_bytes();
    if codes.scales != Scales::None {
        for (row, bytes) in rows.each().enumerate() {
            let mut block = Block::default();
            block.read_units(rows.ty, &bytes[start..start + rows.ty.block_bytes()]);
            put_scales(codes, &block, number, row, layout, tile);
        }
        return;
    }
    // These blocks begin with the floats.
    let units = &mut tile[layout.d + codes.unit_at(number)..];
    match codes.unit {
        BlockUnit::Half => put_column::<2>(rows, start, units),
        BlockUnit::Exponent => put_column::<1>(rows, start, units),
    }
    if codes.has_min {
        put_column::<2>(rows, start + 2, &mut tile[layout.m + 2 * TILE_ROWS * number..]);
    }
}

/// Writes the bytes from `at` on of every row, row by row.
#[inline(always)]
fn put_column<const BYTES: usize>(rows: Rows<'_>, at: usize, to: &mut [u8]) {
    let (to, _) = to[..BYTES * TILE_ROWS].as_chunks_mut::<BYTES>();
    for (row, to) in rows.each().zip(to) {
        to.copy_from_slice(&row[at..at + BYTES]);
    }
}

/// Writes the scales and minima of a block of one row, and the floats that they are multiplied by.
#[inline(always)]
fn put_scales(codes: &Codes, block: &Block, number: usize, row: usize, layout: &TileLayout, tile: &mut [u8]) {
    let mut put = |at: usize, half: half::f16| tile[at..at + 2].copy_from_slice(&half.to_le_bytes());
    let at = 2 * (number * TILE_ROWS + row);
    put(layout.d + at, block.d);
    if codes.has_min {
        put(layout.m + at, block.m);
    }
    let subs = codes.block_len / codes.sub_len;
    for sub in 0..subs {
        let at = (number * subs + sub) * TILE_ROWS + row;
        let (scale, min) = (block.scales[sub] as u8, block.mins[sub]);
        match codes.scales {
            Scales::None => {}
            Scales::Signed => tile[layout.scales + at] = scale,
            Scales::Nibbles => tile[layout.scales + at] = scale | min << 4,
            Scales::WithMins => (tile[layout.scales + at], tile[layout.mins + at]) = (scale, min),
        }
    }
}

/// Writes `bits` bits of every quantised value, those from `shift` on, to as many vectors.
///
/// # Safety
/// The machine has the instructions of `W`.
#[inline(always)]
unsafe fn put_bits<W: U32x16>(bits: usize, words: [W; GROUPS], shift: usize, to: &mut [u8]) {
    // SAFETY: as the caller promises.
    unsafe {
        match bits {
            0 => {}
            1 => put_vectors::<W, 1>(words, shift, to),
            2 => put_vectors::<W, 2>(words, shift, to),
            4 => put_vectors::<W, 4>(words, shift, to),
            8 => put_vectors::<W, 8>(words, shift, to),
            _ => unreachable!("codes of {bits} bits in a plane"),
        }
    }
}

/// # Safety
/// The machine has the instructions of `W`.
#[inline(always)]
unsafe fn put_vectors<W: U32x16, const BITS: usize>(words: [W; GROUPS], shift: usize, to: &mut [u8]) {
    let (lines, _) = to.as_chunks_mut::<VECTOR>();
    for (vector, line) in lines[..BITS].iter_mut().enumerate() {
        let groups = &words[vector * (8 / BITS)..][..8 / BITS];
        let mut packed = groups[0].shift_right(shift).and(byte_mask(BITS));
        for (group, word) in groups.iter().enumerate().skip(1) {
            packed = packed.or(word.shift_right(shift).and(byte_mask(BITS)).shift_left(group * BITS));
        }
        // SAFETY: as the caller promises.
        unsafe { put(packed, line) };
    }
}
