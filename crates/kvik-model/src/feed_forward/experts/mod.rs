//! A mixture of experts: each row goes to a few of many, chosen by `routing`.
//!
//! Rows are sorted by expert, and each expert's matrices are read once for all of its rows; experts without rows are
//! not read. The outputs for a row are added in the order in which the row has chosen its experts, that of the shared
//! expert last, so the bytes of a row do not depend on the other rows of the batch.

mod routing;
pub(crate) mod shape;

use kvik_kernels::{
    Activations, Groups, Matrix, Pool, activate, add_bias, matmul, matmul_grouped, sigmoid, vectorised,
};

use super::dense::{Dense, SHARED};
use crate::ModelError;
use crate::adapt::Adapt;
use crate::loader::{LayerLoader, Linear};
use routing::Choices;
use shape::{DOWN, DOWN_SCALE, GATE, GATE_UP, ROUTER, SELECTION, SHARED_GATE, UP};

pub(crate) use shape::{ExpertGroups, ExpertsShape, Gating, SharedShape, Weighted};

/// Number of output rows that one task adds up.
const ROWS_PER_TASK: usize = 4;

/// The weights of a mixture of experts.
pub(crate) struct Experts {
    shape: ExpertsShape,
    /// `[count, d_model]`
    router: Linear,
    /// `[count]`
    selection_bias: Option<Vec<f32>>,
    /// `[count][d_ff, d_model]`, for gated activations
    gate: Option<Stack>,
    /// `[count][d_ff, d_model]`
    up: Stack,
    /// `[count][d_model, d_ff]`
    down: Stack,
    /// `[count]`
    output_scale: Option<Vec<f32>>,
    shared: Option<Shared>,
}

/// A stack of one matrix of every expert.
struct Stack {
    matrices: Vec<Matrix>,
    /// `[count, rows]`
    bias: Option<Vec<f32>>,
}

/// The shared expert of all rows.
struct Shared {
    dense: Dense,
    /// `[1, d_model]`
    gate: Option<Matrix>,
}

/// Buffers of a mixture of experts; `places` is the number of sorted rows, see [`Groups`].
#[derive(Default)]
pub(super) struct Buffers {
    /// `[n, count]`
    scores: Vec<f32>,
    choices: Choices,
    groups: Groups,
    /// Rows sorted by expert, `[places, d_model]`, if the weights apply to inputs.
    weighted: Vec<f32>,
    sorted: Activations,
    /// `[places, d_ff]` each.
    gate: Vec<f32>,
    up: Vec<f32>,
    hidden: Activations,
    /// Outputs of experts, `[places, d_model]`.
    outputs: Vec<f32>,
    /// Outputs of the shared expert, `[n, d_model]`, and their weights, `[n]`.
    shared: Vec<f32>,
    shared_weights: Vec<f32>,
}

impl Experts {
    pub(super) fn load(shape: ExpertsShape, layer: &mut LayerLoader<'_, '_>) -> Result<Experts, ModelError> {
        shape.check()?;
        // The choice of experts is worth more than the bytes of the router: it is not converted.
        let router =
            Linear { matrix: layer.stored_matrix(ROUTER[0])?, bias: layer.optional_vector(ROUTER[1])? };
        let selection_bias = layer.optional_vector(SELECTION)?;
        let (gate, up) = load_gate_and_up(shape, layer)?;
        let down = Stack::load(DOWN, shape.count, layer)?;
        let output_scale = layer.optional_vector(DOWN_SCALE)?;
        let shared = match shape.shared {
            Some(shared) => Some(Shared {
                dense: Dense::load(shape.shared_shape(shared), &SHARED, layer)?,
                gate: if layer.has(SHARED_GATE) { Some(layer.stored_matrix(SHARED_GATE)?) } else { None },
            }),
            None => None,
        };
        Ok(Experts { shape, router, selection_bias, gate, up, down, output_scale, shared })
    }

    pub(super) fn d_model(&self) -> usize {
        self.router.matrix.cols()
    }

    pub(super) fn matrices(&self) -> Vec<&Matrix> {
        let stacks = self.gate.iter().chain([&self.up, &self.down]).flat_map(|stack| &stack.matrices);
        let shared =
            self.shared.iter().flat_map(|shared| shared.dense.matrices().into_iter().chain(&shared.gate));
        stacks.chain([&self.router.matrix]).chain(shared).collect()
    }

    /// The matrices that multiply the input: of experts, which are alike, the first.
    pub(super) fn takers(&self) -> Vec<&Matrix> {
        let mut takers = self.sorted_takers();
        takers.push(&self.router.matrix);
        if let Some(shared) = &self.shared {
            takers.extend(shared.dense.takers());
            takers.extend(&shared.gate);
        }
        takers
    }

    pub(super) fn router(&self) -> &Matrix {
        &self.router.matrix
    }

    /// The matrices of experts among them.
    pub(super) fn sorted_takers(&self) -> Vec<&Matrix> {
        self.gate.iter().chain([&self.up]).map(|stack| &stack.matrices[0]).collect()
    }

    /// Replaces normed rows `h`, `[n, d_model]`, whose quantised forms are `inputs`, by the output.
    pub(super) fn forward(
        &self,
        pool: &Pool,
        h: &mut [f32],
        inputs: &Activations,
        buffers: &mut super::Buffers,
        adapt: &mut dyn Adapt,
    ) {
        let super::Buffers { dense, experts: buffers, .. } = buffers;
        self.route(pool, h, inputs, buffers, adapt);
        if let Some(shared) = &self.shared {
            shared.run(pool, h, inputs, (dense, &mut *buffers), adapt);
        }
        self.run(pool, h, inputs, buffers);
    }

    /// Computes the output once rows have been routed.
    pub(super) fn run(&self, pool: &Pool, h: &mut [f32], inputs: &Activations, buffers: &mut Buffers) {
        self.sort(pool, h, inputs, buffers);
        self.compute(pool, buffers);
        self.combine(pool, h, buffers);
    }

    /// Chooses the experts of each row.
    pub(super) fn route(
        &self,
        pool: &Pool,
        h: &[f32],
        inputs: &Activations,
        buffers: &mut Buffers,
        adapt: &mut dyn Adapt,
    ) {
        let Buffers { scores, choices, groups, .. } = buffers;
        scores.resize(inputs.rows() * self.shape.count, 0.0);
        matmul(pool, &self.router.matrix, inputs, scores);
        adapt.add(ROUTER[0], h, scores);
        if let Some(bias) = &self.router.bias {
            add_bias(pool, scores, bias);
        }
        choices.choose(pool, &self.shape, scores, self.selection_bias.as_deref());
        if let Some(scale) = &self.output_scale {
            let chosen = choices.weights.iter_mut().zip(&choices.experts);
            chosen.for_each(|(weight, &expert)| *weight *= scale[expert as usize]);
        }
        groups.set(&choices.experts, self.shape.used, self.shape.count);
    }

    /// Sorts the inputs of experts.
    fn sort(&self, pool: &Pool, h: &[f32], inputs: &Activations, buffers: &mut Buffers) {
        let Buffers { choices, groups, weighted, sorted, .. } = buffers;
        let (d, takers) = (self.d_model(), self.sorted_takers());
        if self.shape.weighted == Weighted::Output {
            return sorted.gather(pool, inputs, &takers, groups);
        }
        weighted.resize(groups.places() * d, 0.0);
        for (choice, &weight) in choices.weights.iter().enumerate() {
            let row = choice / self.shape.used;
            let to = &mut weighted[groups.place(choice) * d..][..d];
            to.iter_mut().zip(&h[row * d..][..d]).for_each(|(to, h)| *to = h * weight);
        }
        sorted.set_grouped(pool, weighted, &takers, groups);
    }

    /// Computes the outputs of every expert for its rows.
    fn compute(&self, pool: &Pool, buffers: &mut Buffers) {
        let Buffers { groups, sorted, gate: gated, up: projected, hidden, outputs, .. } = buffers;
        projected.resize(groups.places() * self.shape.d_ff, 0.0);
        let activated = match &self.gate {
            Some(gate) => {
                gated.resize(projected.len(), 0.0);
                let mut jobs =
                    [(&gate.matrices[..], &mut gated[..]), (&self.up.matrices[..], &mut projected[..])];
                matmul_grouped(pool, &mut jobs, sorted, groups);
                gate.add_bias(pool, gated, groups);
                self.up.add_bias(pool, projected, groups);
                activate(pool, self.shape.activation, gated, projected);
                gated
            }
            None => {
                matmul_grouped(pool, &mut [(&self.up.matrices[..], &mut projected[..])], sorted, groups);
                self.up.add_bias(pool, projected, groups);
                activate(pool, self.shape.activation, projected, &[]);
                projected
            }
        };
        hidden.set_grouped(pool, activated, &[&self.down.matrices[0]], groups);
        outputs.resize(groups.places() * self.d_model(), 0.0);
        matmul_grouped(pool, &mut [(&self.down.matrices[..], &mut outputs[..])], hidden, groups);
        self.down.add_bias(pool, outputs, groups);
    }

    /// Adds the outputs for each row, in the order in which it has chosen its experts, and the shared one last.
    fn combine(&self, pool: &Pool, h: &mut [f32], buffers: &Buffers) {
        let Buffers { choices, groups, outputs, shared, shared_weights, .. } = buffers;
        let (d, used) = (self.d_model(), self.shape.used);
        pool.run_chunks(h, ROWS_PER_TASK * d, |task, rows| {
            for (row, h) in rows.chunks_exact_mut(d).enumerate() {
                let row = task * ROWS_PER_TASK + row;
                for choice in row * used..(row + 1) * used {
                    let weight = match self.shape.weighted {
                        Weighted::Output => choices.weights[choice],
                        Weighted::Input => 1.0,
                    };
                    add_weighted(h, &outputs[groups.place(choice) * d..][..d], weight, choice == row * used);
                }
                if let Some(expert) = &self.shared {
                    let weight = if expert.gate.is_some() { shared_weights[row] } else { 1.0 };
                    add_weighted(h, &shared[row * d..][..d], weight, false);
                }
            }
        });
    }
}

/// `h = h + x * weight`, or `h = x * weight` for the first.
fn add_weighted(h: &mut [f32], x: &[f32], weight: f32, first: bool) {
    vectorised(
        #[inline(always)]
        || match first {
            true => h.iter_mut().zip(x).for_each(|(h, x)| *h = x * weight),
            false => h.iter_mut().zip(x).for_each(|(h, x)| *h += x * weight),
        },
    );
}

/// Gate and up, from one tensor or from two.
fn load_gate_and_up(
    shape: ExpertsShape,
    layer: &mut LayerLoader<'_, '_>,
) -> Result<(Option<Stack>, Stack), ModelError> {
    if !shape.activation.is_gated() {
        return Ok((None, Stack::load(UP, shape.count, layer)?));
    }
    if !layer.has_stack(GATE_UP) {
        let gate = Stack::load(GATE, shape.count, layer)?;
        return Ok((Some(gate), Stack::load(UP, shape.count, layer)?));
    }
    if let Some(other) = [GATE[0], UP[0]].into_iter().find(|name| layer.has(name)) {
        return Err(ModelError::StoredTwice { tensor: GATE_UP.to_owned(), other: other.to_owned() });
    }
    let (gate, up) = layer.halves(GATE_UP, shape.count)?;
    let gate = Stack { matrices: gate, bias: layer.optional_vector(GATE[1])? };
    Ok((Some(gate), Stack { matrices: up, bias: layer.optional_vector(UP[1])? }))
}

impl Stack {
    fn load(
        [weights, bias]: [&str; 2],
        count: usize,
        layer: &mut LayerLoader<'_, '_>,
    ) -> Result<Stack, ModelError> {
        Ok(Stack { matrices: layer.stack(weights, count)?, bias: layer.optional_vector(bias)? })
    }

    /// Adds to the rows of every group the bias of its expert; `out` is `[places, rows of a matrix]`.
    fn add_bias(&self, pool: &Pool, out: &mut [f32], groups: &Groups) {
        let Some(bias) = &self.bias else { return };
        let width = self.matrices[0].rows();
        for group in groups.groups() {
            let rows = &mut out[group.rows.start * width..group.rows.end * width];
            add_bias(pool, rows, &bias[group.matrix * width..][..width]);
        }
    }
}

impl Shared {
    /// Computes its outputs for rows `h`, and their weights.
    fn run(
        &self,
        pool: &Pool,
        h: &[f32],
        inputs: &Activations,
        (dense, buffers): (&mut super::dense::Buffers, &mut Buffers),
        adapt: &mut dyn Adapt,
    ) {
        let Buffers { shared, shared_weights, .. } = buffers;
        shared.resize(h.len(), 0.0);
        self.dense.project(pool, h, inputs, dense, adapt);
        self.dense.finish(pool, shared, dense, adapt);
        if let Some(gate) = &self.gate {
            shared_weights.resize(inputs.rows(), 0.0);
            matmul(pool, gate, inputs, shared_weights);
            adapt.add(SHARED_GATE, h, shared_weights);
            sigmoid(pool, shared_weights);
        }
    }
}
