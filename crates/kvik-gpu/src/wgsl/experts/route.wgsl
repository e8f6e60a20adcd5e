// Chooses the experts of a row and their weights from its scores: a work group for each row.
//
// They are ordered by descending rank, equal ones by ascending number.
struct Params {
    // Factor of all weights.
    scale: f32,
}

@group(0) @binding(0) var<storage, read> scores: array<f32>;
@group(0) @binding(1) var<storage, read_write> experts: array<u32>;
@group(0) @binding(2) var<storage, read_write> weights: array<f32>;
var<immediate> params: Params;

const LANES: u32 = 64u;
// Minimum divisor of weights, as in kvik-engine.
const SUM_MIN: f32 = 6.1035156e-5;

// Weights of the experts, and their ranks: 0 once they are chosen.
var<workgroup> chances: array<f32, COUNT>;
var<workgroup> ranks: array<u32, COUNT>;
var<workgroup> numbers: array<f32, LANES>;
var<workgroup> best: array<vec2<u32>, LANES>;
var<workgroup> chosen: array<f32, USED>;

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) local: u32) {
    for (var i = local; i < COUNT; i += LANES) {
        let score = scores[group.x * COUNT + i];
        chances[i] = select(score, sigmoid(score), SIGMOID && !OF_CHOSEN);
    }
    if !SIGMOID && !OF_CHOSEN {
        make_probable(local);
    }
    for (var i = local; i < COUNT; i += LANES) {
        ranks[i] = rank(chances[i] + bias_of(i)) + 1u;
    }
    for (var place = 0u; place < USED; place++) {
        let expert = greatest(local);
        if local == 0u {
            experts[group.x * USED + place] = expert;
            chosen[place] = chances[expert];
            ranks[expert] = 0u;
        }
    }
    if local == 0u {
        weigh(group.x * USED);
    }
}

// Softmax over all experts: lane i adds the exponentials of i, i + 64, .., and the lanes are added in pairs.
fn make_probable(local: u32) {
    var most = chances[local % COUNT];
    for (var i = local; i < COUNT; i += LANES) {
        most = max(most, chances[i]);
    }
    numbers[local] = most;
    for (var half = LANES / 2u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if local < half {
            numbers[local] = max(numbers[local], numbers[local + half]);
        }
    }
    workgroupBarrier();
    most = numbers[0];
    workgroupBarrier();
    var sum = 0.0;
    for (var i = local; i < COUNT; i += LANES) {
        chances[i] = exp(chances[i] - most);
        sum += chances[i];
    }
    numbers[local] = sum;
    for (var half = LANES / 2u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if local < half {
            numbers[local] += numbers[local + half];
        }
    }
    workgroupBarrier();
    sum = numbers[0];
    for (var i = local; i < COUNT; i += LANES) {
        chances[i] /= sum;
    }
}

// The first expert with the maximum rank.
fn greatest(local: u32) -> u32 {
    workgroupBarrier();
    var mine = vec2<u32>(0u, COUNT);
    for (var i = local; i < COUNT; i += LANES) {
        if ranks[i] > mine.x {
            mine = vec2<u32>(ranks[i], i);
        }
    }
    best[local] = mine;
    for (var half = LANES / 2u; half > 0u; half >>= 1u) {
        workgroupBarrier();
        if local < half {
            let other = best[local + half];
            if other.x > best[local].x || (other.x == best[local].x && other.y < best[local].y) {
                best[local] = other;
            }
        }
    }
    workgroupBarrier();
    return best[0].y;
}

// Normalises and scales the weights of the chosen experts, and stores them; sums are in their order.
fn weigh(first: u32) {
    if OF_CHOSEN {
        var most = chosen[0];
        for (var place = 1u; place < USED; place++) {
            most = max(most, chosen[place]);
        }
        for (var place = 0u; place < USED; place++) {
            chosen[place] = select(exp(chosen[place] - most), sigmoid(chosen[place]), SIGMOID);
        }
    }
    var sum = 1.0;
    if NORMALISED || (OF_CHOSEN && !SIGMOID) {
        sum = 0.0;
        for (var place = 0u; place < USED; place++) {
            sum += chosen[place];
        }
        sum = max(sum, SUM_MIN);
    }
    for (var place = 0u; place < USED; place++) {
        weights[first + place] = chosen[place] / sum * params.scale;
    }
}
