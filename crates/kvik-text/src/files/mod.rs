//! Model files, which are hostile input: GGUF, Hugging Face directories, and the tensors in both.
//!
//! The module knows no model: `kvik-engine` interprets the metadata of a file.

pub mod bytes;
mod error;
pub mod gguf;
pub mod hf;
mod known;
pub mod small;
mod source;
mod stamp;
mod view;

pub use error::FileError;
pub use known::KnownDigests;
pub use source::TensorSource;
pub use stamp::Stamp;
pub use view::TensorView;
