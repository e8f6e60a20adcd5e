// Weights of the norm before the rotation.
@group(0) @binding(4) var<storage, read> query_weight: array<f32>;
@group(0) @binding(5) var<storage, read> key_weight: array<f32>;

fn weight_of(is_query: bool, i: u32) -> f32 {
    if is_query {
        return query_weight[i];
    }
    return key_weight[i];
}
