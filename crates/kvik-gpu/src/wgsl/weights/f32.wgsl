const BLOCK_LEN: u32 = 8u;
const BLOCK_BYTES: u32 = 32u;
const RUN: u32 = 8u;
const HAS_MIN: bool = false;

fn scale_of(at: u32, run: u32) -> vec2<f32> {
    return vec2<f32>(1.0, 0.0);
}

fn levels(at: u32, index: u32) -> vec4<f32> {
    let word = (at >> 2u) + index;
    let bits = vec4<u32>(weights[word], weights[word + 1u], weights[word + 2u], weights[word + 3u]);
    return bitcast<vec4<f32>>(bits);
}
