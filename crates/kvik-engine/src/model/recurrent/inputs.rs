//! What rows say to the state of a layer, and what is kept of rows that were only tried.

use kvik_kernels::StateRows;

/// What rows say to a state: everything that taking them in depends on besides the state.
#[derive(Debug, Default, Clone)]
pub(crate) struct Inputs {
    /// What is convolved, `[n, channels]`.
    pub(crate) x: Vec<f32>,
    /// What the state is multiplied by, `[n, heads]`; of layers with a state matrix.
    pub(crate) decays: Vec<f32>,
    /// How much of a row the state takes in, `[n, heads]`; of layers with a state matrix.
    pub(crate) rates: Vec<f32>,
}

impl Inputs {
    /// Some rows of `n`.
    fn rows(&self, rows: std::ops::Range<usize>, n: usize) -> Inputs {
        let part = |values: &Vec<f32>| {
            let width = values.len() / n.max(1);
            values[rows.start * width..rows.end * width].to_vec()
        };
        Inputs { x: part(&self.x), decays: part(&self.decays), rates: part(&self.rates) }
    }
}

/// The rows of a batch that were only tried, by the slot whose state they would continue.
#[derive(Debug, Default)]
pub(crate) struct Tried {
    sequences: Vec<TriedRows>,
}

/// Rows that would continue one state.
#[derive(Debug)]
pub(crate) struct TriedRows {
    pub(crate) live: u32,
    /// How many there are, and the cache position of the first.
    pub(crate) rows: usize,
    pub(crate) first: u32,
    /// What they say to each recurrent layer, in order.
    pub(crate) layers: Vec<Inputs>,
}

impl Tried {
    /// Notes that rows of a batch are only tried.
    pub(super) fn expect(&mut self, live: u32, rows: usize, first: u32) {
        self.sequences.push(TriedRows { live, rows, first, layers: Vec::new() });
    }

    /// Keeps what these rows say to one layer; `n` rows are in the batch.
    pub(super) fn keep(&mut self, sequences: &[StateRows<'_>], inputs: &Inputs, n: usize) {
        for StateRows { rows, certain, live, .. } in sequences {
            if let Some(tried) = self.sequences.iter_mut().find(|tried| tried.live == *live) {
                tried.layers.push(inputs.rows(rows.start + certain..rows.end, n));
            }
        }
    }

    /// Forgets what was tried behind a state, and gives it.
    pub(crate) fn take(&mut self, live: u32) -> Option<TriedRows> {
        let index = self.sequences.iter().position(|tried| tried.live == live)?;
        Some(self.sequences.swap_remove(index))
    }
}
