// [16 positions / 2][VALUE_LANES] of two bytes, then [16 positions] scales.
fn write_value(tile: u32, offset: u32, local: u32) {
    rotate(VALUE_DIM, VALUE_PIECE, VALUE_NORM, local);
    let factor = quantise(VALUE_DIM, tile + 4u * VALUE_LANES + offset, local);
    let shift = (offset & 1u) * 8u;
    for (var pair = local; pair < VALUE_DIM / 2u; pair += 64u) {
        let bytes = byte_of(vector[2u * pair], factor) | (byte_of(vector[2u * pair + 1u], factor) << 16u);
        replace(tile + offset / 2u * (VALUE_LANES / 2u) + pair, 0x00ff00ffu << shift, bytes << shift);
    }
}
