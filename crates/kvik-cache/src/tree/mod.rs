//! The prefix tree over token ids: nodes, what their blocks hold, and how prompts are matched against them.

mod components;
mod labels;
mod node;
mod radix;
mod walk;

pub(crate) use node::Node;
pub(crate) use radix::Radix;
pub(crate) use walk::{PartialMatch, Walk};
