// Stores the products of a tile of rows.
fn store_results(first: u32, count: u32, tile: u32, local: u32) {
    for (var index = local; index < TILE_ROWS * BATCH; index += 64u) {
        let row = tile * TILE_ROWS + index / BATCH;
        let b = index % BATCH;
        if row < params.rows && b < count {
            out[result_at(first + b, row)] = lanes_sum(index / BATCH, b);
        }
    }
}
