// out[n] = x[rows[n]], rows of d numbers.
struct Params {
    n: u32,
    d: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read> rows: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
var<immediate> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let index = element(group, local);
    if index < params.n * params.d {
        out[index] = x[rows[index / params.d] * params.d + index % params.d];
    }
}
