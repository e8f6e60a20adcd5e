// Added for choosing and not for weighting, [COUNT].
@group(0) @binding(3) var<storage, read> bias: array<f32>;

fn bias_of(expert: u32) -> f32 {
    return bias[expert];
}
