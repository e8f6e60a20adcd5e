// The accumulated output of a unit, `[pairs of dimensions][2]` per invocation.
var<private> results: array<vec4<f32>, 2u * PAIRS>;

fn clear_results() {
    for (var i = 0u; i < 2u * PAIRS; i++) {
        results[i] = vec4<f32>(0.0);
    }
}

struct Factors {
    before: vec4<f32>,
    here: vec4<f32>,
    softmax: Softmax,
}

// Folds a split into the accumulated state; rows that see nothing of it stay unchanged.
fn factors(before: Softmax, here: Softmax) -> Factors {
    let m = max(before.m, here.m);
    let empty = here.m <= vec4<f32>(NOTHING);
    let a = select(exp(before.m - m), vec4<f32>(1.0), empty);
    let b = select(exp(here.m - m), vec4<f32>(0.0), empty);
    return Factors(a, b, Softmax(m, fma(before.l, a, here.l * b)));
}

fn fold(i: u32, here: vec4<f32>, factors: Factors) {
    results[i] = fma(results[i], factors.before, here * factors.here);
}

// Divides by the sum, rotates values back if they are stored rotated, and writes the results.
fn finish(unit: Unit, l: vec4<f32>, kv_head: u32, local: u32) {
    workgroupBarrier();
    for (var index = 0u; index < PAIRS; index++) {
        let d = 2u * (local + 64u * index);
        if d < VALUE_DIM {
            vector[d] = results[2u * index] / l;
        }
        if d + 1u < VALUE_DIM {
            vector[d + 1u] = results[2u * index + 1u] / l;
        }
    }
    workgroupBarrier();
    if VALUE_ROTATED {
        rotate(VALUE_DIM, VALUE_PIECE, VALUE_NORM, local);
    }
    for (var component = 0u; component < unit.count; component++) {
        let start = vector_number(unit, component, kv_head) * VALUE_DIM;
        for (var d = local; d < VALUE_DIM; d += 64u) {
            out[start + d] = vector[d][component];
        }
    }
}
