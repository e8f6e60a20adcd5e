// x = changed(x)
struct Params {
    len: u32,
    // The operand of `changed` besides the element.
    factor: f32,
}

@group(0) @binding(0) var<storage, read_write> x: array<f32>;
var<immediate> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let index = element(group, local);
    if index < params.len {
        x[index] = changed(x[index]);
    }
}
