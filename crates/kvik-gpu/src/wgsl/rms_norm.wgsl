// out = x / sqrt(mean(x^2) + eps) * weight, row by row: lane i adds the squares of elements i, i + 64, .., and the
// lanes are added in pairs.
struct Params {
    rows: u32,
    d: u32,
    eps: f32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> weight: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
var<immediate> params: Params;

var<workgroup> sums: array<f32, 64>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let row = group.x + group.y * GRID_X;
    if row >= params.rows {
        return;
    }
    let start = row * params.d;
    var sum = 0.0;
    for (var i = local; i < params.d; i += 64u) {
        sum = fma(x[start + i], x[start + i], sum);
    }
    sums[local] = sum;
    for (var half = 32u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if local < half {
            sums[local] += sums[local + half];
        }
    }
    workgroupBarrier();
    let factor = 1.0 / sqrt(sums[0] / f32(params.d) + params.eps);
    for (var i = local; i < params.d; i += 64u) {
        out[start + i] = x[start + i] * factor * weight[i];
    }
}
