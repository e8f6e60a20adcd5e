// out[n][column] = weight[tokens[n]][column], for the rows in the binding.
struct Params {
    cols: u32,
    rows: u32,
    first_row: u32,
    n: u32,
}

@group(0) @binding(1) var<storage, read> tokens: array<u32>;
@group(0) @binding(2) var<storage, read_write> out: array<vec4<f32>>;
var<immediate> params: Params;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let index = element(group, local);
    let quads = params.cols / 4u;
    if index >= params.n * quads {
        return;
    }
    // Wraps around for rows before the first, which then exceed the last too.
    let row = tokens[index / quads] - params.first_row;
    if row >= params.rows {
        return;
    }
    let column = index % quads * 4u;
    let at = (row * (params.cols / BLOCK_LEN) + column / BLOCK_LEN) * BLOCK_BYTES;
    let place = column % BLOCK_LEN;
    let scale = scale_of(at, place / RUN);
    out[index] = fma(levels(at, place), vec4<f32>(scale.x), vec4<f32>(scale.y));
}
