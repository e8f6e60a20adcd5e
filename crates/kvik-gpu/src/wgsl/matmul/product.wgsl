// out[n][row] = sum over columns of weight[row][column] * x[n][column], of a tile of rows and up to BATCH inputs
//
// Eight invocations, the lanes, share a row of the matrix. Runs of columns that share a scale are assigned to the
// lanes in turn; in a run, four sums over every fourth column are added in pairs, and scaled. At the end the lanes
// are added in pairs. The order depends neither on the number of rows nor on other rows.
@group(0) @binding(1) var<storage, read> x: array<vec4<f32>>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;

const LANES: u32 = 8u;
const TILE_ROWS: u32 = 8u;
const RUNS: u32 = BLOCK_LEN / RUN;

var<workgroup> lanes: array<f32, 64u * BATCH>;

// Multiplies the matrix that begins at byte `matrix`, of `params.rows` rows, by `count` inputs from number `first`
// on: `input_row` and `result_at` return where each is read and where its results are stored.
fn multiply(matrix: u32, first: u32, count: u32, tile: u32, local: u32) {
    let row = min(tile * TILE_ROWS + local / LANES, params.rows - 1u);
    let quads = params.cols / 4u;
    let row_at = matrix + row * (params.cols / BLOCK_LEN) * BLOCK_BYTES;
    // A padding input is computed as the last one and not stored.
    var inputs: array<u32, BATCH>;
    for (var b = 0u; b < BATCH; b++) {
        inputs[b] = input_row(first + min(b, count - 1u)) * quads;
    }
    var sums: array<f32, BATCH>;
    for (var run = local % LANES; run < params.cols / RUN; run += LANES) {
        let at = row_at + run / RUNS * BLOCK_BYTES;
        let scale = scale_of(at, run % RUNS);
        var products: array<vec4<f32>, BATCH>;
        var totals: array<vec4<f32>, BATCH>;
        for (var quad = 0u; quad < RUN / 4u; quad++) {
            let w = levels(at, run % RUNS * RUN + quad * 4u);
            for (var b = 0u; b < BATCH; b++) {
                let value = x[inputs[b] + run * (RUN / 4u) + quad];
                products[b] = fma(w, value, products[b]);
                if HAS_MIN {
                    totals[b] += value;
                }
            }
        }
        for (var b = 0u; b < BATCH; b++) {
            let p = products[b];
            sums[b] = fma(scale.x, (p.x + p.y) + (p.z + p.w), sums[b]);
            if HAS_MIN {
                let t = totals[b];
                sums[b] = fma(scale.y, (t.x + t.y) + (t.z + t.w), sums[b]);
            }
        }
    }
    for (var b = 0u; b < BATCH; b++) {
        lanes[local * BATCH + b] = sums[b];
    }
    workgroupBarrier();
    store_results(first, count, tile, local);
}

// A result: the sum of one row's product with one input.
fn lanes_sum(row: u32, b: u32) -> f32 {
    var pairs: array<f32, 4>;
    for (var i = 0u; i < 4u; i++) {
        let at = (row * LANES + 2u * i) * BATCH + b;
        pairs[i] = lanes[at] + lanes[at + BATCH];
    }
    return (pairs[0] + pairs[1]) + (pairs[2] + pairs[3]);
}
