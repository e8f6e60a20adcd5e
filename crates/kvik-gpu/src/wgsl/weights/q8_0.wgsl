// d, q[32]
const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 34u;
const RUN: u32 = 32u;
const HAS_MIN: bool = false;

fn scale_of(at: u32, run: u32) -> vec2<f32> {
    return vec2<f32>(half_at(at), 0.0);
}

fn levels(at: u32, index: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xI8(word_at(at + 2u + index)));
}
