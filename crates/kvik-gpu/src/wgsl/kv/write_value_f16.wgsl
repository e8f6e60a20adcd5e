// [16 positions][VALUE_LANES] of half floats, padded with zeros.
fn write_value(tile: u32, offset: u32, local: u32) {
    for (var pair = local; pair < VALUE_LANES / 2u; pair += 64u) {
        let d = 2u * pair;
        let low = select(0u, half_bits(vector[d]), d < VALUE_DIM);
        let high = select(0u, half_bits(vector[d + 1u]), d + 1u < VALUE_DIM);
        atomicStore(&stored[tile + offset * (VALUE_LANES / 2u) + pair], low | (high << 16u));
    }
}
