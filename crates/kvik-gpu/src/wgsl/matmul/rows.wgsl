// Multiplies all inputs by one matrix.
struct Params {
    cols: u32,
    // Rows of the matrix in the binding, and the number of the first of them.
    rows: u32,
    first_row: u32,
    // Rows of the whole matrix.
    out_rows: u32,
    n: u32,
}

var<immediate> params: Params;

fn input_row(number: u32) -> u32 {
    return number;
}

fn result_at(number: u32, row: u32) -> u32 {
    return number * params.out_rows + params.first_row + row;
}

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let first = group.y * BATCH;
    multiply(0u, first, min(params.n - first, BATCH), group.x, local);
}
