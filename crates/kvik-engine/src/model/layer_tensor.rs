//! What the tensors of a layer are called, and whether they must be there.

/// A tensor of a layer: name in the layer, rows, columns, and whether it must be there. Of a stack of matrices the
/// rows of all.
pub(crate) type LayerTensor = (&'static str, usize, usize, Presence);

/// Whether a tensor belongs to a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Always there.
    Required,
    /// Used where the file has it.
    Optional,
    /// Not part of the architecture.
    Absent,
}

/// Weights of the norm behind the state of a recurrent layer.
pub(crate) const SSM_NORM: &str = "ssm_norm.weight";

/// Whether a tensor, by its name, holds the same matrix of every expert. Adapters cannot change those.
pub(crate) fn is_stack(name: &str) -> bool {
    name.ends_with("_exps.weight")
}

/// The matrix of one expert of a stack, by the name of the stack: where a file has a tensor for each.
pub(crate) fn part_of_stack(stack: &str, expert: usize) -> String {
    format!("{}.{expert}.weight", stack.strip_suffix(".weight").unwrap_or(stack))
}

/// A stack whose matrices all stand the other way round, by the name of the stack: as checkpoints of Llama 4 have them.
pub(crate) fn turned_stack(stack: &str) -> String {
    format!("{}.turned", stack.strip_suffix(".weight").unwrap_or(stack))
}
