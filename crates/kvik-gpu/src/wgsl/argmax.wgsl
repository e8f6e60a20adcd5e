// The first of the largest numbers of every row.
struct Params {
    len: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
var<immediate> params: Params;

const LANES: u32 = 256u;

var<workgroup> values: array<f32, LANES>;
var<workgroup> places: array<u32, LANES>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let start = group.x * params.len;
    var value = x[start];
    var place = 0u;
    for (var i = local; i < params.len; i += LANES) {
        if x[start + i] > value {
            value = x[start + i];
            place = i;
        }
    }
    values[local] = value;
    places[local] = place;
    for (var half = LANES / 2u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if local < half {
            let other = values[local + half];
            let before = places[local + half] < places[local];
            if other > values[local] || (other == values[local] && before) {
                values[local] = other;
                places[local] = places[local + half];
            }
        }
    }
    if local == 0u {
        out[group.x] = places[0];
    }
}
