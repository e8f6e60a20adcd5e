// Dimensions 2 i and 2 i + 1 of the keys at positions 2 p and 2 p + 1 of a tile: (i at both), (i + 1 at both).
fn keys_at(tile: u32, i: u32, p: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xI8(stored[tile + i * 8u + p])).xzyw;
}

fn key_scales(tile: u32, p: u32) -> vec2<f32> {
    let word = tile + 4u * KEY_DIM + 2u * p;
    return vec2<f32>(bitcast<f32>(stored[word]), bitcast<f32>(stored[word + 1u]));
}
