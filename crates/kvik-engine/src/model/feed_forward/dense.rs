//! One gate, one up and one down for all rows; also the shared expert beside a mixture.

use kvik_kernels::{
    Activated, Activation, Activations, Matrix, Pool, activate, add_bias, matmul, matmul_activated,
    matmul_many,
};

use crate::model::ModelError;
use crate::model::adapt::Adapt;
use crate::model::layer_tensor::{LayerTensor, Presence};
use crate::model::loader::{LayerLoader, Linear};

/// The shape of a dense layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct DenseShape {
    /// Rows of gate and up.
    pub(crate) d_ff: usize,
    /// Says also whether there is a gate.
    pub(crate) activation: Activation,
    /// Biases of all matrices.
    pub(crate) biases: Presence,
    /// Whether gate and up are one tensor, of which gate is the upper half (Phi-3).
    pub(crate) fused: bool,
    /// Of a gate only what is more than so many standard deviations above the mean of its row is left (Gemma 3n).
    pub(crate) sparsity: Option<f32>,
}

/// What the tensors are called in the layer: weight and bias of each matrix.
pub(crate) struct DenseNames {
    pub(crate) gate: [&'static str; 2],
    pub(crate) up: [&'static str; 2],
    pub(crate) down: [&'static str; 2],
}

/// Names where the layer is dense.
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
}

/// The weights of a dense layer.
pub(crate) struct Dense {
    names: &'static DenseNames,
    activation: Activation,
    sparsity: Option<f32>,
    /// `[d_ff, d_model]`, of a gated activation
    gate: Option<Linear>,
    /// `[d_ff, d_model]`
    up: Linear,
    /// `[d_model, d_ff]`
    down: Linear,
}

/// Buffers of a dense layer.
#[derive(Default)]
pub(super) struct Buffers {
    /// `[n, d_ff]` each, where something stands between products and activation; then what that made of them.
    gate: Vec<f32>,
    up: Vec<f32>,
    /// What the activation made of them, as the last product takes it.
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

    /// The matrices that take the input.
    pub(super) fn takers(&self) -> Vec<&Matrix> {
        self.gate.iter().chain([&self.up]).map(|linear| &linear.matrix).collect()
    }

    pub(super) fn matrices(&self) -> Vec<&Matrix> {
        self.gate.iter().chain([&self.up, &self.down]).map(|linear| &linear.matrix).collect()
    }

    /// From rows `x`, `[n, d_model]`, whose forms are `inputs`, to what the activation makes of them.
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

    /// Whether nothing stands between the products and the activation.
    fn is_plain(&self) -> bool {
        let biased = self.gate.iter().chain([&self.up]).any(|linear| linear.bias.is_some());
        !biased && self.sparsity.is_none()
    }

    /// Gate and up as rows of numbers, which adapters and biases add to.
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

    /// From there to the output, `[n, d_model]`.
    pub(super) fn finish(&self, pool: &Pool, out: &mut [f32], buffers: &Buffers, adapt: &mut dyn Adapt) {
        let Buffers { gate, up, hidden } = buffers;
        matmul(pool, &self.down.matrix, hidden, out);
        // Of adapters that are silent nobody reads these rows, which are not there then.
        add(pool, &self.down, self.names.down[0], self.activated(gate, up), out, adapt);
    }

    /// Where the activation leaves its rows: it replaces the gate, or what has none.
    fn activated<'a>(&self, gate: &'a [f32], up: &'a [f32]) -> &'a [f32] {
        if self.gate.is_some() { gate } else { up }
    }
}

/// What adapters and the bias add to the product of `x` with a matrix.
fn add(pool: &Pool, linear: &Linear, name: &'static str, x: &[f32], out: &mut [f32], adapt: &mut dyn Adapt) {
    adapt.add(name, x, out);
    if let Some(bias) = &linear.bias {
        add_bias(pool, out, bias);
    }
}

/// Of each row of `gate`, `[n, d_ff]`, leaves what is more than `deviations` standard deviations above its mean: by how
/// much it is.
fn keep_outliers(pool: &Pool, gate: &mut [f32], d_ff: usize, deviations: f32) {
    pool.run_chunks(gate, d_ff, |_, row| {
        let mean = row.iter().map(|&x| f64::from(x)).sum::<f64>() / d_ff as f64;
        let squares: f64 = row.iter().map(|&x| (f64::from(x) - mean).powi(2)).sum();
        let deviation = (squares / (d_ff as f64 - 1.0).max(1.0)).sqrt();
        let least = (mean + deviation * f64::from(deviations)) as f32;
        row.iter_mut().for_each(|x| *x = (*x - least).max(0.0));
    });
}
