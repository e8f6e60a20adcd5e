const BLOCK_BYTES: u32 = 16u;

fn levels(at: u32, index: u32) -> vec4<f32> {
    let word = (at >> 2u) + (index >> 1u);
    let low = weights[word];
    let high = weights[word + 1u];
    return bitcast<vec4<f32>>(vec4<u32>(low << 16u, low & 0xffff0000u, high << 16u, high & 0xffff0000u));
}
