// x = x + y, then y = x / sqrt(mean(x^2) + eps) * weight, row by row: the sum and the norm of `add` and `rms_norm`.
struct Params {
    rows: u32,
    d: u32,
    eps: f32,
}

@group(0) @binding(0) var<storage, read> weight: array<f32>;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
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
        let value = x[start + i] + y[start + i];
        x[start + i] = value;
        sum = fma(value, value, sum);
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
        y[start + i] = x[start + i] * factor * weight[i];
    }
}
