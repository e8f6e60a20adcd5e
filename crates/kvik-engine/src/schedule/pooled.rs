//! Pooling of the hidden states of a prompt into one vector.

/// The sum of the hidden states so far.
///
/// States are added one after another in the order of their positions, so the sum is the same to the bit however the
/// prompt is cut into steps. `f64`, so that the length of a prompt costs no accuracy.
#[derive(Debug, Default)]
pub(super) struct Pooled {
    /// `[d_model]`; empty before the first state.
    sum: Vec<f64>,
    states: usize,
}

impl Pooled {
    /// Adds the next hidden states, `[rows, d_model]`.
    pub(super) fn add(&mut self, states: &[f32], rows: usize) {
        for state in states.chunks_exact((states.len() / rows.max(1)).max(1)) {
            self.sum.resize(state.len(), 0.0);
            self.sum.iter_mut().zip(state).for_each(|(sum, &x)| *sum += f64::from(x));
            self.states += 1;
        }
    }

    /// The embedding, `[d_model]`: the mean of the states. With one state it is that state.
    pub(super) fn embedding(&self) -> Vec<f32> {
        let states = self.states.max(1) as f64;
        self.sum.iter().map(|sum| (sum / states) as f32).collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// However the states are cut into steps, the mean is the same to the bit, and near the true one.
        #[test]
        fn steps_change_no_bit(
            states in prop::collection::vec(prop::array::uniform3(-1e6_f32..1e6), 1..60),
            cuts in prop::collection::vec(1..9_usize, 60),
        ) {
            let mut whole = Pooled::default();
            whole.add(states.as_flattened(), states.len());
            let (mut pieces, mut rest) = (Pooled::default(), &states[..]);
            for cut in cuts {
                let (piece, after) = rest.split_at(cut.min(rest.len()));
                pieces.add(piece.as_flattened(), piece.len());
                rest = after;
            }
            let bits = |pooled: &Pooled| pooled.embedding().iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
            prop_assert_eq!(bits(&whole), bits(&pieces));
            for (column, mean) in whole.embedding().into_iter().enumerate() {
                let sum: f64 = states.iter().map(|state| f64::from(state[column])).sum();
                prop_assert!((f64::from(mean) - sum / states.len() as f64).abs() <= 0.1);
            }
        }
    }

    #[test]
    fn one_state_is_its_own_mean() {
        let mut pooled = Pooled::default();
        pooled.add(&[0.1, -2.5e-30, 3e30], 1);
        assert_eq!(pooled.embedding(), [0.1, -2.5e-30, 3e30]);
    }
}
