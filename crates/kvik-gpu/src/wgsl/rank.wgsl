// Integers in the order of the numbers, 0 for those that are impossible: a shader may take for granted that there is
// no NaN and no infinity, and compare as it likes where there is.
fn rank(number: f32) -> u32 {
    let bits = bitcast<u32>(number);
    if (bits & 0x7fffffffu) > 0x7f800000u || bits == 0xff800000u {
        return 0u;
    }
    // Zeros are equal.
    let one_zero = select(bits, 0u, bits == 0x80000000u);
    return select(one_zero | 0x80000000u, ~one_zero, (one_zero & 0x80000000u) != 0u);
}
