//! Converts messages to a prompt, a prompt to tokens, and tokens to an answer.

pub mod answer;
pub mod arguments;
#[cfg_attr(not(feature = "grammars"), path = "unconstrained.rs")]
pub mod constraint;
mod jinja;
mod kinds;
mod references;
pub mod stream;
pub mod template;
pub mod tokenizer;
pub mod tools;
