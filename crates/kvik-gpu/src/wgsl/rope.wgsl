// Rotates pairs of every head vector by the angle of the row's position.
struct Params {
    n: u32,
    heads: u32,
    head_dim: u32,
    // Number of rotated pairs.
    pairs: u32,
}

@group(0) @binding(0) var<storage, read> positions: array<u32>;
// Cosine and sine, [positions][pairs].
@group(0) @binding(1) var<storage, read> angles: array<vec2<f32>>;
@group(0) @binding(2) var<storage, read_write> x: array<f32>;
var<immediate> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let index = element(group, local);
    if index >= params.n * params.heads * params.pairs {
        return;
    }
    let pair = index % params.pairs;
    let head = index / params.pairs;
    let angle = angles[positions[head / params.heads] * params.pairs + pair];
    var low = head * params.head_dim;
    var high = low;
    if INTERLEAVED {
        low += 2u * pair;
        high = low + 1u;
    } else {
        low += pair;
        high = low + params.pairs;
    }
    let a = x[low];
    let b = x[high];
    x[low] = fma(a, angle.x, -(b * angle.y));
    x[high] = fma(a, angle.y, b * angle.x);
}
