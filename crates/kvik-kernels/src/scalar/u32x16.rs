//! Sixteen words in plain Rust.

use crate::u32x16::{Bits, U32x16};

/// Exists everywhere.
#[derive(Clone, Copy)]
pub(crate) struct ScalarWords([u32; 16]);

impl Bits for ScalarWords {
    fn and(self, mask: u32) -> ScalarWords {
        ScalarWords(self.0.map(|word| word & mask))
    }

    fn or(self, other: ScalarWords) -> ScalarWords {
        ScalarWords(std::array::from_fn(|row| self.0[row] | other.0[row]))
    }

    fn xor(self, mask: u32) -> ScalarWords {
        ScalarWords(self.0.map(|word| word ^ mask))
    }

    fn shift_left(self, by: usize) -> ScalarWords {
        ScalarWords(self.0.map(|word| word << by))
    }

    fn shift_right(self, by: usize) -> ScalarWords {
        ScalarWords(self.0.map(|word| word >> by))
    }
}

impl U32x16 for ScalarWords {
    unsafe fn turned(rows: *const u8, stride: usize) -> [ScalarWords; 8] {
        let word = |row: usize, word: usize| {
            // SAFETY: the caller's rows have eight words.
            u32::from_le_bytes(unsafe { rows.add(row * stride + 4 * word).cast::<[u8; 4]>().read() })
        };
        std::array::from_fn(|number| ScalarWords(std::array::from_fn(|row| word(row, number))))
    }

    unsafe fn store(self, to: *mut u8) {
        // SAFETY: the caller's room is for sixteen words.
        unsafe { to.cast::<[[u8; 4]; 16]>().write_unaligned(self.0.map(u32::to_le_bytes)) };
    }
}
