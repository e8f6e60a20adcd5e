//! Sixteen sums of products of 16-bit pairs: the lanes in which attention reads quantised keys and values.
//!
//! Integer sums are exact, so any order and any register width give the same bits. Quantised values have at most 8
//! bits, the numbers they are multiplied with have 16, and a sum has at most 512 products:
//! `127 * 32767 * 512 < 2^31`.

use crate::f32x16::F32x16;

/// Sixteen 32-bit sums in registers.
///
/// As with [`F32x16`], a value exists only where the machine executes the instructions of these lanes.
pub(crate) trait I32x16: Copy {
    /// The float lanes of the same registers.
    type Floats: F32x16;
    /// Two 16-bit numbers per lane.
    type Pairs: Copy;
    /// 32 bits per lane that hold several packed quantised values.
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
    /// 16 numbers of 16 bits: the lower and the upper eight of each to the lower and the upper half of a lane, at
    /// `shift` in both.
    unsafe fn load_halves(from: *const u8, shift: usize) -> Self::Word;
    /// 16 bytes: the lower and the upper four bits of each to the lower and the upper half of a lane, at `shift`.
    unsafe fn load_quarters(from: *const u8, shift: usize) -> Self::Word;
    /// The bits of `mask` in both halves of each lane, moved down by `shift`.
    fn fields(word: Self::Word, shift: usize, mask: i16) -> Self::Pairs;
    /// Pairs of numbers that have the bits of both.
    fn join(a: Self::Pairs, b: Self::Pairs) -> Self::Pairs;
    /// Transposes 16 rows of 16 bytes: from `[8 pairs of rows][16] { 2 bytes }` to pairs of columns,
    /// `[16] { 2 bytes }` each, `stride` bytes apart.
    unsafe fn turn_bytes(from: *const u8, to: *mut u8, stride: usize);
    /// Each lane plus both its products.
    fn add_products(self, a: Self::Pairs, b: Self::Pairs) -> Self;
    /// The sums as floats, rounded half to even.
    fn to_floats(self) -> Self::Floats;
    /// Writes the lanes to 16 elements at `to`.
    unsafe fn store(self, to: *mut i32);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::f32x16::LANES;

    const STRIDE: usize = 40;

    /// Transposes a matrix of distinct bytes.
    fn turned<I: I32x16>() -> [u8; LANES / 2 * STRIDE] {
        let from: [u8; LANES * LANES] = std::array::from_fn(|i| i as u8);
        let mut to = [0; LANES / 2 * STRIDE];
        // SAFETY: the caller has seen that the machine has the lanes; 8 pairs of columns, a stride apart.
        unsafe { I::turn_bytes(from.as_ptr(), to.as_mut_ptr(), STRIDE) };
        to
    }

    #[test]
    fn rows_of_bytes_become_columns_in_any_registers() {
        let mut expect = [0; LANES / 2 * STRIDE];
        for (row, column) in (0..LANES).flat_map(|row| (0..LANES).map(move |column| (row, column))) {
            let byte = (row / 2 * LANES + column) * 2 + row % 2;
            expect[column / 2 * STRIDE + row * 2 + column % 2] = byte as u8;
        }
        assert_eq!(turned::<crate::scalar::i32x16::ScalarSums>(), expect);
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            assert_eq!(turned::<crate::x86::i32x16_avx2::Avx2Sums<false>>(), expect);
        }
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx512f") {
            assert_eq!(turned::<crate::x86::i32x16_avx512::Avx512Sums>(), expect);
        }
        #[cfg(target_arch = "aarch64")]
        assert_eq!(turned::<crate::arm::i32x16_neon::NeonSums>(), expect);
    }

    /// Both numbers of each lane of `pairs`, found by multiplying by 1 and 0.
    fn numbers<I: I32x16>(pairs: I::Pairs) -> [[i32; LANES]; 2] {
        [[1, 0], [0, 1]].map(|factors: [i16; 2]| {
            let mut numbers = [0; LANES];
            // SAFETY: the caller has seen that the machine has the lanes; a pair, and 16 sums.
            unsafe {
                I::zero().add_products(pairs, I::splat_pair(factors.as_ptr())).store(numbers.as_mut_ptr());
            }
            numbers
        })
    }

    /// The fields of whole, half and quarter words.
    fn fields<I: I32x16>() -> Vec<[[i32; LANES]; 2]> {
        let bytes: [u8; 64] = std::array::from_fn(|i| (i * 37 + 11) as u8);
        // SAFETY: the caller has seen that the machine has the lanes; 64 bytes are the longest words.
        let [whole, half, quarter] = unsafe {
            let from = bytes.as_ptr();
            [I::load_word(from), I::load_halves(from, 4), I::load_quarters(from, 2)]
        };
        let mut fields = Vec::new();
        for i in 0..4 {
            fields.push(numbers::<I>(I::fields(whole, 4 * i, 15)));
            fields.push(numbers::<I>(I::fields(half, 2 * i, 3 << 4)));
            fields.push(numbers::<I>(I::fields(quarter, i, 1 << 2)));
        }
        fields.push(numbers::<I>(I::join(I::fields(whole, 8, 3), I::fields(half, 0, 1 << 4))));
        fields
    }

    #[test]
    fn fields_are_the_same_bits_in_any_registers() {
        let bytes: [usize; 64] = std::array::from_fn(|i| (i * 37 + 11) % 256);
        let mut expect = Vec::new();
        let of = |number: &dyn Fn(usize, usize) -> usize| {
            [0, 1].map(|half| std::array::from_fn(|lane| number(lane, half) as i32))
        };
        let whole =
            |lane: usize, half: usize| bytes[4 * lane + 2 * half] | bytes[4 * lane + 2 * half + 1] << 8;
        for i in 0..4 {
            expect.push(of(&|lane, half| whole(lane, half) >> (4 * i) & 15));
            expect.push(of(&|lane, half| (bytes[2 * lane + half] >> (2 * i) & 3) << 4));
            expect.push(of(&|lane, half| (bytes[lane] >> (4 * half + i) & 1) << 2));
        }
        expect.push(of(&|lane, half| whole(lane, half) >> 8 & 3 | (bytes[2 * lane + half] & 1) << 4));
        assert_eq!(fields::<crate::scalar::i32x16::ScalarSums>(), expect);
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            assert_eq!(fields::<crate::x86::i32x16_avx2::Avx2Sums<false>>(), expect);
        }
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx512f") {
            assert_eq!(fields::<crate::x86::i32x16_avx512::Avx512Sums>(), expect);
        }
        #[cfg(target_arch = "aarch64")]
        assert_eq!(fields::<crate::arm::i32x16_neon::NeonSums>(), expect);
    }
}
