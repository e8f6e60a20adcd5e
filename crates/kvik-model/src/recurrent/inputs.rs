//! The inputs of rows to the state of a layer, and those retained of tentative rows.

use kvik_kernels::StateRows;

/// The inputs of rows to a state: together with the state, they determine the update.
#[derive(Debug, Default, Clone)]
pub(crate) struct Inputs {
    /// Input of the convolution, `[n, channels]`.
    pub(crate) x: Vec<f32>,
    /// Decay factors of the state, `[n, heads]`; for layers with a state matrix.
    pub(crate) decays: Vec<f32>,
    /// Update rates of the state, `[n, heads]`; for layers with a state matrix.
    pub(crate) rates: Vec<f32>,
}

impl Inputs {
    /// A range of the `n` rows.
    fn rows(&self, rows: std::ops::Range<usize>, n: usize) -> Inputs {
        let part = |values: &Vec<f32>| {
            let width = values.len() / n.max(1);
            values[rows.start * width..rows.end * width].to_vec()
        };
        Inputs { x: part(&self.x), decays: part(&self.decays), rates: part(&self.rates) }
    }
}

/// The tentative rows of a batch, by the slot whose state they would continue.
#[derive(Debug, Default)]
pub(crate) struct Tried {
    sequences: Vec<TriedRows>,
}

/// Tentative rows of one state.
#[derive(Debug)]
pub(crate) struct TriedRows {
    pub(crate) live: u32,
    /// Their number, and the cache position of the first.
    pub(crate) rows: usize,
    pub(crate) first: u32,
    /// Their inputs to each recurrent layer, in order.
    pub(crate) layers: Vec<Inputs>,
}

impl Tried {
    /// Registers tentative rows of a batch.
    pub(super) fn expect(&mut self, live: u32, rows: usize, first: u32) {
        self.sequences.push(TriedRows { live, rows, first, layers: Vec::new() });
    }

    /// Retains the inputs of these rows to one layer; the batch has `n` rows.
    pub(super) fn keep(&mut self, sequences: &[StateRows<'_>], inputs: &Inputs, n: usize) {
        for StateRows { rows, certain, live, .. } in sequences {
            if let Some(tried) = self.sequences.iter_mut().find(|tried| tried.live == *live) {
                tried.layers.push(inputs.rows(rows.start + certain..rows.end, n));
            }
        }
    }

    /// Removes and returns the tentative rows of a state.
    pub(crate) fn take(&mut self, live: u32) -> Option<TriedRows> {
        let index = self.sequences.iter().position(|tried| tried.live == live)?;
        Some(self.sequences.swap_remove(index))
    }
}
