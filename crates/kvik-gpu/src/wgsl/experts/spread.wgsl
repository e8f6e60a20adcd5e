// out[choice] = x[row of the choice] * weights[choice], rows of d numbers.
struct Params {
    choices: u32,
    d: u32,
}

@group(0) @binding(0) var<storage, read> weights: array<f32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
var<immediate> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let index = element(group, local);
    if index < params.choices * params.d {
        let choice = index / params.d;
        out[index] = x[choice / USED * params.d + index % params.d] * weights[choice];
    }
}
