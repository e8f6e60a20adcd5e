//! Codes of 14 bits in a tile: pairs of columns, seven vectors of which hold an eighth.
//!
//! A half word has two bits beside a code, so that seven of them have room for one more. Decode waits for memory, and
//! this is an eighth less of it.
//!
//! ```text
//!   bits 15..2 of a half word      its own code, with its sign
//!   bits  1..0 of half word i      bits 2 i + 1 .. 2 i of the eighth code
//! ```

use super::layout::{STORED, TILE_ROWS, TOGETHER, TileLayout, VECTOR};
use crate::u32x16::Bits;

/// Bits of a half word beside a code.
pub(crate) const SPARE: usize = 2;
/// Those bits of both half words of a word.
const SPARES: u32 = 0x0003_0003;

/// Words with two codes each, as they are stored.
#[inline(always)]
pub(super) fn pack<W: Bits>(words: [W; TOGETHER]) -> [W; STORED] {
    let [mut stored @ .., eighth] = words;
    for (at, stored) in stored.iter_mut().enumerate() {
        *stored = stored.shift_left(SPARE).and(!SPARES).or(eighth.shift_right(SPARE * at).and(SPARES));
    }
    stored
}

impl TileLayout {
    /// Where the half float of block number `block` of `row` is.
    pub(super) fn short_scale(&self, row: usize, block: usize) -> usize {
        self.d + 2 * (block * TILE_ROWS + row)
    }

    /// The code of column `col` of `row`, one of a tile of such codes.
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
