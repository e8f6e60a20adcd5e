const BLOCK_BYTES: u32 = 16u;

fn levels(at: u32, index: u32) -> vec4<f32> {
    let word = (at >> 2u) + (index >> 1u);
    return vec4<f32>(unpack2x16float(weights[word]), unpack2x16float(weights[word + 1u]));
}
