// Attention of a unit: up to four query rows of one sequence and KV head, which read the same keys and values. A
// query row is one component of the vectors here, and components are never combined.
//
// Positions are processed in splits of 256, at multiples of 256. In a split: scores, their maximum m,
// p = exp(s - m), the sum l of p, values weighted by p over ascending positions. Splits are folded in ascending
// order, starting from m and l of no positions or of a sink.
struct Params {
    heads: u32,
    kv_heads: u32,
    layer_words: u32,
    head_words: u32,
    key_words: u32,
    // Positions of a window or of a chunk.
    reach: u32,
    scale: f32,
    // The soft cap of scores, if there is one.
    cap: f32,
}

struct Unit {
    // Start of its sequence in `tables`.
    table: u32,
    // The first of its query rows, and their number; query row i is head i % GROUP of row i / GROUP.
    first: u32,
    count: u32,
    // The visible splits of the unit, and the index of their results among those of all units.
    first_split: u32,
    splits: u32,
    first_part: u32,
}

var<immediate> params: Params;

// A value below all scores.
const NOTHING: f32 = -1e30;
const SPLIT: u32 = 256u;
// Pairs of dimensions of a value per invocation.
const PAIRS: u32 = (VALUE_LANES / 2u + 63u) / 64u;

// The softmax state of some positions.
struct Softmax {
    m: vec4<f32>,
    l: vec4<f32>,
}

// Index of a query vector, or of a result.
fn vector_number(unit: Unit, component: u32, kv_head: u32) -> u32 {
    let query_row = unit.first + min(component, unit.count - 1u);
    return query_row / GROUP * params.heads + kv_head * GROUP + query_row % GROUP;
}
