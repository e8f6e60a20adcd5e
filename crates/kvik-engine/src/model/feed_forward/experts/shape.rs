//! The numbers of a mixture of experts, and the tensors that follow from them.

use kvik_kernels::Activation;

use crate::model::ConfigError;
use crate::model::feed_forward::dense::{DenseShape, SHARED};
use crate::model::layer_tensor::{LayerTensor, Presence};

/// The most experts that a layer may have.
const COUNT_MAX: usize = 1024;

/// The most rows of an expert's gate and up.
const D_FF_MAX: usize = 1 << 20;

/// The shape of a mixture of experts.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct ExpertsShape {
    /// How many there are.
    pub(crate) count: usize,
    /// How many a row goes to.
    pub(crate) used: usize,
    /// Rows of an expert's gate and up.
    pub(crate) d_ff: usize,
    /// Of every expert, and of the shared one.
    pub(crate) activation: Activation,
    /// Biases of the router and of all experts.
    pub(crate) biases: Presence,
    pub(crate) gating: Gating,
    /// What is added to probabilities when experts are chosen.
    pub(crate) selection_bias: Presence,
    /// Of DeepSeek V3, whose experts stand in groups.
    pub(crate) groups: Option<ExpertGroups>,
    /// Whether the weights of a row are brought to a sum of one.
    pub(crate) normalised: bool,
    /// Multiplies all weights; 1 changes nothing.
    pub(crate) scale: f32,
    pub(crate) weighted: Weighted,
    /// Factors of what each expert gives (Gemma 4).
    pub(crate) output_scale: Presence,
    /// An expert that all rows go to.
    pub(crate) shared: Option<SharedShape>,
}

/// What the scores of a router become.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gating {
    /// Probabilities over all experts, of which the greatest are chosen.
    Softmax,
    /// The greatest scores are chosen, and probabilities are over those (gpt-oss).
    SoftmaxOfChosen,
    /// Each score by itself between 0 and 1, of which the greatest are chosen (DeepSeek V3).
    Sigmoid,
    /// The greatest scores are chosen, and those brought between 0 and 1 (Llama 4).
    SigmoidOfChosen,
}

/// Experts in equal groups, of which a row first chooses some by the sum of the two greatest scores in each.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ExpertGroups {
    /// How many there are; a divisor of the number of experts.
    pub(crate) count: usize,
    /// How many a row chooses.
    pub(crate) used: usize,
}

/// Where the weight of an expert is applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Weighted {
    /// To its output.
    Output,
    /// To its input (Llama 4).
    Input,
}

/// The shape of the expert that all rows go to.
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
/// What the output of each expert is multiplied by.
pub(crate) const DOWN_SCALE: &str = "ffn_down_exps.scale";
/// Gate and up of each expert, one below the other, in the place of both.
pub(crate) const GATE_UP: &str = "ffn_gate_up_exps.weight";
pub(crate) const SHARED_GATE: &str = "ffn_gate_inp_shexp.weight";

impl ExpertsShape {
    /// Gate and up may stand in one tensor or in two: which, the file says.
    pub(in crate::model::feed_forward) fn tensors(self, d_model: usize) -> Vec<LayerTensor> {
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

    /// Refuses numbers that contradict each other.
    pub(in crate::model::feed_forward) fn check(&self) -> Result<(), ConfigError> {
        ConfigError::within("number of experts", self.count, COUNT_MAX)?;
        ConfigError::within("number of experts that a token goes to", self.used, self.count)?;
        ConfigError::within("feed-forward length of experts", self.d_ff, D_FF_MAX)?;
        ConfigError::within(
            "feed-forward length of the shared expert",
            self.shared.map_or(1, |shared| shared.d_ff),
            D_FF_MAX,
        )?;
        if let Some(ExpertGroups { count, used }) = self.groups {
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
