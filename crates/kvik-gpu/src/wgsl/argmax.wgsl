// Index of the first maximum of every row; NaN counts as impossible, like negative infinity, and a row of only
// those has NONE.
struct Params {
    len: u32,
}

@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> out: array<u32>;
var<immediate> params: Params;

const LANES: u32 = 256u;
const NONE: u32 = 0xffffffffu;

var<workgroup> values: array<u32, LANES>;
var<workgroup> places: array<u32, LANES>;

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let start = group.x * params.len;
    var value = 0u;
    var place = NONE;
    for (var i = local; i < params.len; i += LANES) {
        let other = rank(x[start + i]);
        if other > value {
            value = other;
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
