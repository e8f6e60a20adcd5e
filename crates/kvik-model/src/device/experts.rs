//! A mixture of experts on the device: [`Experts`](crate::feed_forward::experts) as steps of `kvik-gpu`.
//!
//! The choices of rows are not read back: the kernels after the router read them on the device.

use kvik_gpu::{
    Buffer, Device, DeviceChoices, DeviceError, DeviceMatrix, DeviceStack, Gating, Routing, Step, Weighted,
};
use kvik_text::files::TensorView;

use super::convert::converted;
use super::dense::{DeviceDense, InnerBuffers};
use super::loader::{DeviceLinear, DeviceLoader, in_layer};
use crate::feed_forward::dense::SHARED;
use crate::feed_forward::experts::shape::{DOWN, GATE, GATE_UP, ROUTER, SELECTION, SHARED_GATE, UP};
use crate::feed_forward::{self, ExpertsShape};
use crate::loader::{Loader, rows_of};
use crate::{ExpertsConfig, ModelConfig, ModelError};

/// The weights of a mixture of experts.
pub(super) struct DeviceExperts {
    shape: ExpertsShape,
    routing: Routing,
    /// `[count, d_model]`
    router: DeviceLinear,
    /// `[count]`
    selection_bias: Option<Buffer<f32>>,
    /// `[count][d_ff, d_model]`, for gated activations
    gate: Option<Stack>,
    /// `[count][d_ff, d_model]`
    up: Stack,
    /// `[count][d_model, d_ff]`
    down: Stack,
    shared: Option<Shared>,
}

/// A stack of one matrix of every expert.
struct Stack {
    matrices: DeviceStack,
    /// `[count, rows]`
    bias: Option<Buffer<f32>>,
}

/// The shared expert of all rows.
struct Shared {
    dense: DeviceDense,
    /// `[1, d_model]`
    gate: Option<DeviceMatrix>,
}

/// Buffers of mixtures of experts in addition to those of dense layers.
pub(super) struct ExpertsBuffers {
    /// `[n, count]`
    scores: Buffer<f32>,
    choices: DeviceChoices,
    /// Inputs of experts if the weights apply to them, then outputs: `[n, used, d_model]`.
    rows: Buffer<f32>,
    /// Outputs of the shared expert, `[n, d_model]`, and their weights, `[n]`.
    shared: Buffer<f32>,
    shared_weights: Buffer<f32>,
}

impl ExpertsBuffers {
    pub(super) fn new(
        device: &Device,
        shape: &ExpertsShape,
        [n, d_model]: [usize; 2],
    ) -> Result<ExpertsBuffers, DeviceError> {
        Ok(ExpertsBuffers {
            scores: device.zeros("the scores of experts", n * shape.count)?,
            choices: DeviceChoices::new(device, n, shape.used)?,
            rows: device.zeros("the rows of experts", n * shape.used * d_model)?,
            shared: device.zeros("what the shared expert gives", n * d_model)?,
            shared_weights: device.zeros("the weights of the shared expert", n)?,
        })
    }
}

/// Numbers of rows of a batch from which products with experts use another kernel.
pub(super) fn rows_of_batches(config: &ModelConfig) -> Vec<u32> {
    /// Steps rarely have more rows.
    const ROWS_MAX: usize = 512;
    let Some(ExpertsConfig { count, used, .. }) = config.extras.experts else { return Vec::new() };
    let rows = DeviceChoices::BATCHES.map(|(least, _)| (least * count).div_ceil(used));
    rows.into_iter().filter(|rows| (1..=ROWS_MAX).contains(rows)).map(|rows| rows as u32).collect()
}

/// The routing parameters for the device.
fn routing(shape: &ExpertsShape) -> Routing {
    let gating = match shape.gating {
        feed_forward::Gating::Softmax => Gating::Softmax,
        feed_forward::Gating::SoftmaxOfChosen => Gating::SoftmaxOfChosen,
        feed_forward::Gating::Sigmoid => Gating::Sigmoid,
        feed_forward::Gating::SigmoidOfChosen => Gating::SigmoidOfChosen,
    };
    let ExpertsShape { count, used, normalised, scale, .. } = *shape;
    Routing { count, used, gating, normalised, scale }
}

fn weighted(shape: &ExpertsShape) -> Weighted {
    match shape.weighted {
        feed_forward::Weighted::Output => Weighted::Output,
        feed_forward::Weighted::Input => Weighted::Input,
    }
}

impl DeviceLoader<'_, '_> {
    pub(super) fn experts(&mut self, shape: ExpertsShape, layer: usize) -> Result<DeviceExperts, ModelError> {
        let [router, router_bias] = in_layer(layer, ROUTER);
        let [selection, shared_gate] = in_layer(layer, [SELECTION, SHARED_GATE]);
        let router =
            DeviceLinear { matrix: self.stored_matrix(&router)?, bias: self.optional_vector(&router_bias)? };
        let selection_bias = self.optional_vector(&selection)?;
        let (gate, up) = self.gate_and_up(&shape, layer)?;
        let down = self.stack(layer, DOWN, shape.count)?;
        let shared = match shape.shared {
            Some(shared) => Some(Shared {
                dense: self.dense(&shape.shared_shape(shared), &SHARED, layer)?,
                gate: match self.loader.left.contains(&shared_gate) {
                    true => Some(self.stored_matrix(&shared_gate)?),
                    false => None,
                },
            }),
            None => None,
        };
        Ok(DeviceExperts { shape, routing: routing(&shape), router, selection_bias, gate, up, down, shared })
    }

    /// Gate and up, from one tensor or from two.
    fn gate_and_up(
        &mut self,
        shape: &ExpertsShape,
        layer: usize,
    ) -> Result<(Option<Stack>, Stack), ModelError> {
        let [both, gate, up] = in_layer(layer, [GATE_UP, GATE[0], UP[0]]);
        if !self.loader.has_stack(&both) {
            let is_gated = shape.activation.is_gated();
            let gate = is_gated.then(|| self.stack(layer, GATE, shape.count)).transpose()?;
            return Ok((gate, self.stack(layer, UP, shape.count)?));
        }
        if let Some(other) = [gate, up].into_iter().find(|name| self.loader.left.contains(name)) {
            return Err(ModelError::StoredTwice { tensor: both, other });
        }
        let [mut upper, mut lower] = [(); 2].map(|()| Growing::new(self.device, shape.count));
        self.loader.each_of_stack(&both, shape.count, |loader, name, view| {
            let half = view.rows / 2;
            upper.add(loader, name, &rows_of(view, 0..half))?;
            lower.add(loader, name, &rows_of(view, half..view.rows))
        })?;
        let [gate, up] = [upper, lower].map(Growing::finish);
        let [of_gate, of_up] = in_layer(layer, [GATE[1], UP[1]]);
        let gate = Stack { matrices: gate, bias: self.optional_vector(&of_gate)? };
        Ok((Some(gate), Stack { matrices: up, bias: self.optional_vector(&of_up)? }))
    }

    fn stack(&mut self, layer: usize, names: [&str; 2], count: usize) -> Result<Stack, ModelError> {
        let [weights, bias] = in_layer(layer, names);
        let mut stack = Growing::new(self.device, count);
        self.loader.each_of_stack(&weights, count, |loader, name, view| stack.add(loader, name, view))?;
        Ok(Stack { matrices: stack.finish(), bias: self.optional_vector(&bias)? })
    }
}

/// A stack under construction, expert by expert.
struct Growing<'a> {
    device: &'a Device,
    count: usize,
    written: usize,
    /// `None` before the first expert.
    stack: Option<DeviceStack>,
}

impl Growing<'_> {
    fn new(device: &Device, count: usize) -> Growing<'_> {
        Growing { device, count, written: 0, stack: None }
    }

    /// Uploads the matrix of the next expert.
    fn add(&mut self, loader: &mut Loader<'_>, name: &str, view: &TensorView<'_>) -> Result<(), ModelError> {
        let (ty, bytes) = converted(view, loader.conversion, loader.pool)?;
        let stack = match &mut self.stack {
            Some(stack) if stack.weight_type() == ty => stack,
            Some(_) => {
                let what = format!("{name}: experts in different types");
                return Err(DeviceError::Unsupported { what }.into());
            }
            None => {
                let sizes = [self.count, view.rows, view.cols];
                self.stack.insert(DeviceStack::new(self.device, name, ty, sizes)?)
            }
        };
        stack.write(self.device, self.written, &bytes)?;
        self.written += 1;
        loader.report(view.data.len());
        Ok(())
    }

    fn finish(self) -> DeviceStack {
        self.stack.expect("a mixture has an expert")
    }
}

impl DeviceExperts {
    /// Bytes of matrices.
    pub(super) fn bytes(&self) -> usize {
        let DeviceExperts { router, gate, up, down, shared, .. } = self;
        let stacks: usize = gate.iter().chain([up, down]).map(|stack| stack.matrices.bytes()).sum();
        let of_shared =
            |shared: &Shared| shared.dense.bytes() + shared.gate.as_ref().map_or(0, DeviceMatrix::bytes);
        router.matrix.bytes() + stacks + shared.as_ref().map_or(0, of_shared)
    }

    /// Computes the output of `n` rows `x`; both are `[n, d_model]`.
    pub(super) fn record(
        &self,
        step: &mut Step<'_>,
        (x, n): (&Buffer<f32>, usize),
        (inner, buffers): (&mut InnerBuffers, &mut ExpertsBuffers),
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        let ExpertsBuffers { scores, choices, .. } = buffers;
        self.router.multiply(step, (x, n), scores)?;
        step.route(&self.routing, (scores, self.selection_bias.as_ref()), n, choices)?;
        if let Some(shared) = &self.shared {
            shared.record(step, (x, n), inner, buffers)?;
        }
        self.compute(step, (x, n), inner, buffers)?;
        let ExpertsBuffers { choices, rows, shared, .. } = buffers;
        let d_model = self.down.matrices.rows();
        let sizes = [n, self.shape.used, d_model];
        step.combine(rows, (choices, weighted(&self.shape)), sizes, out)?;
        match &self.shared {
            Some(_) => step.add(out, n * d_model, (shared, n * d_model)),
            None => Ok(()),
        }
    }

    /// Computes the outputs of the experts that rows have chosen.
    fn compute(
        &self,
        step: &mut Step<'_>,
        (x, n): (&Buffer<f32>, usize),
        inner: &mut InnerBuffers,
        ExpertsBuffers { choices, rows, .. }: &mut ExpertsBuffers,
    ) -> Result<(), DeviceError> {
        let ExpertsShape { used, d_ff, activation, .. } = self.shape;
        let chosen = (&*choices, n * used);
        let read = match weighted(&self.shape) {
            Weighted::Output => (x, used),
            Weighted::Input => {
                step.spread(x, choices, [n, used, self.down.matrices.rows()], rows)?;
                (&*rows, 1)
            }
        };
        self.up.multiply(step, chosen, read, &mut inner.up)?;
        if let Some(gate) = &self.gate {
            gate.multiply(step, chosen, read, &mut inner.gate)?;
        }
        let inner = inner.activate(step, activation, n * used * d_ff)?;
        self.down.multiply(step, chosen, (inner, 1), rows)
    }
}

impl Stack {
    /// Multiplies the input of each choice by the matrix of its expert; `read` is the inputs and how many choices share
    /// one.
    fn multiply(
        &self,
        step: &mut Step<'_>,
        chosen: (&DeviceChoices, usize),
        read: (&Buffer<f32>, usize),
        out: &mut Buffer<f32>,
    ) -> Result<(), DeviceError> {
        step.matmul_chosen(&self.matrices, chosen, read, out)?;
        match &self.bias {
            Some(bias) => step.add_chosen(out, chosen, bias, self.matrices.rows()),
            None => Ok(()),
        }
    }
}

impl Shared {
    /// Computes its outputs for `n` rows, times their weights.
    fn record(
        &self,
        step: &mut Step<'_>,
        (x, n): (&Buffer<f32>, usize),
        inner: &mut InnerBuffers,
        ExpertsBuffers { shared, shared_weights, .. }: &mut ExpertsBuffers,
    ) -> Result<(), DeviceError> {
        self.dense.record(step, (x, n), inner, shared)?;
        let Some(gate) = &self.gate else { return Ok(()) };
        step.matmul(gate, x, n, shared_weights)?;
        step.sigmoid(shared_weights, n)?;
        step.scale_rows(shared, [n, gate.cols()], shared_weights)
    }
}
