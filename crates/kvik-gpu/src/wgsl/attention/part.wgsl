// Processes one split of a unit and stores its result for `merge`: for few units, to keep the device busy.
//
// A part is [m] [l] [VALUE_LANES] of a KV head.
@group(0) @binding(5) var<storage, read> parts: array<vec2<u32>>;
@group(0) @binding(6) var<storage, read_write> out: array<vec4<f32>>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    // The unit, and its split.
    let part = parts[group.x];
    let unit = units[part.x];
    load_queries(unit, group.y, local);
    let here = attend(work_of(unit, seen_of(unit), part.y, group.y), local);
    let start = (group.x * params.kv_heads + group.y) * (2u + VALUE_LANES);
    if local == 0u {
        out[start] = here.m;
        out[start + 1u] = here.l;
    }
    for (var i = 0u; i < 2u * PAIRS; i++) {
        let d = 2u * (local + 64u * (i / 2u)) + i % 2u;
        if d < VALUE_LANES {
            out[start + 2u + d] = gathered[i];
        }
    }
}
