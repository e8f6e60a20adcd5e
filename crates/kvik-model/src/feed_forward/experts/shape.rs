//! The settings of a mixture of experts, and the tensors that follow from them.

use kvik_kernels::Activation;

use crate::ConfigError;
use crate::feed_forward::dense::{DenseShape, SHARED};
use crate::layer_tensor::{LayerTensor, Presence};

/// Maximum number of experts of a layer.
const COUNT_MAX: usize = 1024;

/// Maximum number of rows of an expert's gate and up.
const D_FF_MAX: usize = 1 << 20;

/// The shape of a mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ExpertsShape {
    /// Number of experts.
    pub(crate) count: usize,
    /// Number of experts per row.
    pub(crate) used: usize,
    /// Rows of an expert's gate and up.
    pub(crate) d_ff: usize,
    /// The activation of every expert, and of the shared one.
    pub(crate) activation: Activation,
    /// Biases of the router and of all experts.
    pub(crate) biases: Presence,
    pub(crate) gating: Gating,
    /// Added to probabilities when experts are chosen.
    pub(crate) selection_bias: Presence,
    /// Groups of experts (DeepSeek V2 and V3).
    pub(crate) groups: Option<ExpertGroups>,
    /// Whether the weights of a row are normalised to a sum of one.
    pub(crate) normalised: bool,
    /// Factor of all weights; 1 changes nothing.
    pub(crate) scale: f32,
    pub(crate) weighted: Weighted,
    /// Factors of the output of each expert (Gemma 4).
    pub(crate) output_scale: Presence,
    /// A shared expert for all rows.
    pub(crate) shared: Option<SharedShape>,
}

/// The function applied to the scores of a router.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gating {
    /// Softmax over all experts, of which the greatest probabilities are chosen.
    Softmax,
    /// Softmax over the greatest scores, which are chosen first (gpt-oss).
    SoftmaxOfChosen,
    /// Sigmoid of each score, of which the greatest are chosen (DeepSeek V3).
    Sigmoid,
    /// Sigmoid of the greatest scores, which are chosen first (Llama 4).
    SigmoidOfChosen,
}

/// Experts in groups of equal size, of which a row first chooses some by the sum of the greatest scores in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertGroups {
    /// Number of groups; a divisor of the number of experts.
    pub(crate) count: usize,
    /// Number of groups that a row chooses.
    pub(crate) used: usize,
    /// Number of scores in the sum: one in DeepSeek V2, two in later models.
    pub(crate) best: usize,
}

/// The operand to which the weight of an expert applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weighted {
    /// Its output.
    Output,
    /// Its input (Llama 4).
    Input,
}

/// The shape of the shared expert of all rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SharedShape {
    /// Rows of its gate and up.
    pub(crate) d_ff: usize,
    /// A row whose product with the input, through a sigmoid, is its weight (Qwen2-MoE).
    pub(crate) gate: Presence,
}

/// Names of the tensors in the layer: weights and biases of stacks.
pub(crate) const ROUTER: [&str; 2] = ["ffn_gate_inp.weight", "ffn_gate_inp.bias"];
pub(crate) const SELECTION: &str = "exp_probs_b.bias";
pub(crate) const GATE: [&str; 2] = ["ffn_gate_exps.weight", "ffn_gate_exps.bias"];
pub(crate) const UP: [&str; 2] = ["ffn_up_exps.weight", "ffn_up_exps.bias"];
pub(crate) const DOWN: [&str; 2] = ["ffn_down_exps.weight", "ffn_down_exps.bias"];
/// Factors of the outputs of the experts.
pub(crate) const DOWN_SCALE: &str = "ffn_down_exps.scale";
/// Gate and up of each expert in one tensor, one below the other.
pub(crate) const GATE_UP: &str = "ffn_gate_up_exps.weight";
pub(crate) const SHARED_GATE: &str = "ffn_gate_inp_shexp.weight";

impl ExpertsShape {
    /// Its tensors. Gate and up may be in one tensor or in two, depending on the file.
    pub(in crate::feed_forward) fn tensors(self, d_model: usize) -> Vec<LayerTensor> {
        let ExpertsShape { count, d_ff, biases, .. } = self;
        let (stacked, gated) = (count.saturating_mul(d_ff), self.activation.is_gated());
        let of_gate = |presence| if gated { presence } else { Presence::Absent };
        let up = if gated { Presence::Optional } else { Presence::Required };
        let mut tensors = vec![
            (ROUTER[0], count, d_model, Presence::Required),
            (ROUTER[1], 1, count, biases),
            (SELECTION, 1, count, self.selection_bias),
            (GATE_UP, stacked.saturating_mul(2), d_model, of_gate(Presence::Optional)),
            (GATE[0], stacked, d_model, of_gate(Presence::Optional)),
            (UP[0], stacked, d_model, up),
            (DOWN[0], count.saturating_mul(d_model), d_ff, Presence::Required),
            (GATE[1], count, d_ff, of_gate(biases)),
            (UP[1], count, d_ff, biases),
            (DOWN[1], count, d_model, biases),
            (DOWN_SCALE, 1, count, self.output_scale),
        ];
        if let Some(shared) = self.shared {
            tensors.extend(self.shared_shape(shared).tensors(&SHARED, d_model));
            tensors.push((SHARED_GATE, 1, d_model, shared.gate));
        }
        tensors
    }

    pub(crate) fn shared_shape(&self, shared: SharedShape) -> DenseShape {
        DenseShape::plain(shared.d_ff, self.activation)
    }

    /// Returns an error if settings contradict each other.
    pub(in crate::feed_forward) fn check(&self) -> Result<(), ConfigError> {
        ConfigError::within("number of experts", self.count, COUNT_MAX)?;
        ConfigError::within("number of experts that a token goes to", self.used, self.count)?;
        ConfigError::within("feed-forward length of experts", self.d_ff, D_FF_MAX)?;
        ConfigError::within(
            "feed-forward length of the shared expert",
            self.shared.map_or(1, |shared| shared.d_ff),
            D_FF_MAX,
        )?;
        if let Some(ExpertGroups { count, used, best: _ }) = self.groups {
            ConfigError::within("number of groups of experts", count, self.count)?;
            ConfigError::within("number of groups that a token goes to", used, count)?;
            let members = self.count / count;
            if !self.count.is_multiple_of(count) || members * used < self.used {
                let expected =
                    format!("a divisor of {} with {} experts in {used} groups", self.count, self.used);
                return Err(ConfigError::new("number of groups of experts", count, expected));
            }
        }
        match self.scale.is_finite() {
            true => Ok(()),
            false => Err(ConfigError::new("scale of the experts' weights", self.scale, "a number")),
        }
    }
}
