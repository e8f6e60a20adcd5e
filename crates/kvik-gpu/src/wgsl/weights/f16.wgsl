const BLOCK_LEN: u32 = 8u;
const BLOCK_BYTES: u32 = 16u;
const RUN: u32 = 8u;
const HAS_MIN: bool = false;

fn scale_of(at: u32, run: u32) -> vec2<f32> {
    return vec2<f32>(1.0, 0.0);
}

fn levels(at: u32, index: u32) -> vec4<f32> {
    let word = (at >> 2u) + (index >> 1u);
    return vec4<f32>(unpack2x16float(weights[word]), unpack2x16float(weights[word + 1u]));
}
