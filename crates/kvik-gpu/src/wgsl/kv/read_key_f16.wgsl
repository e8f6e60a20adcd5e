// Dimensions 2 i and 2 i + 1 of the keys at positions 2 p and 2 p + 1 of a tile: (i at both), (i + 1 at both).
fn keys_at(tile: u32, i: u32, p: u32) -> vec4<f32> {
    let word = tile + i * 16u + p;
    return vec4<f32>(unpack2x16float(stored[word]), unpack2x16float(stored[word + 8u]));
}

fn key_scales(tile: u32, p: u32) -> vec2<f32> {
    return vec2<f32>(1.0);
}
