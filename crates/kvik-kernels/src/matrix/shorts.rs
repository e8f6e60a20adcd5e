//! 14-bit values in a tile: seven vectors of pairs of columns hold an eighth.
//!
//! A 16-bit half word has two unused bits next to its value, so seven half words have room for one more value.
//! Decoding is bound by memory bandwidth, and this saves an eighth of it.
//!
//! ```text
//!   bits 15..2 of a half word      its own value, with its sign
//!   bits  1..0 of half word i      bits 2 i + 1 .. 2 i of the eighth value
//! ```

use super::layout::{STORED, TILE_ROWS, TOGETHER, TileLayout, VECTOR};
use crate::u32x16::Bits;

/// Spare bits of a half word.
pub(crate) const SPARE: usize = 2;
/// The spare bits of both half words of a word.
const SPARES: u32 = 0x0003_0003;

/// Packs words of two values each into their stored form.
#[inline(always)]
pub(super) fn pack<W: Bits>(words: [W; TOGETHER]) -> [W; STORED] {
    let [mut stored @ .., eighth] = words;
    for (at, stored) in stored.iter_mut().enumerate() {
        *stored = stored.shift_left(SPARE).and(!SPARES).or(eighth.shift_right(SPARE * at).and(SPARES));
    }
    stored
}

impl TileLayout {
    /// Offset of the half float of block `block` of row `row`.
    pub(super) fn short_scale(&self, row: usize, block: usize) -> usize {
        self.d + 2 * (block * TILE_ROWS + row)
    }

    /// The value of column `col` of row `row`, in a tile of 14-bit values.
    pub(super) fn short_code(&self, tile: &[u8], row: usize, col: usize) -> i16 {
        let (together, number, half) = (col / (2 * TOGETHER), col / 2 % TOGETHER, col % 2);
        let stored = |at: usize| {
            let at = self.low + (together * STORED + at) * VECTOR + 4 * row + 2 * half;
            i16::from_le_bytes([tile[at], tile[at + 1]])
        };
        let code = match number {
            STORED => (0..STORED).fold(0, |code, at| code | (stored(at) & 3) << (SPARE * (at + 1))),
            number => stored(number),
        };
        code >> SPARE
    }
}
