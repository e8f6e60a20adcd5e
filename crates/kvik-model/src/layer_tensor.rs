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
