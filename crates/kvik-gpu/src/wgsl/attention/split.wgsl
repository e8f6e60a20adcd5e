// Processing of one split of a unit.
struct Row {
    // Start of its sequence in `tables`; the row attends to the visible ones of the first `len` positions.
    table: u32,
    len: u32,
}

@group(0) @binding(0) var<storage, read> rows: array<Row>;
@group(0) @binding(1) var<storage, read> tables: array<u32>;
@group(0) @binding(2) var<storage, read> units: array<Unit>;
@group(0) @binding(3) var<storage, read> queries: array<f32>;
@group(0) @binding(4) var<storage, read> stored: array<u32>;

struct Seen {
    start: vec4<u32>,
    end: vec4<u32>,
}

// The queries of the unit; at the end its results.
var<workgroup> vector: array<vec4<f32>, VECTOR_LEN>;
var<workgroup> scores: array<vec4<f32>, SPLIT>;
var<workgroup> lanes: array<vec4<f32>, 64>;
// The invocation's accumulated pairs of dimensions in the current split.
var<private> gathered: array<vec4<f32>, 2u * PAIRS>;

fn row_of(unit: Unit, component: u32) -> u32 {
    return (unit.first + min(component, unit.count - 1u)) / GROUP;
}

// A padding query row has the view of the last one, and is not stored.
fn seen_of(unit: Unit) -> Seen {
    let end = vec4<u32>(
        rows[row_of(unit, 0u)].len,
        rows[row_of(unit, 1u)].len,
        rows[row_of(unit, 2u)].len,
        rows[row_of(unit, 3u)].len,
    );
    let start = vec4<u32>(first_visible(end.x), first_visible(end.y), first_visible(end.z), first_visible(end.w));
    return Seen(start, end);
}

fn sees(seen: Seen, position: u32) -> vec4<bool> {
    let at = vec4<u32>(position);
    return (seen.start <= at) & (at < seen.end);
}

fn load_queries(unit: Unit, kv_head: u32, local: u32) {
    let starts = vec4<u32>(
        vector_number(unit, 0u, kv_head),
        vector_number(unit, 1u, kv_head),
        vector_number(unit, 2u, kv_head),
        vector_number(unit, 3u, kv_head),
    ) * KEY_DIM;
    for (var d = local; d < KEY_DIM; d += 64u) {
        vector[d] = vec4<f32>(
            queries[starts.x + d],
            queries[starts.y + d],
            queries[starts.z + d],
            queries[starts.w + d],
        );
    }
    workgroupBarrier();
    if KEY_ROTATED {
        rotate(KEY_DIM, KEY_PIECE, KEY_NORM, local);
    }
}

// Loads a split of a unit at one KV head.
struct Work {
    table: u32,
    kv_head: u32,
    // The first position of the split, and the range that any of the query rows sees.
    first: u32,
    start: u32,
    end: u32,
    seen: Seen,
}

fn work_of(unit: Unit, seen: Seen, split: u32, kv_head: u32) -> Work {
    let start = min(min(seen.start.x, seen.start.y), min(seen.start.z, seen.start.w));
    let end = max(max(seen.end.x, seen.end.y), max(seen.end.z, seen.end.w));
    let first = split * SPLIT;
    return Work(unit.table, kv_head, first, max(start, first), min(end, first + SPLIT), seen);
}

// Whether any query row sees one of two positions.
fn has_pair(work: Work, position: u32) -> bool {
    return position < work.end && position + 2u > work.start;
}

fn key_tile(work: Work, position: u32) -> u32 {
    return tables[work.table + position / 16u] * params.layer_words + work.kv_head * params.head_words;
}

fn value_tile(work: Work, position: u32) -> u32 {
    return key_tile(work, position) + params.key_words;
}

// The softmax of the split; its weighted values are `gathered`.
fn attend(work: Work, local: u32) -> Softmax {
    let m = score(work, local);
    let l = weigh(work, m, local);
    gather(work, local);
    return Softmax(m, l);
}

// Stores the scores of the split, and returns their maximum.
fn score(work: Work, local: u32) -> vec4<f32> {
    var top = vec4<f32>(NOTHING);
    for (var pair = local; pair < SPLIT / 2u; pair += 64u) {
        let position = work.first + 2u * pair;
        var first = vec4<f32>(NOTHING);
        var second = vec4<f32>(NOTHING);
        if has_pair(work, position) {
            let tile = key_tile(work, position);
            first = vec4<f32>(0.0);
            second = vec4<f32>(0.0);
            for (var i = 0u; i < KEY_DIM / 2u; i++) {
                let key = keys_at(tile, i, pair % 8u);
                first = fma(vector[2u * i], vec4<f32>(key.x), first);
                second = fma(vector[2u * i], vec4<f32>(key.y), second);
                first = fma(vector[2u * i + 1u], vec4<f32>(key.z), first);
                second = fma(vector[2u * i + 1u], vec4<f32>(key.w), second);
            }
            let scales = key_scales(tile, pair % 8u) * params.scale;
            // Invisible positions may hold any value, even NaN.
            first = select(vec4<f32>(NOTHING), capped(first * scales.x), sees(work.seen, position));
            second = select(vec4<f32>(NOTHING), capped(second * scales.y), sees(work.seen, position + 1u));
        }
        scores[2u * pair] = first;
        scores[2u * pair + 1u] = second;
        top = max(top, max(first, second));
    }
    lanes[local] = top;
    for (var half = 32u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if local < half {
            lanes[local] = max(lanes[local], lanes[local + half]);
        }
    }
    workgroupBarrier();
    top = lanes[0];
    workgroupBarrier();
    return top;
}

// Replaces the scores by the weights of stored values, and returns the sum of p.
fn weigh(work: Work, m: vec4<f32>, local: u32) -> vec4<f32> {
    let none = vec4<f32>(0.0);
    var sum = none;
    for (var pair = local; pair < SPLIT / 2u; pair += 64u) {
        let position = work.first + 2u * pair;
        if has_pair(work, position) {
            let scales = value_scales(value_tile(work, position), pair % 8u);
            let sees_first = sees(work.seen, position);
            let sees_second = sees(work.seen, position + 1u);
            let first = select(none, exp(scores[2u * pair] - m), sees_first);
            let second = select(none, exp(scores[2u * pair + 1u] - m), sees_second);
            sum += first + second;
            scores[2u * pair] = select(none, first * scales.x, sees_first);
            scores[2u * pair + 1u] = select(none, second * scales.y, sees_second);
        }
    }
    lanes[local] = sum;
    for (var half = 32u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if local < half {
            lanes[local] += lanes[local + half];
        }
    }
    workgroupBarrier();
    sum = lanes[0];
    workgroupBarrier();
    return sum;
}

// Accumulates the weighted values of the split.
fn gather(work: Work, local: u32) {
    for (var i = 0u; i < 2u * PAIRS; i++) {
        gathered[i] = vec4<f32>(0.0);
    }
    for (var block = work.start / 16u; block * 16u < work.end; block++) {
        let tile = value_tile(work, block * 16u);
        for (var pair = 0u; pair < 8u; pair++) {
            if has_pair(work, block * 16u + 2u * pair) {
                gather_pair(work, tile, pair, block * 16u + 2u * pair, local);
            }
        }
    }
}

fn gather_pair(work: Work, tile: u32, pair: u32, position: u32, local: u32) {
    let sees_first = sees(work.seen, position);
    let sees_second = sees(work.seen, position + 1u);
    let first = scores[position - work.first];
    let second = scores[position + 1u - work.first];
    for (var index = 0u; index < PAIRS; index++) {
        let i = local + 64u * index;
        if i < VALUE_LANES / 2u {
            let value = values_at(tile, i, pair);
            for (var half = 0u; half < 2u; half++) {
                var sum = gathered[2u * index + half];
                sum = select(sum, fma(first, vec4<f32>(value[half]), sum), sees_first);
                sum = select(sum, fma(second, vec4<f32>(value[2u + half]), sum), sees_second);
                gathered[2u * index + half] = sum;
            }
        }
    }
}
