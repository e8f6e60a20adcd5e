// Attention of up to four query rows of one sequence and KV head, the unit, which read the same keys and values: a
// query row is one component of the vectors here, and no component meets another.
//
// Positions are worked on in splits of 256, at multiples of 256. In a split: scores, their maximum m, p = exp(s - m),
// the sum l of p, values weighted by p over ascending positions. Splits are folded in ascending order, from m and l of
// nothing or of a sink.
struct Params {
    heads: u32,
    kv_heads: u32,
    layer_words: u32,
    head_words: u32,
    key_words: u32,
    // Positions of a window or of a chunk.
    reach: u32,
    scale: f32,
    // What bounds scores, if anything does.
    cap: f32,
}

struct Unit {
    // Where its sequence begins in `tables`.
    table: u32,
    // The first of its query rows, and their number; query row i is head i % GROUP of row i / GROUP.
    first: u32,
    count: u32,
    // The splits that one of them sees something of, and where their results stand among those of all units.
    first_split: u32,
    splits: u32,
    first_part: u32,
}

var<immediate> params: Params;

// A score that no position has.
const NOTHING: f32 = -1e30;
const SPLIT: u32 = 256u;
// Pairs of dimensions of a value that an invocation gathers.
const PAIRS: u32 = (VALUE_LANES / 2u + 63u) / 64u;

// The softmax of some positions.
struct Softmax {
    m: vec4<f32>,
    l: vec4<f32>,
}

// The number of a query vector, or of a result.
fn vector_number(unit: Unit, component: u32, kv_head: u32) -> u32 {
    let query_row = unit.first + min(component, unit.count - 1u);
    return query_row / GROUP * params.heads + kv_head * GROUP + query_row % GROUP;
}
