//! Filling a tile: a block of every row at a time, whole vectors of the tile at once.
//!
//! A model is packed whenever it is opened, so this is most of what a start takes. Everything goes through words of
//! four bytes, `[words][16 rows]`, of which the compiler makes vectors.

use super::layout::{CHUNK, CHUNK_VECTORS, GROUPS, STORED, TILE_ROWS, TileLayout, VECTOR, byte_mask};
use super::shorts::pack;
use crate::quant::{Block, BlockUnit, Codes, Scales, ShortBlock, WeightType};
use crate::vectorised;

/// A word of every row of a tile.
type Words = [u32; TILE_ROWS];

const WORD: usize = 4;
/// Words that are turned around at once: those of 32 columns of bytes.
const EIGHT: usize = GROUPS;
/// Bytes of as many.
const PIECE: usize = WORD * EIGHT;

/// Fills a tile of zeros with `rows`: up to sixteen rows of a file, of `row_bytes` each, one after another.
pub(super) fn fill(ty: WeightType, rows: &[u8], row_bytes: usize, layout: &TileLayout, tile: &mut [u8]) {
    vectorised(
        #[inline(always)]
        || match ty {
            WeightType::F32 => fill_words(rows, row_bytes, &mut tile[layout.low..]),
            WeightType::Bf16 => fill_words(rows, row_bytes, &mut tile[layout.low..]),
            WeightType::F16 => fill_halves(rows, row_bytes, &mut tile[layout.low..]),
            WeightType::Q14_0 => fill_shorts(rows, row_bytes, layout, tile),
            _ => fill_codes(ty, rows, row_bytes, layout, tile),
        },
    );
}

/// Elements of four bytes, or pairs of two; an odd last element stands beside a zero.
#[inline(always)]
fn fill_words(rows: &[u8], row_bytes: usize, tile: &mut [u8]) {
    let (lines, _) = tile.as_chunks_mut::<VECTOR>();
    put_words(rows, row_bytes, 0, &mut lines[..row_bytes.div_ceil(WORD)]);
}

/// The words of all rows from byte `start` of each, one a line.
#[inline(always)]
fn put_words(rows: &[u8], row_bytes: usize, start: usize, lines: &mut [[u8; VECTOR]]) {
    for (eight, to) in lines.chunks_mut(EIGHT).enumerate() {
        let words = eight_words(
            #[inline(always)]
            |row| piece(rows, row_bytes, row, start + eight * PIECE),
        );
        for (to, words) in to.iter_mut().zip(&words) {
            *to = line(words);
        }
    }
}

/// Elements of two bytes: of a word the lower half of every row, then the upper.
#[inline(always)]
fn fill_halves(rows: &[u8], row_bytes: usize, tile: &mut [u8]) {
    let (columns, _) = tile.as_chunks_mut::<{ 2 * TILE_ROWS }>();
    for (eight, to) in columns[..row_bytes / 2].chunks_mut(2 * EIGHT).enumerate() {
        let words = eight_words(
            #[inline(always)]
            |row| piece(rows, row_bytes, row, eight * PIECE),
        );
        for (to, words) in to.chunks_mut(2).zip(&words) {
            for (half, to) in to.iter_mut().enumerate() {
                for (to, word) in to.as_chunks_mut::<2>().0.iter_mut().zip(words) {
                    *to = ((word >> (16 * half)) as u16).to_le_bytes();
                }
            }
        }
    }
}

/// Codes of 14 bits: the half floats of a block, and its codes in pairs.
#[inline(always)]
fn fill_shorts(rows: &[u8], row_bytes: usize, layout: &TileLayout, tile: &mut [u8]) {
    for number in 0..row_bytes / ShortBlock::BYTES {
        let start = number * ShortBlock::BYTES;
        for (row, bytes) in rows.chunks_exact(row_bytes).enumerate() {
            let at = layout.short_scale(row, number);
            tile[at..at + 2].copy_from_slice(&bytes[start..start + 2]);
        }
        let (lines, _) = tile[layout.low..].as_chunks_mut::<VECTOR>();
        let lines = &mut lines[number * CHUNK_VECTORS..][..CHUNK_VECTORS];
        for (together, lines) in lines.chunks_exact_mut(STORED).enumerate() {
            let words = eight_words(
                #[inline(always)]
                |row| piece(rows, row_bytes, row, start + 2 + together * PIECE),
            );
            for (to, words) in lines.iter_mut().zip(&pack(&words)) {
                *to = line(words);
            }
        }
    }
}

/// The bytes from `at` on of a row, zeros for what the row or the tile lacks.
#[inline(always)]
fn piece(rows: &[u8], row_bytes: usize, row: usize, at: usize) -> [u8; PIECE] {
    let Some(row) = rows.get(row * row_bytes..(row + 1) * row_bytes) else { return [0; PIECE] };
    if let Some(whole) = row[at..].first_chunk() {
        return *whole;
    }
    let mut piece = [0; PIECE];
    piece[..row.len() - at].copy_from_slice(&row[at..]);
    piece
}

/// Quantised blocks.
#[inline(always)]
fn fill_codes(ty: WeightType, rows: &[u8], row_bytes: usize, layout: &TileLayout, tile: &mut [u8]) {
    let codes = &ty.codes().expect("other types are filled elsewhere");
    let (bytes, chunks) = (ty.block_bytes(), codes.block_len / CHUNK);
    let absent = Block { scales: [0; 16], mins: [0; 16], ..Block::default() };
    let mut blocks: [Block; TILE_ROWS] = std::array::from_fn(|_| absent.clone());
    blocks[..rows.len() / row_bytes].fill(Block::default());
    for number in 0..row_bytes / bytes {
        for (row, block) in rows.chunks_exact(row_bytes).zip(&mut blocks) {
            block.read(ty, &row[number * bytes..(number + 1) * bytes]);
        }
        put_units(codes, layout, tile, number, &blocks);
        for part in 0..chunks {
            let chunk = number * chunks + part;
            let words =
                eight_words(|row| *blocks[row].codes[part * CHUNK..].first_chunk().expect("32 codes"));
            put_bits(codes.low_bits, &words, 0, &mut tile[layout.low + chunk * codes.low_bits * VECTOR..]);
            let high = &mut tile[layout.high + chunk * codes.high_bits * VECTOR..];
            put_bits(codes.high_bits, &words, codes.low_bits, high);
        }
    }
}

/// Scales, minima and what they are multiplied by, of block number `number` of every row.
#[inline(always)]
fn put_units(
    codes: &Codes,
    layout: &TileLayout,
    tile: &mut [u8],
    number: usize,
    blocks: &[Block; TILE_ROWS],
) {
    let mut put = |at: usize, half: half::f16| tile[at..at + 2].copy_from_slice(&half.to_le_bytes());
    for (row, block) in blocks.iter().enumerate() {
        let at = 2 * (number * TILE_ROWS + row);
        if codes.unit == BlockUnit::Half {
            put(layout.d + at, block.d);
        }
        if codes.has_min {
            put(layout.m + at, block.m);
        }
    }
    if codes.unit == BlockUnit::Exponent {
        let exponents: [u8; TILE_ROWS] = std::array::from_fn(|row| blocks[row].exponent);
        tile[layout.d + codes.unit_at(number)..][..TILE_ROWS].copy_from_slice(&exponents);
    }
    let subs = codes.block_len / codes.sub_len;
    let planes = match codes.scales {
        Scales::None => return,
        Scales::Signed | Scales::Nibbles => 1,
        Scales::WithMins => 2,
    };
    for sub in 0..subs {
        let at = (number * subs + sub) * TILE_ROWS;
        let mut bytes = [[0; TILE_ROWS]; 2];
        for (row, block) in blocks.iter().enumerate() {
            let (scale, min) = (block.scales[sub] as u8, block.mins[sub]);
            let nibbles = codes.scales == Scales::Nibbles;
            (bytes[0][row], bytes[1][row]) = (if nibbles { scale | min << 4 } else { scale }, min);
        }
        for (plane, bytes) in [layout.scales, layout.mins].into_iter().zip(bytes).take(planes) {
            tile[plane + at..][..TILE_ROWS].copy_from_slice(&bytes);
        }
    }
}

/// Eight words of every row: the first of all rows, the second of all rows.
///
/// A plain loop: `array::from_fn` would compile its closure without the vectors of the function around it.
#[inline(always)]
fn eight_words(piece: impl Fn(usize) -> [u8; PIECE]) -> [Words; EIGHT] {
    let mut rows = [[0; EIGHT]; TILE_ROWS];
    for (row, words) in rows.iter_mut().enumerate() {
        let piece = piece(row);
        for (word, bytes) in words.iter_mut().zip(piece.as_chunks::<WORD>().0) {
            *word = u32::from_le_bytes(*bytes);
        }
    }
    turned(&rows)
}

/// `[rows][words]` as `[words][rows]`.
#[inline(always)]
fn turned(rows: &[[u32; EIGHT]; TILE_ROWS]) -> [Words; EIGHT] {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the machine has the instructions.
        return unsafe { super::turn::turned(rows) };
    }
    let mut words = [[0; TILE_ROWS]; EIGHT];
    for (row, of_row) in rows.iter().enumerate() {
        for (words, word) in words.iter_mut().zip(of_row) {
            words[row] = *word;
        }
    }
    words
}

/// Writes `bits` bits of every code, those from `shift` on: as many vectors.
#[inline(always)]
fn put_bits(bits: usize, words: &[Words; GROUPS], shift: usize, to: &mut [u8]) {
    match bits {
        0 => {}
        1 => put_vectors::<1>(words, shift, to),
        2 => put_vectors::<2>(words, shift, to),
        4 => put_vectors::<4>(words, shift, to),
        8 => put_vectors::<8>(words, shift, to),
        _ => unreachable!("codes of {bits} bits in a plane"),
    }
}

#[inline(always)]
fn put_vectors<const BITS: usize>(words: &[Words; GROUPS], shift: usize, to: &mut [u8]) {
    let mask = byte_mask(BITS);
    for (groups, to) in words.chunks_exact(8 / BITS).zip(to.as_chunks_mut::<VECTOR>().0) {
        let mut packed = [0; TILE_ROWS];
        for (group, words) in groups.iter().enumerate() {
            for (packed, word) in packed.iter_mut().zip(words) {
                *packed |= (word >> shift & mask) << (group * BITS);
            }
        }
        *to = line(&packed);
    }
}

/// A word of every row as bytes.
#[inline(always)]
fn line(words: &Words) -> [u8; VECTOR] {
    let mut line = [0; VECTOR];
    for (to, word) in line.as_chunks_mut::<WORD>().0.iter_mut().zip(words) {
        *to = word.to_le_bytes();
    }
    line
}
