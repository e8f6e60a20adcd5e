//! Conversions between 16-bit and 32-bit floats, by integer operations and products that the compiler vectorises.

const SIGN: u32 = 1 << 31;
const INFINITY: u32 = 0x7f80_0000;
const SMALLEST_NORMAL: u32 = 0x0080_0000;
/// The bit of the fraction that makes a NaN quiet.
const QUIET: u32 = 0x0040_0000;

/// Converts a half float to a float, exactly; NaN stays NaN.
#[inline(always)]
pub(crate) fn widened(half: u16) -> f32 {
    /// The factor between the exponent biases of a float and of a half: `2^(127 - 15)`.
    const BIASES: f32 = f32::from_bits((127 + 127 - 15) << 23);
    let half = u32::from(half);
    let magnitude = (f32::from_bits((half & 0x7fff) << 13) * BIASES).to_bits();
    let rest = if half & 0x7c00 == 0x7c00 { INFINITY } else { 0 };
    f32::from_bits(magnitude | rest | (half & 0x8000) << 16)
}

/// The bfloat nearest to `x`, in the lower half.
#[inline(always)]
pub(crate) fn bfloat(x: f32) -> u32 {
    let bits = x.to_bits();
    let magnitude = bits & !SIGN;
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1));
    let normal = if magnitude < SMALLEST_NORMAL { bits & SIGN } else { rounded };
    let bits = if magnitude > INFINITY { bits | QUIET } else { normal };
    bits >> 16
}

/// Replaces a subnormal number by zero of the same sign.
pub(crate) fn flush(x: f32) -> f32 {
    if x.is_subnormal() { 0.0f32.copysign(x) } else { x }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_at_the_ends_of_the_range() {
        let check = |x: f32, expect: u32| assert_eq!(bfloat(x), expect, "{x:e}");
        check(1.0, 0x3f80);
        check(f32::from_bits(0x3f80_8000), 0x3f80);
        check(f32::from_bits(0x3f81_8000), 0x3f82);
        check(f32::MIN_POSITIVE, 0x0080);
        check(-1e-40, 0x8000);
        check(f32::MAX, 0x7f80);
        check(f32::NEG_INFINITY, 0xff80);
        check(f32::NAN, 0x7fc0);
    }
}
