//! Sixteen f32 lanes: the unit in which attention and the small operations compute.
//!
//! An operation is written once, generic over [`F32x16`]. Executed with the scalar lanes it is the specification;
//! executed with vector registers it equals that to the bit, because every method is one IEEE operation per lane
//! and reductions use one fixed tree.
//!
//! Matrix products use the traits of `lanes` instead: they compute on quantised values, not on floats.
//!
//! The methods are `inline(always)`: they become single instructions inside a function that has
//! the target features of the lanes, and such functions are the only place to use them.

/// The number of lanes, regardless of the machine's registers.
pub(crate) const LANES: usize = 16;

/// Sixteen f32 values in registers.
///
/// A value can only be made by an `unsafe` constructor, whose caller guarantees that the machine executes the
/// instructions of these lanes. So code that holds a value may compute with it.
///
/// Constructors that read need as many readable elements as there are lanes, at any alignment.
pub(crate) trait F32x16: Copy {
    /// Whether 24 accumulators fit the registers; otherwise 6 do.
    const WIDE: bool;
    /// Whether several sums are computed at a time. The specification computes one: it has the same bits,
    /// and is plainer to read and to compile.
    const BLOCKED: bool = true;

    unsafe fn splat(x: f32) -> Self;
    unsafe fn load(from: *const f32) -> Self;
    unsafe fn load_f16(from: *const u16) -> Self;
    unsafe fn load_bf16(from: *const u16) -> Self;
    /// [Small floats](crate::small_floats) of 8 bits.
    unsafe fn load_small(from: *const u8) -> Self;

    /// Prefetches the cache line at `at`, which need not be readable, into the second-level cache.
    unsafe fn prefetch(at: *const u8);

    /// Writes the lanes to 16 elements at `to`.
    unsafe fn store(self, to: *mut f32);
    /// Writes the lanes, rounded half to even, to 16 elements at `to`. Lanes must be at most 32767 in magnitude,
    /// or NaN, which becomes 0.
    unsafe fn store_i16(self, to: *mut i16);

    fn add(self, other: Self) -> Self;
    fn sub(self, other: Self) -> Self;
    fn mul(self, other: Self) -> Self;
    fn div(self, other: Self) -> Self;
    /// `self * factor + addend`, rounded once.
    fn mul_add(self, factor: Self, addend: Self) -> Self;
    /// The larger of both; `other` if they do not compare.
    fn max(self, other: Self) -> Self;
    /// `self` in the first `count` lanes, `other` in the rest.
    fn first(self, count: usize, other: Self) -> Self;
    /// `yes` where `self < bound`, else `no`.
    fn select_less(self, bound: Self, yes: Self, no: Self) -> Self;
    /// `2^n` for lanes that hold `n + ROUND`, `n` an integer in -126..=127.
    fn power_of_two(self) -> Self;

    /// The lanes in order.
    #[inline(always)]
    fn to_array(self) -> [f32; LANES] {
        let mut lanes = [0.0; LANES];
        // SAFETY: the array has 16 elements.
        unsafe { self.store(lanes.as_mut_ptr()) };
        lanes
    }

    /// Lane `i` of vector `j` becomes lane `j` of vector `i`.
    #[inline(always)]
    fn transpose(vectors: &mut [Self; LANES]) {
        let mut rows = [[0.0; LANES]; LANES];
        for (j, vector) in vectors.iter().enumerate() {
            for (i, x) in vector.to_array().into_iter().enumerate() {
                rows[i][j] = x;
            }
        }
        for (vector, row) in vectors.iter_mut().zip(&rows) {
            // SAFETY: a value exists, so the machine has these lanes; a row has 16 elements.
            *vector = unsafe { Self::load(row.as_ptr()) };
        }
    }

    /// The sum of all lanes, by halves: lane `i` + lane `i + 8`, then `+ 4`, `+ 2`, `+ 1`.
    #[inline(always)]
    fn sum(self) -> f32 {
        fold_halves(self.to_array(), |a, b| a + b)
    }

    /// The maximum lane.
    #[inline(always)]
    fn maximum(self) -> f32 {
        fold_halves(self.to_array(), |a, b| if a > b { a } else { b })
    }

    /// e^x, to 2 units in the last place where the result is normal.
    ///
    /// Results below the smallest normal number are 0, those of x > 88.37 are infinite.
    #[inline(always)]
    fn exp(self) -> Self {
        // SAFETY: `self` exists, so the machine has these lanes.
        let splat = |x: f32| unsafe { Self::splat(x) };
        // x = n ln 2 + r with |r| <= ln 2 / 2; adding ROUND leaves n in the low bits of the mantissa.
        let shifted = self.mul_add(splat(std::f32::consts::LOG2_E), splat(ROUND));
        let n = shifted.sub(splat(ROUND));
        let r = n.mul_add(splat(-LN_2_HIGH), self);
        let r = n.mul_add(splat(-LN_2_LOW), r);
        let mut p = splat(EXP[0]);
        p = p.mul_add(r, splat(EXP[1]));
        p = p.mul_add(r, splat(EXP[2]));
        p = p.mul_add(r, splat(EXP[3]));
        p = p.mul_add(r, splat(EXP[4]));
        p = p.mul_add(r, splat(EXP[5]));
        let y = p.mul_add(r.mul(r), r).add(splat(1.0));
        let y = y.mul(shifted.power_of_two());
        let y = self.select_less(splat(EXP_MIN), splat(0.0), y);
        splat(EXP_MAX).select_less(self, splat(f32::INFINITY), y)
    }

    /// tanh x, to 3 units in the last place where x is normal; NaN stays NaN.
    #[inline(always)]
    fn tanh(self) -> Self {
        // SAFETY: `self` exists, so the machine has these lanes.
        let splat = |x: f32| unsafe { Self::splat(x) };
        let zero = splat(0.0);
        let magnitude = self.max(zero.sub(self));
        // Large: 1 - 2 / (e^2x + 1), which would lose the digits of a small result.
        let e = magnitude.add(magnitude).exp();
        let large = splat(1.0).sub(splat(2.0).div(e.add(splat(1.0))));
        let large = self.select_less(zero, zero.sub(large), large);
        let z = self.mul(self);
        let mut p = splat(TANH[0]);
        p = p.mul_add(z, splat(TANH[1]));
        p = p.mul_add(z, splat(TANH[2]));
        p = p.mul_add(z, splat(TANH[3]));
        p = p.mul_add(z, splat(TANH[4]));
        let small = p.mul(z).mul_add(self, self);
        magnitude.select_less(splat(TANH_SMALL), small, large)
    }
}

/// Lanes that round to bfloats and multiply them. Subnormal numbers count as zeros of their sign, before and after
/// each step.
#[cfg(target_arch = "x86_64")]
pub(crate) trait BfloatLanes: F32x16 {
    /// The bits of 16 bfloats at `lower` and of 16 at `upper`, in the lower and upper halves of the lanes.
    ///
    /// # Safety
    /// They are readable, at any alignment, and the machine has these lanes.
    unsafe fn pair_up(lower: *const u16, upper: *const u16) -> Self;

    /// Pairs up two rows of 32 bfloats: returns the pairs of the first half, or of the second, of each eight.
    fn pair_first(self, upper: Self) -> Self;
    fn pair_second(self, upper: Self) -> Self;

    /// The lanes of [`BfloatLanes::pair_first`] and [`BfloatLanes::pair_second`] in the order of the rows.
    fn in_order(first: Self, second: Self) -> [Self; 2];

    /// Rounds the lanes to bfloats, half to even, and writes them to 16 numbers at `to`.
    ///
    /// # Safety
    /// They are writable, and the machine has AVX-512 BF16 if the lanes are its registers.
    unsafe fn store_bf16(self, to: *mut u16);

    /// Adds, lane by lane, the product of the bfloats in the upper halves of `a` and `b`, then that of the lower
    /// halves, each fused.
    ///
    /// # Safety
    /// As [`BfloatLanes::store_bf16`], without the condition on `to`.
    unsafe fn dot_bf16(self, a: Self, b: Self) -> Self;
}

/// Added to a small number, rounds it to an integer in the low bits of the mantissa.
pub(crate) const ROUND: f32 = 12_582_912.0;
/// ln 2 in two parts; products of the first with small integers are exact.
const LN_2_HIGH: f32 = 0.693_359_4;
const LN_2_LOW: f32 = -2.121_944_4e-4;
/// e^r = 1 + r + r^2 (...): the polynomial of Cephes' `expf`, highest power first.
const EXP: [f32; 6] = [1.987_569_1e-4, 1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_5e-1, 0.5];
/// Below this, e^x is subnormal.
const EXP_MIN: f32 = -87.336_54;
/// Above this, n would be 128.
const EXP_MAX: f32 = 88.37;

/// tanh x = x + x^3 (...), a polynomial of x^2 for |x| below [`TANH_SMALL`]: that of Cephes' `tanhf`, highest power
/// first.
const TANH: [f32; 5] = [-5.704_988_7e-3, 2.063_908_8e-2, -5.373_971_4e-2, 1.333_144_2e-1, -3.333_328e-1];
const TANH_SMALL: f32 = 0.625;

/// Reads the first `count` lanes at `from`; the others are 0.
///
/// # Safety
/// `count <= 16` elements are readable, and the machine has the lanes.
#[inline(always)]
pub(crate) unsafe fn load_first<L: F32x16>(from: *const f32, count: usize) -> L {
    let mut lanes = [0.0; LANES];
    // SAFETY: the caller's promise.
    unsafe {
        std::ptr::copy_nonoverlapping(from, lanes.as_mut_ptr(), count);
        L::load(lanes.as_ptr())
    }
}

/// Writes the first `count` lanes to `to`.
///
/// # Safety
/// `count <= 16` elements are writable.
#[inline(always)]
pub(crate) unsafe fn store_first<L: F32x16>(lanes: L, to: *mut f32, count: usize) {
    let lanes = lanes.to_array();
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(lanes.as_ptr(), to, count) };
}

#[inline(always)]
fn fold_halves(mut lanes: [f32; LANES], fold: impl Fn(f32, f32) -> f32) -> f32 {
    let mut width = LANES / 2;
    while width > 0 {
        for i in 0..width {
            lanes[i] = fold(lanes[i], lanes[i + width]);
        }
        width /= 2;
    }
    lanes[0]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Transposes vectors in which every lane has a distinct value.
    fn transposed<L: F32x16>() -> [[f32; LANES]; LANES] {
        let row = |j: usize| std::array::from_fn::<f32, LANES, _>(|i| (16 * j + i) as f32);
        // SAFETY: the caller has seen that the machine has the lanes.
        let mut vectors = std::array::from_fn(|j| unsafe { L::load(row(j).as_ptr()) });
        L::transpose(&mut vectors);
        vectors.map(L::to_array)
    }

    /// The bits of all small floats.
    fn small_floats<L: F32x16>() -> Vec<u32> {
        let stored: Vec<u8> = (0..=u8::MAX).collect();
        // SAFETY: the caller has seen that the machine has the lanes; 16 bytes each.
        let lanes =
            stored.chunks(LANES).flat_map(|stored| unsafe { L::load_small(stored.as_ptr()) }.to_array());
        lanes.map(f32::to_bits).collect()
    }

    #[test]
    fn small_floats_are_the_same_in_any_registers() {
        let expect: Vec<u32> =
            (0..=u8::MAX).map(|stored| crate::small_floats::widened(stored).to_bits()).collect();
        assert_eq!(small_floats::<crate::scalar::f32x16::Scalar>(), expect);
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") {
            assert_eq!(small_floats::<crate::x86::f32x16_avx2::Avx2>(), expect);
        }
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx512f") {
            assert_eq!(small_floats::<crate::x86::f32x16_avx512::Avx512>(), expect);
        }
        #[cfg(target_arch = "aarch64")]
        assert_eq!(small_floats::<crate::arm::f32x16_neon::Neon>(), expect);
    }

    /// Every 1021st float of both signs and all magnitudes, and the special values.
    fn tanh_operands() -> Vec<[f32; LANES]> {
        let magnitudes = (f32::MIN_POSITIVE.to_bits()..f32::INFINITY.to_bits()).step_by(1021);
        let ordinary = magnitudes.flat_map(|bits| [f32::from_bits(bits), -f32::from_bits(bits)]);
        let xs: Vec<f32> =
            ordinary.chain([0.0, -0.0, 1e-45, f32::INFINITY, f32::NEG_INFINITY, f32::NAN]).collect();
        xs.chunks(LANES).map(|x| std::array::from_fn(|i| x.get(i).copied().unwrap_or(0.0))).collect()
    }

    fn tanh<L: F32x16>() -> Vec<[f32; LANES]> {
        // SAFETY: the caller has seen that the machine has the lanes.
        tanh_operands().iter().map(|x| unsafe { L::load(x.as_ptr()) }.tanh().to_array()).collect()
    }

    #[test]
    fn tanh_is_within_three_units_in_the_last_place() {
        let (xs, ys) = (tanh_operands(), tanh::<crate::scalar::f32x16::Scalar>());
        let mut worst = 0.0_f64;
        for (&x, &y) in xs.as_flattened().iter().zip(ys.as_flattened()).filter(|(x, _)| x.is_normal()) {
            let expect = f64::from(x).tanh();
            let ulp = f64::from((expect as f32).abs().next_up()) - f64::from((expect as f32).abs());
            worst = worst.max((f64::from(y) - expect).abs() / ulp);
            assert!(y.abs() <= 1.0, "tanh {x} is {y}");
        }
        assert!(worst <= 3.0, "{worst} units in the last place");
        let ends: Vec<f32> = xs
            .as_flattened()
            .iter()
            .zip(ys.as_flattened())
            .filter(|(x, _)| !x.is_finite())
            .map(|(_, y)| *y)
            .collect();
        assert!(ends[..2] == [1.0, -1.0] && ends[2].is_nan(), "{ends:?}");
    }

    #[test]
    fn tanh_has_the_same_bits_in_any_registers() {
        let bits = |lanes: Vec<[f32; LANES]>| -> Vec<u32> {
            let marked = |x: &f32| if x.is_nan() { u32::MAX } else { x.to_bits() };
            lanes.as_flattened().iter().map(marked).collect()
        };
        let expect = bits(tanh::<crate::scalar::f32x16::Scalar>());
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            assert!(bits(tanh::<crate::x86::f32x16_avx2::Avx2>()) == expect);
        }
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx512f") {
            assert!(bits(tanh::<crate::x86::f32x16_avx512::Avx512>()) == expect);
        }
        #[cfg(target_arch = "aarch64")]
        assert!(bits(tanh::<crate::arm::f32x16_neon::Neon>()) == expect);
    }

    #[test]
    fn lanes_become_vectors_in_any_registers() {
        let expect: [[f32; LANES]; LANES] =
            std::array::from_fn(|i| std::array::from_fn(|j| (16 * j + i) as f32));
        assert_eq!(transposed::<crate::scalar::f32x16::Scalar>(), expect);
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            assert_eq!(transposed::<crate::x86::f32x16_avx2::Avx2>(), expect);
        }
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx512f") {
            assert_eq!(transposed::<crate::x86::f32x16_avx512::Avx512>(), expect);
        }
        #[cfg(target_arch = "aarch64")]
        assert_eq!(transposed::<crate::arm::f32x16_neon::Neon>(), expect);
    }
}
