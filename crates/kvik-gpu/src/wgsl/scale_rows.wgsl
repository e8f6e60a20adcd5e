// x[n] = x[n] * factors[n], rows of d numbers.
struct Params {
    n: u32,
    d: u32,
}

@group(0) @binding(0) var<storage, read> factors: array<f32>;
@group(0) @binding(1) var<storage, read_write> x: array<f32>;
var<immediate> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let index = element(group, local);
    if index < params.n * params.d {
        x[index] *= factors[index / params.d];
    }
}
