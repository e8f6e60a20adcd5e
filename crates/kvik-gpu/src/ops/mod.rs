//! Operations of a step on rows of numbers.

mod elements;
mod experts;
mod matmul;
mod rows;

pub use rows::NO_PLACE;
