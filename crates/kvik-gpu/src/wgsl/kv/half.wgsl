// The bits of the half float nearest to `x`, ties to even, on every device: the rounding of `pack2x16float`
// is undefined.
fn half_bits(x: f32) -> u32 {
    let bits = bitcast<u32>(x);
    let sign = (bits >> 16u) & 0x8000u;
    let magnitude = bits & 0x7fffffffu;
    if magnitude > 0x7f800000u {
        return sign | 0x7e00u;
    }
    if magnitude >= 0x47800000u {
        return sign | 0x7c00u;
    }
    if magnitude >= 0x38800000u {
        // Normal: the exponent is reduced by 112, and 13 bits are rounded off, which may carry into it.
        let odd = (magnitude >> 13u) & 1u;
        return sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13u);
    }
    if magnitude < 0x33000000u {
        return sign;
    }
    // Subnormal: the mantissa with its leading one, shifted until the exponent is that of the smallest half float.
    let shift = 126u - (magnitude >> 23u);
    let mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    let rest = mantissa & ((1u << shift) - 1u);
    let tie = 1u << (shift - 1u);
    let kept = mantissa >> shift;
    let up = rest > tie || (rest == tie && (kept & 1u) == 1u);
    return sign | (kept + select(0u, 1u, up));
}
