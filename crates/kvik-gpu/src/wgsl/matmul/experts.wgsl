// Multiplies inputs by the matrix of their chosen expert, in batches that share one.
struct Params {
    cols: u32,
    // Rows of an expert's matrix, and words from one matrix to the next.
    rows: u32,
    words: u32,
    // The experts in the binding.
    first_expert: u32,
    experts: u32,
    // Choices that share an input.
    sharing: u32,
}

struct Batch {
    expert: u32,
    // Places among the choices in the order of experts.
    first: u32,
    count: u32,
}

@group(0) @binding(3) var<storage, read> batches: array<Batch>;
@group(0) @binding(4) var<storage, read> places: array<u32>;
var<immediate> params: Params;

fn input_row(place: u32) -> u32 {
    return places[place] / params.sharing;
}

fn result_at(place: u32, row: u32) -> u32 {
    return places[place] * params.rows + row;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let batch = batches[group.y];
    // Wraps around for experts before the first, which then exceed the last too.
    let expert = batch.expert - params.first_expert;
    if batch.count > 0u && expert < params.experts {
        multiply(expert * params.words * 4u, batch.first, batch.count, group.x, local);
    }
}
