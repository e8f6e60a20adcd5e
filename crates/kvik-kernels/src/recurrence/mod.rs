//! Recurrent layers, which store a state of constant size instead of keys and values of every position.
//!
//! `convolution` stores the last inputs of each channel, `linear` a matrix for each head; `time` computes the
//! decay of the matrices. A state processes rows one by one, in the order of their positions, each with the same
//! operations: the division of rows into batches changes no bit. Tasks are parts of states, never parts of a sum.

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
