// Stores the activations of a tile of rows, of which each even one is a gate and the next one what it gates.
fn store_results(first: u32, count: u32, tile: u32, local: u32) {
    for (var index = local; index < TILE_ROWS / 2u * BATCH; index += 64u) {
        let pair = index / BATCH;
        let row = tile * (TILE_ROWS / 2u) + pair;
        let b = index % BATCH;
        if 2u * row < params.rows && b < count {
            out[result_at(first + b, row)] = activate(lanes_sum(2u * pair, b), lanes_sum(2u * pair + 1u, b));
        }
    }
}
