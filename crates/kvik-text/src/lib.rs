//! Text and bytes of kvik: reads files of models, converts messages to a prompt, a prompt to tokens, and tokens to an answer
//! of the form that was asked for.
//!
//! Knows no tensor beyond its place in a file, and no engine: `kvik-engine` runs what this crate reads.

#![deny(unsafe_code)]

pub mod answer;
pub mod arguments;
#[cfg_attr(not(feature = "grammars"), path = "unconstrained.rs")]
pub mod constraint;
pub mod files;
pub mod forms;
mod jinja;
mod kinds;
mod references;
pub mod sampler;
pub mod stream;
pub mod template;
pub mod tokenizer;
pub mod tools;
