// Processes all splits of a unit in order: for many units.
@group(0) @binding(5) var<storage, read_write> out: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let unit = units[group.x];
    let seen = seen_of(unit);
    load_queries(unit, group.y, local);
    clear_results();
    var softmax = softmax_before(unit, group.y);
    for (var index = 0u; index < unit.splits; index++) {
        let here = attend(work_of(unit, seen, unit.first_split + index, group.y), local);
        let factors = factors(softmax, here);
        for (var i = 0u; i < 2u * PAIRS; i++) {
            fold(i, gathered[i], factors);
        }
        softmax = factors.softmax;
        workgroupBarrier();
    }
    finish(unit, softmax.l, group.y, local);
}
