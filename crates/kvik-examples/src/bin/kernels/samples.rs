//! What the examples measure with: the shortest of some calls, and weights that nobody trained.

use std::time::Instant;

use kvik_kernels::WeightType;

/// The shortest time of a call in seconds, among as many as fit `budget` seconds and at least three:
/// what the code takes when nothing else wants the cores.
pub(crate) fn best(budget: f64, mut work: impl FnMut()) -> f64 {
    let (started, mut shortest) = (Instant::now(), f64::INFINITY);
    for round in 0.. {
        if round >= 3 && started.elapsed().as_secs_f64() > budget {
            break;
        }
        let started = Instant::now();
        work();
        shortest = shortest.min(started.elapsed().as_secs_f64());
    }
    shortest
}

/// `len` weights of `ty`. Speed does not depend on their values, except that halves and exponents must be ordinary.
pub(crate) fn blocks(ty: WeightType, len: usize) -> Vec<u8> {
    let bytes = ty.row_bytes(len).expect("shapes are whole blocks");
    match ty {
        WeightType::Mxfp4 => vec![0x78; bytes],
        _ => (0..bytes).map(|i| if i % 2 == 0 { (i * 31) as u8 } else { 0x2c }).collect(),
    }
}
