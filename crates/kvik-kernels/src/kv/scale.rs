//! The scales of vectors quantised to few bits, chosen for the least squared error.
//!
//! A scale is a [small float](crate::small_floats). The quantised values are computed with the scale as it is stored, so
//! a coarse scale adds no error of its own: it is only not quite the best one, which costs a few percent of the squared
//! error. Eight more bits for it would cost an eighth of a bit a number in heads of 64.

use super::max_magnitude;
use crate::f32x16::ROUND;
use crate::small_floats::{SMALL_NAN, rounded_up, widened};

/// Scales that are tried: from the one that clips nothing down to almost half of it. Numbers that are clipped lose,
/// all others gain.
const TRIED: usize = 8;

/// A quantiser of numbers to values `0..=top`, which stand for `(value - top / 2) * scale`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Steps {
    top: f32,
    half: f32,
}

impl Steps {
    /// The quantiser to values of `bits` bits.
    pub(crate) const fn of(bits: u32) -> Steps {
        let top = ((1 << bits) - 1) as f32;
        Steps { top, half: top / 2.0 }
    }

    /// The number that value 0 stands for, in scales.
    pub(crate) const fn min(self) -> f32 {
        -self.half
    }

    /// The value of `x`, of which the scale's inverse is `factor`, as a float; NaN becomes a value as well.
    #[inline(always)]
    fn value(self, x: f32, factor: f32) -> f32 {
        (x * factor + self.half).max(0.0).min(self.top) + ROUND - ROUND
    }

    /// The value of `x`, of which the scale's inverse is `factor`.
    #[inline(always)]
    pub(crate) fn quantise(self, x: f32, factor: f32) -> u32 {
        ((x * factor + self.half).max(0.0).min(self.top) + ROUND).to_bits().wrapping_sub(ROUND.to_bits())
    }

    /// The stored scale with the least squared error for `numbers`, and the inverse of what it stands for.
    ///
    /// Errors are summed in the order of the numbers, each scale in a lane of its own, so that the choice is the same
    /// on all instruction sets.
    #[inline(always)]
    pub(crate) fn best_scale(self, numbers: &[f32]) -> (u8, f32) {
        let max = max_magnitude(numbers);
        if !max.is_finite() {
            return (SMALL_NAN, 0.0);
        }
        // Half a step beyond the last value is still rounded to it.
        let first = rounded_up(max / (self.half + 0.5));
        if first == 0 {
            return (0, 0.0);
        }
        let stored: [u8; TRIED] = std::array::from_fn(|i| first.saturating_sub(i as u8).max(1));
        let scales = stored.map(widened);
        let factors = scales.map(|scale| 1.0 / scale);
        let errors = self.squared_errors(numbers, &scales, &factors);
        let mut best = 0;
        for (i, error) in errors.iter().enumerate() {
            best = if *error < errors[best] { i } else { best };
        }
        (stored[best], factors[best])
    }

    /// The squared errors with each scale.
    #[inline(always)]
    fn squared_errors(self, numbers: &[f32], scales: &[f32; TRIED], factors: &[f32; TRIED]) -> [f32; TRIED] {
        let mut errors = [0.0; TRIED];
        for &x in numbers {
            // Loops, not closures: only inlined code is compiled for the machine's registers.
            for i in 0..TRIED {
                let error = (self.value(x, factors[i]) - self.half) * scales[i] - x;
                errors[i] += error * error;
            }
        }
        errors
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// The sum of squared errors of `numbers` with a scale, plainly.
    fn error(bits: u32, numbers: &[f32], stored: u8) -> f64 {
        let (top, scale) = (f64::from((1_u32 << bits) - 1), f64::from(widened(stored)));
        let off = |x: f32| {
            let value = (f64::from(x) / scale + top / 2.0).round().clamp(0.0, top);
            (value - top / 2.0) * scale - f64::from(x)
        };
        numbers.iter().map(|&x| off(x).powi(2)).sum()
    }

    proptest! {
        #![proptest_config(crate::testing::cases(128))]

        /// No other scale that is tried has a smaller error, beyond rounding of the sums.
        #[test]
        fn the_scale_is_the_best(
            bits in 3..=6_u32,
            numbers in prop::collection::vec(-1.0_f32..1.0, 1..140),
            (size, outlier) in (-8..8_i32, 1.0_f32..6.0),
        ) {
            let mut numbers: Vec<f32> = numbers.iter().map(|x| x * (size as f32).exp2()).collect();
            numbers[0] *= outlier;
            let (stored, factor) = Steps::of(bits).best_scale(&numbers);
            if stored == 0 {
                prop_assert!(max_magnitude(&numbers) < 1e-4);
                return Ok(());
            }
            prop_assert_eq!(factor, 1.0 / widened(stored));
            let least = error(bits, &numbers, stored);
            let first = rounded_up(max_magnitude(&numbers) / (1 << (bits - 1)) as f32);
            for other in first.saturating_sub(7).max(1)..=first {
                prop_assert!(least <= error(bits, &numbers, other) * 1.0001 + 1e-12, "{} is better than {}", other, stored);
            }
        }
    }

    #[test]
    fn what_is_not_finite_has_no_scale() {
        for wrong in [f32::INFINITY, f32::NEG_INFINITY, f32::NAN] {
            assert_eq!(Steps::of(4).best_scale(&[1.0, wrong, 2.0]), (SMALL_NAN, 0.0));
            assert!(Steps::of(4).quantise(wrong, 0.0) <= 15);
        }
        assert_eq!(Steps::of(4).best_scale(&[0.0, -0.0]), (0, 0.0));
    }
}
