// Sorts the choices of rows by expert, and divides those of each expert into batches: one work group for all.
struct Params {
    choices: u32,
    // Capacity in batches: those after the last one are empty.
    batches: u32,
}

struct Batch {
    expert: u32,
    first: u32,
    count: u32,
}

@group(0) @binding(0) var<storage, read> experts: array<u32>;
@group(0) @binding(1) var<storage, read_write> batches: array<Batch>;
@group(0) @binding(2) var<storage, read_write> places: array<u32>;
var<immediate> params: Params;

const LANES: u32 = 256u;

var<workgroup> counts: array<u32, COUNT>;
// The first place and the first batch of every expert.
var<workgroup> firsts: array<vec2<u32>, COUNT>;
var<workgroup> all_batches: u32;

@compute @workgroup_size(256)
fn main(@builtin(local_invocation_index) local: u32) {
    for (var expert = local; expert < COUNT; expert += LANES) {
        var count = 0u;
        for (var choice = 0u; choice < params.choices; choice++) {
            count += u32(experts[choice] == expert);
        }
        counts[expert] = count;
    }
    workgroupBarrier();
    if local == 0u {
        var next = vec2<u32>(0u);
        for (var expert = 0u; expert < COUNT; expert++) {
            firsts[expert] = next;
            next += vec2<u32>(counts[expert], (counts[expert] + BATCH - 1u) / BATCH);
        }
        all_batches = next.y;
    }
    workgroupBarrier();
    for (var expert = local; expert < COUNT; expert += LANES) {
        give_places(expert);
    }
    for (var batch = all_batches + local; batch < params.batches; batch += LANES) {
        batches[batch] = Batch(0u, 0u, 0u);
    }
}

// The choices of an expert are in the order of rows.
fn give_places(expert: u32) {
    let first = firsts[expert];
    var place = first.x;
    for (var choice = 0u; choice < params.choices; choice++) {
        if experts[choice] == expert {
            places[place] = choice;
            place += 1u;
        }
    }
    for (var start = 0u; start < counts[expert]; start += BATCH) {
        let count = min(counts[expert] - start, BATCH);
        batches[first.y + start / BATCH] = Batch(expert, first.x + start, count);
    }
}
