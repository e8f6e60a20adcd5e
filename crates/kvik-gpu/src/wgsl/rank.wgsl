// Integers ordered like the numbers, 0 for impossible ones: a shader may assume that there is no NaN and no
// infinity, so comparisons with them are unreliable.
fn rank(number: f32) -> u32 {
    let bits = bitcast<u32>(number);
    if (bits & 0x7fffffffu) > 0x7f800000u || bits == 0xff800000u {
        return 0u;
    }
    // Zeros are equal.
    let one_zero = select(bits, 0u, bits == 0x80000000u);
    return select(one_zero | 0x80000000u, ~one_zero, (one_zero & 0x80000000u) != 0u);
}
