// Dimensions 2 i and 2 i + 1 of the values at positions 2 p and 2 p + 1 of a tile: (both at p), (both at p + 1).
fn values_at(tile: u32, i: u32, p: u32) -> vec4<f32> {
    let word = tile + p * VALUE_LANES + i;
    return vec4<f32>(unpack2x16float(stored[word]), unpack2x16float(stored[word + VALUE_LANES / 2u]));
}

fn value_scales(tile: u32, p: u32) -> vec2<f32> {
    return vec2<f32>(1.0);
}
