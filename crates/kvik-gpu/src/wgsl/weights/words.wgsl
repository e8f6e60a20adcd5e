// Weights in file format, read as words. Blocks of some formats begin in the middle of a word.
@group(0) @binding(0) var<storage, read> weights: array<u32>;

fn byte_at(at: u32) -> u32 {
    return (weights[at >> 2u] >> ((at & 3u) * 8u)) & 0xffu;
}

// The half float at an even byte.
fn half_at(at: u32) -> f32 {
    return unpack2x16float(weights[at >> 2u] >> ((at & 2u) * 8u)).x;
}

// Four bytes from an even byte on.
fn word_at(at: u32) -> u32 {
    let index = at >> 2u;
    if (at & 2u) == 0u {
        return weights[index];
    }
    return (weights[index] >> 16u) | (weights[index + 1u] << 16u);
}
