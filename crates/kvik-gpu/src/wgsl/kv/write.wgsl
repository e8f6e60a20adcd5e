// Stores the key and the value of one row and KV head: see kvik-kernels for the tiles of a block.
struct Params {
    kv_heads: u32,
    // Words of the layer's part of a block, of one head's part of that, and of its K tile.
    layer_words: u32,
    head_words: u32,
    key_words: u32,
}

struct Row {
    // Start of its sequence in `tables`.
    table: u32,
    // Number of positions up to and including its own.
    len: u32,
}

@group(0) @binding(0) var<storage, read> keys: array<f32>;
@group(0) @binding(1) var<storage, read> values: array<f32>;
@group(0) @binding(2) var<storage, read> rows: array<Row>;
@group(0) @binding(3) var<storage, read> tables: array<u32>;
// Two positions may share a word, and another invocation may write the other one concurrently.
@group(0) @binding(4) var<storage, read_write> stored: array<atomic<u32>>;
var<immediate> params: Params;

var<workgroup> vector: array<f32, VECTOR_LEN>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    let row = rows[group.x];
    let position = row.len - 1u;
    let block = tables[row.table + position / 16u];
    let tile = block * params.layer_words + group.y * params.head_words;
    let head = group.x * params.kv_heads + group.y;
    for (var d = local; d < KEY_DIM; d += 64u) {
        vector[d] = keys[head * KEY_DIM + d];
    }
    workgroupBarrier();
    write_key(tile, position % 16u, local);
    workgroupBarrier();
    for (var d = local; d < VALUE_DIM; d += 64u) {
        vector[d] = values[head * VALUE_DIM + d];
    }
    workgroupBarrier();
    write_value(tile + params.key_words, position % 16u, local);
}

// Replaces the bits of `mask` in a word.
fn replace(word: u32, mask: u32, bits: u32) {
    atomicAnd(&stored[word], ~mask);
    atomicOr(&stored[word], bits);
}
