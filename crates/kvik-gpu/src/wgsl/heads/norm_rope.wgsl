// Norms each head vector of queries and keys, rotates pairs of its elements by the angle of the row's position, and norms
// it again without weights, as far as NORMED and NORMED_AFTER say: `rms_norm` and `rope` to the bit, a vector in each
// work group.
struct Params {
    heads: u32,
    kv_heads: u32,
    eps: f32,
}

@group(0) @binding(0) var<storage, read> positions: array<u32>;
// Cosine and sine, [positions][PAIRS].
@group(0) @binding(1) var<storage, read> angles: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> queries: array<f32>;
@group(0) @binding(3) var<storage, read_write> keys: array<f32>;
var<immediate> params: Params;

var<workgroup> vector: array<f32, HEAD_DIM>;
var<workgroup> sums: array<f32, 64>;

fn norm_factor(local: u32) -> f32 {
    var sum = 0.0;
    for (var i = local; i < HEAD_DIM; i += 64u) {
        sum = fma(vector[i], vector[i], sum);
    }
    sums[local] = sum;
    for (var half = 32u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if local < half {
            sums[local] += sums[local + half];
        }
    }
    workgroupBarrier();
    let factor = 1.0 / sqrt(sums[0] / f32(HEAD_DIM) + params.eps);
    // The sums may be written again.
    workgroupBarrier();
    return factor;
}

fn rotate_pair(pair: u32, angle: vec2<f32>) {
    var low = pair;
    var high = pair + PAIRS;
    if INTERLEAVED {
        low = 2u * pair;
        high = low + 1u;
    }
    let a = vector[low];
    let b = vector[high];
    vector[low] = fma(a, angle.x, -(b * angle.y));
    vector[high] = fma(a, angle.y, b * angle.x);
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let is_query = group.y < params.heads;
    var start = (group.x * params.heads + group.y) * HEAD_DIM;
    if !is_query {
        start = (group.x * params.kv_heads + group.y - params.heads) * HEAD_DIM;
    }
    for (var i = local; i < HEAD_DIM; i += 64u) {
        if is_query {
            vector[i] = queries[start + i];
        } else {
            vector[i] = keys[start + i];
        }
    }
    workgroupBarrier();
    if NORMED {
        let factor = norm_factor(local);
        for (var i = local; i < HEAD_DIM; i += 64u) {
            vector[i] = vector[i] * factor * weight_of(is_query, i);
        }
        workgroupBarrier();
    }
    for (var pair = local; pair < PAIRS; pair += 64u) {
        rotate_pair(pair, angles[positions[group.x] * PAIRS + pair]);
    }
    workgroupBarrier();
    var factor = 1.0;
    if NORMED_AFTER {
        factor = norm_factor(local);
    }
    for (var i = local; i < HEAD_DIM; i += 64u) {
        if is_query {
            queries[start + i] = vector[i] * factor;
        } else {
            keys[start + i] = vector[i] * factor;
        }
    }
}
