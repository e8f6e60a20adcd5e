// [KEY_DIM / 2][16 positions] of two bytes, then [16 positions] scales.
fn write_key(tile: u32, offset: u32, local: u32) {
    rotate(KEY_DIM, KEY_PIECE, KEY_NORM, local);
    let factor = quantise(KEY_DIM, tile + 4u * KEY_DIM + offset, local);
    let shift = (offset & 1u) * 16u;
    for (var pair = local; pair < KEY_DIM / 2u; pair += 64u) {
        let bytes = byte_of(vector[2u * pair], factor) | (byte_of(vector[2u * pair + 1u], factor) << 8u);
        replace(tile + pair * 8u + offset / 2u, 0xffffu << shift, bytes << shift);
    }
}
