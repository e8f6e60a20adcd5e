// out[n] = sum of outputs[choice] * weights[choice] over the choices of row n, in order; without weights if these
// were applied to the inputs.
struct Params {
    n: u32,
    d: u32,
}

@group(0) @binding(0) var<storage, read> weights: array<f32>;
@group(0) @binding(1) var<storage, read> outputs: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
var<immediate> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let index = element(group, local);
    if index >= params.n * params.d {
        return;
    }
    var sum = 0.0;
    for (var used = 0u; used < USED; used++) {
        let choice = index / params.d * USED + used;
        let output = outputs[choice * params.d + index % params.d];
        sum = fma(output, select(1.0, weights[choice], WEIGHTED), sum);
    }
    out[index] = sum;
}
