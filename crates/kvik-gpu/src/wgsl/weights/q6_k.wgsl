// low[128], high[64], scales[16], d
const BLOCK_LEN: u32 = 256u;
const BLOCK_BYTES: u32 = 210u;
const RUN: u32 = 16u;
const HAS_MIN: bool = false;

fn scale_of(at: u32, run: u32) -> vec2<f32> {
    let scale = i32(byte_at(at + 192u + run) << 24u) >> 24u;
    return vec2<f32>(half_at(at + 208u) * f32(scale), 0.0);
}

fn levels(at: u32, index: u32) -> vec4<f32> {
    let half = index >> 7u;
    let quarter = (index >> 5u) & 3u;
    let low = word_at(at + half * 64u + (quarter & 1u) * 32u + (index & 31u)) >> ((quarter >> 1u) * 4u);
    let high = word_at(at + 128u + half * 32u + (index & 31u)) >> (quarter * 2u);
    let codes = (low & 0x0f0f0f0fu) | ((high & 0x03030303u) << 4u);
    return vec4<f32>(unpack4xU8(codes)) - 32.0;
}
