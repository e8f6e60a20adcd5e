//! Errors of a retention.

/// Why a retention cannot be used: each variant names the field and what to write instead.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RetentionError {
    /// The policy's name is unknown.
    #[error("policy: unknown retention policy `{name}`; known: {known}")]
    UnknownPolicy {
        /// The requested name.
        name: String,
        /// The names of all policies, separated by commas.
        known: String,
    },
    /// The policy has no such option.
    #[error("{option}: {policy} has no such option; it has {known}", known = known.join(", "))]
    UnknownOption {
        /// The policy's name.
        policy: &'static str,
        /// The requested option.
        option: String,
        /// The options of the policy.
        known: Vec<&'static str>,
    },
    /// An option without `=` and a value.
    #[error("{0}: has no value; options are written `name=value`, separated by commas")]
    NoValue(String),
    /// The value of a field is invalid.
    #[error("{field}: `{value}` is not {expected}")]
    Value {
        /// The field.
        field: &'static str,
        /// Its value.
        value: String,
        /// The valid values.
        expected: String,
    },
    /// The amount is less than the number of forced positions.
    #[error(
        "keep: {keep} tokens are fewer than the first {first} and the last {last} positions, which are kept always; \
         keep at least {needed}, or lower sinks, recent, protect or the policy's window",
        needed = first.saturating_add(*last)
    )]
    KeepBelowForced {
        /// Tokens to retain.
        keep: usize,
        /// Leading forced positions.
        first: usize,
        /// Latest forced positions.
        last: usize,
    },
    /// The model has too few KV heads or layers for this budget to divide anything.
    #[error("budget: `{budget}` needs a model with {needed}; write budget=head")]
    BudgetNeeds {
        /// The budget.
        budget: String,
        /// The layers or KV heads that the budget needs.
        needed: &'static str,
    },
    /// The calibrated budget lacks an importance of every KV head.
    #[error(
        "budget: `calibrated` needs the measured importance of every KV head of this model; calibrate it first"
    )]
    NotCalibrated,
    /// The policy needs gates, and none were trained for this model.
    #[error(
        "policy: `gated` goes by gates that are trained for each model, and this one has none; run `kvik eval --calibrate`, \
         or use keydiff, which needs none"
    )]
    NoGates,
    /// The model has layers with a window of positions, which a policy cannot compress.
    #[error(
        "policy: the model has layers that see a window of positions or keep a state, and retention is for layers that \
         see all"
    )]
    Windows,
    /// The model has latent attention, whose keys are vectors shared by all heads, which policies do not support.
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
    /// The prompt exceeds the context, and this policy cannot compress it during prefill.
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
    /// The invalid field: `policy`, `keep`, or the name of an option.
    pub fn field(&self) -> &str {
        match self {
            RetentionError::UnknownPolicy { .. }
            | RetentionError::PromptLong { .. }
            | RetentionError::NoGates
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
