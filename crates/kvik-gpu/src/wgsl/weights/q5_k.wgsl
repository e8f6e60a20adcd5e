// d, dmin, scales[12], high[32], q[128]
const BLOCK_BYTES: u32 = 176u;

fn levels(at: u32, index: u32) -> vec4<f32> {
    let high = weights[(at + 16u + (index & 31u)) >> 2u] >> (index >> 5u);
    return vec4<f32>(unpack4xU8(k_nibbles(at + 48u, index) | ((high & 0x01010101u) << 4u)));
}
