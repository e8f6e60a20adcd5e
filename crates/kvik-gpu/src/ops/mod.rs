//! Operations of a step on rows of numbers.

mod elements;
mod experts;
mod heads;
mod matmul;
mod rows;

pub use heads::HeadWork;
pub use rows::NO_PLACE;
