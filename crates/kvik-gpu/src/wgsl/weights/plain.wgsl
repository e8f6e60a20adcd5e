// Elements without scales, in blocks that are read at once.
const BLOCK_LEN: u32 = 8u;
const RUN: u32 = 8u;
const HAS_MIN: bool = false;

fn scale_of(at: u32, run: u32) -> vec2<f32> {
    return vec2<f32>(1.0, 0.0);
}
