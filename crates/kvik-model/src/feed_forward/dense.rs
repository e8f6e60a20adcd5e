//! A dense feed-forward layer: gate, up and down for all rows; also used for the shared expert of a mixture.

use kvik_kernels::{
    Activated, Activation, Activations, Matrix, Pool, activate, add_bias, matmul, matmul_activated,
    matmul_many,
};

use crate::ModelError;
use crate::adapt::Adapt;
use crate::layer_tensor::{LayerTensor, Presence};
use crate::loader::{LayerLoader, Linear};

/// The shape of a dense layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DenseShape {
    /// Rows of gate and up.
    pub(crate) d_ff: usize,
    /// Determines also whether there is a gate.
    pub(crate) activation: Activation,
    /// Biases of all matrices.
    pub(crate) biases: Presence,
    /// Whether gate and up are one tensor, whose upper half is the gate (Phi-3).
    pub(crate) fused: bool,
    /// Gates are zeroed unless they are more than this many standard deviations above the mean of their row (Gemma 3n).
    pub(crate) sparsity: Option<f32>,
}

/// Names of the tensors in the layer: weight and bias of each matrix.
pub(crate) struct DenseNames {
    pub(crate) gate: [&'static str; 2],
    pub(crate) up: [&'static str; 2],
    pub(crate) down: [&'static str; 2],
}

/// Names of a dense layer.
pub(crate) const LAYER: DenseNames = DenseNames {
    gate: ["ffn_gate.weight", "ffn_gate.bias"],
    up: ["ffn_up.weight", "ffn_up.bias"],
    down: ["ffn_down.weight", "ffn_down.bias"],
};

/// Names of the shared expert.
pub(crate) const SHARED: DenseNames = DenseNames {
    gate: ["ffn_gate_shexp.weight", "ffn_gate_shexp.bias"],
    up: ["ffn_up_shexp.weight", "ffn_up_shexp.bias"],
    down: ["ffn_down_shexp.weight", "ffn_down_shexp.bias"],
};

impl DenseShape {
    /// A layer without optional parts.
    pub(crate) fn plain(d_ff: usize, activation: Activation) -> DenseShape {
        DenseShape { d_ff, activation, biases: Presence::Absent, fused: false, sparsity: None }
    }

    pub(super) fn tensors(self, names: &DenseNames, d_model: usize) -> Vec<LayerTensor> {
        if self.fused {
            return vec![
                (names.up[0], 2 * self.d_ff, d_model, Presence::Required),
                (names.down[0], d_model, self.d_ff, Presence::Required),
            ];
        }
        let gate = if self.activation.is_gated() { Presence::Required } else { Presence::Absent };
        let gate_bias = if self.activation.is_gated() { self.biases } else { Presence::Absent };
        vec![
            (names.gate[0], self.d_ff, d_model, gate),
            (names.up[0], self.d_ff, d_model, Presence::Required),
            (names.down[0], d_model, self.d_ff, Presence::Required),
            (names.gate[1], 1, self.d_ff, gate_bias),
            (names.up[1], 1, self.d_ff, self.biases),
            (names.down[1], 1, d_model, self.biases),
        ]
    }

    /// The matrices in the upper and the lower half of a tensor, if it holds both gate and up.
    pub(super) fn halves(self, names: &DenseNames, tensor: &str) -> Option<[&'static str; 2]> {
        (self.fused && tensor == names.up[0]).then_some([names.gate[0], names.up[0]])
    }
}

/// The weights of a dense layer.
pub(crate) struct Dense {
    names: &'static DenseNames,
    activation: Activation,
    sparsity: Option<f32>,
    /// `[d_ff, d_model]`, for gated activations
    gate: Option<Linear>,
    /// `[d_ff, d_model]`
    up: Linear,
    /// `[d_model, d_ff]`
    down: Linear,
}

/// Buffers of a dense layer.
#[derive(Default)]
pub(super) struct Buffers {
    /// `[n, d_ff]` each, if something is computed between products and activation; then the output of the activation.
    gate: Vec<f32>,
    up: Vec<f32>,
    /// The output of the activation, in the form that the last product takes.
    hidden: Activations,
}

impl Dense {
    pub(super) fn load(
        shape: DenseShape,
        names: &'static DenseNames,
        layer: &mut LayerLoader<'_, '_>,
    ) -> Result<Dense, ModelError> {
        if shape.fused {
            return Dense::load_fused(shape, names, layer);
        }
        let mut linear = |[weight, bias]: [&str; 2]| -> Result<Linear, ModelError> {
            Ok(Linear { matrix: layer.matrix(weight)?, bias: layer.optional_vector(bias)? })
        };
        let gate = shape.activation.is_gated().then(|| linear(names.gate)).transpose()?;
        let (up, down) = (linear(names.up)?, linear(names.down)?);
        Ok(Dense { names, activation: shape.activation, sparsity: shape.sparsity, gate, up, down })
    }

    fn load_fused(
        shape: DenseShape,
        names: &'static DenseNames,
        layer: &mut LayerLoader<'_, '_>,
    ) -> Result<Dense, ModelError> {
        let mut linears =
            layer.stack(names.up[0], 2)?.into_iter().map(|matrix| Linear { matrix, bias: None });
        let (gate, up) = (linears.next(), linears.next().expect("a stack of two"));
        let down = Linear { matrix: layer.matrix(names.down[0])?, bias: None };
        Ok(Dense { names, activation: shape.activation, sparsity: shape.sparsity, gate, up, down })
    }

    pub(super) fn d_model(&self) -> usize {
        self.up.matrix.cols()
    }

    /// The matrices that multiply the input.
    pub(super) fn takers(&self) -> Vec<&Matrix> {
        self.gate.iter().chain([&self.up]).map(|linear| &linear.matrix).collect()
    }

    pub(super) fn matrices(&self) -> Vec<&Matrix> {
        self.gate.iter().chain([&self.up, &self.down]).map(|linear| &linear.matrix).collect()
    }

    /// Computes the output of the activation from rows `x`, `[n, d_model]`, whose quantised forms are `inputs`.
    pub(super) fn project(
        &self,
        pool: &Pool,
        x: &[f32],
        inputs: &Activations,
        buffers: &mut Buffers,
        adapt: &mut dyn Adapt,
    ) {
        if self.is_plain() && adapt.is_silent() {
            let gate = self.gate.as_ref().map(|gate| &gate.matrix);
            let layer = Activated { activation: self.activation, gate, up: &self.up.matrix };
            return matmul_activated(pool, layer, inputs, &mut buffers.hidden, &[&self.down.matrix]);
        }
        self.project_apart(pool, x, inputs, buffers, adapt);
        let (Buffers { gate, up, hidden }, down) = (buffers, &self.down.matrix);
        hidden.set(pool, self.activated(gate, up), down.cols(), &[down]);
    }

    /// Whether nothing is computed between the products and the activation.
    fn is_plain(&self) -> bool {
        let biased = self.gate.iter().chain([&self.up]).any(|linear| linear.bias.is_some());
        !biased && self.sparsity.is_none()
    }

    /// Gate and up as rows of numbers, to which adapters and biases are added.
    fn project_apart(
        &self,
        pool: &Pool,
        x: &[f32],
        inputs: &Activations,
        buffers: &mut Buffers,
        adapt: &mut dyn Adapt,
    ) {
        let Buffers { gate: gated, up: projected, .. } = buffers;
        let (up, n) = (&self.up, inputs.rows());
        projected.resize(n * up.matrix.rows(), 0.0);
        let Some(gate) = &self.gate else {
            matmul(pool, &up.matrix, inputs, projected);
            add(pool, up, self.names.up[0], x, projected, adapt);
            return activate(pool, self.activation, projected, &[]);
        };
        gated.resize(n * gate.matrix.rows(), 0.0);
        let mut jobs = [(&gate.matrix, &mut gated[..]), (&up.matrix, &mut projected[..])];
        matmul_many(pool, &mut jobs, inputs);
        add(pool, gate, self.names.gate[0], x, gated, adapt);
        add(pool, up, self.names.up[0], x, projected, adapt);
        if let Some(deviations) = self.sparsity {
            keep_outliers(pool, gated, gate.matrix.rows(), deviations);
        }
        activate(pool, self.activation, gated, projected);
    }

    /// Computes the layer's output, `[n, d_model]`, from the output of the activation.
    pub(super) fn finish(&self, pool: &Pool, out: &mut [f32], buffers: &Buffers, adapt: &mut dyn Adapt) {
        let Buffers { gate, up, hidden } = buffers;
        matmul(pool, &self.down.matrix, hidden, out);
        // If no adapter is active, these rows are not read, and need not exist.
        add(pool, &self.down, self.names.down[0], self.activated(gate, up), out, adapt);
    }

    /// The buffer with the output of the activation: it replaces the gate, or `up` without a gate.
    fn activated<'a>(&self, gate: &'a [f32], up: &'a [f32]) -> &'a [f32] {
        if self.gate.is_some() { gate } else { up }
    }
}

/// Adds the contributions of adapters and the bias to the product of `x` with a matrix.
fn add(pool: &Pool, linear: &Linear, name: &'static str, x: &[f32], out: &mut [f32], adapt: &mut dyn Adapt) {
    adapt.add(name, x, out);
    if let Some(bias) = &linear.bias {
        add_bias(pool, out, bias);
    }
}

/// Replaces each element of `gate`, `[n, d_ff]`, by its excess over `deviations` standard deviations above the mean of
/// its row, or by 0.
fn keep_outliers(pool: &Pool, gate: &mut [f32], d_ff: usize, deviations: f32) {
    pool.run_chunks(gate, d_ff, |_, row| {
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / d_ff as f64;
        let squares: f64 = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
        let deviation = (squares / (d_ff as f64 - 1.0).max(1.0)).sqrt();
        let least = (mean + deviation * f64::from(deviations)) as f32;
        row.iter_mut().for_each(|x| *x = (*x - least).max(0.0));
    });
}
