// d, nibbles[16]: value j in the low, value j + 16 in the high half of byte j.
const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 18u;
const RUN: u32 = 32u;
const HAS_MIN: bool = false;

fn scale_of(at: u32, run: u32) -> vec2<f32> {
    return vec2<f32>(half_at(at), 0.0);
}

fn levels(at: u32, index: u32) -> vec4<f32> {
    let nibbles = word_at(at + 2u + (index & 15u)) >> ((index >> 4u) * 4u);
    return vec4<f32>(unpack4xU8(nibbles & 0x0f0f0f0fu)) - 8.0;
}
