// Folds the parts of a unit in ascending order.
@group(0) @binding(0) var<storage, read> units: array<Unit>;
@group(0) @binding(1) var<storage, read> parts: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

var<workgroup> vector: array<vec4<f32>, VECTOR_LEN>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let unit = units[group.x];
    clear_results();
    var softmax = softmax_before(unit, group.y);
    for (var index = 0u; index < unit.splits; index++) {
        let start = ((unit.first_part + index) * params.kv_heads + group.y) * (2u + VALUE_LANES);
        let factors = factors(softmax, Softmax(parts[start], parts[start + 1u]));
        for (var i = 0u; i < 2u * PAIRS; i++) {
            let d = 2u * (local + 64u * (i / 2u)) + i % 2u;
            if d < VALUE_LANES {
                fold(i, parts[start + 2u + d], factors);
            }
        }
        softmax = factors.softmax;
    }
    finish(unit, softmax.l, group.y, local);
}
