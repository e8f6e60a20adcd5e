// d, dmin, and eight pairs of six-bit scales and mins in twelve bytes: the header of Q4_K and Q5_K.
const BLOCK_LEN: u32 = 256u;
const RUN: u32 = 32u;
const HAS_MIN: bool = true;

fn scale_of(at: u32, run: u32) -> vec2<f32> {
    let packed = at + 4u;
    let unit = unpack2x16float(weights[at >> 2u]);
    var scale: u32;
    var least: u32;
    if run < 4u {
        scale = byte_at(packed + run) & 63u;
        least = byte_at(packed + run + 4u) & 63u;
    } else {
        let both = byte_at(packed + run + 4u);
        scale = (both & 15u) | ((byte_at(packed + run - 4u) >> 6u) << 4u);
        least = (both >> 4u) | ((byte_at(packed + run) >> 6u) << 4u);
    }
    return vec2<f32>(unit.x * f32(scale), -(unit.y * f32(least)));
}

// Four of 256 nibbles at `at`: 32 bytes hold two runs of 32 values.
fn k_nibbles(at: u32, index: u32) -> u32 {
    let run = index >> 5u;
    let word = weights[(at + (run >> 1u) * 32u + (index & 31u)) >> 2u];
    return (word >> ((run & 1u) * 4u)) & 0x0f0f0f0fu;
}
