//! What sets the architectures apart. A new one is a file here, a variant of [`Arch`] and,
//! where it computes something new, a step in `decoder`.

mod llama;
mod qwen2;
mod qwen3;

use super::Arch;

/// Which optional parts a decoder of this architecture has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Biases on the q, k and v projections, and whether they must be there.
    pub(crate) qkv_bias: Presence,
    /// Bias on the output projection of attention.
    pub(crate) output_bias: Presence,
    /// RMSNorm on every query and key head, before rotation.
    pub(crate) qk_norm: Presence,
}

/// Whether a tensor belongs to an architecture.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Presence {
    /// Always there.
    Required,
    /// Used where the file has it.
    Optional,
    /// Not part of the architecture.
    Absent,
}

impl Arch {
    /// The optional parts of this architecture.
    pub(crate) fn parts(self) -> Parts {
        match self {
            Arch::Llama => llama::PARTS,
            Arch::Qwen2 => qwen2::PARTS,
            Arch::Qwen3 => qwen3::PARTS,
        }
    }
}
