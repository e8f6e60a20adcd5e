// d, dmin, scales[12], q[128]
const BLOCK_BYTES: u32 = 144u;

fn levels(at: u32, index: u32) -> vec4<f32> {
    return vec4<f32>(unpack4xU8(k_nibbles(at + 16u, index)));
}
