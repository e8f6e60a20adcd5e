//! Layers that keep a state of constant size instead of keys and values of every position.
//!
//! `convolution` remembers the last inputs of each channel, `linear` a matrix for each head; `time` makes what the
//! matrices decay by. A state takes one row after the other, in the order of their positions, each with the same
//! operations: how rows are cut into batches changes no bit. Tasks are parts of states, never parts of a sum.

mod arena;
mod convolution;
mod kernel;
mod linear;
mod rows;
#[cfg(test)]
mod tests;
mod time;
mod variants;

pub use arena::StateArena;
pub use convolution::{ConvWeights, convolve};
pub use linear::{Columns, KeySharing, LinearInputs, LinearShape, StateRule, advance, unit_norm};
pub use rows::StateRows;
pub use time::{decays, softplus};
