const BLOCK_BYTES: u32 = 32u;

fn levels(at: u32, index: u32) -> vec4<f32> {
    let word = (at >> 2u) + index;
    let bits = vec4<u32>(weights[word], weights[word + 1u], weights[word + 2u], weights[word + 3u]);
    return bitcast<vec4<f32>>(bits);
}
