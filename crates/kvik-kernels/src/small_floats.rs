//! Unsigned floats of 8 bits: 5 of exponent, 3 of mantissa, for scales.
//!
//! Byte `b` is `(8 + b % 8) 2^(b / 8 - 23)`, except that 0 is 0 and 255 is NaN. Neighbours differ by 7 to 13%.

/// The byte that is NaN.
pub(crate) const SMALL_NAN: u8 = u8::MAX;
/// The bits of the f32 that byte 0 would be, without the exception.
pub(crate) const SMALL_BASE: u32 = (127 - 20) << 23;
/// Position of a byte's bits in those of an f32.
pub(crate) const SMALL_SHIFT: u32 = 20;

/// The number of a byte.
#[inline(always)]
pub(crate) fn widened(small: u8) -> f32 {
    match small {
        0 => 0.0,
        SMALL_NAN => f32::NAN,
        _ => f32::from_bits((u32::from(small) << SMALL_SHIFT) + SMALL_BASE),
    }
}

/// The least small float that is at least `x`, a positive number; 0 if `x` is below all of them, else at most the
/// largest.
#[inline(always)]
pub(crate) fn rounded_up(x: f32) -> u8 {
    let up = (x.to_bits() + ((1 << SMALL_SHIFT) - 1)) >> SMALL_SHIFT;
    up.saturating_sub(SMALL_BASE >> SMALL_SHIFT).min(u32::from(SMALL_NAN - 1)) as u8
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_floats_ascend_and_are_found_again() {
        let floats: Vec<f32> = (0..SMALL_NAN).map(widened).collect();
        assert!(floats.is_sorted_by(|a, b| a < b));
        assert!(widened(SMALL_NAN).is_nan());
        for (small, &x) in floats.iter().enumerate().skip(1) {
            assert_eq!(usize::from(rounded_up(x)), small);
            assert_eq!(usize::from(rounded_up(x.next_up())), (small + 1).min(254));
        }
        assert_eq!(rounded_up(1e-9), 0);
        assert_eq!(rounded_up(f32::MAX), 254);
    }
}
