const BLOCK_LEN: u32 = 8u;
const BLOCK_BYTES: u32 = 16u;
const RUN: u32 = 8u;
const HAS_MIN: bool = false;

fn scale_of(at: u32, run: u32) -> vec2<f32> {
    return vec2<f32>(1.0, 0.0);
}

fn levels(at: u32, index: u32) -> vec4<f32> {
    let word = (at >> 2u) + (index >> 1u);
    let low = weights[word];
    let high = weights[word + 1u];
    return bitcast<vec4<f32>>(vec4<u32>(low << 16u, low & 0xffff0000u, high << 16u, high & 0xffff0000u));
}
