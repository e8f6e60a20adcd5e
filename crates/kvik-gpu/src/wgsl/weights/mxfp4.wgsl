// exponent, nibbles[16]: value j in the low, value j + 16 in the high half of byte j. Blocks begin at any byte.
const BLOCK_LEN: u32 = 32u;
const BLOCK_BYTES: u32 = 17u;
const RUN: u32 = 32u;
const HAS_MIN: bool = false;

// Twice the magnitudes of the quantised values 0 to 7, in nibbles.
const MAGNITUDES: u32 = 0xc8643210u;

// 2^(exponent - 128): the two smallest are subnormal.
fn scale_of(at: u32, run: u32) -> vec2<f32> {
    let exponent = byte_at(at);
    let bits = select((exponent - 1u) << 23u, 0x200000u << exponent, exponent < 2u);
    return vec2<f32>(bitcast<f32>(bits), 0.0);
}

// Four bytes from any byte on.
fn bytes_at(at: u32) -> u32 {
    let shift = (at & 3u) * 8u;
    let low = weights[at >> 2u] >> shift;
    // A shift by 32 would be one by 0.
    return low | ((weights[(at >> 2u) + 1u] << 1u) << (31u - shift));
}

fn levels(at: u32, index: u32) -> vec4<f32> {
    let codes = unpack4xU8((bytes_at(at + 1u + (index & 15u)) >> ((index >> 4u) * 4u)) & 0x0f0f0f0fu);
    let magnitudes = vec4<f32>((vec4<u32>(MAGNITUDES) >> ((codes & vec4<u32>(7u)) * 4u)) & vec4<u32>(15u));
    return select(magnitudes, -magnitudes, codes > vec4<u32>(7u));
}
