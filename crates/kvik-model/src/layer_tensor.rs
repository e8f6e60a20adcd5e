//! Names of the tensors of a layer, and whether they are required.

/// A tensor of a layer: name in the layer, rows, columns, and presence. For a stack of matrices, the rows of all of
/// them.
pub(crate) type LayerTensor = (&'static str, usize, usize, Presence);

/// Whether a tensor belongs to a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Required.
    Required,
    /// Used if the file has it.
    Optional,
    /// Not part of the architecture.
    Absent,
}

/// Weights of the norm after the state of a recurrent layer.
pub(crate) const SSM_NORM: &str = "ssm_norm.weight";

/// The matrix of a prediction head that joins embedding and hidden state.
pub(crate) const HEAD_JOIN: &str = "nextn.eh_proj.weight";
/// The norm of the embedding in a prediction head.
pub(crate) const HEAD_EMBEDDING_NORM: &str = "nextn.enorm.weight";
/// The norm of the hidden state in a prediction head.
pub(crate) const HEAD_HIDDEN_NORM: &str = "nextn.hnorm.weight";
/// The norm before the output matrix of a prediction head, if it is not the model's.
pub(crate) const HEAD_NORM: &str = "nextn.shared_head_norm.weight";
/// The embedding of a prediction head, if it is not the model's.
pub(crate) const HEAD_EMBEDDING: &str = "nextn.embed_tokens.weight";
/// The output matrix of a prediction head, if it is not the model's.
pub(crate) const HEAD_OUTPUT: &str = "nextn.shared_head_head.weight";

/// Whether the tensor with this name stacks one matrix of every expert. Adapters cannot change those.
pub(crate) fn is_stack(name: &str) -> bool {
    name.ends_with("_exps.weight")
}

/// The matrix of one expert of a stack, by the name of the stack: for files with a tensor for each expert.
pub(crate) fn part_of_stack(stack: &str, expert: usize) -> String {
    format!("{}.{expert}.weight", stack.strip_suffix(".weight").unwrap_or(stack))
}

/// A stack of transposed matrices, by the name of the stack: as in checkpoints of Llama 4.
pub(crate) fn transposed_stack(stack: &str) -> String {
    format!("{}.turned", stack.strip_suffix(".weight").unwrap_or(stack))
}
