//! Counter-based random numbers: no state, so nothing to save when a sequence is preempted.

/// Numbers in `[0, 1)` for draw `index` of the stream `seed`: one, and more if it does not suffice.
pub(super) fn units(seed: u64, index: u64) -> impl Iterator<Item = f64> {
    // The seed is mixed first: streams of neighbouring seeds must not be shifts of each other.
    let first = mix(mix(seed) ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    let all = std::iter::successors(Some(first), |&bits| Some(mix(bits)));
    all.map(|bits| (bits >> 11) as f64 / (1u64 << 53) as f64)
}

/// SplitMix64's step and finaliser: every input bit reaches every output bit.
fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_uniform_and_streams_are_unrelated() {
        let unit = |seed: u64, index: u64, nth: usize| units(seed, index).nth(nth).unwrap();
        for seed in [0, 1, 2, u64::MAX] {
            let draws = (0..40_000).map(|index| unit(seed, index, 0));
            let mean = draws.clone().sum::<f64>() / 40_000.0;
            assert!((mean - 0.5).abs() < 0.01, "mean of seed {seed} is {mean}");
            let next_seed = (0..40_000).map(|index| unit(seed.wrapping_add(1), index, 0));
            let next_index = (1..40_001).map(|index| unit(seed, index, 0));
            let second = (0..40_000).map(|index| unit(seed, index, 1));
            let others: [&mut dyn Iterator<Item = f64>; 3] =
                [&mut { next_seed }, &mut { next_index }, &mut { second }];
            for (other, name) in others.into_iter().zip(["seed", "draw", "number"]) {
                let cov =
                    draws.clone().zip(other).map(|(a, b)| (a - 0.5) * (b - 0.5)).sum::<f64>() / 40_000.0;
                assert!(cov.abs() < 0.003, "covariance of seed {seed} and the next {name} is {cov}");
            }
        }
    }
}
