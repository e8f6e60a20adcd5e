//! Text and bytes of kvik: reads model files, converts messages to a prompt, a prompt to tokens, and tokens to an
//! answer in the requested form.
//!
//! The crate knows the location of tensors in a file but no computation: `kvik-engine` runs the models that
//! it reads.

#![deny(unsafe_code)]

pub mod answer;
pub mod arguments;
#[cfg_attr(not(feature = "grammars"), path = "unconstrained.rs")]
pub mod constraint;
pub mod files;
pub mod forms;
mod jinja;
mod kinds;
pub mod measure;
mod references;
pub mod repetition;
pub mod sampler;
pub mod stream;
pub mod template;
pub mod tokenizer;
pub mod tools;
