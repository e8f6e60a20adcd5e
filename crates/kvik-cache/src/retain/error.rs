//! Why a retention cannot be used.

/// Why a retention cannot be used: each names the field, and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RetentionError {
    /// The policy's name is not known.
    #[error("policy: unknown retention policy `{name}`; known: {known}")]
    UnknownPolicy {
        /// What was asked for.
        name: String,
        /// The names of all policies, with commas between.
        known: String,
    },
    /// The policy has no such option.
    #[error("{option}: {policy} has no such option; it has {known}", known = known.join(", "))]
    UnknownOption {
        /// The policy's name.
        policy: &'static str,
        /// What was asked for.
        option: String,
        /// What there is.
        known: Vec<&'static str>,
    },
    /// An option without `=` and a value.
    #[error("{0}: has no value; options are written `name=value`, separated by commas")]
    NoValue(String),
    /// A field has a value that it cannot have.
    #[error("{field}: `{value}` is not {expected}")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// The values that it can have.
        expected: String,
    },
    /// Fewer tokens than the positions that are kept always.
    #[error(
        "keep: {keep} tokens are fewer than the first {first} and the last {last} positions, which are kept always; \
         keep at least {needed}, or lower sinks, recent, protect or the policy's window",
        needed = first.saturating_add(*last)
    )]
    KeepBelowForced {
        /// Tokens to keep.
        keep: usize,
        /// Leading positions that are kept always.
        first: usize,
        /// Latest positions that are kept always.
        last: usize,
    },
    /// The model has too few KV heads or layers for this budget to divide anything.
    #[error("budget: `{budget}` needs a model with {needed}; write budget=head")]
    BudgetNeeds {
        /// The budget.
        budget: String,
        /// What the model lacks.
        needed: &'static str,
    },
    /// The calibrated budget without an importance of every KV head.
    #[error(
        "budget: `calibrated` needs the measured importance of every KV head of this model; calibrate it first"
    )]
    NotCalibrated,
    /// Layers of the model see a window of positions, which a policy cannot thin.
    #[error(
        "policy: the model has layers that see a window of positions or keep a state, and retention is for layers that \
         see all"
    )]
    Windows,
    /// Keys of the model are vectors that all heads share (latent attention), which policies do not know.
    #[error(
        "policy: the model has latent attention, one vector a position for all heads, and policies judge keys and values \
         of heads; leave retention out (such a position takes few bytes as it is)"
    )]
    Latent,
    /// Keys and values are on a GPU.
    #[error(
        "policy: keys and values are on a GPU, and what a policy judges them by is computed on the processor; leave \
         retention out, or start kvik with --device cpu"
    )]
    Device,
    /// A prompt that this policy cannot thin while it is computed.
    #[error(
        "policy: {policy} looks at the whole prompt at once, so it cannot thin one of {prompt} tokens in a context \
         of {context}; use a policy that thins during prefill, such as keydiff, or a shorter prompt"
    )]
    PromptLong {
        /// The policy's name.
        policy: &'static str,
        /// Tokens of the prompt.
        prompt: usize,
        /// Tokens of the context.
        context: usize,
    },
}

impl RetentionError {
    /// The field that is at fault: `policy`, `keep`, or the name of an option.
    pub fn field(&self) -> &str {
        match self {
            RetentionError::UnknownPolicy { .. }
            | RetentionError::PromptLong { .. }
            | RetentionError::Windows
            | RetentionError::Latent
            | RetentionError::Device => "policy",
            RetentionError::UnknownOption { option, .. } | RetentionError::NoValue(option) => option,
            RetentionError::Value { field, .. } => field,
            RetentionError::KeepBelowForced { .. } => "keep",
            RetentionError::BudgetNeeds { .. } | RetentionError::NotCalibrated => "budget",
        }
    }
}
