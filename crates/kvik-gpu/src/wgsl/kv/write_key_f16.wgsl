// [KEY_DIM][16 positions] of half floats.
fn write_key(tile: u32, offset: u32, local: u32) {
    let shift = (offset & 1u) * 16u;
    for (var d = local; d < KEY_DIM; d += 64u) {
        replace(tile + d * 8u + offset / 2u, 0xffffu << shift, half_bits(vector[d]) << shift);
    }
}
