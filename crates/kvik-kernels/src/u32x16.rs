//! Lanes of 32-bit words, with which packing takes blocks apart: one word of each row of a tile, or of a
//! single row.
//!
//! The compiler vectorises such loops too, but sometimes along the wrong axis: four words of a row instead of one
//! word of sixteen rows, gathered one by one. There is no way to choose the axis, so the registers are explicit.

/// Bitwise operations on words.
///
/// As with [`U32x16`], a value exists only where the machine executes the instructions.
pub(crate) trait Bits: Copy {
    /// The bits that `mask` has in each word.
    fn and(self, mask: u32) -> Self;
    /// The bits of both.
    fn or(self, other: Self) -> Self;
    /// The bits of `mask` inverted in each word.
    fn xor(self, mask: u32) -> Self;
    /// Shifts every word left by less than 32.
    fn shift_left(self, by: usize) -> Self;
    /// Shifts every word right by less than 32.
    fn shift_right(self, by: usize) -> Self;
}

/// A single row: one word.
impl Bits for u32 {
    #[inline(always)]
    fn and(self, mask: u32) -> u32 {
        self & mask
    }

    #[inline(always)]
    fn or(self, other: u32) -> u32 {
        self | other
    }

    #[inline(always)]
    fn xor(self, mask: u32) -> u32 {
        self ^ mask
    }

    #[inline(always)]
    fn shift_left(self, by: usize) -> u32 {
        self << by
    }

    #[inline(always)]
    fn shift_right(self, by: usize) -> u32 {
        self >> by
    }
}

/// Sixteen words in registers, one of each row.
///
/// A value of the implementing type exists only where the machine executes its instructions, and methods are called only
/// from functions compiled for them.
pub(crate) trait U32x16: Bits {
    /// Transposes the first eight words of sixteen rows, which are `stride` bytes apart: vector `i` holds word
    /// `i` of all rows.
    ///
    /// # Safety
    /// The machine has the instructions, and each row is readable for 32 bytes.
    unsafe fn turned(rows: *const u8, stride: usize) -> [Self; 8];

    /// Writes the words in order, each with its lowest byte first.
    ///
    /// # Safety
    /// `to` is writable for 64 bytes.
    unsafe fn store(self, to: *mut u8);
}

/// Words in plain Rust, which work on every machine.
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
        // SAFETY: the caller provides room for sixteen words.
        unsafe { to.cast::<[[u8; 4]; 16]>().write_unaligned(self.0.map(u32::to_le_bytes)) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STRIDE: usize = 37;
    const MASK: u32 = 0x0f1e_2d3c;

    /// Transposes rows, and returns every word followed by the result of each operation on it.
    fn turned<W: U32x16>() -> Vec<u8> {
        let rows: Vec<u8> = (0..15 * STRIDE + 32).map(|i| (i * 89 / 3) as u8).collect();
        // SAFETY: the caller has seen that the machine has the words; sixteen rows of 32 bytes are there.
        let words = unsafe { W::turned(rows.as_ptr(), STRIDE) };
        let mut out = Vec::new();
        for word in words {
            let others =
                [word.and(MASK), word.xor(MASK), word.shift_left(7), word.shift_right(9), word.or(words[3])];
            for word in [word].into_iter().chain(others) {
                let mut bytes = [0; 64];
                // SAFETY: as many bytes are there.
                unsafe { word.store(bytes.as_mut_ptr()) };
                out.extend(bytes);
            }
        }
        out
    }

    #[test]
    fn rows_are_turned_in_any_registers() {
        let expect = turned::<ScalarWords>();
        let (row, word) = (11, 5);
        let byte = (row * STRIDE + 4 * word) * 89 / 3;
        assert_eq!(expect[word * 6 * 64 + 4 * row], byte as u8, "the lowest byte of a word");
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            assert_eq!(turned::<crate::x86::u32x16_avx2::Avx2Words>(), expect);
        }
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx512f") {
            assert_eq!(turned::<crate::x86::u32x16_avx512::Avx512Words>(), expect);
        }
        #[cfg(target_arch = "aarch64")]
        assert_eq!(turned::<crate::arm::u32x16_neon::NeonWords>(), expect);
    }
}
