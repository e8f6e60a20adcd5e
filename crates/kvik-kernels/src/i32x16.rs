//! Sixteen sums of products of 16-bit pairs: the words in which attention reads quantised keys and values.
//!
//! Integer sums are exact, so any order and any register width give the same bits. Quantised values have
//! at most 8 bits, what they meet has 16, and a sum has at most 512 products: `127 * 32767 * 512 < 2^31`.

use crate::f32x16::F32x16;

/// Sixteen 32-bit sums in registers.
///
/// As with [`F32x16`], a value exists only where the machine executes the instructions of these lanes.
pub(crate) trait I32x16: Copy {
    /// The floats of the same registers.
    type Floats: F32x16;
    /// Two 16-bit numbers per lane.
    type Pairs: Copy;
    /// 32 bits per lane that still hold several quantised values.
    type Word: Copy;

    unsafe fn zero() -> Self;
    /// 16 sums at `from`, at any alignment.
    unsafe fn load(from: *const i32) -> Self;
    /// The pair at `from` in every lane.
    unsafe fn splat_pair(from: *const i16) -> Self::Pairs;
    /// 32 signed bytes, widened: bytes `2 i` and `2 i + 1` to lane `i`.
    unsafe fn load_bytes(from: *const i8) -> Self::Pairs;
    /// 64 bytes of packed quantised values.
    unsafe fn load_word(from: *const u8) -> Self::Word;
    /// The four bits at `4 i` and at `16 + 4 i` of each lane, `i < 4`.
    fn nibbles(word: Self::Word, i: usize) -> Self::Pairs;
    /// Each lane plus both its products.
    fn add_products(self, a: Self::Pairs, b: Self::Pairs) -> Self;
    /// The sums as floats, rounded half to even.
    fn to_floats(self) -> Self::Floats;
    /// Writes the lanes to 16 elements at `to`.
    unsafe fn store(self, to: *mut i32);
}
